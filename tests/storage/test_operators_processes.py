"""What an operator does while another process works: keys that are freed, scopes that are held."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from lab.stores import STORES
from winch import App, Breaker
from winch.engine.moving.carrying import LIVE, jobs_of
from winch.engine.moving.route import ALL

pytestmark = [
    pytest.mark.servers,
    pytest.mark.parametrize("name", ["sqlite", "postgres", "redis", "redis+cluster"]),
]

TASKS = """
    import sys, time
    from winch import App, Breaker

    app = App(poll="50ms")

    @app.task(name="keyed")
    def keyed(n: int) -> None: ...

    @app.task(name="bank", breaker=Breaker(scope="bank"))
    def bank(n: int) -> None:
        print(f"{time.monotonic()}\\n", end="", flush=True)
        time.sleep(0.01)
"""
PRODUCER = """
    import sys
    from tasks import keyed

    print("ready", flush=True)
    sys.stdin.readline()
    news = sum(keyed.using(unique="k").enqueue(n).is_new for n in range(200))
    print(news, flush=True)
"""
HOLD = 1.5


def keyed(n: int) -> None: ...


def bank(n: int) -> None: ...


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as found:
        yield found


@pytest.fixture
def app(tmp_path: Path, name: str, stack: ExitStack) -> App:
    made = App(stack.enter_context(STORES[name](tmp_path)).url)
    made.migrate()
    stack.callback(made.close)
    (tmp_path / "tasks.py").write_text(textwrap.dedent(TASKS))
    (tmp_path / "producer.py").write_text(textwrap.dedent(PRODUCER))
    return made


def process(app: App, folder: Path, stack: ExitStack, *words: str) -> subprocess.Popen[str]:
    env = {**os.environ, "WINCH_URL": app.settings.url, "PYTHONUNBUFFERED": "1"}
    made = subprocess.Popen(
        [sys.executable, *words],
        cwd=folder,
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    stack.enter_context(made)
    stack.callback(made.kill)
    return made


def test_a_key_that_is_freed_while_it_is_taken_has_one_holder(
    app: App, tmp_path: Path, stack: ExitStack
) -> None:
    task = app.task(name="keyed")(keyed)
    producer = process(app, tmp_path, stack, "producer.py")
    assert producer.stdout is not None
    assert producer.stdin is not None
    assert producer.stdout.readline() == "ready\n"
    producer.stdin.write("\n")
    producer.stdin.flush()
    freed: list[str] = []
    news = 0
    while producer.poll() is None:
        if (holder := app.jobs.release_key("k")) is not None:
            freed.append(holder)
        news += task.using(unique="k").enqueue(1).is_new
    news += int(producer.stdout.readline())
    holders = [job for job in jobs_of(app.driver, ALL, LIVE) if job.unique_key == "k"]
    assert len(holders) == 1
    assert len(set(freed)) == len(freed), "no job loses its key twice"
    assert len(freed) > 10, "both were at work"
    assert news == len(freed) + 1, "each free key was taken once"


def test_no_job_of_a_scope_starts_while_it_is_held(app: App, tmp_path: Path, stack: ExitStack) -> None:
    task = app.task(name="bank", breaker=Breaker(scope="bank"))(bank)
    app.enqueue_many([task.bind(n) for n in range(2000)])
    worker = process(app, tmp_path, stack, "-m", "winch", "worker", "-A", "tasks:app", "-c", "2")
    assert worker.stdout is not None
    starts = [float(worker.stdout.readline()) for _ in range(20)]
    app.limits.trip("bank", f"{HOLD}s", reason="inventory")
    held_at = time.monotonic()
    while starts[-1] < held_at + HOLD:
        starts.append(float(worker.stdout.readline()))
    worker.terminate()
    # A claim that had begun before may start its jobs just after; each takes 10 ms.
    during = [at for at in starts if held_at + 0.5 < at < held_at + HOLD - 0.1]
    assert during == []
    assert len([at for at in starts if at < held_at]) >= 20
