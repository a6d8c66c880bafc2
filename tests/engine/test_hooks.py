"""Versions, dependencies, lifespan, middleware and events."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Annotated, Any

import msgspec
import pytest

from tests.engine.test_worker import new_app, run, until
from winch import (
    App,
    ConfigError,
    Context,
    Depends,
    InvalidPayload,
    JobEvent,
    JobState,
    Middleware,
    Retry,
)
from winch.storage.params import NewJob


def store_raw(app: Any, **fields: Any) -> str:
    driver = app.ready()
    job_id: str = app.client.draw_id()
    driver.run(driver.enqueue([NewJob(id=job_id, **fields)]))
    return job_id


def test_old_payloads_are_upgraded_step_by_step() -> None:
    app = new_app()

    @app.task(name="resize", version=3)
    def resize(image: str, width: int, mode: str) -> str:
        return f"{image} {width} {mode}"

    @resize.upgrade(from_version=1)
    def _(args: dict[str, Any]) -> dict[str, Any]:
        return {"image": args["picture"], "width": 100}

    @resize.upgrade(from_version=2)
    def _(args: dict[str, Any]) -> dict[str, Any]:
        return {**args, "mode": "fit"}

    old = store_raw(app, task="resize", args='{"picture":"a"}', version=1)

    async def body(_: Any) -> None:
        assert await app.jobs.get(old) == "a 100 fit"
        assert await (await resize.aenqueue("b", 5, "x")) == "b 5 x"

    run(app, body)


def test_a_job_without_an_upgrader_is_dead_and_its_error_names_the_remedy() -> None:
    app = new_app()

    @app.task(name="resize", version=2)
    def resize(width: int) -> None: ...

    old = store_raw(app, task="resize", args="{}", version=1)

    async def body(_: Any) -> None:
        job = await until(app.jobs.get(old), JobState.DEAD)
        assert "add one with @resize.upgrade(from_version=1)" in (job.record.reason or "")

    run(app, body)
    with pytest.raises(InvalidPayload):
        resize.current_args("{}", 1)
    with pytest.raises(ConfigError, match="from_version must be from 1 to 1"):
        resize.upgrade(from_version=2)


def test_a_payload_of_a_newer_version_waits_and_spends_no_attempt() -> None:
    app = new_app()

    @app.task(name="resize")
    def resize() -> None: ...

    newer = store_raw(app, task="resize", args="{}", version=2)

    async def body(_: Any) -> None:
        job = await until(app.jobs.get(newer), JobState.SCHEDULED)
        assert (job.record.attempt, job.record.reason) == (
            0,
            "this worker has version 1 of resize, the job needs version 2",
        )

    run(app, body)


def test_resources_and_dependencies_are_injected_and_cleaned_up() -> None:
    app = new_app()
    seen: list[str] = []

    @app.lifespan
    async def resources() -> AsyncIterator[dict[str, Any]]:
        seen.append("up")
        yield {"http": "client"}
        seen.append("down")

    def base(*, ctx: Context) -> str:
        return f"base {ctx.attempt}"

    def session(prefix: str = Depends(base)) -> Iterator[str]:
        seen.append("open")
        yield f"{prefix} session"
        seen.append("close")

    async def asession(prefix: str = Depends(base)) -> AsyncIterator[str]:
        yield f"{prefix} async session"
        seen.append("aclose")

    @app.task
    def in_thread(
        n: int, *, http: Annotated[str, Depends("http")], db: str = Depends(session), ctx: Context
    ) -> list[Any]:
        return [n, http, db, ctx.resources["http"]]

    @app.task
    async def on_loop(
        *, a: str = Depends(asession), b: str = Depends(asession), c: str = Depends(session)
    ) -> list[Any]:
        return [a is b, a, c]

    async def body(_: Any) -> None:
        job: Any = await in_thread.aenqueue(1)  # type: ignore[call-arg]  # the rest is injected
        assert await job == [1, "client", "base 1 session", "client"]
        assert await (await on_loop.aenqueue()) == [True, "base 1 async session", "base 1 session"]

    run(app, body)
    assert seen == ["up", "open", "close", "open", "close", "aclose", "down"]


def test_each_wrong_dependency_has_its_own_error() -> None:
    app = new_app()

    async def later() -> int:
        return 1

    def odd(x: int) -> int:
        return x

    @app.task(name="plain")
    def plain(*, a: int = Depends(later)) -> None: ...

    @app.task(name="missing", retry=Retry.never())
    def missing(*, a: int = Depends("htpp")) -> None: ...

    @app.task(name="unfilled")
    def unfilled(*, a: int = Depends(odd)) -> None: ...

    with pytest.raises(ConfigError, match="its dependencies must be plain too"):
        plain.enqueue()
    with pytest.raises(ConfigError, match="has a parameter 'x' that Winch cannot supply"):
        unfilled.enqueue()

    async def body(_: Any) -> None:
        job = await until(await missing.aenqueue(), JobState.DEAD)
        assert "no resource named 'htpp'" in (job.record.error.message if job.record.error else "")

    run(app, body)


def test_middleware_wraps_enqueue_and_run() -> None:
    app = new_app()
    user: contextvars.ContextVar[str] = contextvars.ContextVar("user", default="none")
    order: list[str] = []

    class Carry(Middleware):
        def enqueue(self, job: NewJob) -> NewJob:
            return msgspec.structs.replace(job, headers={**job.headers, "user": "ann"})

        async def run(self, ctx: Context, call_next: Callable[[], Awaitable[Any]]) -> Any:
            user.set(ctx.headers["user"])
            order.append("outer")
            return await call_next()

    class Inner(Middleware):
        async def run(self, ctx: Context, call_next: Callable[[], Awaitable[Any]]) -> Any:
            order.append("inner")
            return f"<{await call_next()}>"

    app.use(Carry())
    app.use(Inner())

    @app.task
    def in_thread() -> str:
        return user.get()

    @app.task
    async def on_loop() -> str:
        await asyncio.sleep(0)
        return user.get()

    async def body(_: Any) -> None:
        assert await (await in_thread.aenqueue()) == "<ann>"
        assert await (await on_loop.aenqueue()) == "<ann>"
        assert user.get() == "none"
        assert order == ["outer", "inner"] * 2

    run(app, body)
    with pytest.raises(ConfigError, match="takes an instance of"):
        app.use(Carry)  # type: ignore[arg-type]


def test_a_failing_subscriber_does_not_affect_the_others() -> None:
    app = new_app()
    seen: list[tuple[str, int]] = []

    def note(event: JobEvent) -> None:
        seen.append((event.kind, event.attempt))

    def broken(event: JobEvent) -> None:
        raise RuntimeError

    for kind in ("enqueued", "started", "retrying", "completed", "dead"):
        app.on(kind, broken)
        app.on(kind, note)

    @app.task(retry=Retry.fixed("5ms", attempts=2))
    async def task(works: bool, *, ctx: Context) -> None:
        if not works or ctx.attempt == 1:
            raise ValueError("no")

    async def body(_: Any) -> None:
        await until(await task.aenqueue(True), JobState.COMPLETED)  # type: ignore[call-arg]
        expected = [("enqueued", 0), ("started", 1), ("retrying", 1), ("started", 2), ("completed", 2)]
        assert seen == expected
        seen.clear()
        await until(await task.aenqueue(False), JobState.DEAD)  # type: ignore[call-arg]
        assert seen[-1] == ("dead", 2)

    run(app, body)
    with pytest.raises(ConfigError, match=r"did you mean 'dead'\?"):
        app.on("deat", note)


@pytest.mark.parametrize("name", ["stored", "claimed", "settled"])
def test_a_hook_that_fails_after_the_fact_hurts_no_job(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The hook runs after jobs are stored or claimed, or after their ends are recorded."""
    app = App("memory://")
    app.driver.migrate()
    called: list[str] = []

    def broken(self: Middleware, *_: Any) -> None:
        called.append(name)
        if len(called) > 50:
            return  # this test ends
        raise RuntimeError("the collector is away")

    app.use(type("Broken", (Middleware,), {name: broken})())
    runs: list[int] = []
    task = app.task(name="one")(runs.append)
    jobs = [task.enqueue(n) for n in range(3)]
    app.run_worker(burst=True)
    assert ([job.refresh().state for job in jobs], sorted(runs)) == (["completed"] * 3, [0, 1, 2])
    assert 1 <= len(called) <= 3
    assert caplog.text.count(f"middleware Broken: its hook '{name}' failed") == 1
