"""Deletes final jobs whose keeping time is over, dead ones that are too many, and what belonged
to gone jobs: lines of the search index, pages of steps. All in small batches."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from winch.core.policy.retention import DEAD_COUNT
from winch.engine.base import operation
from winch.engine.base.log import log
from winch.engine.base.search_index import SWEPT, sweep
from winch.engine.base.service import Service
from winch.engine.base.step_pages import sweep_pages
from winch.storage.params import Trim
from winch.storage.protocol import Driver

BATCH = 1000
EVERY = 60.0
# To see that no task has too many dead jobs takes a walk along an index: not every minute.
TRIM_EVERY = 600.0
# While there are lines of the search index left to look at.
SWEEP_EVERY = 10.0


class Pruner(Service):
    name = "pruner"
    is_vital = False

    def __init__(self, driver: Driver, every: float = EVERY) -> None:
        super().__init__()
        self._driver = driver
        self._every = every
        self._trim_at = 0.0
        self._sweep_after: str | None = None
        self._pages_after: str | None = None

    async def run_once(self) -> float:
        pruned = await self._driver.arun(self._driver.prune(limit=BATCH))
        if pruned:
            log.debug("pruned %d jobs", pruned)
        trimmed = await self._trim()
        struck = await self._sweep()
        pages = sweep_pages(self._driver, self._pages_after)
        self._pages_after = await operation.arun(self._driver, pages)
        if max(pruned, trimmed) >= BATCH or struck >= SWEPT // 4:
            return 0.2
        is_swept = self._sweep_after is None and self._pages_after is None
        return self._every if is_swept else min(self._every, SWEEP_EVERY)

    async def _sweep(self) -> int:
        now = datetime.now(UTC)
        swept = await operation.arun(self._driver, sweep(self._driver, self._sweep_after, now))
        self._sweep_after = swept.after
        return swept.struck

    async def _trim(self) -> int:
        if time.monotonic() < self._trim_at:
            return 0
        trimmed = await self._driver.arun(self._driver.trim(Trim(count=DEAD_COUNT, limit=BATCH)))
        if trimmed < BATCH:
            self._trim_at = time.monotonic() + TRIM_EVERY
        if trimmed:
            log.info("deleted %d dead jobs: their tasks limit how many are kept", trimmed)
        return trimmed
