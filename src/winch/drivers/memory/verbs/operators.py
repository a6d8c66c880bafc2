"""What operators do with jobs and queues."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from winch.core import changes
from winch.core.changes import retried
from winch.core.gates.scopes import braked, opened
from winch.core.job import NO_CHANGES, JobRecord, RetryChanges, to_micros
from winch.core.lifecycle import FINAL, TRANSITIONS, WAITING, JobState
from winch.drivers.memory.verbs.base import Base, verb
from winch.drivers.memory.verbs.unique_keys import key_holder
from winch.storage.params import Acted
from winch.storage.verbs import Now, Verb


class OperatorVerbs:
    """What operators do with jobs and queues."""

    def __init__(self, base: Base) -> None:
        self._base = base
        self._state = base.state

    def cancel(
        self, ids: Sequence[str], *, by: str, reason: str | None = None, now: Now = None
    ) -> Verb[list[Acted]]:
        def act(job: JobRecord, at: datetime) -> None:
            asked = changes.cancelled(job, by, reason, at)
            if asked.state is job.state:
                self._state.live[job.id] = asked
            else:
                self._base.put(asked, "cancelled", at)

        return self._operate("cancel", ids, now, act)

    def retry(
        self, ids: Sequence[str], *, by: str, changes: RetryChanges = NO_CHANGES, now: Now = None
    ) -> Verb[list[Acted]]:
        def act(job: JobRecord, at: datetime) -> None:
            if job.state in FINAL:
                del self._state.archive[job.id], self._state.drop_at[job.id]
            self._base.put(retried(job, by, at, changes), "retried", at)

        return self._operate("retry", ids, now, act, lambda job: key_holder(self._state, job))

    def delete(self, ids: Sequence[str], *, by: str, now: Now = None) -> Verb[list[Acted]]:
        def act(job: JobRecord, at: datetime) -> None:
            if self._state.live.pop(job.id, None) is not None:
                self._base.wake_waiting(job)
            self._base.forget(job, at)

        return self._operate("delete", ids, now, act)

    def _operate(
        self,
        name: str,
        ids: Sequence[str],
        now: datetime | None,
        act: Callable[[JobRecord, datetime], None],
        holder_of: Callable[[JobRecord], str | None] = lambda job: None,
    ) -> Verb[list[Acted]]:
        def body() -> list[Acted]:
            at = self._base.now(now)
            answers = []
            for job_id in ids:
                job = self._state.live.get(job_id) or self._state.archive.get(job_id)
                if job is None:
                    answers.append(Acted(job_id, None, took=False))
                    continue
                holder = holder_of(job)
                took = job.state in TRANSITIONS[name] and holder is None
                if took:
                    act(job, at)
                answers.append(Acted(job_id, job.state, took, holder))
            return answers

        return verb(name, body)

    def pause(self, queue: str, *, by: str, reason: str | None = None, now: Now = None) -> Verb[None]:
        def body() -> None:
            self._state.paused[queue] = (self._base.now(now), reason)

        return verb("pause", body)

    def resume(self, queue: str, *, by: str, now: Now = None) -> Verb[None]:
        def body() -> None:
            self._state.paused.pop(queue, None)
            self._base.ring({queue})

        return verb("resume", body)

    def move(self, ids: Sequence[str], queue: str, *, by: str, now: Now = None) -> Verb[list[Acted]]:
        def body() -> list[Acted]:
            at = self._base.now(now)
            answers = []
            for job_id in ids:
                job = self._state.live.get(job_id) or self._state.archive.get(job_id)
                took = job is not None and job.state in WAITING
                answers.append(Acted(job_id, None if job is None else job.state, took))
                if job is not None and took and job.queue != queue:
                    self._state.live[job_id] = changes.moved(job, queue, by, at)
                    if job.state is JobState.READY:
                        self._base.ring({queue})
            return answers

        return verb("move", body)

    def hold_scope(
        self, name: str, hold: timedelta | None, *, reason: str = "", now: Now = None
    ) -> Verb[bool]:
        def body() -> bool:
            at = self._base.now(now)
            states, key = self._state.gates.states, f"scope:{name}"
            if hold is None:
                after = opened(states.get(key), to_micros(at))
            else:
                after = braked(states.get(key), to_micros(at + hold), reason)
            if after is None:
                return False
            states[key] = after
            self._base.open_gates([key], at)
            return True

        return verb("hold_scope", body)

    def release_key(self, key: str, *, by: str, now: Now = None) -> Verb[str | None]:
        def body() -> str | None:
            self._state.kept_keys.pop(key, None)
            for job in self._state.live.values():
                if job.unique_key == key:
                    self._state.live[job.id] = changes.keyless(job, by, self._base.now(now))
                    return job.id
            return None

        return verb("release_key", body)
