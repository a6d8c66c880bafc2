"""Jobs with gates are claimed ahead of free slots, as plain ones are."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from winch import App, Breaker, Limit, Middleware, Task
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


@pytest.mark.parametrize("is_thread", [False, True], ids=["coroutine", "thread"])
def test_workers_with_few_slots_never_exceed_a_limit_together(url: str, is_thread: bool) -> None:
    """The store counts no more of a worker than its slots, whatever it claims ahead. So it never runs
    more handlers than that, and both together run no more than the limit allows."""
    slots, allowed = 3, 4
    lock = threading.Lock()
    running: dict[str, int] = {}
    most: dict[str, int] = {}

    def count(worker: str, change: int) -> None:
        with lock:
            running[worker] = running.get(worker, 0) + change
            most[worker] = max(most.get(worker, 0), running[worker])
            most["both"] = max(most.get("both", 0), sum(running.values()))

    def make(worker: str) -> tuple[App, Task[..., Any]]:
        app = App(url)
        if is_thread:

            @app.task(name="job", limit=Limit(allowed))
            def job(n: int) -> None:
                count(worker, 1)
                time.sleep(0.002)
                count(worker, -1)

            return app, job

        @app.task(name="job", limit=Limit(allowed))
        async def ajob(n: int) -> None:
            count(worker, 1)
            await asyncio.sleep(0.002 * (n % 3))
            count(worker, -1)

        return app, ajob

    first, job = make("first")
    second, _ = make("second")

    async def main() -> None:
        jobs = await first.aenqueue_many([job.bind(n) for n in range(300)])
        async with first.worker(concurrency=slots), second.worker(concurrency=slots):
            for one in jobs:
                await one
        await first.aclose()
        await second.aclose()

    asyncio.run(main())
    assert most["both"] <= allowed
    assert max(most.get("first", 0), most.get("second", 0)) <= slots


def test_jobs_under_a_breaker_are_claimed_for_free_slots(url: str) -> None:
    app = App(url)

    @app.task(breaker=Breaker(scope="bank"))
    async def job(n: int) -> None: ...

    noted = drain(app, [job.bind(n) for n in range(100)])
    assert max(noted.sizes) <= 2
