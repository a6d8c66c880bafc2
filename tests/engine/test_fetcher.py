"""The fetcher of a worker whose store waits for it: the job that it waited for goes first."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from winch.core.clock import FixedClock
from winch.core.ids import job_id
from winch.core.job import Claim
from winch.drivers.memory import MemoryDriver
from winch.engine.fetcher import Fetcher
from winch.engine.order import QueueOrder
from winch.storage.params import ClaimParams, NewJob, NewSession
from winch.storage.verbs import Verb


class WaitingBell:
    """Rings when it is told to, and claims then."""

    stays_armed = False

    def __init__(self, driver: MemoryDriver) -> None:
        self.driver = driver
        self.rings = asyncio.Event()

    async def arm(self) -> None:
        self.rings.clear()

    async def wait(self, timeout: float) -> bool:
        raise AssertionError("it claims when it rings")

    async def claim_when_rung(self, verb: Verb[list[Claim]], timeout: float) -> list[Claim]:
        await self.rings.wait()
        return await self.driver.arun(verb)

    def rouse(self) -> None:
        self.rings.set()

    async def aclose(self) -> None:
        pass


class WaitingDriver(MemoryDriver):
    """A memory store with such a bell, which notes each claim that is made."""

    def __init__(self, said: list[str]) -> None:
        super().__init__(FixedClock(datetime(2026, 1, 1, tzinfo=UTC)))
        self.said = said
        self.claimed = asyncio.Event()
        self.bells: list[WaitingBell] = []

    def claiming_bell(self, queues: Sequence[str]) -> WaitingBell:
        self.bells.append(WaitingBell(self))
        return self.bells[-1]

    def claim(self, params: ClaimParams, *, now: datetime | None = None) -> Verb[list[Claim]]:
        self.said.append("claim")
        self.claimed.set()
        return super().claim(params, now=now)


def test_a_job_that_was_waited_for_starts_before_the_next_claim_is_made() -> None:
    async def main() -> None:
        said: list[str] = []
        driver = WaitingDriver(said)
        session = NewSession(
            id="00000000-0000-4000-8000-000000000001",
            worker="w",
            host="h",
            pid=1,
            release="1",
            queues=("default",),
            tasks=("mail",),
            slots=1,
            lease=timedelta(minutes=1),
        )
        driver.run(driver.start_session(session))
        delivered, started, is_idle = asyncio.Event(), asyncio.Event(), asyncio.Event()

        def deliver(claims: Sequence[Claim], sent: float) -> None:
            if claims:
                delivered.set()

        async def slot() -> None:
            await delivered.wait()
            said.append("start")
            started.set()

        async def nothing_left() -> bool:
            is_idle.set()
            return False

        fetcher = Fetcher(
            driver,
            QueueOrder.of(["default"], random.Random(1)),
            ["mail"],
            poll=60.0,
            session=lambda: session.id,
            room=lambda: 1,
            waits_in_store=True,
            measured=lambda seconds: None,
            deliver=deliver,
            on_idle=nothing_left,
        )
        runner = asyncio.create_task(fetcher.run())
        waiting = asyncio.create_task(slot())
        async with asyncio.timeout(20):
            await is_idle.wait()  # and its claim waits for the ring
            said.clear()
            driver.claimed.clear()
            driver.run(driver.enqueue([NewJob(id=job_id(1, bytes(8)), task="mail", args="{}")]))
            driver.bells[0].rouse()
            await started.wait()
            await driver.claimed.wait()
        assert said[:2] == ["start", "claim"]
        runner.cancel()
        await asyncio.gather(runner, waiting, return_exceptions=True)

    asyncio.run(main())
