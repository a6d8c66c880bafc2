"""Deletes final jobs whose keeping time is over, in small batches with pauses."""

from __future__ import annotations

from winch.engine.log import log
from winch.engine.service import Service
from winch.storage.protocol import Driver

BATCH = 1000
EVERY = 60.0


class Pruner(Service):
    name = "pruner"

    def __init__(self, driver: Driver, every: float = EVERY) -> None:
        super().__init__()
        self._driver = driver
        self._every = every

    async def run_once(self) -> float:
        pruned = await self._driver.arun(self._driver.prune(limit=BATCH))
        if pruned:
            log.debug("pruned %d jobs", pruned)
        return 0.2 if pruned >= BATCH else self._every
