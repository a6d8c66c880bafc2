"""The fetcher of a worker whose store waits for it: the job that it waited for goes first."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from winch.core.job import Claim
from winch.core.values.clock import FixedClock
from winch.core.values.ids import job_id
from winch.drivers.memory import MemoryDriver
from winch.engine.worker.fetcher import RUNG, Fetcher, FetchSettings
from winch.engine.worker.queues.order import QueueOrder
from winch.storage.params import Answer, ClaimParams, ClaimRef, NewJob, NewSession
from winch.storage.verbs import Verb


class WaitingBell:
    """Rings when a test rouses it, and claims then."""

    stays_armed = False

    def __init__(self, driver: MemoryDriver) -> None:
        self.driver = driver
        self.rings = asyncio.Event()

    async def arm(self) -> None:
        self.rings.clear()

    async def wait(self, timeout: float) -> bool:
        raise AssertionError("it claims when it rings")

    async def claim_when_rung(
        self, verb: Verb[list[Claim]], timeout: float, *, is_idle: bool = False
    ) -> list[Claim]:
        await self.rings.wait()
        return await self.driver.arun(verb)

    def rouse(self) -> None:
        self.rings.set()

    async def aclose(self) -> None:
        pass


class HastyBell(WaitingBell):
    """Hands over its claims before it returns them."""

    def __init__(self, driver: MemoryDriver) -> None:
        super().__init__(driver)
        self.on_claims: Callable[[list[Claim]], None] | None = None

    async def claim_when_rung(
        self, verb: Verb[list[Claim]], timeout: float, *, is_idle: bool = False
    ) -> list[Claim]:
        claims = await super().claim_when_rung(verb, timeout, is_idle=is_idle)
        assert self.on_claims is not None
        self.on_claims(claims)
        await asyncio.sleep(0)
        return claims


class WaitingDriver(MemoryDriver):
    """A memory store with one of these bells, which notes each claim."""

    def __init__(self, order_seen: list[str], bell: type[WaitingBell]) -> None:
        super().__init__(FixedClock(datetime(2026, 1, 1, tzinfo=UTC)))
        self.order_seen = order_seen
        self.bell_type = bell
        self.claimed = asyncio.Event()
        self.released = asyncio.Event()
        self.asked_for: list[int] = []
        self.bells: list[WaitingBell] = []
        self.plain_claim, self.plain_release = self.claim, self.release
        vars(self).update(claim=self.noted_claim, release=self.noted_release)

    def claiming_bell(self, queues: Sequence[str]) -> WaitingBell:
        self.bells.append(self.bell_type(self))
        return self.bells[-1]

    def noted_claim(self, params: ClaimParams, *, now: datetime | None = None) -> Verb[list[Claim]]:
        self.order_seen.append("claim")
        self.asked_for.append(params.limit)
        self.claimed.set()
        return self.plain_claim(params, now=now)

    def noted_release(
        self, claims: Sequence[ClaimRef], *, has_started: bool = False, now: datetime | None = None
    ) -> Verb[list[Answer]]:
        self.released.set()
        return self.plain_release(claims, now=now)


JOB = NewJob(id=job_id(1, bytes(8)), task="mail", args="{}")
SESSION = NewSession(
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


class Taker:
    """Takes what the fetcher claims, with as much room as the test gives it."""

    session = SESSION.id
    is_empty = False

    def __init__(
        self,
        deliver: Callable[[Sequence[Claim], float], None],
        is_idle: asyncio.Event,
        room: int,
    ) -> None:
        self.deliver = deliver
        self._is_idle = is_idle
        self._room = room

    def room(self, asked: int = 0) -> int:
        return self._room

    free = space = room

    def answered(self, seconds: float) -> None:
        pass

    async def found_nothing(self) -> bool:
        self._is_idle.set()
        return False


def fetcher_of(
    driver: WaitingDriver,
    deliver: Callable[[Sequence[Claim], float], None],
    is_idle: asyncio.Event,
    room: int = 1,
) -> Fetcher:
    driver.run(driver.start_session(SESSION))
    order = QueueOrder({"default": None}, random.Random(1))
    settings = FetchSettings(order, ["mail"], 60.0, waits_in_store=True)
    return Fetcher(driver, settings, Taker(deliver, is_idle, room))


@pytest.mark.parametrize("bell", [WaitingBell, HastyBell])
def test_a_job_that_was_waited_for_starts_before_the_next_claim_is_made(bell: type[WaitingBell]) -> None:
    async def main() -> None:
        order_seen: list[str] = []
        driver = WaitingDriver(order_seen, bell)
        delivered, started, is_idle = asyncio.Event(), asyncio.Event(), asyncio.Event()
        count = 0

        def deliver(claims: Sequence[Claim], sent: float) -> None:
            nonlocal count
            if claims:
                count += len(claims)
                delivered.set()

        async def slot() -> None:
            await delivered.wait()
            order_seen.append("start")
            started.set()

        fetcher = fetcher_of(driver, deliver, is_idle)
        runner = asyncio.create_task(fetcher.run())
        waiting = asyncio.create_task(slot())
        async with asyncio.timeout(20):
            await is_idle.wait()  # and its claim waits for the ring
            order_seen.clear()
            driver.claimed.clear()
            driver.run(driver.enqueue([JOB]))
            driver.bells[0].rouse()
            await started.wait()
            await driver.claimed.wait()
        assert order_seen[:2] == ["start", "claim"]
        assert count == 1
        runner.cancel()
        await asyncio.gather(runner, waiting, return_exceptions=True)

    asyncio.run(main())


@pytest.mark.parametrize("bell", [WaitingBell, HastyBell])
def test_jobs_claimed_by_a_ring_while_quiet_are_released(bell: type[WaitingBell]) -> None:
    async def main() -> None:
        driver = WaitingDriver([], bell)
        is_idle = asyncio.Event()
        delivered: list[Claim] = []
        fetcher = fetcher_of(driver, lambda claims, _: delivered.extend(claims), is_idle)
        runner = asyncio.create_task(fetcher.run())
        async with asyncio.timeout(20):
            await is_idle.wait()
            await asyncio.sleep(0)
            driver.run(driver.enqueue([JOB]))
            fetcher.quiet(True)  # which rouses it, and its claim was on its way
            await driver.released.wait()
        assert delivered == []
        runner.cancel()
        await asyncio.gather(runner, return_exceptions=True)

    asyncio.run(main())


def test_a_ring_is_met_by_a_small_claim_and_a_burst_by_the_next() -> None:
    async def main() -> None:
        driver = WaitingDriver([], WaitingBell)
        is_idle, all_here = asyncio.Event(), asyncio.Event()
        sizes: list[int] = []

        def deliver(claims: Sequence[Claim], sent: float) -> None:
            sizes.append(len(claims))
            if sum(sizes) == 200:
                all_here.set()

        fetcher = fetcher_of(driver, deliver, is_idle, room=500)
        runner = asyncio.create_task(fetcher.run())
        async with asyncio.timeout(20):
            await is_idle.wait()
            await asyncio.sleep(0)
            assert driver.asked_for[-1] == RUNG
            burst = [msgspec.structs.replace(JOB, id=job_id(n, bytes(8))) for n in range(200)]
            driver.run(driver.enqueue(burst))
            driver.bells[0].rouse()
            await all_here.wait()
        assert sizes == [RUNG, 200 - RUNG]
        runner.cancel()
        await asyncio.gather(runner, return_exceptions=True)

    asyncio.run(main())


def test_it_claims_again_at_a_freed_slot_where_a_claim_without_one_found_nothing() -> None:
    """For such a claim a store looks at few jobs with gates, and may pass over one that can run."""

    async def main() -> None:
        driver, is_idle = WaitingDriver([], WaitingBell), asyncio.Event()
        driver.run(driver.start_session(SESSION))
        order = QueueOrder({"default": None}, random.Random(1))
        taker = Taker(lambda claims, sent: None, is_idle, 1)
        taker.free = lambda asked=0: 0  # type: ignore[method-assign]
        fetcher = Fetcher(driver, FetchSettings(order, ["mail"], 60.0), taker)
        fetching = asyncio.create_task(fetcher.run())
        await asyncio.wait_for(is_idle.wait(), 5)
        driver.claimed.clear()
        fetcher.job_ended()  # its slot is taken by the next job at once
        await asyncio.sleep(0.05)
        assert not driver.claimed.is_set()
        taker.free = lambda asked=0: 1  # type: ignore[method-assign]
        fetcher.job_ended()
        await asyncio.wait_for(driver.claimed.wait(), 5)
        fetcher.stop()
        await fetching

    asyncio.run(main())
