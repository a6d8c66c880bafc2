"""A workflow on a real store, killed by SIGKILL at every statement: each step's effect exactly once."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.faults.workflow_app import JOB
from tests.servers import Databases
from winch import App
from winch.core.lifecycle import JobState
from winch.storage.params import NewJob

ROOT = Path(__file__).parents[2]
STEPS = ["reserve", "charge", "invoice", "pack 1", "pack 2", "ship", "tell", "close"]
Store = Callable[[], tuple[str, Callable[[str], list[tuple[Any, ...]]]]]


@pytest.fixture
def sqlite_store(tmp_path: Path) -> Store:
    numbers = iter(range(10_000))

    def fresh() -> tuple[str, Callable[[str], list[tuple[Any, ...]]]]:
        path = tmp_path / f"{next(numbers)}.db"

        def ask(statement: str) -> list[tuple[Any, ...]]:
            with sqlite3.connect(path) as conn:
                return conn.execute(statement).fetchall()

        ask("CREATE TABLE effect (name TEXT)")
        path.chmod(0o600)
        return f"sqlite:///{path}?shared=1", ask

    return fresh


def begin(url: str, order: int) -> App:
    app = App(url)
    app.migrate()
    driver = app.client.driver()
    args = f'{{"order":{order}}}'
    new = NewJob(id=JOB, task="checkout", args=args, is_given_id=True, max_attempts=2)
    driver.run(driver.enqueue([new]))
    app.signal(f"approval:{order}", {"by": "ada"}, id="click")
    return app


class Runner:
    """Runs the workflow in processes that are forked from one that has imported all they need."""

    def __init__(self, errors: Path) -> None:
        self._errors = errors.open("w+")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.workflow_app"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def run(self, url: str, place: int = 0) -> tuple[int, int]:
        """The exit code, and how many places were passed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{url} {place}\n")
        self._process.stdin.flush()
        code, places = self._process.stdout.readline().split()
        return int(code), int(places)

    @property
    def errors(self) -> str:
        self._errors.seek(0)
        return self._errors.read()[-4000:]

    def close(self) -> None:
        self._process.communicate()
        self._errors.close()


AT_ONCE = 3


@pytest.fixture
def runners(tmp_path: Path) -> Iterator[list[Runner]]:
    """Several: most of a workflow's time is spent waiting."""
    made = [Runner(tmp_path / f"errors{number}.txt") for number in range(AT_ONCE)]
    yield made
    for one in made:
        one.close()


def check(app: App, ask: Callable[[str], list[tuple[Any, ...]]], order: int) -> None:
    job = app.jobs.get(JOB)
    did = Counter(row[0] for row in ask("SELECT name FROM effect"))
    made = {name: number for name, number in did.items() if not name.startswith("undo")}
    assert made == dict.fromkeys(STEPS, 1)
    if order > 0:
        assert job.result() == [{"by": "ada"}, ["box 1", "box 2"]]
    else:
        assert job.state is JobState.DEAD
        assert "the very end" in job.why()
        assert {name for name in did if name.startswith("undo")} == {"undo charge", "undo reserve"}
    app.close()


def enumerate_kills(runners: list[Runner], store: Store, order: int, every: int) -> None:
    url, ask = store()
    app = begin(url, order)
    code, places = runners[0].run(url)
    assert code == 0, runners[0].errors
    check(app, ask, order)
    assert places > 50
    lock = threading.Lock()

    def walk(number: int) -> int:
        """Every AT_ONCE-th of the places; how often the process was killed there."""
        runner, killed = runners[number], 0
        for place in list(range(1 + every // 2, places + 1, every))[number::AT_ONCE]:
            with lock:
                url, ask = store()
                app = begin(url, order)
            code, _ = runner.run(url, place)
            killed += code == -signal.SIGKILL
            code, _ = runner.run(url)
            assert code == 0, (place, runner.errors)
            check(app, ask, order)
        return killed

    with ThreadPoolExecutor(AT_ONCE) as pool:
        killed = sum(pool.map(walk, range(AT_ONCE)))
    assert killed >= (places // every) * 0.9


def test_killed_at_some_places_each_effect_is_there_once(
    sqlite_store: Store, runners: list[Runner]
) -> None:
    enumerate_kills(runners, sqlite_store, 7, every=23)


@pytest.mark.slow
@pytest.mark.parametrize("order", [7, -7])
def test_killed_at_every_place_each_effect_is_there_once_on_sqlite(
    sqlite_store: Store, runners: list[Runner], order: int
) -> None:
    enumerate_kills(runners, sqlite_store, order, every=1)


@pytest.mark.slow
@pytest.mark.parametrize("order", [7, -7])
def test_killed_at_every_place_each_effect_is_there_once_on_postgres(
    postgres_server: Databases, runners: list[Runner], order: int
) -> None:
    import psycopg

    def fresh() -> tuple[str, Callable[[str], list[tuple[Any, ...]]]]:
        url = postgres_server.new_store()

        def ask(statement: str) -> list[tuple[Any, ...]]:
            with psycopg.connect(url, autocommit=True) as conn:
                cursor = conn.execute(statement)
                return cursor.fetchall() if cursor.description else []

        ask("CREATE TABLE effect (name text)")
        return url, ask

    enumerate_kills(runners, fresh, order, every=1)
