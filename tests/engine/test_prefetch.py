"""Short jobs are claimed ahead, long ones are not, and nothing is hoarded."""

from __future__ import annotations

import asyncio
from typing import Any

from winch import App, JobState
from winch.engine.worker.slots import MOST, Prefetch


def test_nothing_is_claimed_ahead_before_a_job_was_timed() -> None:
    assert Prefetch(10).ahead() == 0


def test_short_jobs_are_claimed_ahead_up_to_a_bound() -> None:
    prefetch = Prefetch(10)
    prefetch.ended(0.00001)
    assert prefetch.ahead() == MOST


def test_long_jobs_are_not_claimed_ahead() -> None:
    prefetch = Prefetch(10)
    prefetch.ended(0.05)
    assert prefetch.ahead() == 0


def test_jobs_that_ran_in_one_go_count_each() -> None:
    prefetch = Prefetch(10)
    prefetch.ended(0.1)  # the first one, of a process that has just started
    prefetch.ended_in_place(0.00001, 100)
    assert prefetch.ahead() >= MOST // 10


def test_a_slow_store_does_not_lead_to_hoarding() -> None:
    prefetch = Prefetch(10)
    prefetch.ended(0.02)
    for _ in range(200):
        prefetch.claimed(5.0)
    assert prefetch.ahead() <= 25  # what ten slots start within the horizon


def test_jobs_that_wait_too_long_in_a_worker_go_back() -> None:
    app = App("memory://", grace="0s", poll="100ms")

    @app.task
    async def job(seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def main() -> None:
        async with app.worker(concurrency=1) as worker:
            for quick in [await job.aenqueue(0) for _ in range(20)]:
                await quick
            jobs = await app.aenqueue_many([job.bind(seconds) for seconds in (5, *[0] * 50)])
            await asyncio.sleep(0.4)
            states = [(await j.arefresh()).state for j in jobs]
            assert states == [JobState.RUNNING, *[JobState.READY] * 50]
            attempts: Any = {j.record.attempt for j in jobs[1:]}
            assert attempts == {0}
            assert worker.attempts

    asyncio.run(main())
