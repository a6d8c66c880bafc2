"""Coroutines that end where they begin, run in one go: each is a job of its own all the same."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable

from winch import App, Discard, JobState, Retry
from winch.core.lifecycle import FINAL
from winch.engine.worker.started_jobs import StartedJobs, StartedPlaces

last_number: contextvars.ContextVar[int] = contextvars.ContextVar("last_number", default=-1)


def run(app: App, until: Callable[[], bool], *, concurrency: int = 3) -> None:
    async def main() -> None:
        async with asyncio.timeout(20), app.worker(concurrency=concurrency):
            while not until():  # noqa: ASYNC110  # the app's own handlers make it so
                await asyncio.sleep(0.002)

    asyncio.run(main())


def test_jobs_of_one_pass_end_as_each_of_them_ends() -> None:
    app = App("memory://")
    seen: list[int] = []
    ended: list[int] = []

    @app.task(name="t", retry=Retry.fixed("1ms", attempts=1))
    async def t(n: int) -> int | None:
        seen.append(last_number.get())
        last_number.set(n)
        ended.append(n)
        if n % 5 == 1:
            return n
        if n % 5 == 2:
            raise ValueError(n)
        if n % 5 == 3:
            raise Discard("no")
        if n % 5 == 4:
            await asyncio.sleep(0.001)
        return None

    jobs = app.enqueue_many([t.bind(n) for n in range(100)])
    run(app, lambda: all(job.refresh().state in FINAL for job in jobs))
    assert sorted(ended) == list(range(100))
    assert set(seen) == {-1}  # none sees another's context
    for n, job in enumerate(jobs):
        is_dead = n % 5 in (2, 3)
        assert job.refresh().state is (JobState.DEAD if is_dead else JobState.COMPLETED)
        if not is_dead:
            assert job.result() == (n if n % 5 == 1 else None)


def test_a_job_that_waits_lets_the_one_behind_it_start() -> None:
    app = App("memory://")
    met = asyncio.Event()
    over: list[str] = []

    @app.task(name="first")
    async def first() -> None:
        await met.wait()
        over.append("first")

    @app.task(name="second")
    async def second() -> None:
        met.set()
        over.append("second")

    app.enqueue_many([first.bind(), second.bind()])
    run(app, lambda: len(over) == 2, concurrency=2)
    assert over == ["second", "first"]


def test_a_job_that_cancels_its_own_runner_does_not_hit_the_next() -> None:
    app = App("memory://")
    over: list[int] = []

    @app.task(name="t")
    async def t(n: int) -> None:
        if n == 0:
            runner = asyncio.current_task()
            assert runner is not None
            runner.cancel()
        else:
            await asyncio.sleep(0)  # where a cancellation would arrive
        over.append(n)

    jobs = app.enqueue_many([t.bind(n) for n in range(4)])
    run(app, lambda: all(job.refresh().state in FINAL for job in jobs), concurrency=1)
    assert sorted(over) == [0, 1, 2, 3]


def test_a_place_on_the_board_is_kept_until_the_store_knows_of_the_end() -> None:
    page = StartedJobs.create(8)
    try:
        places = StartedPlaces(page, kill_after=1.0)
        places.begin("a" * 36, "b" * 36, 5.0)
        assert [(one.claim.id, one.deadline) for one in page.started()] == [("a" * 36, 7.0)]
        places.end("a" * 36, "b" * 36)
        assert page.started() == []
        assert {one.id for one in page.kept()} == {"a" * 36}
        places.written([*page.kept()])
        assert page.kept() == set()
        assert places.free == 8
    finally:
        page.close()
