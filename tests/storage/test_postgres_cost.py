"""What a plain job costs on PostgreSQL: statements, rows and WAL bytes, never time. A change that makes
the hot path pay more fails here; docs/performance.md has the figures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import psycopg
import pytest

from tests.storage.postgres_kit import (
    Store,
    completed,
    connected,
    new_job,
    new_token,
    recorded,
)
from winch.core.gates.uses import LIMIT, GateUse, with_gates
from winch.core.lifecycle import JobState
from winch.drivers.postgres.driver import PostgresDriver
from winch.drivers.postgres.fast.low_water import LOOK_AGAIN, SHARE, LowWater
from winch.drivers.postgres.statements import Statement
from winch.drivers.postgres.verbs.base import BEGINNING, MANY, Place
from winch.storage.params import Answer, ClaimParams, Finish
from winch.storage.verbs import Verb

pytestmark = pytest.mark.servers

BATCH = 500
BATCHES = 5


@pytest.fixture(scope="module")
def store(postgres_server: Any) -> Iterator[Store]:
    url = postgres_server.new_store()
    driver = PostgresDriver.from_url(url)
    driver.migrate()
    yield Store(driver, url)
    driver.close()
    postgres_server.drop_database(url)


class Meter:
    """Runs verbs and adds up what they cost; the WAL of the cheapest batch counts, because a checkpoint
    or a vacuum that comes along pays into the others."""

    def __init__(self, store: Store, watcher: psycopg.Connection[Any]) -> None:
        self._driver = store.driver
        self._watcher = watcher
        self.statements: list[str] = []
        self.wal: list[float] = []

    def run(self, verb: Verb[Any]) -> Any:
        verb, steps = recorded(verb)
        before = self._position()
        answer = self._driver.run(verb)
        self.wal.append((self._position() - before) / BATCH)
        self.statements += [step.sql.name for step in steps]
        return answer

    def _position(self) -> int:
        row = self._watcher.execute("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn").fetchone()
        assert row is not None
        return int(row[0])


def lived(store: Store, batches: int) -> tuple[Meter, Meter, Meter]:
    """What batches of plain jobs cost that are stored, claimed and finished."""
    session = store.session()
    with connected(store.url) as watcher:
        enqueue, claim, finish = (Meter(store, watcher) for _ in range(3))
        watcher.execute("CHECKPOINT")  # now, so that none comes and has whole pages written
        for _ in range(batches):
            enqueue.run(store.driver.enqueue([new_job(args='{"n": 12345}') for _ in range(BATCH)]))
        for _ in range(batches):
            params = ClaimParams(
                session=session, token=new_token(), queues=("default",), limit=BATCH, gated=0
            )
            claims = claim.run(store.driver.claim(params))
            assert len(claims) == BATCH
            assert set(finish.run(store.driver.finish(list(map(completed, claims))))) == {Answer.TOOK}
    assert enqueue.statements == ["enqueue.alike"] * batches
    assert claim.statements == ["claim"] * batches
    assert finish.statements == ["finish"] * batches
    return enqueue, claim, finish


def test_a_plain_job_costs_three_statements_a_batch_and_under_a_kilobyte_of_wal(store: Store) -> None:
    enqueue, claim, finish = lived(store, BATCHES)
    # Measured: 343, 219 and 362 bytes. A column or an index more is seen at once, and a claim whose rows
    # leave their pages too.
    assert min(enqueue.wal) < 380
    assert min(claim.wal) < 240
    assert min(finish.wal) < 400


def test_a_plain_job_costs_the_same_beside_jobs_with_gates(store: Store) -> None:
    """Hundreds that wait at a limit, or for their tenants' turns, in the same queue."""
    alone = lived(store, 3)
    options = with_gates(None, [GateUse("limit:t", LIMIT, "limit:t", n=1)])
    store.add(300, options=options)
    assert len(store.claim(store.session(), 2)) == 1, "others are held"
    store.add(100, options=with_gates(None, ()), tenant="acme")
    beside = lived(store, 3)
    with connected(store.url) as conn:
        (held,) = conn.execute("SELECT count(*) FROM winch.job WHERE gate = 'limit:t'").fetchall()
        conn.execute("DELETE FROM winch.job")
    assert held[0] > 100
    for usual, other in zip(alone, beside, strict=True):
        assert min(other.wal) <= 1.03 * min(usual.wal)


def test_a_finish_that_takes_whole_sends_no_row_for_each_job(store: Store) -> None:
    session = store.session()
    store.add(20)
    claims = store.claim(session, 20)
    steps = store.driver.finish(list(map(completed, claims))).steps()
    step = next(steps)
    with connected(store.url) as conn:
        values = {**step.values, "places": None}  # as if another process had claimed them
        rows = conn.execute(step.sql.text, values, prepare=False).fetchall()
        assert rows == [(None,)]
        # The same once more: it takes none of them, and returns no place.
        assert conn.execute(step.sql.text, values, prepare=False).fetchall() == [([],)]


def test_a_finish_looks_jobs_up_by_id_whatever_the_planner_believes(store: Store) -> None:
    """A table that was empty when it was last analysed is expected to be empty for ever. The planner
    then compared each running job with each outcome."""
    session = store.session()
    with connected(store.url) as conn:
        conn.execute("DELETE FROM winch.job")
        conn.execute("VACUUM ANALYZE winch.job")
        store.add(BATCH)
        claims = store.claim(session, BATCH)
        step = next(store.driver.finish(list(map(completed, claims))).steps())
        rows = conn.execute(f"EXPLAIN {step.sql.text}", step.values, prepare=False).fetchall()
    plan = "\n".join(row[0] for row in rows)
    assert "Seq Scan on job" not in plan
    assert "Index Scan using job_pkey" in plan
    assert "Join" not in plan
    assert plan.count("Nested Loop") == 3, plan  # the clock with what is kept; the few leases
    assert set(store.complete(*claims)) == {Answer.TOOK}


def test_jobs_that_are_not_alike_are_stored_as_they_are(store: Store) -> None:
    jobs = [
        new_job(args='{"n": 1}', headers={"a": "1"}),
        new_job(args='{"n": 2}'),
        new_job(args='"€\\n"', headers={"b": "ü"}),
    ]
    verb, steps = recorded(store.driver.enqueue(jobs))
    store.driver.run(verb)
    assert [step.sql.name for step in steps] == ["enqueue.alike"]
    found = store.driver.run(store.driver.get([job.id for job in jobs]))
    assert [(job.args, job.headers) for job in found if job] == [(job.args, job.headers) for job in jobs]
    unlikes: list[dict[str, Any]] = [
        {"priority": 3},
        {"task": "mail.other"},
        {"queue": "other"},
        {"tags": ("x",)},
        {"tenant": "acme"},
    ]
    for unlike in unlikes:
        mixed = [new_job(), new_job(**unlike)]
        verb, steps = recorded(store.driver.enqueue(mixed))
        store.driver.run(verb)
        assert [step.sql.name for step in steps] == ["enqueue"]
        _, other = store.driver.run(store.driver.get([job.id for job in mixed]))
        assert all(getattr(other, name) == value for name, value in unlike.items())


def test_the_short_way_stores_what_the_long_way_does(store: Store) -> None:
    """One job by a statement that is prepared, and one by a statement that is not (`prepare=off`)."""
    slow = PostgresDriver.from_url(f"{store.url}?prepare=off")
    fields: dict[str, Any] = {
        "priority": -2,
        "options": '{"a":"ß"}',
        "version": 3,
        "max_attempts": 4,
        "args": '["\'"]',
    }
    found = []
    for driver in (store.driver, slow):
        job = new_job(**fields)
        driver.run(driver.enqueue([job]))
        found.append(store.get(job.id))
    one, other = found
    assert one.run_at == one.created_at
    for name, value in fields.items():
        assert getattr(one, name) == getattr(other, name) == value
    slow.close()


def test_the_short_way_survives_its_connection(store: Store) -> None:
    store.add()
    with connected(store.url) as killer:
        killer.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    (job,) = store.add()
    assert store.get(job).state is JobState.READY


def test_results_that_differ_are_each_their_jobs_own(store: Store) -> None:
    session = store.session()
    store.add(3, queue="results")
    claims = store.claim(session, 3, queues=("results",))
    results = ['"ä, {}"', None, "3"]
    outcomes = [
        Finish(id=claim.id, token=claim.token, to=JobState.COMPLETED, what="completed", result=result)
        for claim, result in zip(claims, results, strict=True)
    ]
    assert store.driver.run(store.driver.finish(outcomes)) == [Answer.TOOK] * 3
    assert [store.get(claim.id).result for claim in claims] == results


# -- where claims begin --------------------------------------------------------------------------------


def starts_of(step: Statement) -> list[Place]:
    """The places at which a claim begins."""
    return [*zip(step.values["starts"], step.values["start_ids"], strict=True)]


def test_a_busy_worker_begins_at_its_last_job_where_all_share_a_sort_key(store: Store) -> None:
    """The jobs of one call share a sort key: a claim that began at it would walk over all that were
    taken before."""
    store.driver._base.claim_starts = LowWater(lambda: 100.0)
    session = store.session()
    ids = sorted(store.add(3 * MANY, queue="one call"))
    params: dict[str, Any] = {"session": session, "queues": ("one call",), "limit": MANY, "gated": 0}
    begins = []
    for number in range(3):
        verb, steps = recorded(store.driver.claim(ClaimParams(token=new_token(), **params)))
        claims = store.driver.run(verb)
        assert [claim.id for claim in claims] == ids[number * MANY : (number + 1) * MANY]
        begins += [place for step in steps for place in starts_of(step)]
    keys, begin_ids = zip(*begins, strict=True)
    assert begin_ids == (BEGINNING[1], ids[MANY - 1], ids[2 * MANY - 1])
    assert keys[0] < keys[1] == keys[2]


def test_a_busy_worker_begins_where_it_ended_and_looks_back(store: Store) -> None:
    clock = [100.0]
    store.driver._base.claim_starts = LowWater(lambda: clock[0])
    session = store.session()
    store.add(3 * MANY, queue="busy")
    seen: list[list[Place]] = []

    def claim(limit: int = MANY) -> list[str]:
        params = ClaimParams(session=session, token=new_token(), queues=("busy",), limit=limit, gated=0)
        verb, steps = recorded(store.driver.claim(params))
        claims = store.driver.run(verb)
        seen[:] = [starts_of(step) for step in steps]
        return [claim.id for claim in claims]

    claim()
    assert seen == [[BEGINNING]]
    (urgent,) = store.add(1, queue="busy", priority=20)
    assert urgent not in claim()
    assert seen[0][0] > BEGINNING
    clock[0] += SHARE * LOOK_AGAIN
    assert claim()[0] == urgent
    assert seen == [[BEGINNING]]
    # What is left is less than was asked for: from now on from the beginning.
    (late,) = store.add(1, queue="busy", priority=20)
    assert len(claim()) == 1
    assert claim() == [late]
    assert seen == [[BEGINNING]]


def test_a_session_begins_at_the_beginning_whatever_others_have_taken(store: Store) -> None:
    clock = [100.0]
    marks = store.driver._base.claim_starts = LowWater(lambda: clock[0])
    store.add(3 * MANY, queue="sessions")
    params: dict[str, Any] = {"queues": ("sessions",), "limit": MANY, "gated": 0}
    for _ in range(2):
        session = store.session()
        verb, steps = recorded(
            store.driver.claim(ClaimParams(session=session, token=new_token(), **params))
        )
        assert len(store.driver.run(verb)) == MANY
        assert [starts_of(step) for step in steps] == [[BEGINNING]]
        assert len(marks._marks) == 1
        clock[0] += SHARE * LOOK_AGAIN


def test_a_claim_above_the_mark_does_not_wait(store: Store) -> None:
    clock = [100.0]
    store.driver._base.claim_starts = LowWater(lambda: clock[0])
    session = store.session()
    store.add(MANY, queue="mark")
    params: dict[str, Any] = {"session": session, "queues": ("mark",), "limit": MANY, "gated": 0}
    store.driver.run(store.driver.claim(ClaimParams(token=new_token(), **params)))
    (urgent,) = store.add(1, queue="mark", priority=20)
    verb, steps = recorded(store.driver.claim(ClaimParams(token=new_token(), **params)))
    assert [claim.id for claim in store.driver.run(verb)] == [urgent]
    assert len(steps) == 2


def test_a_claim_of_one_task_leaves_no_mark_for_the_others(store: Store) -> None:
    store.driver._base.claim_starts = LowWater(lambda: 100.0)
    session = store.session()
    (other,) = store.add(1, queue="tasks", task="other")
    store.add(MANY, queue="tasks", task="many")
    params: dict[str, Any] = {"session": session, "queues": ("tasks",), "limit": MANY, "gated": 0}
    one = ClaimParams(token=new_token(), tasks=("many",), **params)
    assert len(store.driver.run(store.driver.claim(one))) == MANY
    store.add(MANY, queue="tasks", task="many")
    both = ClaimParams(token=new_token(), tasks=("many", "other"), **params)
    assert store.driver.run(store.driver.claim(both))[0].id == other


def test_results_that_differ_reach_their_own_jobs(store: Store) -> None:
    """The statement matches results by id: a lookup in a list costs ten times as much for 500."""
    session = store.session()
    store.add(150)
    claims = store.claim(session, 150)
    results = {claim.id: None if n % 10 == 0 else f'"{n} \\u0000 é"' for n, claim in enumerate(claims)}
    outcomes = [msgspec.structs.replace(completed(claim), result=results[claim.id]) for claim in claims]
    verb, steps = recorded(store.driver.finish(outcomes))
    answers = store.driver.run(verb)
    assert set(answers) == {Answer.TOOK}
    assert [step.sql.name for step in steps] == ["finish"]
    assert {job: store.get(job).result for job in results} == results
