"""What happens to jobs that a worker has claimed ahead when the fleet changes: two real workers.

The first worker holds prefetched jobs behind a slow one. The second has free slots. Prefetched jobs
obey what was changed, cost no attempt, and delay no job that its own gates let run.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from tests.engine.prefetch_kit import HEAD, OTHERS, Pair
from winch import App, Breaker, Retry
from winch.core.lifecycle import JobState

pytestmark = pytest.mark.servers
GATES = ["limit", "fifo"]


def delay_behind_a_slow_job(pair: Pair) -> float:
    """How long after the head began the last of the other jobs had ended, in seconds."""

    async def main() -> float:
        async with pair.at_work():
            await pair.others_end()
            assert HEAD not in pair.ended
        assert sorted(pair.runs) == list(range(OTHERS + 1))
        return max(pair.ended[n] for n in range(1, OTHERS + 1)) - pair.began[HEAD]

    return asyncio.run(main())


@pytest.mark.parametrize("gate", ["limit", "keyed", "fifo", "rate"])
def test_a_job_that_becomes_slow_delays_no_other_by_a_second(store_url: str, gate: str) -> None:
    """The head runs until all others have ended, so its length does not matter."""
    assert delay_behind_a_slow_job(Pair(store_url, gate)) < 1.0


@pytest.mark.parametrize("gate, is_thread", [("tenant", False), ("limit", True)])
def test_tenants_and_threads_do_not_wait_behind_a_slow_job_either(
    tmp_path: Path, gate: str, is_thread: bool
) -> None:
    pair = Pair(f"sqlite:///{tmp_path}/winch.db", gate, is_thread=is_thread)
    assert delay_behind_a_slow_job(pair) < 1.0


async def settled(pair: Pair) -> None:
    """Long enough for the first worker to give back what it has not started."""
    assert pair.prefetched, "the first worker had claimed nothing ahead"
    await asyncio.sleep(0.7)


@pytest.mark.parametrize("gate", GATES)
def test_a_paused_queue_starts_no_prefetched_job(store_url: str, gate: str) -> None:
    pair = Pair(store_url, gate)

    async def main() -> None:
        pair.meanwhile = lambda: pair.first.queues.apause("default")
        async with pair.at_work():
            await settled(pair)
            assert pair.runs_after_head() == []
            assert set(await pair.states()) <= {"ready", "blocked"}, (
                "a worker holds jobs of a paused queue"
            )
            await pair.second.queues.aresume("default")
            await pair.others_end()
            assert HEAD not in pair.ended
        assert sorted(pair.runs) == list(range(OTHERS + 1))
        assert {job.record.attempt for job in pair.jobs} == {1}

    asyncio.run(main())


def test_a_lower_limit_holds_for_prefetched_jobs(store_url: str) -> None:
    pair = Pair(store_url, "limit")
    pair.seconds = 0.005

    async def used() -> int:
        return next(one.used for one in await pair.second.limits.alist() if one.name == "limit:job")

    async def main() -> None:
        pair.meanwhile = lambda: pair.first.limits.aset("limit:job", 1)
        async with pair.at_work():
            await settled(pair)
            assert pair.runs_after_head() == [], "a job ran beyond the lower limit"
            assert await used() == 1, "prefetched jobs keep permits beyond the lower limit"
            pair.head_ends.set()
            await pair.others_end()
        assert pair.most == 1
        assert sorted(pair.runs) == list(range(OTHERS + 1))
        assert {job.record.attempt for job in pair.jobs} == {1}

    asyncio.run(main())


@pytest.mark.parametrize("gate", GATES)
def test_a_cancelled_job_that_was_prefetched_never_starts(store_url: str, gate: str) -> None:
    pair = Pair(store_url, gate)
    chosen: list[int] = []

    async def main() -> None:
        async def cancel() -> None:
            job_id = pair.prefetched[len(pair.prefetched) // 2]
            chosen.extend(at for at, job in enumerate(pair.jobs) if job.id == job_id)
            await pair.second.jobs.acancel(job_id, reason="a test")

        pair.meanwhile = cancel
        async with pair.at_work():
            await pair.others_end(chosen, seconds=3.0)
            [cancelled] = chosen
            await pair.jobs[cancelled].arefresh()
            assert pair.jobs[cancelled].state is JobState.CANCELLED
            assert HEAD not in pair.ended
        assert sorted(pair.runs) == [n for n in range(OTHERS + 1) if n != cancelled]

    asyncio.run(main())


@pytest.mark.parametrize("gate", GATES)
def test_a_worker_that_drains_gives_prefetched_jobs_to_the_other(store_url: str, gate: str) -> None:
    pair = Pair(store_url, gate)

    async def main() -> None:
        async with pair.at_work():
            assert pair.prefetched
            draining = asyncio.create_task(pair.workers[0].drain(10.0))
            began = time.monotonic()
            await pair.others_end(seconds=5.0)
            assert max(pair.ended[n] for n in range(1, OTHERS + 1)) - began < 1.5
            assert HEAD not in pair.ended
            pair.head_ends.set()
            assert await draining == 0
        assert sorted(pair.runs) == list(range(OTHERS + 1))
        assert {job.record.attempt for job in pair.jobs} == {1}

    asyncio.run(main())


def test_a_breaker_that_trips_holds_all_but_the_started_jobs(store_url: str) -> None:
    """Two workers of two slots that have learned to claim ahead. Jobs under a scope wait for a slot in
    the store, all but one for each worker. So each slot begins at most one more while the failures are
    on their way to the store, and each worker one that it holds."""
    apps = [App(store_url) for _ in range(2)]
    starts: list[float] = []

    def tasks(app: App) -> tuple[Any, Any]:
        @app.task(name="warm")
        async def warm() -> None: ...

        @app.task(
            name="job",
            retry=Retry.fixed("1m"),
            breaker=Breaker(scope="bank", failures=0.5, of=4, hold="30s"),
        )
        async def job(n: int) -> None:
            starts.append(time.monotonic())
            await asyncio.sleep(0.02)
            raise RuntimeError("the bank is down")

        return warm, job

    (warm, job), _ = [tasks(app) for app in apps]

    async def main() -> None:
        async with apps[0].worker(concurrency=2), apps[1].worker(concurrency=2):
            for one in await apps[0].aenqueue_many([warm.bind() for _ in range(200)]):
                await one
            jobs = await apps[0].aenqueue_many([job.bind(n) for n in range(40)])
            await asyncio.sleep(1.5)
            held = [(await apps[1].jobs.aget(one.id)).record for one in jobs]
            blocked = [one for one in held if one.state is JobState.BLOCKED]
            began = len(starts)
            assert 4 <= began <= 4 + 4 + 2, f"{began} attempts began"
            assert len(blocked) >= 40 - began - 1, "jobs that have not begun wait at the scope"
            assert {one.attempt for one in blocked} == {0}
            await asyncio.sleep(0.5)
            assert len(starts) == began
        for app in apps:
            await app.aclose()

    asyncio.run(main())
