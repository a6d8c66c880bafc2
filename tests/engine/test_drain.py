"""`app.drain`: jobs in this process for a while."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta

import pytest

from winch import App, ConfigError


@pytest.fixture
def app() -> App:
    return App("memory://", poll="50ms")


def test_it_runs_what_is_ready(app: App) -> None:
    @app.task(queue="mail")
    def add(a: int) -> int:
        return a + 1

    jobs = [add.enqueue(n) for n in range(5)]
    done = app.drain(queues=["mail"])
    assert (done.completed, done.failed, done.dead, done.left, done.is_empty) == (5, 0, 0, 0, True)
    assert [job.result() for job in jobs] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("bound", ["seconds", "before"])
def test_it_stops_in_time(app: App, bound: str) -> None:
    @app.task
    async def nap() -> None:
        await asyncio.sleep(60)

    job = nap.enqueue()
    began = time.monotonic()
    if bound == "seconds":
        done = app.drain(seconds="300ms", grace="100ms")
    else:
        done = app.drain(before=datetime.now(UTC) + timedelta(seconds=0.4), grace="100ms")
    assert time.monotonic() - began < 10
    assert (done.completed, done.is_empty) == (0, False)
    assert job.refresh().state == "ready"
    assert job.record.attempt == 0


def test_a_time_of_nothing_is_refused(app: App) -> None:
    with pytest.raises(ConfigError, match="seconds must be more than 0"):
        app.drain(seconds="0s")
