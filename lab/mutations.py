"""Take each safeguard out, one at a time: something in the lab must notice, or it guards nothing.

    python -m lab.mutations                     all of them, and the score
    python -m lab.mutations --only fence        those whose name holds this text

A mutation is a change of the text of files, made in a copy of the package. Then its witnesses are asked,
one after another until one fails: the driver's conformance suite (cases whose name holds a word), a test, or a
run of the lab. A witness that cannot even run has noticed nothing.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from lab.results import RESULTS

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "winch"
KEPT = RESULTS / "mutations.json"


@dataclass(frozen=True)
class Mutation:
    """`edits` are (file, text there, text instead); `witnesses` are conformance:WORD, test:PATH, or F3."""

    name: str
    store: str
    title: str
    edits: tuple[tuple[str, str, str], ...]
    witnesses: tuple[str, ...]

    def apply(self, package: Path) -> None:
        for file, old, new in self.edits:
            path = package / "drivers" / file
            text = path.read_text()
            if old not in text:
                raise LookupError(f"{self.name} on {self.store}: {file} does not hold {old!r} any more")
            path.write_text(text.replace(old, new))


SQLITE_LIVE = "AND EXISTS (SELECT 1 FROM winch_session WHERE id = :session AND ended_at IS NULL)"
FENCE = "a finish does not compare the token"
NUMBER = "a step note that arrives late sets the history back"
SESSION = "a claim does not check whether its session has ended"
CRON = "a tick does not record its scheduled times, and no row prevents a second job"
PERMIT = "the end of a claim does not return its permits"
CALLBACK = "the end of a job does not release the jobs that wait for it"
OTHER_END = "a finish with a different outcome is accepted as a repeat of the stored one"
ARCHIVE = "a repeated finish is not looked up in the archive"
FENCED = "a producer of an old route stores no job that has a key or an order"
HANDOVER = "a job that moves to another shard is stored once per message, even after it has ended"
QUEUE_PERMIT = "a job of a tenant that took a permit of its queue ends without returning it"
QUEUE_PERMIT_TEST = (
    "test:tests/storage/test_postgres_turns.py"
    "::test_a_queue_that_gets_a_concurrency_while_jobs_of_tenants_run_gets_its_permits_back"
)
OWN_GATE = "an opening gate makes a job ready that waits at another gate"
ORDER = "members of a FIFO key are numbered in a different order than they were enqueued"
LOCK = "gates are not locked before they are read"
BREAKER = "an attempt that started before a breaker tripped changes the breaker"
OFFER_ENDED = "a job is assigned to a session that has ended"
ROOM_OF_MANY = "a claim takes all candidates of a gate without comparing their number with its room"
OFFER_FULL = "a job is handed over under a limit that is full"
OFFER_MEMBERS = "a member of a FIFO key is handed over before those that stand before it"
OFFER_UNLOCKED = "a job is handed over under a gate that another transaction has"
OFFER_UNHEARD = "a worker does not look for jobs whose notification was lost"
NARROW = "a token restricted to some tasks reaches jobs of other tasks"
PARCEL_TWICE = "a parcel that comes again is stored again"
PARCEL_LOST = "jobs leave a store without a parcel that keeps them"
KEY_HELD = "no job holds a FIFO key of which a member still runs in the other store"
OFFER_TWICE = "a job that arrives by notification and by look-up starts twice"

MUTATIONS = (
    Mutation(
        "back-off", "memory", "the back-off of a loop that cannot reach the store has no upper limit",
        (("../engine/base/service.py", "2.0 ** min(times, MOST_DOUBLINGS)", "2.0**times"),),
        (
            "test:tests/testing/test_long_times.py::test_every_loop_goes_on_after_an_outage[90m]",
            "test:tests/engine/test_service.py::test_a_loop_outlives_any_number_of_failures_in_a_row",
        ),
    ),
    Mutation(
        "fence", "sqlite", FENCE,
        (
            ("sqlite/sql/finish.sql", "\n    AND winch_job.token = :token", ""),
            ("sqlite/sql/finish.sql", "\n    AND token = :token", ""),
        ),
        ("conformance:finish", "F3"),
    ),
    Mutation(
        "note number", "sqlite", NUMBER,
        (("sqlite/sql/note.sql", "note_number >= :number THEN checkpoint", "NULL THEN checkpoint"),),
        ("conformance:reports",),
    ),
    Mutation(
        "note number", "postgres", NUMBER,
        (("postgres/sql/note.sql", "job.note_number >= given.number THEN job.checkpoint", "NULL THEN job.checkpoint"),),
        ("conformance:reports",),
    ),
    Mutation(
        "note number", "redis", NUMBER,
        (("redis/lua/note.lua", "last[2] >= note.number", "false"),),
        ("conformance:reports",),
    ),
    Mutation(
        "parcel number", "sqlite", PARCEL_TWICE,
        (("sqlite/verbs/moves.py", "if last is not None and number <= int(last):", "if False:"),),
        ("conformance:moves",),
    ),
    Mutation(
        "parcel number", "postgres", PARCEL_TWICE,
        (("postgres/verbs/moves.py", "            if number <= int(last):\n                return False", ""),),
        ("conformance:moves",),
    ),
    Mutation(
        "parcel number", "redis", PARCEL_TWICE,
        (("redis/lua/move_in.lua", "if A.number <= tonumber(", "if A.number < -tonumber("),),
        ("conformance:moves",),
    ),
    Mutation(
        "parcel", "sqlite", PARCEL_LOST,
        (("sqlite/verbs/moves.py", "            yield from _keep(parcels.open_key(move), parcels.written(number, jobs))\n", ""),),
        ("conformance:moves",),
    ),
    Mutation(
        "fence", "sqlite", FENCED,
        (("sqlite/verbs/moves.py", "if number < int((yield from _record(parcels.FENCE, at)) or 0):", "if False:"),),
        ("conformance:moves",),
    ),
    Mutation(
        "fence", "postgres", FENCED,
        (("postgres/verbs/moves.py", "if rows and int(rows[0][0]) > number:", "if False:"),),
        ("conformance:moves",),
    ),
    Mutation(
        "fence", "redis", FENCED,
        (("redis/lua/enqueue_special.lua", "if A.fence and A.fence < tonumber", "if A.fence and A.fence < -tonumber"),),
        ("conformance:moves",),
    ),
    Mutation(
        "held key", "sqlite", KEY_HELD,
        (("../engine/moving/holding.py", "        carrier.put(holders)", "        pass"),),
        ("test:tests/engine/test_moving.py::test_a_key_is_held_until_its_member_in_the_source_has_ended",),
    ),
    Mutation(
        "session end", "sqlite", SESSION,
        (("sqlite/sql/claim.sql", SQLITE_LIVE, ""),),
        ("conformance:sessions", "conformance:claim", "conformance:rescue"),
    ),
    Mutation(
        "cron row", "sqlite", CRON,
        (
            ("sqlite/sql/change_schedule.sql", "    AND window_at IN (SELECT value", "    AND 0 AND window_at IN (SELECT value"),
            ("sqlite/sql/change_schedule.sql", "INSERT INTO winch_schedule_run", "INSERT OR IGNORE INTO winch_schedule_run"),
            ("sqlite/sql/change_schedule.sql", "    last_window = excluded.last_window,\n", ""),
        ),
        ("conformance:schedules",),
    ),
    Mutation(
        "permit", "sqlite", PERMIT,
        (("sqlite/sql/admit.sql", "DELETE FROM winch_permit\nWHERE job IN (SELECT value", "DELETE FROM winch_permit\nWHERE 0 AND job IN (SELECT value"),),
        ("conformance:gates",),
    ),
    Mutation(
        "fifo order", "sqlite", ORDER,
        (("sqlite/verbs/enqueue.py", "{job.id: first + index for index, job in enumerate(members)}", "{job.id: first for job in members}"),),
        ("conformance:fifo",),
    ),
    Mutation(
        "own gate", "sqlite", OWN_GATE,
        (
            ("sqlite/sql/admit.sql", "\n    AND winch_job.gate = chosen.value", ""),
            ("sqlite/sql/admit.sql", "\n        AND winch_job.gate = chosen.value", ""),
        ),
        ("conformance:gates",),
    ),
    Mutation(
        "callback", "sqlite", CALLBACK,
        (("sqlite/sql/signal.sql", "SELECT value FROM json_each(:keys)", "SELECT value FROM json_each(:keys) WHERE value NOT LIKE 'job:%'"),),
        ("conformance:waits",),
    ),
    Mutation(
        "archive look-up", "sqlite", ARCHIVE,
        (("sqlite/sql/finish.sql", "FROM winch_archive\nWHERE id IN", "FROM winch_archive\nWHERE 0 AND id IN"),),
        ("conformance:finish",),
    ),
    Mutation(
        "other end", "sqlite", OTHER_END,
        (("sqlite/verbs/finish.py", "changes.is_repeat(ended, end)", "ended is not None"),),
        ("conformance:finish",),
    ),
    Mutation(
        "breaker", "sqlite", BREAKER,
        (("../core/gates/scopes.py", "if to_micros(claimed_at or EPOCH) <= state.tripped_at:", "if False:"),),
        ("conformance:breakers",),
    ),
    Mutation(
        "fence", "postgres", FENCE,
        (
            ("postgres/sql/finish.sql", "\n                    AND job.token = outcome.by_token", ""),
            ("postgres/sql/finish.sql", "WHEN (id, token) IN (\n                SELECT outcome.job, outcome.by_token", "WHEN id IN (\n                SELECT outcome.job"),
        ),
        ("conformance:finish", "F3"),
    ),
    Mutation(
        "session end", "postgres", SESSION,
        (("postgres/sql/claim.sql", "\n        AND ended_at IS NULL", ""),),
        ("conformance:sessions", "conformance:claim", "conformance:rescue"),
    ),
    Mutation(
        "cron row", "postgres", CRON,
        (
            ("postgres/migrations/0001_schema.sql", "PRIMARY KEY (schedule, window_at)", "CHECK (true)"),
            ("postgres/sql/change_schedule.sql", "    last_window = :last_window,\n", ""),
        ),
        ("conformance:schedules", "F29"),
    ),
    Mutation(
        "gate lock", "postgres", LOCK,
        (
            ("postgres/migrations/0001_schema.sql", "PERFORM FROM {schema}.gate WHERE key = ANY (keys) ORDER BY key FOR UPDATE;", "PERFORM FROM {schema}.gate WHERE key = ANY (keys) ORDER BY key;"),
            ("postgres/migrations/0001_schema.sql", "PERFORM FROM {schema}.gate WHERE key = ANY (keys) ORDER BY key FOR NO KEY UPDATE;", "PERFORM FROM {schema}.gate WHERE key = ANY (keys) ORDER BY key;"),
        ),
        ("conformance:gates", "test:tests/faults/test_gates.py::test_without_the_gates_lock_two_claims_would_share_a_permit"),
    ),
    Mutation(
        "permit", "postgres", PERMIT,
        (("postgres/migrations/0001_schema.sql", "DELETE FROM {schema}.permit\n        WHERE job = OLD.id", "DELETE FROM {schema}.permit\n        WHERE false AND job = OLD.id"),),
        ("conformance:gates",),
    ),
    Mutation(
        "gated permit", "postgres", PERMIT,
        (("postgres/migrations/0001_schema.sql", "DELETE FROM {schema}.permit WHERE permit.job = ANY (ended)", "DELETE FROM {schema}.permit WHERE false AND permit.job = ANY (ended)"),),
        ("conformance:gates",),
    ),
    Mutation(
        "gated fence", "postgres", FENCE,
        (("postgres/migrations/0001_schema.sql", "AND (job.id, job.token) IN (\n                SELECT outcome.job, outcome.by_token FROM", "AND job.id IN (\n                SELECT outcome.job FROM"),),
        ("test:tests/storage/test_postgres_gate_races.py::test_a_finish_under_a_lost_claim_frees_nothing",),
    ),
    Mutation(
        "claim lock", "postgres", LOCK,
        (("postgres/migrations/0001_schema.sql", "            PERFORM {schema}.lock_gates(keys, 'take');\n            has_locked", "            has_locked"),),
        ("test:tests/storage/test_postgres_gate_races.py::test_a_claim_counts_the_permits_that_were_taken_while_it_waited",),
    ),
    Mutation(
        "block lock", "postgres", "a claim blocks a job beside the end that returns the permit",
        (("postgres/migrations/0001_schema.sql", "                PERFORM {schema}.lock_gates(keys, 'open');\n", ""),),
        ("test:tests/storage/test_postgres_gate_races.py::test_a_claim_waits_for_the_ends_beside_it_before_it_blocks_a_job",),
    ),
    Mutation(
        "fifo order", "postgres", ORDER,
        (("postgres/sql/enqueue.sql", "ORDER BY ordinality", "ORDER BY id"),),
        ("conformance:fifo",),
    ),
    Mutation(
        "permit of a queue, live", "postgres", QUEUE_PERMIT,
        (("postgres/sql/set_queue.sql", "SET gate = 'queue',", "SET gate = coalesce(gate, ''),"),),
        (QUEUE_PERMIT_TEST,),
    ),
    Mutation(
        "permit of a queue", "postgres", QUEUE_PERMIT,
        (("postgres/migrations/0001_schema.sql", "THEN job.gate ELSE 'queue' END", "THEN job.gate ELSE coalesce(job.gate, '') END"),),
        (QUEUE_PERMIT_TEST,),
    ),
    Mutation(
        "turn of a job that is gone", "postgres", "a claim takes the turn of a job that another transaction has",
        (("postgres/migrations/0001_schema.sql", ") < cardinality(drawn) - cardinality(plain_places) THEN", ") < 0 THEN"),),
        ("test:tests/storage/test_postgres_turns.py::test_a_job_that_another_transaction_has_is_left_alone_and_costs_its_tenant_no_turn",),
    ),
    Mutation(
        "own gate", "postgres", OWN_GATE,
        (("postgres/sql/admit.sql", "\n            AND job.gate = chosen.gate", ""),),
        ("conformance:gates",),
    ),
    Mutation(
        "callback", "postgres", CALLBACK,
        (("postgres/migrations/0001_schema.sql", "INSERT INTO {schema}.recheck (key) VALUES ('job:' || OLD.id);", ""),),
        ("conformance:waits",),
    ),
    Mutation(
        "archive look-up", "postgres", ARCHIVE,
        (("postgres/sql/finish.sql", "FROM {schema}.archive\nWHERE id = ANY (:ids::uuid[]);", "FROM {schema}.archive\nWHERE false;"),),
        ("conformance:finish", "F8"),
    ),
    Mutation(
        "other end", "postgres", OTHER_END,
        (("postgres/verbs/finish.py", "changes.is_repeat(ended, end)", "ended is not None"),),
        ("conformance:finish",),
    ),
    Mutation(
        "offer, ended", "postgres", OFFER_ENDED,
        (("postgres/migrations/0001_schema.sql", "offer.session AND session.ended_at IS NULL", "offer.session"),),
        ("test:tests/storage/test_postgres_offers.py::test_an_ended_session_is_handed_nothing",),
    ),
    Mutation(
        "room of many", "postgres", ROOM_OF_MANY,
        (("postgres/migrations/0001_schema.sql", " AND wanted.number <= g_room[wanted.gate])", ")"),),
        ("test:tests/storage/test_postgres_admission.py::test_a_claim_decides_what_the_reference_decides",),
    ),
    Mutation(
        "offer, past the limit", "postgres", OFFER_FULL,
        (("postgres/migrations/0001_schema.sql", "            OR used + takes > most\n", ""),),
        ("test:tests/storage/test_postgres_offers.py::test_a_limit_that_is_set_counts_for_a_hand_over",),
    ),
    Mutation(
        "offer, past members", "postgres", OFFER_MEMBERS,
        (("postgres/migrations/0001_schema.sql", "IF EXISTS (SELECT FROM {schema}.job AS member WHERE member.fifo = job.fifo)\n            OR EXISTS (", "IF EXISTS ("),),
        ("test:tests/storage/test_postgres_offers.py::test_a_job_whose_gate_is_open_is_handed_over_with_its_permit",),
    ),
    Mutation(
        "offer, gate unlocked", "postgres", OFFER_UNLOCKED,
        (("postgres/migrations/0001_schema.sql", "WHERE gate.key = wanted FOR NO KEY UPDATE SKIP LOCKED;", "WHERE gate.key = wanted;"),),
        ("test:tests/storage/test_postgres_offers.py::test_a_producer_does_not_wait_for_a_gate_that_another_transaction_has",),
    ),
    Mutation(
        "offer, unheard", "postgres", OFFER_UNHEARD,
        (("postgres/fast/handover.py", "if stood + len(offer.claims) < len(offer.queues):", "if stood < 0:"),),
        ("test:tests/storage/test_postgres_offers.py::test_a_job_whose_word_is_lost_is_found_when_the_wait_ends",),
    ),
    Mutation(
        "offer, twice", "postgres", OFFER_TWICE,
        (("postgres/fast/handover.py", "[claim for claim in offer.claims if claim.id not in known]", "list(offer.claims)"),),
        ("test:tests/storage/test_postgres_offers.py::test_what_a_ring_brings_and_what_was_handed_over_come_together",),
    ),
    Mutation(
        "fence", "redis", FENCE,
        (("redis/lua/parts/completing.lua", "if claim and claim[1] == tokens[i] then", "if claim then"),),
        ("conformance:finish",),
    ),
    Mutation(
        "session end", "redis", SESSION,
        (("redis/lua/claim.lua", "if not call('ZSCORE', K.alive, A.session) then return out end", ""),),
        ("conformance:sessions", "conformance:claim", "conformance:rescue"),
    ),
    Mutation(
        "archive look-up", "redis", ARCHIVE,
        (("redis/lua/parts/record.lua", "return is_repeat and 'already' or 'lost'", "return 'lost'"),),
        ("conformance:finish",),
    ),
    Mutation(
        "other end", "redis", OTHER_END,
        (("redis/lua/parts/record.lua", "local is_repeat = not to or ended == what or (ended == 'cancelled' and not FINAL[to])", "local is_repeat = true"),),
        ("conformance:finish",),
    ),
    Mutation(
        "fifo order", "redis", ORDER,
        (("redis/lua/parts/admit.lua", "if last then number = math.max(number, next_number(tonumber(last))) end", ""),),
        ("conformance:fifo",),
    ),
    Mutation(
        "own gate", "redis", OWN_GATE,
        (("redis/lua/parts/admit.lua", "return first and call('ZSCORE', K.stopped(key), first) and {first} or {}", "local j = first and load(first)\n  return j and j.s == 'blocked' and {first} or {}"),),
        ("conformance:gates",),
    ),
    Mutation(
        "permit", "redis", PERMIT,
        (("redis/lua/parts/admit.lua", "gate.returned = gate.returned + use.weight", "gate.returned = gate.returned + 0"),),
        ("conformance:gates",),
    ),
    Mutation(
        "cron row", "redis", CRON,
        (
            ("redis/lua/change_schedule.lua", "if (row and row.v or 0) ~= A.v then return nil end", ""),
            ("redis/lua/change_schedule.lua", "if is_open(run) then", "do"),
        ),
        ("conformance:schedules",),
    ),
    Mutation(
        "callback", "redis", CALLBACK,
        (("redis/lua/parts/record.lua", "    look_again(together)\n", ""),),
        ("conformance:together",),
    ),
    Mutation(
        "breaker", "redis", BREAKER,
        (("redis/lua/parts/scopes.lua", "if claimed_at <= (state.tripped_at or 0) then return state end", ""),),
        ("conformance:breakers",),
    ),
    Mutation(
        "hand-over", "redis+cluster", HANDOVER,
        (("redis/lua/arrive.lua", " and not call('ZSCORE', K.arrived, id)", ""),),
        ("test:tests/storage/test_redis_cluster.py::test_a_message_that_comes_again_changes_nothing",),
    ),
    Mutation(
        "narrowed access", "memory", NARROW,
        (("../web/access.py", "self.serves(job.queue) and self.runs(job.task)", "self.serves(job.queue)"),),
        ("test:tests/web/test_access.py::test_a_token_for_some_tasks_reaches_no_job_of_another",),
    ),
)  # fmt: skip


class Judged(msgspec.Struct):
    """The result of one mutation."""

    name: str
    store: str
    title: str
    caught_by: str


def notices(witness: str, store: str, package: Path) -> str:
    """Run one witness; return its message, or nothing if it passes."""
    kind, _, word = witness.partition(":")
    match kind:
        case "conformance":
            argv = ["scripts/conformance.py", store, "-k", word]
        case "test":
            argv = ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", word]
        case _:
            argv = ["-m", "lab", "--store", store, "--fault", witness, "--seed", "1"]
    env = {**os.environ, "PYTHONPATH": f"{package.parent}:{ROOT}"}
    done = subprocess.run(
        [sys.executable, *argv],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if done.returncode == 0:
        return ""
    if kind == "conformance":
        counted = re.search(r"(\d+) passed, (\d+) failed", done.stdout)
        # If nothing passes any more the store is merely broken, and everybody would see it.
        is_caught = counted is not None and counted[1] != "0" and counted[2] != "0"
        return f"conformance, {counted[2]} cases about {word}" if is_caught and counted else ""
    if kind == "test":
        return f"{word.partition('::')[2]}" if " failed" in done.stdout else ""
    broken = sorted(set(re.findall(r"^    (I\d+b?|alive|order):", done.stdout, re.MULTILINE)))
    return f"{witness}: {', '.join(broken)}" if broken else ""


def judge(mutation: Mutation) -> Judged:
    with tempfile.TemporaryDirectory(prefix="winch-mutation-") as folder:
        package = Path(folder) / "winch"
        shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
        mutation.apply(package)
        for witness in mutation.witnesses:
            if words := notices(witness, mutation.store, package):
                return Judged(mutation.name, mutation.store, mutation.title, words)
    return Judged(mutation.name, mutation.store, mutation.title, "")


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m lab.mutations",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", help="those whose name or store holds this text")
    parser.add_argument("--keep", action="store_true", help=f"write the score to {KEPT.name}")
    args = parser.parse_args(argv)
    chosen = [one for one in MUTATIONS if not args.only or args.only in f"{one.name} {one.store}"]
    if not chosen:
        parser.error(
            f"no mutation holds {args.only!r}; there are: {', '.join({m.name for m in MUTATIONS})}"
        )
    results = []
    for mutation in chosen:
        results.append(judge(mutation))
        found = results[-1].caught_by
        print(
            f"{'noticed' if found else 'MISSED '} {mutation.store:<9} {mutation.title}: {found}",
            flush=True,
        )
    caught = sum(1 for one in results if one.caught_by)
    print(f"mutation score {caught} of {len(results)}, {caught / len(results):.0%}")
    if args.keep and not args.only:
        KEPT.parent.mkdir(exist_ok=True)
        KEPT.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n")
    return 0 if caught == len(results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
