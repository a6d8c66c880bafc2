"""Inline mode: an enqueue runs its job at once, through the real executor."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest

from winch import App, Context, Depends, Discard, InvalidPayload, JobEvent, JobState, Middleware, Retry
from winch.testing import assert_enqueued, inline


@pytest.fixture
def app(tmp_path: Path) -> App:
    return App(f"sqlite:///{tmp_path / 'never.db'}")


@dataclass
class Order:
    id: int
    lines: list[str]


def test_a_job_has_run_when_its_enqueue_returns(app: App, tmp_path: Path) -> None:
    seen: list[Any] = []

    @app.task(queue="orders")
    def ship(order: Order, *, ctx: Context) -> int:
        seen.append((order, ctx.attempt, ctx.queue))
        ctx.log.info("shipped")
        return order.id

    with inline(app):
        job: Any = ship.enqueue(Order(7, ["a"]))  # type: ignore[call-arg]  # ctx is injected
        assert seen == [(Order(7, ["a"]), 1, "orders")]  # packed and unpacked, not the same object
        assert job.state is JobState.COMPLETED
        assert job.result() == 7
        with pytest.raises(InvalidPayload):
            ship.enqueue("seven")  # type: ignore[call-arg, arg-type]
    assert list(tmp_path.iterdir()) == []


def test_the_handlers_error_is_raised_by_the_enqueue(app: App) -> None:
    @app.task(retry=Retry.fixed("1m"))
    def fail() -> None:
        raise KeyError("no such order")

    with inline(app), pytest.raises(KeyError, match="no such order"):
        fail.enqueue()
    with inline(app, raises=False):
        job = fail.enqueue()
        assert job.state is JobState.RETRYING
        with pytest.raises(RuntimeError, match="virtual runs retries"):
            job.result()


def test_a_chosen_outcome_is_no_error(app: App) -> None:
    @app.task
    def discard() -> None:
        raise Discard("worthless")

    with inline(app):
        assert discard.enqueue().state is JobState.DEAD


def test_async_handlers_run_from_sync_and_async_callers(app: App) -> None:
    @app.task
    async def on_loop(n: int) -> int:
        await asyncio.sleep(0)
        return n

    @app.task
    def plain(n: int) -> int:
        return n

    async def main() -> list[int]:
        jobs = [await on_loop.aenqueue(1), await plain.aenqueue(2), on_loop.enqueue(3), plain.enqueue(4)]
        return [await job for job in jobs]

    with inline(app):
        assert on_loop.enqueue(0).result() == 0
        assert asyncio.run(main()) == [1, 2, 3, 4]


def test_jobs_enqueued_by_a_handler_run_after_it(app: App) -> None:
    order: list[str] = []

    @app.task
    def child(n: int) -> None:
        order.append(f"child {n}")
        if n == 2:
            raise ValueError("the second one")

    @app.task
    def parent() -> None:
        child.enqueue(1)
        app.enqueue_many([child.bind(2), child.bind(3)])
        order.append("parent")

    with inline(app), pytest.raises(ValueError, match="the second one"):
        parent.enqueue()
    assert order == ["parent", "child 1", "child 2", "child 3"]


def test_a_delayed_job_waits(app: App) -> None:
    @app.task
    def later() -> None:
        raise AssertionError("too early")

    with inline(app):
        assert later.using(delay="1h").enqueue().state is JobState.SCHEDULED
        assert_enqueued(later, delay="1h")


def test_a_job_that_enqueues_itself_is_stopped(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("winch.testing._inline.MOST_JOBS", 20)

    @app.task
    def again() -> None:
        again.enqueue()

    with inline(app), pytest.raises(RuntimeError, match="does one enqueue itself"):
        again.enqueue()


def test_hooks_resources_and_events_are_as_in_a_worker(app: App) -> None:
    order: list[str] = []

    class Hook(Middleware):
        async def run(self, ctx: Context, call_next: Any) -> Any:
            order.append(f"before {ctx.task}")
            return await call_next()

    @app.lifespan
    async def resources() -> Any:
        order.append("opened")
        yield {"db": "database"}
        order.append("closed")

    @app.task(name="use")
    def use(db: Annotated[str, Depends("db")]) -> str:
        return db

    def note(event: JobEvent) -> None:
        order.append(event.kind)

    for kind in ("enqueued", "started", "completed"):
        app.on(kind, note)
    app.use(Hook())
    with inline(app):
        assert use.enqueue().result() == "database"  # type: ignore[call-arg]  # db is injected
    assert order == ["enqueued", "opened", "started", "before use", "completed", "closed"]
