"""Gates as they are stored: reading them, giving permits back, and opening them for waiting jobs.

One writer at a time sees all that came before, so reading a gate locks it. Differs from PostgreSQL in
that alone; what is decided is decided by `core.gates` for both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from winch.core.gates.passes import room
from winch.core.gates.scopes import braked, counted
from winch.core.gates.uses import FIFO, QUEUE, RATE, SCOPE, GateSpec, GateUse, Look, gates_of
from winch.core.job import JobRecord
from winch.core.lifecycle import JobState
from winch.core.values.codec import to_json
from winch.drivers.sqlite.statements import Ring, Step
from winch.drivers.sqlite.verbs.base import Body, query
from winch.storage.decide.gates import AHEAD, OPENED_AT_ONCE, gate_info, why_ended
from winch.storage.gate_records import GateInfo
from winch.storage.params import ClaimParams, Finish

_spec = msgspec.json.Decoder(GateSpec)
_numbers = msgspec.json.Decoder(dict[str, int])
_chosen = msgspec.json.Decoder(dict[str, str])


def read_spec(text: str) -> GateSpec:
    """A limit's setting as it is stored."""
    return _spec.decode(text)


class _Found(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One gate, as admit.look has it."""

    key: str
    state: str | None
    open_at: int | None
    used: int
    own: int | None
    heaviest: int | None
    turn: str | None
    head: str | None


_found = msgspec.json.Decoder(list[_Found])


def look(uses: Iterable[GateUse], params: ClaimParams | None = None) -> Body[dict[str, Look]]:
    """The gates as they are, for the session of this claim."""
    wanted = {use.key: use for use in uses}
    if not wanted:
        return {}
    specs = yield from specs_of({use.name for use in wanted.values() if use.name})
    [(text,)] = yield from query(
        "admit.look",
        keys=to_json(list(wanted)),
        session=None if params is None else params.session,
        at_once=None if params is None else params.at_once,
    )
    return {
        one.key: Look(
            one.key,
            one.used,
            one.state,
            specs.get(wanted[one.key].name),
            one.turn,
            one.head,
            one.open_at,
            one.own or 0,
            one.heaviest or 0,
        )
        for one in _found.decode(text)
    }


def specs_of(names: Iterable[str]) -> Body[dict[str, GateSpec]]:
    """What is set for these names."""
    wanted = list(names)
    if not wanted:
        return {}
    rows = yield from query("admit.specs", names=to_json(wanted))
    return {name: read_spec(text) for name, text in rows}


def keep(looks: Iterable[Look]) -> Body[None]:
    """Write gates back."""
    rows = [{"key": one.key, "state": one.state, "open_at": one.open_at} for one in looks]
    yield Step.each("admit.keep", rows)
    if any(row["open_at"] is not None for row in rows):
        ring = Ring()
        ring.due = True  # the promoter may have to open one before its next poll
        yield ring


# -- giving back -------------------------------------------------------------------------------------


def left(jobs: Iterable[JobRecord], at: int, *, is_deleted: bool = False) -> Body[None]:
    """Take back what these jobs no longer need, and open the gates for waiting jobs."""
    over = [job for job in jobs if job.state is not JobState.RUNNING]
    if plain := [job.id for job in over if not gates_of(job.options)]:
        rows = yield from query("admit.leave_queue", ids=to_json(plain))
        yield from _ring_queues(row[0] for row in rows)
    ended = [job for job in over if gates_of(job.options)]
    if not ended:
        return
    final = []
    left_keys: set[str] = set()
    for job in ended:
        if is_deleted or job.state.is_final:
            fifo = [use for use in gates_of(job.options) if use.kind == FIFO]
            is_kept = job.state is JobState.DEAD and not is_deleted
            if not any(use.blocks_on_death and is_kept for use in fifo):
                final.append(job.id)
                left_keys.update(use.key for use in fifo)
    yield from leave([job.id for job in ended], final, at, also=left_keys)


def leave(
    ids: Sequence[str],
    final: Sequence[str],
    at: int,
    *,
    also: Iterable[str] = (),
    opens_keys: bool = True,
) -> Body[None]:
    """Take back the permits of these jobs, and the turns of those that are final; open these gates, and
    `also` those, for waiting jobs. Without `opens_keys` FIFO keys are not opened: a job that ran had the
    turn of its key, and the caller goes on with the key."""
    values = {"ids": to_json(ids), "final": to_json(final)}
    [(text,)] = yield from query("admit.freed", **values)
    freed: dict[str, int] = _numbers.decode(text)
    if freed:
        yield Step("admit.leave", values, is_counted=True)
    for key in also:
        freed.setdefault(key, 1)
    yield from _ring_queues(freed)
    chosen: dict[str, str] = {}
    members = sorted(key.removeprefix("fifo:") for key in freed if key.startswith("fifo:"))
    if members and opens_keys:
        [(text,)] = yield from query("finish.next", keys=to_json(members))
        chosen = _chosen.decode(text)
    others: dict[int, list[str]] = {}
    for key, count in freed.items():
        if not key.startswith(("fifo:", QUEUE)):
            others.setdefault(count, []).append(key)
    for count, keys in others.items():  # the gates of a call mostly have one permit back each
        [(text,)] = yield from query("admit.first", keys=to_json(keys), limit=count)
        chosen |= _chosen.decode(text)
    yield from admit(chosen, at)


def _ring_queues(keys: Iterable[str]) -> Body[None]:
    """Jobs that wait for their queue's concurrency are ready: workers look again."""
    ring = Ring()
    for key in keys:
        if key.startswith(QUEUE):
            ring.ready[key.removeprefix(QUEUE)] += 1
    if ring.ready:
        yield ring


def leave_turns(ids: Sequence[str], at: int) -> Body[None]:
    """Take the turns of these jobs, which are not final, and open their FIFO keys for others."""
    rows = yield from query("admit.leave_turn", ids=to_json(ids))
    yield from open_gates([row[0] for row in rows], at)


def open_gates(keys: Iterable[str], at: int) -> Body[int]:
    """Make ready the jobs that these gates let through now."""
    count = 0
    for key in keys:
        count += yield from _open(key, at)
    return count


def _open(key: str, at: int) -> Body[int]:
    waiting = yield from query("admit.waiting", key=key, limit=OPENED_AT_ONCE)
    if not waiting:
        (found,) = (yield from look([GateUse(key, RATE)])).values()
        if found.open_at is not None:
            found.open_at = None
            yield from keep([found])
        return 0
    use = next(use for use in gates_of(waiting[0][1]) if use.key == key)
    looked = (yield from look([use]))[key]
    if use.kind == FIFO:
        first = looked.turn or looked.head
        chosen = {} if first is None else {first: key}
    else:
        count, next_at = room(looked, use, at, len(waiting))
        chosen = {row[0]: key for row in waiting[:count]}
        open_at = next_at if count < len(waiting) or len(waiting) == OPENED_AT_ONCE else None
        if open_at != looked.open_at:
            looked.open_at = open_at
            yield from keep([looked])
    return (yield from admit(chosen, at))


def admit(chosen: Mapping[str, str], at: int) -> Body[int]:
    """Make these jobs ready, each where it waits at the gate it is given with."""
    if not chosen:
        return 0
    as_json = to_json(chosen)
    [(text,)] = yield from query("admit.queues", chosen=as_json)
    ring = Ring()
    ring.ready.update(_numbers.decode(text))
    if ring.ready:
        yield Step("admit", {"chosen": as_json, "now": at}, is_counted=True)
        yield ring
    return sum(ring.ready.values())


def finished(jobs: Iterable[JobRecord], outcomes: dict[str, Finish], at: int) -> Body[None]:
    """Let the brakes and breakers of scopes know how attempts ended."""
    changed: dict[str, Look] = {}
    for job in jobs:
        outcome = outcomes[job.id]
        why = why_ended(outcome)
        uses = [use for use in gates_of(job.options) if use.breaker is not None]
        is_counted = uses and outcome.what in ("completed", "failed")
        keys = [f"scope:{outcome.brake}"] if outcome.brake is not None else []
        keys += [use.key for use in uses] if is_counted else []
        missing = [GateUse(key, SCOPE) for key in keys if key not in changed]
        changed |= yield from look(missing)
        if outcome.brake is not None:
            gate = changed[keys[0]]
            gate.state = braked(gate.state, at + int(outcome.delay.total_seconds() * 1e6), why)
        for use in uses if is_counted else ():
            if use.breaker is not None:
                gate = changed[use.key]
                is_ok = outcome.to is JobState.COMPLETED
                gate.state = counted(gate.state, use.breaker, is_ok, job.claimed_at, at, why)
    if changed:
        yield from keep(changed.values())
        yield from open_gates(sorted(changed), at)


def info(job: JobRecord) -> Body[GateInfo | None]:
    """The gate a blocked job waits at."""
    use = next((use for use in gates_of(job.options) if use.key == job.gate), None)
    if use is None or job.state is not JobState.BLOCKED:
        return None
    looked = (yield from look([use]))[use.key]
    holders = [row[0] for row in (yield from query("admit.holders", key=use.key, limit=AHEAD))]
    ((ahead,),) = yield from query("admit.ahead", id=job.id)
    return gate_info(looked, use, holders, ahead)
