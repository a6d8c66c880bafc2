"""What time brings: jobs that come due, gates that open, what has been kept long enough."""

from __future__ import annotations

from datetime import datetime, timedelta

from msgspec.structs import replace

from winch.core.job import JobRecord
from winch.core.lifecycle import TRANSITIONS, JobState
from winch.core.policy.retention import dead_bytes, dead_limits
from winch.drivers.memory.verbs.waits import Waits
from winch.storage.params import Promoted, Trim
from winch.storage.verbs import Verb

KEEP_SESSIONS = timedelta(days=1)


class Keeping(Waits):
    """Mixed into the memory driver."""

    def promote(self, *, limit: int = 1000, now: datetime | None = None) -> Verb[Promoted]:
        def body() -> Promoted:
            at = self._now(now)
            waiting = sorted(
                (job for job in self._state.live.values() if job.state in TRANSITIONS["promote"]),
                key=lambda job: (job.run_at, job.id),
            )
            due = [job for job in waiting if job.run_at <= at][:limit]
            for job in due:
                self._put(replace(job, state=JobState.READY), "promoted", at)
            later = waiting[len(due) :]
            return Promoted(len(due), later[0].run_at if later else None, at)

        return self._verb("promote", body)

    def admit(
        self, *, limit: int = 1000, is_sweep: bool = False, now: datetime | None = None
    ) -> Verb[Promoted]:
        def body() -> Promoted:
            at = self._now(now)
            gates = self._state.gates
            keys = gates.due(at)
            if is_sweep:
                gates.forget(self._is_known)
                keys = gates.waited_at()
            count = self._open(keys, at)
            return Promoted(count, gates.next_at(), at)

        return self._verb("admit", body)

    def prune(self, *, limit: int = 1000, now: datetime | None = None) -> Verb[int]:
        def body() -> int:
            at = self._now(now)
            over = [
                job_id
                for job_id, drop_at in self._state.drop_at.items()
                if drop_at <= at and not self._is_still_awaited(self._state.archive[job_id])
            ]
            for job_id in over[:limit]:
                del self._state.archive[job_id], self._state.drop_at[job_id]
            for session_id, session in list(self._state.sessions.items()):
                if session.ended_at is not None and session.ended_at <= at - KEEP_SESSIONS:
                    del self._state.sessions[session_id]
            self._prune_waits(at)
            kept = self._state.kept_keys
            for key in [key for key, (_, until) in kept.items() if until <= at]:
                del kept[key]
            return len(over[:limit])

        return self._verb("prune", body)

    def trim(self, which: Trim, *, now: datetime | None = None) -> Verb[int]:
        def body() -> int:
            at = self._now(now)
            by_task: dict[str, list[JobRecord]] = {}
            for job in self._state.archive.values():
                is_asked_for = which.task in (None, job.task) and which.queue in (None, job.queue)
                if job.state is JobState.DEAD and is_asked_for:
                    by_task.setdefault(job.task, []).append(job)
            over = [
                job
                for _, jobs in sorted(by_task.items())
                for job in _too_many(jobs, which, at)
                if not self._is_still_awaited(job)
            ]
            if which.is_dry_run:
                return len(over)
            for job in over[: which.limit]:
                del self._state.archive[job.id], self._state.drop_at[job.id]
            return len(over[: which.limit])

        return self._verb("trim", body)


def _too_many(jobs: list[JobRecord], which: Trim, at: datetime) -> list[JobRecord]:
    """The dead jobs of one task that are past its limits."""
    newest = sorted(jobs, key=lambda job: (job.finished_at, job.id), reverse=True)
    count, most_bytes = which.count, which.bytes
    if not which.is_forced:
        own = dead_limits(newest[0].options)
        count = which.count if own.dead_count is None else own.dead_count
        most_bytes = which.bytes if own.dead_bytes is None else own.dead_bytes
    over, total = [], 0
    for place, job in enumerate(newest, start=1):
        total += dead_bytes(job)
        died_at = job.finished_at or at
        if (
            (count is not None and place > count)
            or (most_bytes is not None and total > most_bytes)
            or (which.older_than is not None and died_at <= at - which.older_than)
        ):
            over.append(job)
    return over
