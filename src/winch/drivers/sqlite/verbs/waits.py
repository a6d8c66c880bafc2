"""The verbs of waiting: signals, and making ready who waits no more."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from winch.core.changes import BLOCKED_REASON, woken
from winch.core.flow import FLOW_ALIKE
from winch.core.job import JobRecord, from_micros
from winch.core.lifecycle import JobState
from winch.drivers.sqlite.records import MICROSECOND, read_headers, to_json
from winch.drivers.sqlite.statements import Ring
from winch.drivers.sqlite.verbs.base import Body, ask, micros, read_jobs, store, verb
from winch.storage.decide.waits import (
    ALL,
    AWAITED_HEADER,
    DEAD,
    JOB,
    KEEP_TAKEN,
    KEEP_UNTAKEN,
    SIGNAL,
    Awaited,
    Sent,
    Taken,
    awaited_by,
    bounds,
    signal_key,
)
from winch.storage.params import Answer, ClaimRef, Enqueued, Finish, NewJob, Promoted, Wait
from winch.storage.verbs import Verb


class WaitingVerbs:
    """The waiting part of Storage; see storage/families.py for the contracts.

    Differs from PostgreSQL: there is one writer at a time, so what is looked at stays so."""

    if TYPE_CHECKING:

        def enqueue(
            self, jobs: Sequence[NewJob], *, is_repeat: bool = False, now: datetime | None = None
        ) -> Verb[list[Enqueued]]: ...

    def signal(self, name: str, payload: str, *, id: str, now: datetime | None = None) -> Verb[Sent]:
        def body() -> Body[Sent]:
            rows = yield from ask("signal", name=name, id=id, payload=payload, now=micros(now))
            if rows:
                yield from look_again([signal_key(name)])
            return Sent(id, is_new=bool(rows))

        return verb("signal", body)

    def take_signal(
        self, claim: ClaimRef, name: str, *, wanted_by: str, now: datetime | None = None
    ) -> Verb[Taken]:
        def body() -> Body[Taken]:
            if not (yield from ask("take_signal", id=claim.id, token=claim.token)):
                return Taken(Answer.LOST)
            values = {"id": claim.id, "wanted_by": wanted_by, "name": name}
            rows = yield from ask("take_signal.again", **values)
            if not rows:
                rows = yield from ask("take_signal.first", **values)
            return Taken(Answer.TOOK, rows[0][0] if rows else None)

        return verb("take_signal", body)

    def enqueue_after(
        self,
        jobs: Sequence[NewJob],
        waits: Sequence[tuple[str, Sequence[Wait]]],
        *,
        claim: ClaimRef | None = None,
        is_repeat: bool = False,
        now: datetime | None = None,
    ) -> Verb[list[Enqueued] | None]:
        def body() -> Body[list[Enqueued] | None]:
            if claim is not None and not (yield from ask("take_signal", id=claim.id, token=claim.token)):
                return None
            answers: list[Enqueued] = yield from self.enqueue(jobs, is_repeat=is_repeat, now=now).steps()
            new = {answer.id for answer in answers if answer.is_new}
            known = {job.id for job in jobs} - new
            rows = [
                (job_id, wait.key, int(wait.is_enough))
                for job_id, some in waits
                if job_id not in known
                for wait in some
            ]
            held = sorted(new & {job_id for job_id, _ in waits})
            if held:
                yield from ask(
                    "enqueue.after", ids=to_json(held), reason=BLOCKED_REASON, now=micros(now)
                )
            if rows:
                yield from ask("enqueue.waits", waits=to_json(rows))
                yield from look_again(dict.fromkeys(row[1] for row in rows))
            return answers

        return verb("enqueue_after", body)

    def unblock(self, *, limit: int = 1000, now: datetime | None = None) -> Verb[Promoted]:
        def body() -> Body[Promoted]:
            at = micros(now)
            rows = yield from ask("unblock", limit=limit)
            ready = {row[0] for row in (yield from ask("unblock.due", now=at, limit=limit))}
            if rows:
                ready |= yield from _come({row[1] for row in rows})
                yield from ask("unblock.done", seq=rows[-1][0])
            count = 0
            if ready:
                jobs = yield from read_jobs(ready)
                yield from ask("unblock.leave", ids=to_json(sorted(ready)))
                blocked = [job for job in jobs.values() if job.state is JobState.BLOCKED]
                yield from store([woken(job, from_micros(at)) for job in blocked], at)
                count = len(blocked)
            until = (yield from ask("unblock.next"))[0][0]
            next_at = None if until is None else from_micros(until)
            return Promoted(limit if len(rows) == limit else count, next_at, from_micros(at))

        return verb("unblock", body)


def _come(keys: set[str]) -> Body[set[str]]:
    """Those who wait for these keys and have enough."""
    names = [key.removeprefix(SIGNAL) for key in keys if key.startswith(SIGNAL)]
    ids = [key.removeprefix(JOB) for key in keys if key.startswith(JOB)]
    sent = {row[0] for row in (yield from ask("unblock.sent", names=to_json(names)))} if names else ()
    live = {row[0] for row in (yield from ask("unblock.live", ids=to_json(ids)))} if ids else ()
    opened = [signal_key(name) for name in sent]
    final = [job_id for job_id in ids if job_id not in live]
    opened += [JOB + job_id for job_id in final]
    if together := [(key, *bounds(key)) for key in keys if key.startswith(ALL)]:
        opened += [row[0] for row in (yield from ask("unblock.together", keys=to_json(together)))]
    if final:
        opened += [DEAD + row[0] for row in (yield from ask("unblock.dead", ids=to_json(final)))]
    if not opened:
        return set()
    rows = yield from ask("unblock.came", keys=to_json(opened))
    waited = {row[0] for row in rows}
    left = {row[0] for row in (yield from ask("unblock.left", ids=to_json(sorted(waited))))}
    return (waited - left) | {row[0] for row in rows if row[1]}


def look_again(keys: Iterable[str]) -> Body[None]:
    """Have somebody look at these keys."""
    yield from ask("signal.recheck", keys=to_json(list(keys)))
    ring = Ring()
    ring.due = True
    yield ring


def begin_waits(outcomes: Iterable[Finish], ended: Sequence[JobRecord], at: int) -> Body[None]:
    """What jobs wait for that a finish has blocked."""
    blocked = {job.id for job in ended if job.state is JobState.BLOCKED}
    for outcome in outcomes:
        if outcome.id not in blocked or not (outcome.waits or outcome.timeout):
            continue
        yield from ask("unblock.leave", ids=to_json([outcome.id]))
        until = None if outcome.timeout is None else at + outcome.timeout // MICROSECOND
        # A wait for nothing but the time has a key that never comes.
        waits = [(wait.key, int(wait.is_enough)) for wait in outcome.waits] or [("", 0)]
        yield from ask("finish.waits", id=outcome.id, waits=to_json(waits), until=until)
        yield from look_again(wait.key for wait in outcome.waits)


def still_awaited(rows: Iterable[Sequence[Any]]) -> Body[set[str]]:
    """The ids among these, each with its headers as they are stored, that somebody still needs."""
    asked: dict[Awaited, list[str]] = {}
    for job_id, headers in rows:
        if AWAITED_HEADER in headers and (said := awaited_by(read_headers(headers))) is not None:
            asked.setdefault(said, []).append(job_id)
    if not asked:
        return set()
    needed = yield from ask("prune.needed", asked=to_json(list(asked)), alike=FLOW_ALIKE)
    found = list(asked.values())
    return {job_id for row in needed for job_id in found[row[0]]}


def prune_waits(at: int) -> Body[None]:
    yield from ask(
        "prune.signals",
        taken_before=at - _micros(KEEP_TAKEN),
        untaken_before=at - _micros(KEEP_UNTAKEN),
    )
    yield from ask("prune.waiting")


def _micros(span: timedelta) -> int:
    return span // MICROSECOND
