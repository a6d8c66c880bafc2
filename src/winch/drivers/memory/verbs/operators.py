"""What operators do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from msgspec.structs import replace

from winch.core import changes
from winch.core.changes import retried
from winch.core.gates.uses import GateSpec
from winch.core.job import EPOCH, NO_CHANGES, JobRecord, RetryChanges, sort_key
from winch.core.lifecycle import FINAL, TRANSITIONS, JobState
from winch.drivers.memory.verbs.enqueue import Producing
from winch.storage.params import Acted, Rebinding
from winch.storage.verbs import Verb


class Operating(Producing):
    """Mixed into the memory driver."""

    def cancel(
        self, ids: Sequence[str], *, by: str, reason: str | None = None, now: datetime | None = None
    ) -> Verb[list[Acted]]:
        def act(job: JobRecord, at: datetime) -> None:
            asked = changes.cancelled(job, by, reason, at)
            if asked.state is job.state:
                self._state.live[job.id] = asked
            else:
                self._put(asked, "cancelled", at)

        return self._operate("cancel", ids, now, act)

    def retry(
        self,
        ids: Sequence[str],
        *,
        by: str,
        changes: RetryChanges = NO_CHANGES,
        now: datetime | None = None,
    ) -> Verb[list[Acted]]:
        def act(job: JobRecord, at: datetime) -> None:
            if job.state in FINAL:
                del self._state.archive[job.id], self._state.drop_at[job.id]
            self._put(retried(job, by, at, changes), "retried", at)

        return self._operate("retry", ids, now, act, self._key_holder)

    def delete(self, ids: Sequence[str], *, by: str, now: datetime | None = None) -> Verb[list[Acted]]:
        def act(job: JobRecord, at: datetime) -> None:
            if self._state.live.pop(job.id, None) is not None:
                self._tell_waiting(job)
            self._state.keys.pop(job.id, None)
            self._state.archive.pop(job.id, None)
            self._state.drop_at.pop(job.id, None)
            self._witness(job, "deleted", None, at, None)
            self._admitted(self._state.gates.left(job, None), at)

        return self._operate("delete", ids, now, act)

    def _operate(
        self,
        verb: str,
        ids: Sequence[str],
        now: datetime | None,
        act: Callable[[JobRecord, datetime], None],
        holder_of: Callable[[JobRecord], str | None] = lambda job: None,
    ) -> Verb[list[Acted]]:
        def body() -> list[Acted]:
            at = self._now(now)
            answers = []
            for job_id in ids:
                job = self._state.live.get(job_id) or self._state.archive.get(job_id)
                if job is None:
                    answers.append(Acted(job_id, None, took=False))
                    continue
                holder = holder_of(job)
                took = job.state in TRANSITIONS[verb] and holder is None
                if took:
                    act(job, at)
                answers.append(Acted(job_id, job.state, took, holder))
            return answers

        return self._verb(verb, body)

    def pause(
        self, queue: str, *, by: str, reason: str | None = None, now: datetime | None = None
    ) -> Verb[None]:
        def body() -> None:
            self._state.paused[queue] = (self._now(now), reason)

        return self._verb("pause", body)

    def resume(self, queue: str, *, by: str, now: datetime | None = None) -> Verb[None]:
        def body() -> None:
            self._state.paused.pop(queue, None)
            self._ring({queue})

        return self._verb("resume", body)

    def set_limits(
        self,
        specs: Mapping[str, GateSpec | None],
        *,
        by: str,
        is_live: bool = True,
        now: datetime | None = None,
    ) -> Verb[None]:
        def body() -> None:
            at = self._now(now)
            self._open(self._state.gates.set(specs, by, is_live, at), at)

        return self._verb("set_limits", body)

    def rebind(self, changes: Sequence[Rebinding], *, now: datetime | None = None) -> Verb[list[bool]]:
        def body() -> list[bool]:
            return [self._rebound(change) for change in changes]

        return self._verb("rebind", body)

    def _rebound(self, change: Rebinding) -> bool:
        job = self._state.live.get(change.id)
        if job is None or job.state is JobState.RUNNING:
            return False
        if (job.options, job.priority) != (change.options, change.priority):
            return False
        ahead = sort_key(EPOCH, change.to_priority) - sort_key(EPOCH, job.priority)
        if job.id in self._state.keys:  # else it gets one when it is ready
            self._state.keys[job.id] += ahead
        self._state.live[job.id] = replace(job, options=change.to_options, priority=change.to_priority)
        return True
