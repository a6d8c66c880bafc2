"""The loops of a worker that look after what runs: its pulse and deadlines, cancels, reports."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from winch.engine.base.service import Service
from winch.storage.params import Answer, ClaimRef
from winch.storage.protocol import Driver

if TYPE_CHECKING:
    from winch.engine.worker.worker import Worker

WATCH_EVERY = 0.05
CANCELS_EVERY = 1.0
NOTES_EVERY = 0.5


class Watch(Service):
    """The worker's pulse and its deadlines: one small pass many times a second."""

    name = "watch"

    def __init__(self, look: Callable[[], None]) -> None:
        super().__init__()
        self._look = look

    async def run_once(self) -> float:
        self._look()
        return WATCH_EVERY


class Cancels(Service):
    """Hears of cancels requested for running jobs."""

    name = "cancels"

    def __init__(self, driver: Driver, worker: Worker) -> None:
        super().__init__()
        self._driver = driver
        self._worker = worker

    async def run_once(self) -> float:
        if not self._worker.has_jobs:
            return self.unasked(CANCELS_EVERY)
        for ref in await self._driver.arun(self._driver.cancels([self._worker.session])):
            self._worker.cancel_requested(ref)
        return CANCELS_EVERY


class Notes(Service):
    """Tells the store what running handlers report, twice a second."""

    name = "notes"

    def __init__(self, driver: Driver, worker: Worker) -> None:
        super().__init__()
        self._driver = driver
        self._worker = worker

    async def run_once(self) -> float:
        is_asked = False
        for attempt in self._worker.attempts:
            note = attempt.reports.take()
            if note is not None:
                is_asked = True
                ref = ClaimRef(attempt.claim.id, attempt.claim.token)
                verb = self._driver.note(ref, note)
                if await self._driver.arun(verb) is Answer.LOST:
                    self._worker.claim_lost(attempt)
        return NOTES_EVERY if is_asked else self.unasked(NOTES_EVERY)
