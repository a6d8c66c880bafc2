"""The loops of a worker that look after running jobs: its pulse and deadlines, cancels, reports."""

from __future__ import annotations

from collections.abc import Callable

from winch.engine.base.service import Service
from winch.engine.worker.attempt import Interrupt
from winch.engine.worker.held_jobs import HeldJobs
from winch.storage.params import Answer, ClaimRef
from winch.storage.protocol import Driver

WATCH_EVERY = 0.05
CANCELS_EVERY = 1.0
NOTES_EVERY = 0.5


class Watch(Service):
    """The worker's pulse and its deadlines: one small pass many times a second."""

    name = "watch"

    def __init__(
        self, jobs: HeldJobs, kill_after: float, release_hoarded: Callable[[float], None]
    ) -> None:
        super().__init__()
        self._jobs = jobs
        self._kill_after = kill_after
        self._release_hoarded = release_hoarded

    async def run_once(self) -> float:
        self.look()
        return WATCH_EVERY

    def look(self) -> None:
        """Show a pulse; interrupt what is past its deadline; give up what does not end."""
        jobs = self._jobs
        now = jobs.monotonic()
        if jobs.places is not None:
            jobs.places.pulse()
        self._release_hoarded(now)
        jobs.recycling.look(now)
        for attempt in jobs.running:
            if attempt.is_over:
                continue
            if attempt.interrupted is not None:
                if now - attempt.interrupted_at > self._kill_after:
                    jobs.give_up(attempt)
            elif (end := attempt.must_end_by) is not None and now >= end:
                attempt.is_silent = attempt.deadline is None or now < attempt.deadline
                attempt.interrupt(Interrupt.TIMEOUT, now)
            elif attempt.heartbeat is not None and not attempt.is_alone:
                jobs.show(attempt)  # its last moment moves with every sign of life


class Cancels(Service):
    """Reads which running jobs have been cancelled."""

    name = "cancels"

    def __init__(self, driver: Driver, jobs: HeldJobs) -> None:
        super().__init__()
        self._driver = driver
        self._jobs = jobs

    async def run_once(self) -> float:
        if not self._jobs.attempts:
            return self.unasked(CANCELS_EVERY)
        for ref in await self._driver.arun(self._driver.cancels([self._jobs.session])):
            self._jobs.cancel(ref)
        return CANCELS_EVERY


class Notes(Service):
    """Stores what running handlers report, twice a second."""

    name = "notes"

    def __init__(self, driver: Driver, jobs: HeldJobs) -> None:
        super().__init__()
        self._driver = driver
        self._jobs = jobs

    async def run_once(self) -> float:
        has_sent = False
        for attempt in self._jobs.running:
            note = attempt.reports.take()
            if note is not None:
                has_sent = True
                ref = ClaimRef(attempt.claim.id, attempt.claim.token)
                verb = self._driver.note(ref, note)
                if await self._driver.arun(verb) is Answer.LOST:
                    self._jobs.lost(attempt)
        return NOTES_EVERY if has_sent else self.unasked(NOTES_EVERY)
