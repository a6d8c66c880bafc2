"""A workflow on Redis, killed by SIGKILL at every call of the store and around every effect: all effects
are there, each by its key once, and nothing is done again that was noted."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.faults.test_workflow_kills import ROOT, STEPS, begin
from tests.faults.workflow_app import JOB
from tests.redis_servers import RedisServer
from winch import App
from winch.core.lifecycle import JobState
from winch.drivers.redis.driver import RedisDriver

pytestmark = [pytest.mark.servers, pytest.mark.faults]


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


def fresh(server: RedisServer, file: Path) -> str:
    file.unlink(missing_ok=True)
    with closing(sqlite3.connect(file)) as book, book:
        book.execute("CREATE TABLE effect (name TEXT PRIMARY KEY)")
        book.execute("CREATE TABLE tried (name TEXT)")
    driver = RedisDriver.from_url(server.url)
    driver.erase()
    driver.close()
    return server.url


def run(url: str, file: Path, place: int = 0) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.faults.redis_workflow_app", url, str(place), str(file)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def check(app: App, file: Path, order: int) -> None:
    job = app.jobs.get(JOB)
    with closing(sqlite3.connect(file)) as book:
        did = {row[0] for row in book.execute("SELECT name FROM effect")}
        tried = Counter(row[0] for row in book.execute("SELECT name FROM tried"))
    assert {name for name in did if not name.startswith("undo")} == set(STEPS)
    # One kill, at most one effect whose note it came before.
    again = {name: times for name, times in tried.items() if times > 1}
    assert len(again) <= 1, again
    assert max(tried.values()) <= 2
    if order > 0:
        assert job.result() == [{"by": "ada"}, ["box 1", "box 2"]]
    else:
        assert job.state is JobState.DEAD
        assert "the very end" in job.why()
        assert {name for name in did if name.startswith("undo")} == {"undo charge", "undo reserve"}
    app.close()


def enumerate_kills(server: RedisServer, file: Path, order: int, every: int) -> None:
    url = fresh(server, file)
    app = begin(url, order)
    done = run(url, file)
    assert done.returncode == 0, done.stderr
    places = int(done.stdout)
    check(app, file, order)
    assert places > 50
    killed = 0
    for place in range(1 + every // 2, places + 1, every):
        url = fresh(server, file)
        app = begin(url, order)
        killed += run(url, file, place).returncode == -signal.SIGKILL
        again = run(url, file)
        assert again.returncode == 0, (place, again.stderr)
        check(app, file, order)
    assert killed >= (places // every) * 0.9


@pytest.mark.slow
@pytest.mark.parametrize("order", [7, -7])
def test_killed_at_every_place_each_effect_is_there(
    server: RedisServer, tmp_path: Path, order: int
) -> None:
    enumerate_kills(server, tmp_path / "book.db", order, every=1)
