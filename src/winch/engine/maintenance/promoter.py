"""Makes due jobs ready, on time: sleeps until the next one is due, or until the bell rings."""

from __future__ import annotations

import time

from winch.engine.base.service import Service
from winch.storage.params import Promoted
from winch.storage.protocol import Driver

BATCH = 1000
# Every so many passes all gates are looked at, so that no job waits where there is room.
SWEEP_EVERY = 30
# Not a hair too early: the store's clock decides, and a pass for nothing costs a statement.
HAIR = 0.0005
# The end of each member of a flow triggers a look at the jobs that wait for all of them; all looks but
# the last are in vain. After such a look the next one is delayed by this multiple of its duration.
REST, LONGEST_REST = 5, 0.2


class Promoter(Service):
    name = "promoter"

    def __init__(self, driver: Driver, poll: float, *, hair: float = HAIR) -> None:
        super().__init__()
        self._driver = driver
        self._poll = poll
        self._hair = hair  # none is needed where the store and this loop share one clock
        self._bell = driver.bell((), due=True)
        self._passes = 0
        self._rests_until = float("-inf")

    async def run_once(self) -> float:
        await self._bell.arm()
        promoted = await self._driver.arun(self._driver.promote(limit=BATCH))
        return min(self._until(promoted), await self._admit(), await self._unblock())

    async def _admit(self) -> float:
        """Open the gates whose moment has come. Once in a while look at every gate that is waited at."""
        is_sweep = self._passes % SWEEP_EVERY == SWEEP_EVERY - 1
        self._passes += 1
        return self._until(await self._driver.arun(self._driver.admit(limit=BATCH, is_sweep=is_sweep)))

    async def _unblock(self) -> float:
        """Look at what jobs wait for that may have come."""
        began = time.monotonic()
        if began < self._rests_until:
            return min(self._rests_until - began, self._poll)
        found = await self._driver.arun(self._driver.unblock(limit=BATCH))
        if found.is_more and not found.count:
            now = time.monotonic()
            self._rests_until = now + min(REST * (now - began), LONGEST_REST)
        return self._until(found)

    def _until(self, promoted: Promoted) -> float:
        if promoted.count >= BATCH:
            return 0.0
        if promoted.next_at is None:
            return self._poll
        left = (promoted.next_at - promoted.now).total_seconds()
        return min(max(left + self._hair, 2 * self._hair), self._poll)

    async def idle(self, seconds: float) -> None:
        await self._bell.wait(seconds)

    async def run(self) -> None:
        try:
            await super().run()
        finally:
            await self._bell.aclose()
