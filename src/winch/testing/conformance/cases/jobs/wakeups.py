"""bell: an idle worker is woken. A hint, so a ring too many is no fault; a missing one costs a poll.

These cases use the store's own clock: waiting is a matter of real time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from winch.core.lifecycle import JobState
from winch.storage.protocol import Bell
from winch.testing.conformance.bench import HOUR, SECOND, Bench
from winch.testing.conformance.case import case

SOON = 5.0  # seconds within which a ring must come; it comes within milliseconds
SILENCE = 0.25  # seconds of quiet that count as no ring


@asynccontextmanager
async def armed(bench: Bench, queues: Sequence[str], *, due: bool = False) -> AsyncIterator[Bell]:
    bench.now = None
    bell = bench.driver.bell(queues, due=due)
    try:
        await bell.arm()
        yield bell
    finally:
        await bell.aclose()


@case()
async def a_stored_job_rings(bench: Bench) -> None:
    async with armed(bench, ["default"]) as bell:
        waiting = asyncio.create_task(bell.wait(SOON))
        await asyncio.sleep(0.01)
        await bench.acall(bench.driver.enqueue([bench.new_job()]))
        assert await waiting


@case()
async def a_job_stored_between_arming_and_waiting_rings(bench: Bench) -> None:
    async with armed(bench, ["default"]) as bell:
        await bench.acall(bench.driver.enqueue([bench.new_job()]))
        assert await bell.wait(SOON)


@case()
async def arming_and_looking_again_never_misses_a_job(bench: Bench) -> None:
    async with armed(bench, ["default"]) as bell:
        session = bench.new_session()
        await bench.acall(bench.driver.start_session(session))
        for _ in range(10):
            producer = asyncio.create_task(bench.acall(bench.driver.enqueue([bench.new_job()])))
            started = time.monotonic()
            while True:
                await bell.arm()
                params = bench.claiming(session=session.id)
                if await bench.acall(bench.driver.claim(params)):
                    break
                assert await bell.wait(SOON), "no producer rang for a job that was stored"
            await producer
            assert time.monotonic() - started < SOON


@case()
async def a_bell_of_several_queues_rings_for_each(bench: Bench) -> None:
    async with armed(bench, ["a", "b"]) as bell:
        for queue in ("a", "b"):
            await bell.arm()
            await bench.acall(bench.driver.enqueue([bench.new_job(queue=queue)]))
            assert await bell.wait(SOON)


@case()
async def every_bell_of_a_queue_rings(bench: Bench) -> None:
    async with armed(bench, ["default"]) as one, armed(bench, ["default"]) as other:
        await bench.acall(bench.driver.enqueue([bench.new_job()]))
        assert all(await asyncio.gather(one.wait(SOON), other.wait(SOON)))


@case()
async def a_job_of_another_queue_does_not_ring(bench: Bench) -> None:
    async with armed(bench, ["mine"]) as bell:
        await bench.acall(bench.driver.enqueue([bench.new_job(queue="other")]))
        assert not await bell.wait(SILENCE)


@case()
async def a_job_that_is_due_later_does_not_ring_for_its_queue(bench: Bench) -> None:
    async with armed(bench, ["default"]) as bell:
        await bench.acall(bench.driver.enqueue([bench.new_job(delay=HOUR)]))
        assert not await bell.wait(SILENCE)


@case()
async def without_a_ring_the_wait_ends_at_its_timeout(bench: Bench) -> None:
    async with armed(bench, ["default"]) as bell:
        started = time.monotonic()
        assert not await bell.wait(0.1)
        assert 0.09 < time.monotonic() - started < SOON


@case()
async def a_job_due_soon_rings_the_bell_of_due_jobs(bench: Bench) -> None:
    async with armed(bench, [], due=True) as bell:
        await bench.acall(bench.driver.enqueue([bench.new_job(delay=SECOND)]))
        assert await bell.wait(SOON)


@case()
async def a_retry_due_soon_rings_the_bell_of_due_jobs(bench: Bench) -> None:
    async with armed(bench, [], due=True) as bell:
        session = bench.new_session()
        await bench.acall(bench.driver.start_session(session))
        await bench.acall(bench.driver.enqueue([bench.new_job()]))
        (claim,) = await bench.acall(bench.driver.claim(bench.claiming(session=session.id)))
        await bell.arm()
        failed = bench.outcome(claim, JobState.RETRYING, delay=SECOND)
        await bench.acall(bench.driver.finish([failed]))
        assert await bell.wait(SOON)


@case()
async def a_promoted_job_rings_for_its_queue(bench: Bench) -> None:
    async with armed(bench, ["default"]) as bell:
        await bench.acall(bench.driver.enqueue([bench.new_job(delay=SECOND / 20)]))
        await asyncio.sleep(0.1)
        await bell.arm()
        assert (await bench.acall(bench.driver.promote())).count == 1
        assert await bell.wait(SOON)


@case()
async def a_released_job_rings_for_its_queue(bench: Bench) -> None:
    async with armed(bench, ["default"]) as bell:
        session = bench.new_session()
        await bench.acall(bench.driver.start_session(session))
        await bench.acall(bench.driver.enqueue([bench.new_job()]))
        await bench.acall(bench.driver.claim(bench.claiming(session=session.id)))
        await bell.arm()
        await bench.acall(bench.driver.end_session(session.id))
        assert await bell.wait(SOON)


@case()
async def a_resumed_queue_rings(bench: Bench) -> None:
    async with armed(bench, ["default"]) as bell:
        await bench.acall(bench.driver.pause("default", by="ada"))
        await bench.acall(bench.driver.enqueue([bench.new_job()]))
        await bell.arm()
        await bench.acall(bench.driver.resume("default", by="ada"))
        assert await bell.wait(SOON)


@case()
async def a_closed_bell_does_no_harm(bench: Bench) -> None:
    async with armed(bench, ["default"]):
        pass
    await bench.acall(bench.driver.enqueue([bench.new_job()]))
    async with armed(bench, ["default"]) as bell:
        await bench.acall(bench.driver.enqueue([bench.new_job()]))
        assert await bell.wait(SOON)


@case(needs="joins_transactions")
async def a_job_stored_in_a_callers_transaction_rings_at_its_commit(bench: Bench) -> None:
    async with armed(bench, ["default"]) as bell:
        async with bench.target.aconnection() as conn:
            await bench.driver.arun_on(conn, bench.driver.enqueue([bench.new_job()]))
            assert not await bell.wait(SILENCE)
            await bell.arm()
        # A producer that read "no worker waits" before may commit silently; the worker's poll is the
        # floor.
        await bell.wait(SILENCE)
        session = bench.new_session()
        await bench.acall(bench.driver.start_session(session))
        assert await bench.acall(bench.driver.claim(bench.claiming(session=session.id)))
