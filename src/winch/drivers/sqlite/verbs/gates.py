"""Gates here: one writer at a time sees all that came before, so a look at a gate is its lock.

Differs from PostgreSQL in that alone; what is decided is decided by `core.gates` for both.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from winch.core import gates
from winch.core.gates import Admission, Candidate, Draw, Fair, GateSpec, GateUse, Look
from winch.core.job import Claim, JobRecord, from_micros
from winch.core.lifecycle import JobState
from winch.drivers.sqlite.records import Row, read_claims, to_json
from winch.drivers.sqlite.statements import Ring, Step
from winch.drivers.sqlite.verbs.plain_claim import claim_plain, claim_unless_gated
from winch.storage.decide.gates import (
    AHEAD,
    OPENED_AT_ONCE,
    ROUNDS,
    Setting,
    gate_info,
    named_limits,
    why_ended,
)
from winch.storage.params import ClaimParams, Finish, GateInfo, LimitInfo

T = TypeVar("T")
Body = Generator[Any, Any, T]
_spec = msgspec.json.Decoder(GateSpec)


def ask(name: str, **values: Any) -> Generator[Any, Any, list[Row]]:
    rows: list[Row] = yield Step(name, values)
    return rows


# -- claiming ----------------------------------------------------------------------------------------


def claim_queue(
    params: ClaimParams, queue: str, limit: int, gated: int, at: int
) -> Body[tuple[list[Claim], int]]:
    """Claims from one queue that may have jobs with gates; and how many of them hold permits."""
    tasks = None if params.tasks is None else to_json(params.tasks)
    plain_only = yield from claim_unless_gated(params, queue, limit, at)
    if plain_only is not None:  # as mostly
        return plain_only, 0
    found: list[Claim] = []
    holding = 0
    for _ in range(ROUNDS):
        left = limit - len(found)
        asked = {"queue": queue, "tasks": tasks, "session": params.session, "limit": left + AHEAD}
        rows = yield from ask("admit.candidates", **asked)
        is_all = len(rows) < left + AHEAD
        rows += yield from ask("admit.tenants", **asked)
        if not rows:  # no job with gates is ready: nothing to draw between
            found += yield from claim_plain(params, queue, left, at)
            break
        admission, drawn = yield from _drawn(rows, queue, tasks, left, gated - holding, at)
        claims = yield from _taken(admission, params, at)
        plain: list[Claim] = []
        if drawn.plain:
            plain = yield from claim_plain(params, queue, drawn.plain, at)
        found += drawn.arranged({claim.id: claim for claim in claims}, plain)
        holding += sum(1 for claim in claims if gates.gates_of(claim.options))
        if len(found) >= limit or is_all or not admission.held:
            break
    return found, holding


def _drawn(
    rows: Sequence[Row], queue: str, tasks: str | None, limit: int, gated: int, at: int
) -> Body[tuple[Admission, Draw]]:
    candidates = [
        Candidate(i, queue, key, n, gates.gates_of(text), who) for i, key, n, text, who in rows
    ]
    plain = yield from ask("admit.plain", queue=queue, tasks=tasks, limit=limit)
    if not candidates:
        return Admission({}, at), Draw([None] * len(plain))
    uses = {use.key: use for job in candidates for use in job.gates}
    looks = yield from look(uses.values())
    admission = Admission(looks, at)
    key = gates.tenant_key(queue)
    fair = None
    tenants = sorted({job.tenant for job in candidates if job.tenant is not None})
    if tenants:
        specs = yield from _specs(f"tenant:{tenant}" for tenant in tenants)
        weights = {name.removeprefix("tenant:"): spec.n for name, spec in specs.items()}
        found = yield from ask("admit.look", keys=to_json([key]))
        fair = Fair.of(found[0][1], weights)
    drawn = gates.draw(admission, candidates, plain, fair, limit=limit, gated=gated)
    if fair is not None:
        admission.changed[key] = Look(key, state=fair.dump())
    return admission, drawn


def _taken(admission: Admission, params: ClaimParams, at: int) -> Body[list[Claim]]:
    """Write what was decided."""
    if admission.changed:
        yield from keep(admission.changed.values())
    if admission.held:
        held = [{"id": i, "gate": key, "now": at} for i, key in admission.held.items()]
        yield Step.each("admit.hold", held)
    if admission.permits:
        permits = [
            {
                "gate": one.gate,
                "job": one.job,
                "token": None if one.is_turn else params.token,
                "weight": one.weight,
            }
            for one in admission.permits
        ]
        yield Step.each("admit.permit", permits)
    if not admission.taken:
        return []
    rows = yield from ask(
        "admit.take",
        ids=to_json(admission.taken),
        now=at,
        token=params.token,
        session=params.session,
    )
    return read_claims(rows, params.token, from_micros(at))


def look(uses: Iterable[GateUse]) -> Body[dict[str, Look]]:
    """The gates as they are."""
    wanted = {use.key: use for use in uses}
    if not wanted:
        return {}
    specs = yield from _specs({use.name for use in wanted.values() if use.name})
    rows = yield from ask("admit.look", keys=to_json(list(wanted)))
    fifo = [key.removeprefix("fifo:") for key, use in wanted.items() if use.kind == gates.FIFO]
    heads = {}
    if fifo:
        heads = {f"fifo:{key}": head for key, head in (yield from ask("admit.head", keys=to_json(fifo)))}
    return {
        key: Look(key, used, state, specs.get(wanted[key].name), turn, heads.get(key), open_at)
        for key, state, open_at, used, turn in rows
    }


def _specs(names: Iterable[str]) -> Body[dict[str, GateSpec]]:
    wanted = list(names)
    if not wanted:
        return {}
    rows = yield from ask("admit.specs", names=to_json(wanted))
    return {name: _spec.decode(text) for name, text in rows}


def keep(looks: Iterable[Look]) -> Body[None]:
    rows = [{"key": one.key, "state": one.state, "open_at": one.open_at} for one in looks]
    yield Step.each("admit.keep", rows)
    if any(row["open_at"] is not None for row in rows):
        ring = Ring()
        ring.due = True  # whoever opens gates may have to do so sooner than it sleeps
        yield ring


# -- giving back -------------------------------------------------------------------------------------


def left(jobs: Iterable[JobRecord], at: int, *, is_deleted: bool = False) -> Body[None]:
    """Take back what these jobs no longer need, and open the gates for those who wait."""
    ended = [job for job in jobs if job.state is not JobState.RUNNING and gates.gates_of(job.options)]
    if not ended:
        return
    final = []
    freed: dict[str, int] = {}
    for job in ended:
        if is_deleted or job.state.is_final:
            fifo = [use for use in gates.gates_of(job.options) if use.kind == gates.FIFO]
            is_kept = job.state is JobState.DEAD and not is_deleted
            if not any(use.blocks_on_death and is_kept for use in fifo):
                final.append(job.id)
                freed |= dict.fromkeys((use.key for use in fifo), 1)
    ids = to_json([job.id for job in ended])
    for key, weight in (yield from ask("admit.leave", ids=ids, final=to_json(final))):
        freed[key] = freed.get(key, 0) + max(weight, 1)
    chosen: dict[str, str] = {}
    for key, most in sorted(freed.items()):
        if key.startswith("fifo:"):
            looked = (yield from look([GateUse(key, gates.FIFO)]))[key]
            if looked.turn is None and looked.head is not None:
                chosen[looked.head] = key
        else:
            rows = yield from ask("admit.waiting", key=key, limit=most)
            chosen |= {row[0]: key for row in rows}
    yield from _admit(chosen, at)


def leave_turns(ids: Sequence[str], at: int) -> Body[None]:
    """Take the turns of these jobs, which are not final, and open their FIFO keys for others."""
    rows = yield from ask("admit.leave_turn", ids=to_json(ids))
    yield from open_gates([row[0] for row in rows], at)


def open_gates(keys: Iterable[str], at: int) -> Body[int]:
    """Make ready whom these gates let through now."""
    count = 0
    for key in keys:
        count += yield from _open(key, at)
    return count


def _open(key: str, at: int) -> Body[int]:
    waiting = yield from ask("admit.waiting", key=key, limit=OPENED_AT_ONCE)
    if not waiting:
        (found,) = (yield from look([GateUse(key, gates.RATE)])).values()
        if found.open_at is not None:
            found.open_at = None
            yield from keep([found])
        return 0
    use = next(use for use in gates.gates_of(waiting[0][1]) if use.key == key)
    looked = (yield from look([use]))[key]
    if use.kind == gates.FIFO:
        first = looked.turn or looked.head
        chosen = {} if first is None else {first: key}
    else:
        room, next_at = gates.room(looked, use, at, len(waiting))
        chosen = {row[0]: key for row in waiting[:room]}
        open_at = next_at if room < len(waiting) or len(waiting) == OPENED_AT_ONCE else None
        if open_at != looked.open_at:
            looked.open_at = open_at
            yield from keep([looked])
    return (yield from _admit(chosen, at))


def _admit(chosen: Mapping[str, str], at: int) -> Body[int]:
    """Make these jobs ready, each where it waits at the gate it is given with."""
    if not chosen:
        return 0
    ring = Ring()
    rows = yield from ask("admit", chosen=to_json(chosen), now=at)
    for (queue,) in rows:
        ring.count(queue)
    yield ring
    return len(rows)


def finished(jobs: Iterable[JobRecord], outcomes: dict[str, Finish], at: int) -> Body[None]:
    """Let the brakes and breakers of scopes know how attempts ended."""
    changed: dict[str, Look] = {}
    for job in jobs:
        outcome = outcomes[job.id]
        why = why_ended(outcome)
        uses = [use for use in gates.gates_of(job.options) if use.breaker is not None]
        is_counted = uses and outcome.what in ("completed", "failed")
        keys = [f"scope:{outcome.brake}"] if outcome.brake is not None else []
        keys += [use.key for use in uses] if is_counted else []
        missing = [GateUse(key, gates.SCOPE) for key in keys if key not in changed]
        changed |= yield from look(missing)
        if outcome.brake is not None:
            gate = changed[keys[0]]
            gate.state = gates.braked(gate.state, at + int(outcome.delay.total_seconds() * 1e6), why)
        for use in uses if is_counted else ():
            if use.breaker is not None:
                gate = changed[use.key]
                is_ok = outcome.to is JobState.COMPLETED
                gate.state = gates.counted(gate.state, use.breaker, is_ok, job.claimed_at, at, why)
    if changed:
        yield from keep(changed.values())
        yield from open_gates(sorted(changed), at)


# -- telling -----------------------------------------------------------------------------------------


def info(job: JobRecord) -> Body[GateInfo | None]:
    """The gate a blocked job waits at."""
    use = next((use for use in gates.gates_of(job.options) if use.key == job.gate), None)
    if use is None or job.state is not JobState.BLOCKED:
        return None
    looked = (yield from look([use]))[use.key]
    holders = [row[0] for row in (yield from ask("admit.holders", key=use.key, limit=AHEAD))]
    ((ahead,),) = yield from ask("admit.ahead", id=job.id)
    return gate_info(looked, use, holders, ahead)


def limits() -> Body[list[LimitInfo]]:
    settings = {
        name: Setting(_spec.decode(spec), bool(is_live), by, from_micros(set_at))
        for name, spec, is_live, by, set_at in (yield from ask("limits"))
    }
    used = yield from ask("limits.used")
    waiting = yield from ask("limits.waiting")
    return named_limits(settings, used, waiting)
