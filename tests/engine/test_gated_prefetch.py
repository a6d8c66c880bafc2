"""Jobs with gates are claimed ahead of free slots, as plain ones are, and wait in no worker for long."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from winch import App, Breaker, Limit, Middleware
from winch.types import Claim

pytestmark = pytest.mark.servers


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/winch.db"
    found: str = request.getfixturevalue("postgres_url")
    return found


class Claims(Middleware):
    """Notes how many jobs each claim brought."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def claimed(self, claims: Sequence[Claim], seconds: float) -> None:
        self.sizes.append(len(claims))


def drain(app: App, calls: list[object], *, concurrency: int = 2) -> Claims:
    noted = Claims()
    app.use(noted)

    async def main() -> None:
        jobs = await app.aenqueue_many(calls)  # type: ignore[arg-type]
        async with app.worker(concurrency=concurrency):
            for job in jobs:
                await job
        await app.aclose()

    asyncio.run(main())
    return noted


def test_short_jobs_under_a_limit_are_claimed_ahead_and_never_exceed_it(url: str) -> None:
    app = App(url)
    running = most = 0

    @app.task(limit=Limit(20))
    async def job(n: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1

    noted = drain(app, [job.bind(n) for n in range(300)])
    assert max(noted.sizes) > 2, "claimed for free slots only"
    assert max(noted.sizes) <= 20
    assert most <= 2  # the slots


def test_jobs_under_a_breaker_are_claimed_for_free_slots(url: str) -> None:
    app = App(url)

    @app.task(breaker=Breaker(scope="bank"))
    async def job(n: int) -> None: ...

    noted = drain(app, [job.bind(n) for n in range(100)])
    assert max(noted.sizes) <= 2


@pytest.mark.parametrize("gate", ["limit", "fifo"])
def test_a_job_that_becomes_slow_delays_no_other_by_a_second(url: str, gate: str) -> None:
    """Two workers of one slot each. One has claimed many when its first job turns out to be slow."""
    first, second = App(url), App(url)
    ended: dict[int, float] = {}

    def tasks(app: App) -> object:
        @app.task(name="job", limit=[Limit(50)] if gate == "limit" else [])
        async def job(n: int, seconds: float) -> None:
            await asyncio.sleep(seconds)
            ended[n] = time.monotonic()

        return job

    job, _ = tasks(first), tasks(second)

    def call(n: int, seconds: float = 0.0) -> object:
        options = {"fifo": f"key:{n}"} if gate == "fifo" else {}
        return job.using(**options).bind(n, seconds)  # type: ignore[attr-defined]

    async def main() -> None:
        async with first.worker(concurrency=1):
            for quick in await first.aenqueue_many([call(n) for n in range(100)]):  # type: ignore[misc]
                await quick
            ended.clear()
            jobs = await first.aenqueue_many([call(0, 4.0), *[call(n) for n in range(1, 40)]])  # type: ignore[list-item]
            async with second.worker(concurrency=1):
                began = time.monotonic()
                for other in jobs[1:]:
                    await other
                assert 0 not in ended
                assert max(ended.values()) - began < 2.0  # a busy machine needs a moment itself
                await jobs[0]
        await first.aclose()
        await second.aclose()

    asyncio.run(main())
