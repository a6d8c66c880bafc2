"""Short jobs are claimed ahead, long ones are not, and nothing is hoarded."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from winch import App, JobState, Limit, Middleware
from winch.engine.worker.room import MOST, Prefetch
from winch.types import Claim


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


def test_one_job_for_each_slot_waits_here_where_it_starts_soon() -> None:
    prefetch = Prefetch(10)
    prefetch.ended(0.049)  # at this rate a round trip brings less than one
    assert prefetch.ahead() == 10
    prefetch.ended(0.2)
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


@pytest.mark.parametrize("is_gated", [False, True])
def test_prefetched_jobs_take_a_bounded_number_of_bytes(
    is_gated: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    most, size, slots = 500_000, 20_000, 2
    monkeypatch.setattr("winch.engine.worker.room.MOST_BYTES", most)
    app = App(f"sqlite:///{tmp_path}/winch.db")
    held = peak = 0

    class Bytes(Middleware):
        def claimed(self, claims: Sequence[Claim], seconds: float) -> None:
            nonlocal held, peak
            held += sum(len(claim.args) for claim in claims)
            peak = max(peak, held)

    @app.task(limit=[Limit(400)] if is_gated else [])
    async def job(text: str) -> None:
        nonlocal held
        held -= len(text)

    app.use(Bytes())

    async def main() -> None:
        jobs = await app.aenqueue_many([job.bind("x" * size) for _ in range(400)])
        async with app.worker(concurrency=slots):
            for one in jobs:
                await one
        await app.aclose()

    asyncio.run(main())
    with capsys.disabled():
        sys.stdout.write(f"\n  prefetched payloads: at most {peak:,} bytes of {400 * size:,}\n")
    assert 10 * size < peak < most + (slots + 2) * (size + 100)


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
