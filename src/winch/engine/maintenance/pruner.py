"""Deletes final jobs whose keeping time is over, and dead ones that are too many, in small batches."""

from __future__ import annotations

import time

from winch.core.retention import DEAD_COUNT
from winch.engine.log import log
from winch.engine.service import Service
from winch.storage.params import Trim
from winch.storage.protocol import Driver

BATCH = 1000
EVERY = 60.0
# To see that no task has too many dead jobs takes a walk along an index: not every minute.
TRIM_EVERY = 600.0


class Pruner(Service):
    name = "pruner"

    def __init__(self, driver: Driver, every: float = EVERY) -> None:
        super().__init__()
        self._driver = driver
        self._every = every
        self._trim_at = 0.0

    async def run_once(self) -> float:
        pruned = await self._driver.arun(self._driver.prune(limit=BATCH))
        if pruned:
            log.debug("pruned %d jobs", pruned)
        trimmed = await self._trim()
        return 0.2 if max(pruned, trimmed) >= BATCH else self._every

    async def _trim(self) -> int:
        if time.monotonic() < self._trim_at:
            return 0
        trimmed = await self._driver.arun(self._driver.trim(Trim(count=DEAD_COUNT, limit=BATCH)))
        if trimmed < BATCH:
            self._trim_at = time.monotonic() + TRIM_EVERY
        if trimmed:
            log.info("deleted %d dead jobs: their tasks keep no more than so many", trimmed)
        return trimmed
