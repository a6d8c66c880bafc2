"""Takes back the jobs of sessions whose lease is over.

A sweeper acts only when its own beats have been answered for one whole lease (Heart.proven_at): after
an outage of the store every lease is over through no fault of a worker. And it acts as of the last such
answer, not as of whenever its request is carried out: one that was held up on the way, behind a lock
or in a stalled network, would otherwise find every lease over. Rescue is paced: at most a batch per
second, so that a fleet that died does not come back as a stampede.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from winch.core.lifecycle import JobState
from winch.engine.base.log import log
from winch.engine.base.service import Service
from winch.engine.observe.store_ends import count_store_ends
from winch.engine.observe.throughput import Tally
from winch.engine.tasks.events import Events
from winch.storage.protocol import Driver

BATCH = 500
PACE = 1.0


class Rescuer(Service):
    name = "rescuer"

    def __init__(
        self,
        driver: Driver,
        sweep: float,
        proven_at: Callable[[], datetime | None],
        tally: Tally,
        events: Events | None = None,
    ) -> None:
        """`tally` counts the lost attempts and the deaths; subscribers of `events` hear of deaths."""
        super().__init__()
        self._tally = tally
        self._events = events
        self._driver = driver
        self._sweep = sweep
        self._proven_at = proven_at

    async def run_once(self) -> float:
        proven_at = self._proven_at()
        if proven_at is None:
            return self.unasked(min(self._sweep, 1.0))
        rescued = await self._driver.arun(self._driver.rescue(limit=BATCH, as_of=proven_at))
        for job in rescued:
            log.warning(
                "rescued job %s: the session %s of its worker has ended; the job is %s now",
                job.id,
                job.session,
                job.to,
            )
        await count_store_ends(
            self._driver,
            self._tally,
            self._events,
            lost=[job.id for job in rescued],
            dead=[job.id for job in rescued if job.to is JobState.DEAD],
        )
        return PACE if len(rescued) == BATCH else self._sweep
