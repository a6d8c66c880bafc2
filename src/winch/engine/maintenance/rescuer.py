"""Takes back the jobs of sessions whose lease is over.

A sweeper acts only when its own beats have been answered for one whole lease (Heart.may_rescue):
after an outage of the store every lease is over and nobody is guilty. Rescue is paced: at most a
batch per second, so that a fleet that died does not come back as a stampede.
"""

from __future__ import annotations

from collections.abc import Callable

from winch.engine.service import Service, log
from winch.storage.protocol import Driver

BATCH = 500
PACE = 1.0


class Rescuer(Service):
    name = "rescuer"

    def __init__(self, driver: Driver, sweep: float, may_rescue: Callable[[], bool]) -> None:
        super().__init__()
        self._driver = driver
        self._sweep = sweep
        self._may_rescue = may_rescue

    async def run_once(self) -> float:
        if not self._may_rescue():
            return min(self._sweep, 1.0)
        rescued = await self._driver.arun(self._driver.rescue(limit=BATCH))
        for job in rescued:
            log.warning(
                "rescued job %s: its worker's session %s ended without it; it is %s now",
                job.id,
                job.session,
                job.to,
            )
        return PACE if len(rescued) == BATCH else self._sweep
