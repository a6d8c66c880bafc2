"""Jobs that leave for another store, or come from one."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from msgspec.structs import replace

from winch.core.job import KEEP, JobRecord, sort_key
from winch.core.lifecycle import FINAL, JobState
from winch.drivers.memory.verbs.base import Base, verb
from winch.drivers.memory.verbs.enqueue import EnqueueVerbs
from winch.drivers.memory.verbs.unique_keys import holders
from winch.storage.decide.unique import Holder
from winch.storage.params import Enqueued, NewJob
from winch.storage.parcels import NO_PARCEL, Parcel, arriving, is_movable, takes_whole
from winch.storage.verbs import Now, Verb


class MoveVerbs:
    """What a move needs; see storage/families.py for the contracts."""

    def __init__(self, base: Base, enqueue: EnqueueVerbs) -> None:
        self._base = base
        self._state = base.state
        self._enqueue = enqueue

    def move_out(
        self, move: str, number: int, ids: Sequence[str], *, is_whole: bool = False, now: Now = None
    ) -> Verb[Parcel]:
        def body() -> Parcel:
            parcels = self._state.parcels
            if move in parcels.open:
                return parcels.open[move]
            if number <= parcels.last_out.get(move, 0):
                return NO_PARCEL
            at = self._base.now(now)
            found = (self._state.live.get(i) or self._state.archive.get(i) for i in dict.fromkeys(ids))
            jobs = tuple(job for job in found if job is not None and (is_whole or is_movable(job)))
            if is_whole and not takes_whole(jobs, len(set(ids))):
                jobs = ()
            for job in jobs:
                self._state.live.pop(job.id, None)
                self._base.forget(job, at)
            parcels.last_out[move] = number
            if not jobs:
                return NO_PARCEL
            parcels.open[move] = Parcel(number, jobs)
            return parcels.open[move]

        return verb("move_out", body)

    def move_in(
        self, move: str, number: int, jobs: Sequence[JobRecord], *, now: Now = None
    ) -> Verb[bool]:
        def body() -> bool:
            last_in = self._state.parcels.last_in
            if number <= last_in.get(move, -1):
                return False
            last_in[move] = number
            at = self._base.now(now)
            for job in jobs:
                if not self._base.is_known(job.id):
                    self._store(arriving(job), at)
            return True

        return verb("move_in", body)

    def _store(self, job: JobRecord, at: datetime) -> None:
        if job.state in FINAL:
            self._state.archive[job.id] = job
            keep = KEEP[job.state] if job.keep is None else job.keep
            self._state.drop_at[job.id] = (job.finished_at or at) + keep
            self._base.record_event(job, "enqueued", job.state, at, None)
            return
        if job.unique_key in holders(self._state):
            job = replace(job, unique_key=None)
        self._base.put(job, "enqueued", at)
        if job.state is JobState.READY:
            self._state.keys[job.id] = sort_key(job.run_at, job.priority)

    def move_done(self, move: str, number: int) -> Verb[None]:
        def body() -> None:
            parcels = self._state.parcels
            if move in parcels.open and parcels.open[move].number == number:
                del parcels.open[move]

        return verb("move_done", body)

    def raise_fence(self, number: int) -> Verb[bool]:
        def body() -> bool:
            self._state.parcels.fence = max(self._state.parcels.fence, number)
            return True

        return verb("raise_fence", body)

    def enqueue_fenced(
        self, jobs: Sequence[NewJob], number: int, *, is_repeat: bool = False, now: Now = None
    ) -> Verb[list[Enqueued] | None]:
        def body() -> list[Enqueued] | None:
            if self._state.parcels.fence > number:
                return None
            return self._enqueue.store(jobs, self._base.now(now), is_repeat=is_repeat)

        return verb("enqueue_fenced", body)

    def key_holders(self, keys: Sequence[str]) -> Verb[list[Holder | None]]:
        def body() -> list[Holder | None]:
            held = holders(self._state)
            return [held.get(key) for key in keys]

        return verb("key_holders", body, is_read=True)
