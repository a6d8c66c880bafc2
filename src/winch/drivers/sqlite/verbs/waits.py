"""Signals, and jobs that wait for them or for other jobs."""

from __future__ import annotations

from collections.abc import Sequence

from winch.core.changes import BLOCKED_REASON, woken
from winch.core.job import from_micros
from winch.core.lifecycle import JobState
from winch.core.values.codec import to_json
from winch.drivers.sqlite.connections.writer import store_time
from winch.drivers.sqlite.verbs.awaited import look_again
from winch.drivers.sqlite.verbs.base import Body, query, read_jobs
from winch.drivers.sqlite.verbs.changed_jobs import store
from winch.drivers.sqlite.verbs.enqueue import EnqueueVerbs
from winch.storage.decide.waits import (
    ALL,
    DEAD,
    JOB,
    SIGNAL,
    Dependencies,
    KeptSignal,
    Sent,
    Taken,
    bounds,
    signal_key,
)
from winch.storage.params import Answer, ClaimRef, Enqueued, NewJob, Promoted
from winch.storage.verbs import Now, Verb


class WaitVerbs:
    """See WaitVerbs in storage/families.py for the contracts.

    Differs from PostgreSQL: there is one writer at a time, so what is looked at stays so."""

    def __init__(self, enqueue: EnqueueVerbs) -> None:
        self._enqueue = enqueue

    def signal(self, name: str, payload: str, *, id: str, now: Now = None) -> Verb[Sent]:
        def body() -> Body[Sent]:
            at = store_time(now)
            rows = yield from query("signal", name=name, id=id, payload=payload, now=at)
            if rows:
                yield from look_again([signal_key(name)])
            return Sent(id, is_new=bool(rows))

        return Verb("signal", body)

    def take_signal(self, claim: ClaimRef, name: str, *, wanted_by: str, now: Now = None) -> Verb[Taken]:
        def body() -> Body[Taken]:
            if not (yield from query("take_signal", id=claim.id, token=claim.token)):
                return Taken(Answer.LOST)
            values = {"id": claim.id, "wanted_by": wanted_by, "name": name}
            rows = yield from query("take_signal.again", **values)
            if not rows:
                rows = yield from query("take_signal.first", **values)
            return Taken(Answer.TOOK, rows[0][0] if rows else None)

        return Verb("take_signal", body)

    def untaken_signals(self, *, limit: int = 1000) -> Verb[list[KeptSignal]]:
        def body() -> Body[list[KeptSignal]]:
            rows = yield from query("untaken_signals", limit=limit)
            return [KeptSignal(*row) for row in rows]

        return Verb("untaken_signals", body, is_read=True)

    def forget_signals(self, which: Sequence[KeptSignal]) -> Verb[int]:
        def body() -> Body[int]:
            signals = to_json([[one.name, one.id] for one in which])
            return len((yield from query("forget_signals", signals=signals)))

        return Verb("forget_signals", body)

    def enqueue_after(
        self, jobs: Sequence[NewJob], after: Dependencies, *, is_repeat: bool = False, now: Now = None
    ) -> Verb[list[Enqueued] | None]:
        def body() -> Body[list[Enqueued] | None]:
            claim = after.claim
            if claim is not None and not (
                yield from query("take_signal", id=claim.id, token=claim.token)
            ):
                return None
            answers: list[Enqueued] = yield from self._enqueue.enqueue(
                jobs, is_repeat=is_repeat, now=now
            ).steps()
            new = {answer.id for answer in answers if answer.is_new}
            known = {job.id for job in jobs} - new
            rows = [
                (job_id, wait.key, int(wait.is_enough))
                for job_id, some in after.waits
                if job_id not in known
                for wait in some
            ]
            held = sorted(new & {job_id for job_id, _ in after.waits})
            if held:
                yield from query(
                    "enqueue.after", ids=to_json(held), reason=BLOCKED_REASON, now=store_time(now)
                )
            if rows:
                yield from query("enqueue.waits", waits=to_json(rows))
                yield from look_again(dict.fromkeys(row[1] for row in rows))
            return answers

        return Verb("enqueue_after", body)

    def unblock(self, *, limit: int = 1000, now: Now = None) -> Verb[Promoted]:
        def body() -> Body[Promoted]:
            at = store_time(now)
            rows = yield from query("unblock", limit=limit)
            ready = {row[0] for row in (yield from query("unblock.due", now=at, limit=limit))}
            if rows:
                ready |= yield from _come({row[1] for row in rows})
                yield from query("unblock.done", seq=rows[-1][0])
            count = 0
            if ready:
                jobs = yield from read_jobs(ready)
                yield from query("unblock.leave", ids=to_json(sorted(ready)))
                blocked = [job for job in jobs.values() if job.state is JobState.BLOCKED]
                yield from store([woken(job, from_micros(at)) for job in blocked], at)
                count = len(blocked)
            until = (yield from query("unblock.next"))[0][0]
            next_at = None if until is None else from_micros(until)
            return Promoted(limit if len(rows) == limit else count, next_at, from_micros(at))

        return Verb("unblock", body)


def _come(keys: set[str]) -> Body[set[str]]:
    """The jobs that wait for these keys and have enough."""
    names = [key.removeprefix(SIGNAL) for key in keys if key.startswith(SIGNAL)]
    ids = [key.removeprefix(JOB) for key in keys if key.startswith(JOB)]
    sent = {row[0] for row in (yield from query("unblock.sent", names=to_json(names)))} if names else ()
    live = {row[0] for row in (yield from query("unblock.live", ids=to_json(ids)))} if ids else ()
    opened = [signal_key(name) for name in sent]
    final = [job_id for job_id in ids if job_id not in live]
    opened += [JOB + job_id for job_id in final]
    if together := [(key, *bounds(key)) for key in keys if key.startswith(ALL)]:
        opened += [row[0] for row in (yield from query("unblock.together", keys=to_json(together)))]
    if final:
        opened += [DEAD + row[0] for row in (yield from query("unblock.dead", ids=to_json(final)))]
    if not opened:
        return set()
    rows = yield from query("unblock.came", keys=to_json(opened))
    waited = {row[0] for row in rows}
    left = {row[0] for row in (yield from query("unblock.left", ids=to_json(sorted(waited))))}
    return (waited - left) | {row[0] for row in rows if row[1]}
