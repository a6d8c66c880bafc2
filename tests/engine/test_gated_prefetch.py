"""Jobs with gates are claimed ahead of free slots, as plain ones are."""

from __future__ import annotations

import asyncio
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
    assert most <= 2  # the slots


def test_a_worker_with_more_slots_than_the_limit_never_claims_more_than_that(url: str) -> None:
    app = App(url)
    running = most = 0

    @app.task(limit=Limit(3))
    async def job(n: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1

    noted = drain(app, [job.bind(n) for n in range(60)], concurrency=10)
    assert max(noted.sizes) <= 3
    assert 1 < most <= 3


def test_jobs_under_a_breaker_are_claimed_for_free_slots(url: str) -> None:
    app = App(url)

    @app.task(breaker=Breaker(scope="bank"))
    async def job(n: int) -> None: ...

    noted = drain(app, [job.bind(n) for n in range(100)])
    assert max(noted.sizes) <= 2
