"""What a job costs the engine, counted in calls of Python functions: it does not depend on the machine.

A regression here is a few microseconds for every job of everybody. Raise a limit only for something that
every job needs; what few need goes where only they pay for it.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from winch import App
from winch.engine.tasks.task import Task
from winch.storage.fast import is_fast

JOBS = 2000


class Calls:
    """Counts the calls of functions in the engine, in this thread and new ones."""

    def __init__(self) -> None:
        self.of: Counter[str] = Counter()

    def __enter__(self) -> Calls:
        threading.setprofile(self._see)
        sys.setprofile(self._see)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def _see(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            code = frame.f_code
            if "/winch/engine/" in code.co_filename:
                self.of[f"{code.co_filename.rpartition('/')[2]}:{code.co_name}"] += 1

    @property
    def total(self) -> int:
        return self.of.total()


def app_with(kind: str) -> tuple[App, Task[[int], Any], list[int]]:
    app = App("memory://", poll="50ms")
    ran: list[int] = []

    @app.task(name="coroutine")
    async def coroutine(n: int) -> None:
        ran.append(n)

    @app.task(name="function")
    def function(n: int) -> None:
        ran.append(n)

    @app.task(name="answering")
    async def answering(n: int) -> int:
        ran.append(n)
        return n

    tasks: dict[str, Any] = {"coroutine": coroutine, "function": function, "answering": answering}
    return app, tasks[kind], ran


def drained(app: App, is_over: Callable[[], bool]) -> Calls:
    async def main() -> Calls:
        with Calls() as calls:
            async with asyncio.timeout(60), app.worker():
                while not is_over():  # noqa: ASYNC110  # threads make it so
                    await asyncio.sleep(0.001)
        return calls

    return asyncio.run(main())


def cost_of_running(kind: str) -> Calls:
    app, task, ran = app_with(kind)
    app.enqueue_many([task.bind(n) for n in range(JOBS)])
    return drained(app, lambda: len(ran) == JOBS)


@pytest.mark.skipif(not is_fast(), reason="the plain ways make more calls")
@pytest.mark.parametrize("kind, most", [("coroutine", 12), ("answering", 20), ("function", 45)])
def test_running_a_job_takes_few_calls(kind: str, most: int) -> None:
    # One of three: a process that stood still gives back what it has claimed ahead.
    calls = cost_of_running(kind)
    for _ in range(2):
        if calls.total / JOBS >= most:
            calls = cost_of_running(kind)
    assert calls.total / JOBS < most, calls.of.most_common(30)


def test_storing_jobs_in_bulk_takes_few_calls() -> None:
    app, task, _ = app_with("coroutine")
    app.enqueue_many([task.bind(0)])
    with Calls() as calls:
        app.enqueue_many([task.bind(n) for n in range(JOBS)])
    assert calls.total / JOBS < 9, calls.of.most_common(30)
