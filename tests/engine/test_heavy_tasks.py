"""Tasks that take several slots: never more than a worker has, and never starved by light ones."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.engine.worker_kit import until, worker_process
from winch import App, Collected, ConfigError, JobState, Middleware
from winch.core.job import Claim
from winch.engine.client.why import why
from winch.engine.worker.worker import Worker

SLOTS = 4


class Running:
    """How many slots the handlers take, and in which order they began."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now = 0
        self.most = 0
        self.begun: list[str] = []
        self.go = threading.Event()

    def begin(self, name: str, slots: int) -> None:
        with self._lock:
            self._now += slots
            self.most = max(self.most, self._now)
            self.begun.append(name)

    def end(self, slots: int) -> None:
        with self._lock:
            self._now -= slots


def shop(app: App, running: Running, *, is_async: bool) -> tuple[Any, Any]:
    """A task of three slots, and one of one."""

    def make(task: str, slots: int) -> Any:
        @app.task(name=task, slots=slots)
        async def on_the_loop(name: str, seconds: float) -> None:
            running.begin(name, slots)
            await asyncio.sleep(seconds)
            running.end(slots)

        @app.task(name=f"{task} in a thread", slots=slots)
        def in_a_thread(name: str, seconds: float) -> None:
            running.begin(name, slots)
            time.sleep(seconds)
            running.end(slots)

        return on_the_loop if is_async else in_a_thread

    return make("heavy", 3), make("light", 1)


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("seconds", [0.0, 0.003])
def test_handlers_take_no_more_slots_than_the_worker_has(is_async: bool, seconds: float) -> None:
    app, running = App("memory://", poll="50ms"), Running()
    heavy, light = shop(app, running, is_async=is_async)
    jobs = [(light if n % 5 else heavy).bind(str(n), seconds) for n in range(200)]
    stored = app.enqueue_many(jobs)
    app.run_worker(burst=True, concurrency=SLOTS)
    assert {job.refresh().state for job in stored} == {JobState.COMPLETED}
    assert running.most <= SLOTS
    assert len(running.begun) == 200


class Claimed(Middleware):
    """Counts how often each task's jobs were claimed."""

    def __init__(self) -> None:
        self.count: Counter[str] = Counter()

    def claimed(self, claims: Sequence[Claim], seconds: float) -> None:
        self.count.update(claim.task.split()[0] for claim in claims)


@pytest.mark.parametrize("is_async", [False, True])
def test_a_heavy_job_is_not_overtaken_by_light_ones_that_take_long(is_async: bool) -> None:
    """The light jobs take longer than a claimed job may wait: the heavy one goes back to the store, and
    its slots stay reserved. So it is not claimed again and again."""
    app, running, claimed = App("memory://", poll="50ms"), Running(), Claimed()
    app.use(claimed)
    heavy, light = shop(app, running, is_async=is_async)
    app.enqueue_many([light.bind(f"before {n}", 1.2 if n else 0.1) for n in range(SLOTS)])
    job = heavy.enqueue("heavy", 0.1)
    app.enqueue_many([light.bind(f"after {n}", 0.01) for n in range(20)])
    app.run_worker(burst=True, concurrency=SLOTS)
    assert app.client.get(job.id).attempt == 1
    began = running.begun.index("heavy")
    # While it is on its way back, a claim may find one of the jobs behind it.
    assert sum(name.startswith("after") for name in running.begun[:began]) <= 1
    assert running.most <= SLOTS
    assert claimed.count["heavy"] <= 3


async def _until(condition: Callable[[], bool]) -> None:
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("waited 20 s")


def test_slots_are_not_kept_for_a_job_that_another_worker_has_taken() -> None:
    asyncio.run(_taken_elsewhere())


async def _taken_elsewhere() -> None:
    app, running = App("memory://", poll="50ms"), Running()

    @app.task
    async def hold(name: str) -> None:
        running.begin(name, 1)
        ends = lambda: running.go.is_set() or (name == "short" and "heavy" in running.begun)  # noqa: E731
        await _until(ends)

    @app.task(slots=3)
    async def heavy() -> None:
        running.begin("heavy", 3)

    async with app.worker(concurrency=SLOTS) as first:
        for name in ("short", "a", "b", "c"):
            await hold.aenqueue(name)
        await _until(lambda: len(running.begun) == SLOTS)
        job = await heavy.aenqueue()
        # It claims one ahead of its slots only when a slot is free: give it one.
        slots = _slots(first)
        slots.weights.reserved = (job.id, 3)
        assert slots.room() == 0
        async with app.worker(concurrency=SLOTS):
            await job.aresult(timeout="20s")  # the short one ends now
        await _until(lambda: slots.weights.reserved is None)
        late = await hold.aenqueue("late")
        await _until(lambda: "late" in running.begun)
        running.go.set()
        await late.aresult(timeout="20s")
    await app.aclose()


def _slots(worker: Worker) -> Any:
    return worker._slots  # what it reserves shows nowhere else


def test_a_collecting_call_takes_its_slots_once() -> None:
    app, running = App("memory://", poll="50ms"), Running()

    @app.task(collect=10, collect_wait="1ms", slots=2)
    async def together(jobs: list[Collected[dict[str, Any]]]) -> None:
        running.begin("call", 2)
        await asyncio.sleep(0.01)
        running.end(2)

    stored = app.enqueue_many([together.bind(n=n) for n in range(50)])
    app.run_worker(burst=True, concurrency=5)
    assert {job.refresh().state for job in stored} == {JobState.COMPLETED}
    assert running.most <= 5


@pytest.mark.parametrize("slots", [0, -1, True, 1.5, "4", 1025])
def test_slots_are_a_whole_number(slots: Any) -> None:
    with pytest.raises(ConfigError, match="slots must be a whole number from 1 to 1024"):
        App("memory://").task(slots=slots)(lambda: None)


TASKS = """
    from winch import App

    app = App(lease="3s", heartbeat="200ms", sweep="200ms", poll="100ms")

    @app.task(name="shop.render", slots=4)
    def render() -> int:
        return 1

    @app.task(name="shop.plain")
    def plain() -> int:
        return 2
"""


def test_why_shows_how_many_slots_a_job_needs_and_configure_gives_them(
    store_url: str, tmp_path: Path
) -> None:
    app = App(store_url)
    app.driver.migrate()

    @app.task(name="shop.render")
    def render() -> int:
        return 0

    @app.task(name="shop.plain")
    def plain() -> int:
        return 0

    with worker_process(store_url, tmp_path, "-c", "2", tasks=TASKS):
        until(app.workers.list, "a worker")
        job = render.enqueue()
        assert plain.enqueue().result(timeout="20s") == 2
        assert job.refresh().state is JobState.READY
        assert job.why() == (
            "Its task 'shop.render' needs 4 slots; no live worker of its queue 'default' has so many. "
            "Start one: winch worker -A module:app -Q default -c 4"
        )
        [session] = app.workers.list()
        [answer] = app.workers.configure(session.worker, concurrency=4, wait="20s")
        assert answer.state == "done", answer
        assert job.result(timeout="20s") == 1
        app.queues.pause("default")
        until(lambda: app.workers.list()[0].running == 0, "the end")
        app.workers.quiet(app.workers.list()[0].worker, wait="20s")
        app.queues.resume("default")
        waiting = render.enqueue()
        assert waiting.why().startswith(
            "The only worker of its queue 'default' that has its task is quiet."
        )
        narrowed = app.client.run(why(app.driver, waiting.id, names_others=False))
        assert "as soon as 4 of its slots are free" in str(narrowed)
    app.close()
