"""The memory driver, with the questions that a virtual world asks about what lies ahead."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from datetime import datetime

from winch.core.job import JobRecord
from winch.core.lifecycle import JobState
from winch.core.values.clock import Clock
from winch.drivers.memory import MemoryDriver
from winch.drivers.memory.verbs.base import Base
from winch.storage.decide.waits import JOB

WAITING = (JobState.SCHEDULED, JobState.RETRYING)


class VirtualBase(Base):
    """The base of the memory driver, which also counts the jobs that end."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock, events=True)
        self.waiting: list[asyncio.Future[None]] = []
        self.ended = 0  # jobs that have come to their end

    def ring(self, queues: set[str], *, due: bool = False) -> None:
        # Which queues there are is known only once something is in them, so the worker, which serves
        # them all, listens to all of them.
        for bell in list(self.bells):
            if (due and bell.due) or (queues and bell.queues):
                bell.ring()

    def put(self, job: JobRecord, kind: str, at: datetime, *, by_token: str | None = None) -> None:
        super().put(job, kind, at, by_token=by_token)
        if job.state.is_final:
            self.ended += 1
            waiting, self.waiting = self.waiting, []
            for future in waiting:
                if not future.done():
                    future.set_result(None)


class VirtualStore(MemoryDriver):
    """`is_served`: whether the world's worker would claim this job."""

    def __init__(self, clock: Clock, is_served: Callable[[JobRecord], bool]) -> None:
        self._ends = VirtualBase(clock)
        self._put_together(self._ends)
        self._is_served = is_served

    @property
    def ended(self) -> int:
        """How many jobs have come to their end."""
        return self._ends.ended

    async def until_some_job_ends(self) -> None:
        future = asyncio.get_running_loop().create_future()
        self._ends.waiting.append(future)
        await future

    @property
    def queues_in_use(self) -> set[str]:
        return {job.queue for job in self._state.live.values()}

    @property
    def finished_attempts(self) -> int:
        return sum(event.kind == "finished" for event in self._state.events)

    def next_due(
        self, *, running: Collection[tuple[str, str | None]], session: str, is_full: bool
    ) -> datetime | None:
        """The moment until which nothing happens in this store by itself, rescues apart; None: something
        may at once.

        `running` are the (id, token) that the one live worker works on; `is_full`: it takes no more.
        """
        at = self._base.now(None)
        soonest = datetime.max.replace(tzinfo=at.tzinfo)
        if self._state.waits.rechecks:
            return None
        for waiting in self._state.waits.waiting.values():
            if waiting.until is not None:
                if waiting.until <= at:
                    return None
                soonest = min(soonest, waiting.until)
        opens = self._state.gates.next_at()
        if opens is not None:
            if opens <= at:
                return None
            soonest = min(soonest, opens)
        for job in self._state.live.values():
            if job.state is JobState.RUNNING:
                is_known = (job.id, job.token) in running or job.session != session
                if not is_known or job.cancel_requested_at is not None:
                    return None
            elif job.state in WAITING:
                if job.run_at <= at:
                    return None
                soonest = min(soonest, job.run_at)
            elif not is_full and self._is_claimable(job):
                return None
        due = self._schedules.due(at, limit=1_000_000)
        # One that only waits for an earlier job to end is found by the poll after that.
        if any(row.pending is None or not self._schedules.live_jobs(row.name) for row in due.found):
            return None
        return soonest if due.next_at is None else min(soonest, due.next_at)

    def has_leftovers(self, session: str) -> bool:
        """Whether there is a session besides this one, or a job of one, that is to be rescued."""
        return any(
            other != session and begun.ended_at is None for other, begun in self._state.sessions.items()
        ) or any(
            job.state is JobState.RUNNING and job.session != session for job in self._state.live.values()
        )

    def unfinished(self) -> list[JobRecord]:
        """Jobs that run, or will run without outside help."""
        return [
            job
            for job in self._state.live.values()
            if job.state is JobState.RUNNING
            or job.state in WAITING
            or self._is_claimable(job)
            or self._goes_on(job)
        ]

    def _goes_on(self, job: JobRecord) -> bool:
        """Whether a blocked job has a time to wait, or waits for others that come to an end."""
        if job.gate is not None and job.gate in self._state.gates.open_at:
            return True
        waiting = self._state.waits.waiting.get(job.id)
        if waiting is None or job.state is not JobState.BLOCKED:
            return False
        return waiting.until is not None or any(key.startswith(JOB) for key in waiting.keys)

    def _is_claimable(self, job: JobRecord) -> bool:
        return (
            job.state is JobState.READY and job.queue not in self._state.paused and self._is_served(job)
        )
