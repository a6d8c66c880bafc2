"""Upkeep: claims that were lost, jobs that come due, jobs that were kept long enough."""

from __future__ import annotations

from datetime import datetime, timedelta

from msgspec.structs import replace

from winch.core.job import RESCUE_RULE, JobRecord
from winch.core.lifecycle import TRANSITIONS, JobState
from winch.core.policy.retention import dead_bytes, dead_limits
from winch.drivers.memory.verbs.base import Base, verb
from winch.drivers.memory.verbs.taking_back import suspect
from winch.drivers.memory.verbs.waits import WaitVerbs
from winch.storage.params import Promoted, Rescued, Trim
from winch.storage.verbs import Now, Verb

KEEP_SESSIONS = timedelta(days=1)


class UpkeepVerbs:
    """What keeps the store going: lost claims, due jobs, old jobs."""

    def __init__(self, base: Base, waits: WaitVerbs) -> None:
        self._base = base
        self._state = base.state
        self._waits = waits

    def rescue(
        self, *, limit: int = 1000, as_of: datetime | None = None, now: Now = None
    ) -> Verb[list[Rescued]]:
        def body() -> list[Rescued]:
            at = self._base.now(now)
            judged = at if as_of is None else min(at, as_of)
            for session in self._state.sessions.values():
                if session.ended_at is None:  # the clock may have been set back
                    session.lease_until = min(session.lease_until, at + session.info.lease)
                if session.ended_at is None and session.lease_until <= judged:
                    session.ended_at, session.end_reason = at, "lease over"
            orphans = [
                job
                for job in self._state.live.values()
                if job.state is JobState.RUNNING and not self._base.is_live(job.session)
            ]
            orphans.sort(key=lambda job: job.id)
            return [
                Rescued(
                    job.id,
                    job.token or "",
                    job.session or "",
                    suspect(self._base, job, "rescued", "lease over", at, RESCUE_RULE),
                )
                for job in orphans[:limit]
            ]

        return verb("rescue", body)

    def promote(self, *, limit: int = 1000, now: Now = None) -> Verb[Promoted]:
        def body() -> Promoted:
            at = self._base.now(now)
            waiting = sorted(
                (job for job in self._state.live.values() if job.state in TRANSITIONS["promote"]),
                key=lambda job: (job.run_at, job.id),
            )
            due = [job for job in waiting if job.run_at <= at][:limit]
            for job in due:
                self._base.put(replace(job, state=JobState.READY), "promoted", at)
            later = waiting[len(due) :]
            return Promoted(len(due), later[0].run_at if later else None, at)

        return verb("promote", body)

    def prune(self, *, limit: int = 1000, now: Now = None) -> Verb[int]:
        def body() -> int:
            at = self._base.now(now)
            over = [
                job_id
                for job_id, drop_at in self._state.drop_at.items()
                if drop_at <= at and not self._waits.is_still_awaited(self._state.archive[job_id])
            ]
            for job_id in over[:limit]:
                del self._state.archive[job_id], self._state.drop_at[job_id]
            for session_id, session in list(self._state.sessions.items()):
                if session.ended_at is not None and session.ended_at <= at - KEEP_SESSIONS:
                    del self._state.sessions[session_id]
            self._waits.prune(at)
            kept = self._state.kept_keys
            for key in [key for key, (_, until) in kept.items() if until <= at]:
                del kept[key]
            return len(over[:limit])

        return verb("prune", body)

    def trim(self, which: Trim, *, now: Now = None) -> Verb[int]:
        def body() -> int:
            at = self._base.now(now)
            by_task: dict[str, list[JobRecord]] = {}
            for job in self._state.archive.values():
                is_asked_for = which.task in (None, job.task) and which.queue in (None, job.queue)
                if job.state is JobState.DEAD and is_asked_for:
                    by_task.setdefault(job.task, []).append(job)
            over = [
                job
                for _, jobs in sorted(by_task.items())
                for job in _too_many(jobs, which, at)
                if not self._waits.is_still_awaited(job)
            ]
            if which.is_dry_run:
                return len(over)
            for job in over[: which.limit]:
                del self._state.archive[job.id], self._state.drop_at[job.id]
            return len(over[: which.limit])

        return verb("trim", body)


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
