"""Storing jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime

from msgspec.structs import replace

from winch.core import changes
from winch.core.errors import ConfigError
from winch.core.job import JobRecord, sort_key
from winch.core.lifecycle import FINAL, JobState
from winch.drivers.memory.verbs.base import Shelf
from winch.storage.decide.unique import Holder, filled, planned
from winch.storage.params import Enqueued, NewJob
from winch.storage.verbs import Verb


class Producing(Shelf):
    """Mixed into the memory driver."""

    def enqueue(
        self, jobs: Sequence[NewJob], *, is_repeat: bool = False, now: datetime | None = None
    ) -> Verb[list[Enqueued]]:
        def body() -> list[Enqueued]:
            at = self._now(now)
            ids = Counter(new.id for new in jobs)
            for new in jobs:  # before anything is stored: all of them or none
                is_known = self._is_known(new.id) or ids[new.id] > 1
                if is_known and not (new.is_given_id or is_repeat):
                    raise ConfigError(f"job id {new.id} was drawn twice")
            known = {new.id for new in jobs if self._is_known(new.id)}
            plan = planned(jobs, self._holding(jobs, at), known)
            stored = []
            for holder in plan.take_over.values():
                self._state.live[holder] = replace(self._state.live[holder], unique_key=None)
            for new in plan.store:
                is_new = not self._is_known(new.id)
                if is_new:
                    self._insert(new, at)
                if is_new and new.unique_key is not None and new.unique_within is not None:
                    self._state.kept_keys[new.unique_key] = (new.id, at + new.unique_within)
                stored.append(Enqueued(new.id, is_new))
            for holder, new in plan.replace.items():
                self._replace(self._state.live[holder], new, at)
            return filled(plan, stored)

        return self._verb("enqueue", body)

    def _holders(self) -> dict[str, Holder]:
        """Who has the unique keys: a live job has its own."""
        return {
            job.unique_key: Holder(job.id, job.state)
            for job in self._state.live.values()
            if job.unique_key is not None
        }

    def _key_holder(self, job: JobRecord) -> str | None:
        """Who has the unique key of a final job by now."""
        holder = self._holders().get(job.unique_key or "")
        return holder.id if holder is not None and job.state in FINAL else None

    def _holding(self, jobs: Sequence[NewJob], at: datetime) -> dict[str, Holder]:
        """Who has the keys of these jobs; with `unique_within` a final job may."""
        found = self._holders()
        for new in jobs:
            key = new.unique_key
            if key is not None and new.unique_within is not None and key not in found:
                job_id, until = self._state.kept_keys.get(key, ("", at))
                if until > at and job_id in self._state.archive:
                    found[key] = Holder(job_id, None)
        return found

    def _replace(self, job: JobRecord, new: NewJob, at: datetime) -> None:
        after = changes.replaced(job, new, at)
        if after.state is job.state:
            self._state.live[job.id] = after
            if after.state is JobState.READY:
                self._state.keys[job.id] = sort_key(after.run_at, after.priority)
        else:
            self._put(after, "replaced", at)

    def _insert(self, new: NewJob, at: datetime) -> None:
        due = at + new.delay if new.delay is not None else new.run_at
        is_later = due is not None and due > at
        job = JobRecord(
            id=new.id,
            task=new.task,
            version=new.version,
            args=new.args,
            queue=new.queue,
            priority=new.priority,
            created_at=at,
            run_at=due if is_later and due is not None else at,
            state=JobState.SCHEDULED if is_later else JobState.READY,
            tenant=new.tenant,
            fifo=new.fifo,
            unique_key=new.unique_key,
            tags=new.tags,
            headers=new.headers,
            options=new.options,
            expires_at=None if new.expires is None else at + new.expires,
            max_attempts=new.max_attempts,
            keep=new.keep,
            seq=self._state.gates.next_seq(new.options, at),
        )
        self._put(job, "enqueued", at)
