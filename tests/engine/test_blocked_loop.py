"""Stacks of a worker whose event loop is blocked: they come without the loop, and without the GIL."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

from tests.engine.worker_kit import Shop, until, worker_process
from winch import App, JobState

TASKS = """
    import ctypes, time
    from pathlib import Path
    from winch import App

    app = App(lease="3s", heartbeat="200ms", sweep="200ms", poll="100ms")
    HERE = Path(__file__).parent

    @app.task(name="shop.block", timeout=None)
    async def block_the_loop() -> None:
        while not (HERE / "go").exists():
            time.sleep(0.02)

    @app.task(name="shop.hog", timeout=None)
    async def hold_the_gil() -> None:
        sleep = ctypes.PyDLL(None).sleep
        while not (HERE / "go").exists():
            sleep(5)
"""


@pytest.mark.parametrize(
    "task, function", [("shop.block", "block_the_loop"), ("shop.hog", "hold_the_gil")]
)
def test_stacks_name_the_function_that_blocks_the_loop(task: str, function: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'winch.db'}"
    shop = Shop(url)
    with worker_process(url, tmp_path, tasks=TASKS):
        app = shop.app
        until(app.workers.list, "a worker")
        [session] = app.workers.list()
        job = app.task(name=task)(_elsewhere).enqueue()
        until(lambda: job.refresh().state is JobState.RUNNING, "the job")
        time.sleep(0.5)  # claimed: it starts in a moment
        for _ in range(2):  # the second dump replaces the first
            [answer] = app.workers.stacks(session.id, wait="30s")
            assert answer.state == "done", answer
            assert answer.text.startswith(f"The event loop of process {session.pid} is blocked.")
            assert f"running: job {job.id}" in answer.text
            assert answer.text.count(f"in {function}") == 1, answer.text
        os.kill(session.pid, signal.SIGSTOP)
        try:
            [answer] = app.workers.stacks(session.id, wait="30s")
            assert answer.state == "failed"
            assert "does not respond" in answer.text
        finally:
            os.kill(session.pid, signal.SIGCONT)
        (tmp_path / "go").touch()
        until(lambda: job.refresh().state is JobState.COMPLETED, "the end")
        [answer] = app.workers.stacks(session.id, wait="30s")
        assert "is blocked" not in answer.text
        assert "Task " in answer.text  # the coroutines, too
    shop.app.close()


def _elsewhere() -> None:
    """The worker has the code."""


def test_an_embedded_worker_gives_its_stacks_while_its_loop_is_blocked(tmp_path: Path) -> None:
    asyncio.run(_embedded(tmp_path))


async def _embedded(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'winch.db'}"
    app = App(url, lease="3s", heartbeat="200ms", poll="100ms")
    operator = App(url)
    operator.driver.migrate()
    found: list[str] = []

    @app.task(timeout=None)
    async def block_the_loop() -> None:
        end = time.monotonic() + 30
        while not found and time.monotonic() < end:
            time.sleep(0.02)

    async with app.worker():
        asking = asyncio.create_task(asyncio.to_thread(_ask, operator, found))
        job = await block_the_loop.aenqueue()
        await job.aresult(timeout="40s")
        await asking
    assert len(found) == 1
    assert found[0].startswith("The event loop of this process is blocked.")
    assert "in block_the_loop" in found[0]
    operator.close()


def _ask(operator: App, found: list[str]) -> None:
    until(lambda: any(one.running for one in operator.workers.list()), "the job")
    [session] = operator.workers.list()
    [answer] = operator.workers.stacks(session.id, wait="25s")
    found.append(answer.text)
