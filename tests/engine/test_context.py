"""What a handler can report while it runs."""

from __future__ import annotations

import asyncio
import logging
from datetime import datetime
from typing import Any

import msgspec
import pytest

from tests.engine.test_worker import new_app, run, until
from winch import Cancel, Context, Discard, Job, JobState, LostClaim, Retry, RetryAfter, Snooze


def test_progress_is_seen_while_the_job_runs() -> None:
    app = new_app()
    go_on = asyncio.Event()

    @app.task
    async def resize(*, ctx: Context) -> None:
        ctx.progress(10)
        ctx.progress(40, "resizing")
        await go_on.wait()

    async def body(_: Any) -> None:
        job: Job[Any] = await resize.aenqueue()  # type: ignore[call-arg]  # ctx is injected
        while (await job.arefresh()).record.progress is None:  # noqa: ASYNC110  # no event to wait on
            await asyncio.sleep(0.02)
        assert msgspec.json.decode(job.record.progress or "") == {"percent": 40, "message": "resizing"}
        go_on.set()
        await until(job, JobState.COMPLETED)

    run(app, body)


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_a_checkpoint_is_handed_to_the_next_attempt(kind: str) -> None:
    app = new_app()

    async def on_loop(*, ctx: Context) -> int:
        page: int = ctx.last_checkpoint or 0
        await ctx.acheckpoint(page + 1)
        if page < 2:
            raise ValueError("again")
        return page

    def in_thread(*, ctx: Context) -> int:
        page: int = ctx.last_checkpoint or 0
        ctx.checkpoint(page + 1)
        if page < 2:
            raise ValueError("again")
        return page

    function: Any = on_loop if kind == "async" else in_thread
    task: Any = app.task(name="t", retry=Retry.fixed("10ms", attempts=5))(function)

    async def body(_: Any) -> None:
        assert await (await task.aenqueue()) == 2

    run(app, body)


def test_log_lines_are_kept_with_their_attempt(caplog: pytest.LogCaptureFixture) -> None:
    app = new_app()
    caplog.set_level(logging.INFO)

    @app.task(retry=Retry.fixed("10ms", attempts=2))
    def talks(*, ctx: Context) -> None:
        ctx.log.info("attempt %d", ctx.attempt)
        ctx.log.warning("two\nlines \0")
        ctx.log.debug("not kept")
        if ctx.attempt == 1:
            raise ValueError("again")

    async def body(_: Any) -> None:
        job = await until(await talks.aenqueue(), JobState.COMPLETED)  # type: ignore[call-arg]
        (entry,) = job.record.history
        assert entry.log == "info: attempt 1\nwarning: two\n    lines \N{REPLACEMENT CHARACTER}\n"
        assert (job.record.log or "").startswith("info: attempt 2\n")
        assert f"[{job.id}] attempt 1" in caplog.text

    run(app, body)


def test_a_handler_learns_that_its_claim_is_lost() -> None:
    app = new_app()
    found: list[Any] = []

    @app.task
    def task(*, ctx: Context) -> None:
        if found:
            return
        found.append(ctx.still_mine())
        driver = app.ready()
        session = app.jobs.get(ctx.job_id).record.session or ""
        driver.run(driver.give_up(session, [app.jobs.get(ctx.job_id).record.token or ""]))
        found.append(ctx.still_mine())
        with pytest.raises(LostClaim, match="the checkpoint is not stored"):
            ctx.checkpoint(1)

    async def body(_: Any) -> None:
        await until(await task.aenqueue(), JobState.COMPLETED)  # type: ignore[call-arg]
        assert found == [True, False]

    run(app, body)


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_a_handler_knows_its_worker_and_how_often_its_job_was_claimed(kind: str) -> None:
    app = new_app()
    seen: list[tuple[int, int, str]] = []
    times: set[datetime] = set()

    def count(ctx: Context, claims: int) -> None:
        seen.append((ctx.attempt, claims, ctx.worker))
        times.add(ctx.created_at)
        if len(seen) == 1:
            raise Snooze("1ms")
        if len(seen) == 2:
            raise ValueError("again")

    async def on_loop(*, ctx: Context) -> None:
        count(ctx, await ctx.aclaims())

    def in_thread(*, ctx: Context) -> None:
        count(ctx, ctx.claims)

    function: Any = on_loop if kind == "async" else in_thread
    task: Any = app.task(name="t", retry=Retry.fixed("10ms", attempts=5))(function)

    async def body(worker: Any) -> None:
        job = await until(await task.aenqueue(), JobState.COMPLETED)
        assert [(attempt, claims) for attempt, claims, _ in seen] == [(1, 1), (1, 2), (2, 3)]
        assert {worker for *_, worker in seen} == {worker.session} == {job.record.session}
        assert times == {job.record.created_at}

    run(app, body)


def test_a_handler_knows_whether_an_error_ends_its_job() -> None:
    app = new_app()
    seen: list[list[bool]] = []

    @app.task(name="t", retry=Retry.fixed("1ms", attempts=2, on={KeyError: None}))
    def t(*, ctx: Context) -> None:
        errors = [ValueError(), KeyError(), RetryAfter("1s"), Snooze("1s"), Discard("no"), Cancel("no")]
        seen.append([ctx.gives_up(error) for error in errors])
        raise ValueError

    async def body(_: Any) -> None:
        job: Job[Any] = await t.aenqueue()  # type: ignore[call-arg]  # ctx is injected
        await until(job, JobState.DEAD)

    run(app, body)
    first = [False, True, False, False, True, True]
    assert seen == [first, [True, True, True, False, True, True]]
