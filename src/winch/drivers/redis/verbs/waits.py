"""The verbs of waiting: signals, jobs that wait from their beginning, and the end of waits."""

from __future__ import annotations

from collections.abc import Sequence

from winch.core.job import from_micros
from winch.drivers.redis.records import MICROSECOND, micros
from winch.drivers.redis.verbs.base import Base, Body
from winch.drivers.redis.verbs.enqueue import EnqueueVerbs
from winch.storage.decide.waits import KEEP_TAKEN, KEEP_UNTAKEN, Dependencies, KeptSignal, Sent, Taken
from winch.storage.params import Answer, ClaimRef, Enqueued, NewJob, Promoted
from winch.storage.verbs import Now, Verb

# A script wakes or counts down this many at most: thousands may wait for the same job.
MOST = 2000


class WaitVerbs:
    """Signals, and jobs that wait for them or for other jobs."""

    def __init__(self, base: Base, enqueue: EnqueueVerbs) -> None:
        self._call = base.call
        self._store = enqueue.store

    def signal(self, name: str, payload: str, *, id: str, now: Now = None) -> Verb[Sent]:
        def body() -> Body[Sent]:
            is_new = yield self._call(
                "signal",
                now=micros(now),
                name=name,
                id=id,
                payload=payload,
                keep=KEEP_UNTAKEN // MICROSECOND,
            )
            return Sent(id, is_new=bool(is_new))

        return Verb("signal", body)

    def take_signal(self, claim: ClaimRef, name: str, *, wanted_by: str, now: Now = None) -> Verb[Taken]:
        def body() -> Body[Taken]:
            answer, *payload = yield self._call(
                "take_signal",
                now=micros(now),
                claim=(claim.id, claim.token),
                name=name,
                wanted_by=wanted_by,
                keep=KEEP_TAKEN // MICROSECOND,
            )
            return Taken(Answer(answer.decode()), payload[0].decode() if payload else None)

        return Verb("take_signal", body)

    def untaken_signals(self, *, limit: int = 1000) -> Verb[list[KeptSignal]]:
        def body() -> Body[list[KeptSignal]]:
            rows = yield self._call("untaken_signals", limit=limit)
            return [KeptSignal(*(part.decode() for part in row)) for row in rows]

        return Verb("untaken_signals", body, is_read=True)

    def forget_signals(self, which: Sequence[KeptSignal]) -> Verb[int]:
        def body() -> Body[int]:
            gone: int = yield self._call("forget_signals", signals=[(one.name, one.id) for one in which])
            return gone

        return Verb("forget_signals", body)

    def enqueue_after(
        self, jobs: Sequence[NewJob], after: Dependencies, *, is_repeat: bool = False, now: Now = None
    ) -> Verb[list[Enqueued] | None]:
        def body() -> Body[list[Enqueued] | None]:
            return (
                yield from self._store(
                    jobs, waits=after.waits, claim=after.claim, is_repeat=is_repeat, now=now
                )
            )

        return Verb("enqueue_after", body)

    def unblock(self, *, limit: int = 1000, now: Now = None) -> Verb[Promoted]:
        def body() -> Body[Promoted]:
            at, count, next_at = yield self._call("unblock", now=micros(now), limit=limit, most=MOST)
            return Promoted(count, None if next_at < 0 else from_micros(next_at), from_micros(at))

        return Verb("unblock", body)
