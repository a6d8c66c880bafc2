"""Storing jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime

from msgspec.structs import replace

from winch.core import changes
from winch.core.errors import ConfigError
from winch.core.job import JobRecord, sort_key
from winch.core.lifecycle import JobState
from winch.drivers.memory.verbs.base import Base, verb
from winch.drivers.memory.verbs.unique_keys import holders_of
from winch.storage.decide.enqueued import new_record, stored_at
from winch.storage.decide.unique import filled, planned
from winch.storage.params import Enqueued, NewJob
from winch.storage.verbs import Now, Verb


class EnqueueVerbs:
    """Store new jobs."""

    def __init__(self, base: Base) -> None:
        self._base = base
        self._state = base.state

    def enqueue(
        self, jobs: Sequence[NewJob], *, is_repeat: bool = False, now: Now = None
    ) -> Verb[list[Enqueued]]:
        return verb("enqueue", lambda: self.store(jobs, self._base.now(now), is_repeat=is_repeat))

    def store(self, jobs: Sequence[NewJob], at: datetime, *, is_repeat: bool = False) -> list[Enqueued]:
        """What `enqueue` does, as a part of another verb."""
        ids = Counter(new.id for new in jobs)
        for new in jobs:  # before anything is stored: all of them or none
            is_known = self._base.is_known(new.id) or ids[new.id] > 1
            if is_known and not (new.is_given_id or is_repeat):
                raise ConfigError(f"job id {new.id} was drawn twice")
        known = {new.id for new in jobs if self._base.is_known(new.id)}
        plan = planned(jobs, holders_of(self._state, jobs, at), known)
        stored: list[Enqueued] = []
        for holder in plan.take_over.values():
            self._state.live[holder] = replace(self._state.live[holder], unique_key=None)
        for new in plan.store:
            is_new = not self._base.is_known(new.id)
            if is_new:
                self._insert(new, at)
            if is_new and new.unique_key is not None and new.unique_within is not None:
                self._state.kept_keys[new.unique_key] = (new.id, at + new.unique_within)
            stored += stored_at(at, [new]) if is_new else [Enqueued(new.id, False)]
        for holder, new in plan.replace.items():
            self._replace(self._state.live[holder], new, at)
        return filled(plan, stored)

    def _replace(self, job: JobRecord, new: NewJob, at: datetime) -> None:
        after = changes.replaced(job, new, at)
        if after.state is job.state:
            self._state.live[job.id] = after
            if after.state is JobState.READY:
                self._state.keys[job.id] = sort_key(after.run_at, after.priority)
        else:
            self._base.put(after, "replaced", at)

    def _insert(self, new: NewJob, at: datetime) -> None:
        job = new_record(new, at, seq=self._state.gates.next_seq(new.options, at))
        self._base.put(job, "enqueued", at)
