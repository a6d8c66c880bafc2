"""Jobs that leave for another store, or come from one."""

from __future__ import annotations

from collections.abc import Sequence

from winch.core.job import JobRecord
from winch.core.lifecycle import JobState
from winch.drivers.redis.records import micros, moved, read_job
from winch.drivers.redis.verbs.base import Base, Body, read_rows
from winch.drivers.redis.verbs.enqueue import EnqueueVerbs, fenced
from winch.storage.decide.unique import Holder
from winch.storage.params import Enqueued, NewJob
from winch.storage.parcels import Parcel, arriving
from winch.storage.verbs import Now, Verb


class MoveVerbs:
    """What a move needs; see storage/parcels.py for the contracts."""

    def __init__(self, base: Base, enqueue: EnqueueVerbs) -> None:
        self._call = base.call
        self._enqueue = enqueue

    def move_out(
        self, move: str, number: int, ids: Sequence[str], *, is_whole: bool = False, now: Now = None
    ) -> Verb[Parcel]:
        def body() -> Body[Parcel]:
            taken = list(dict.fromkeys(ids))
            opened, *rest = yield self._call(
                "move_out", now=micros(now), move=move, number=number, ids=taken, is_whole=is_whole
            )
            jobs = [
                read_job(rest[at].decode(), rest[at + 1], rest[at + 2] or None, None)
                for at in range(0, len(rest), 3)
            ]
            return Parcel(opened, tuple(jobs))

        return Verb("move_out", body)

    def move_in(
        self, move: str, number: int, jobs: Sequence[JobRecord], *, now: Now = None
    ) -> Verb[bool]:
        def body() -> Body[bool]:
            took = yield self._call(
                "move_in",
                blobs=[blob for job in jobs for blob in moved(arriving(job))],
                now=micros(now),
                move=move,
                number=number,
                ids=[job.id for job in jobs],
            )
            return bool(took)

        return Verb("move_in", body)

    def move_done(self, move: str, number: int) -> Verb[None]:
        def body() -> Body[None]:
            yield self._call("move_done", move=move, number=number)

        return Verb("move_done", body)

    def raise_fence(self, number: int) -> Verb[bool]:
        def body() -> Body[bool]:
            yield self._call("raise_fence", number=number)
            return True

        return Verb("raise_fence", body)

    def enqueue_fenced(
        self, jobs: Sequence[NewJob], number: int, *, is_repeat: bool = False, now: Now = None
    ) -> Verb[list[Enqueued] | None]:
        return fenced(self._enqueue.enqueue(jobs, is_repeat=is_repeat, now=now, fence=number))

    def key_holders(self, keys: Sequence[str]) -> Verb[list[Holder | None]]:
        def body() -> Body[list[Holder | None]]:
            rows = read_rows((yield self._call("key_holders", keys=list(keys))), 2)
            return [Holder(job_id, JobState(state)) if job_id else None for job_id, state in rows]

        return Verb("key_holders", body, is_read=True)
