"""A workflow on a real store, killed by SIGKILL at every statement: each step's effect exactly once."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
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
        return f"sqlite:///{path}", ask

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


def run(url: str, place: int = 0) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.faults.workflow_app", url, str(place)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


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


def enumerate_kills(store: Store, order: int, every: int) -> None:
    url, ask = store()
    app = begin(url, order)
    done = run(url)
    assert done.returncode == 0, done.stderr
    places = int(done.stdout)
    check(app, ask, order)
    assert places > 50
    killed = 0
    for place in range(1 + every // 2, places + 1, every):
        url, ask = store()
        app = begin(url, order)
        first = run(url, place)
        killed += first.returncode == -signal.SIGKILL
        again = run(url)
        assert again.returncode == 0, (place, again.stderr)
        check(app, ask, order)
    assert killed >= (places // every) * 0.9


def test_killed_at_some_places_each_effect_is_there_once(sqlite_store: Store) -> None:
    enumerate_kills(sqlite_store, 7, every=23)


@pytest.mark.slow
@pytest.mark.parametrize("order", [7, -7])
def test_killed_at_every_place_each_effect_is_there_once_on_sqlite(
    sqlite_store: Store, order: int
) -> None:
    enumerate_kills(sqlite_store, order, every=1)


@pytest.mark.slow
@pytest.mark.parametrize("order", [7, -7])
def test_killed_at_every_place_each_effect_is_there_once_on_postgres(
    postgres_server: Databases, order: int
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

    enumerate_kills(fresh, order, every=1)
