"""A process may fork while its other threads enqueue: the child enqueues too, and the parent goes on."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.fleet import ROOT
from tests.redis_servers import RedisServer
from winch import App, JobState

# Where SQLite's mutexes were inherited locked, one child in ten hung.
CHILDREN = {"sqlite": 40, "sqlite-normal": 40, "postgres": 10, "redis": 10}


@pytest.fixture
def url(request: pytest.FixtureRequest, store: str, sqlite_path: Path) -> Iterator[str]:
    if store == "postgres":
        yield request.getfixturevalue("postgres_url")
    elif store == "redis":
        with RedisServer() as server:
            yield server.url
    else:
        yield f"sqlite:///{sqlite_path}" + ("?sync=normal" if store == "sqlite-normal" else "")


@pytest.mark.parametrize("store", CHILDREN)
def test_children_that_are_forked_while_threads_enqueue_enqueue_too(url: str, store: str) -> None:
    children = CHILDREN[store]
    done = subprocess.run(
        [sys.executable, "-m", "tests.storage.forking_producer", url, str(children)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert [code for code, _ in report["children"]] == [0] * children, done.stderr
    assert report["errors"] == []
    assert all(report["go_on"]), "each thread of the parent goes on"
    app = App(url)
    driver = app.ready()
    jobs = driver.run(driver.get([job for _, job in report["children"]]))
    assert len([job for job in jobs if job is not None]) == children
    counts = driver.run(driver.counts(cap=1_000_000))
    assert counts[JobState.READY] == report["stored"] + children
    app.close()
