"""Slots and rates of queues belong to one worker: two worker processes beside each other."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from winch import App

pytestmark = pytest.mark.faults

TASKS = """
    import os, time
    from pathlib import Path
    from winch import App

    app = App(poll="50ms", sweep="100ms")
    FOLDER = Path(__file__).parent

    def note(n: int) -> None:
        with (FOLDER / "ran").open("a") as file:
            file.write(f"{n} {os.getpid()} {time.monotonic()}\\n")

    @app.task(name="light")
    def light(n: int) -> None:
        note(n)
        while n == 0 and not (FOLDER / "end").exists():
            time.sleep(0.01)

    @app.task(name="heavy", slots=2)
    def heavy(n: int) -> None:
        note(n)
        while not (FOLDER / "end").exists():
            time.sleep(0.01)
"""
RATE = 4


class Workers:
    """Worker processes on one store, and what ran in which."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        (folder / "tasks.py").write_text(textwrap.dedent(TASKS))
        self.url = f"sqlite:///{folder / 'winch.db'}"
        self.app = App(self.url)
        self.app.migrate()
        stack.callback(self.app.close)
        self.light = self.app.task(name="light")(light)
        self.heavy = self.app.task(name="heavy", slots=2)(light)
        self._stack = stack

    def start(self, *words: str) -> None:
        worker = subprocess.Popen(
            [sys.executable, "-m", "winch", "worker", "-A", "tasks:app", *words],
            cwd=self.folder,
            env={**os.environ, "WINCH_URL": self.url},
            stderr=subprocess.DEVNULL,
        )

        def stop() -> None:
            (self.folder / "end").touch()
            worker.terminate()
            worker.wait(60)

        self._stack.callback(stop)

    @property
    def ran(self) -> dict[int, tuple[str, float]]:
        """The process and the moment of each job that began."""
        file = self.folder / "ran"
        lines = file.read_text().splitlines() if file.exists() else []
        words = [line.split() for line in lines]
        return {int(n): (pid, float(at)) for n, pid, at in words}

    def until(self, is_over: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not is_over():
            assert time.monotonic() < deadline, self.ran
            time.sleep(0.02)


def light(n: int) -> None: ...


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    with ExitStack() as stack:
        yield Workers(tmp_path, stack)


def test_slots_that_one_worker_reserves_are_free_when_another_takes_the_job(workers: Workers) -> None:
    workers.light.enqueue(0)
    workers.start("-c", "2")
    workers.until(lambda: 0 in workers.ran)
    workers.heavy.enqueue(1)
    time.sleep(0.5)  # the first worker finds no room for it, and keeps its free slot for it
    workers.app.enqueue_many([workers.light.bind(n) for n in (2, 3)])
    time.sleep(1.0)
    assert set(workers.ran) == {0}
    workers.start("-c", "2")
    workers.until(lambda: {1, 2, 3} <= set(workers.ran))
    first, other = workers.ran[0][0], workers.ran[1][0]
    assert other != first
    assert {workers.ran[2][0], workers.ran[3][0]} == {first}, "the other worker is full"


def test_a_rate_of_a_queue_holds_in_each_worker(workers: Workers) -> None:
    workers.app.enqueue_many([workers.light.bind(n) for n in range(1, 40)])
    for _ in range(2):
        workers.start("-c", "8", "--queue-rates", f"default={RATE}/s")
    workers.until(lambda: len(workers.ran) >= 30)
    starts: dict[str, list[float]] = defaultdict(list)
    for pid, at in workers.ran.values():
        starts[pid].append(at)
    assert len(starts) == 2, "both were at work"
    for some in map(sorted, starts.values()):
        for early, late in zip(some, some[RATE:], strict=False):
            # A start is noted some time after its claim.
            assert late - early > 0.6, f"{RATE + 1} starts within {late - early:.2f} s"
