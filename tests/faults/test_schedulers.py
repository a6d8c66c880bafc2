"""Three schedulers that disagree, die and come back: one job for each window, none left out."""

from __future__ import annotations

import time
from datetime import timedelta
from itertools import takewhile

import msgspec
import pytest

from lab.history import check
from tests.faults.clocks import MovableClock
from tests.faults.stage import Stage
from tests.servers import Databases

pytestmark = [pytest.mark.servers, pytest.mark.faults, pytest.mark.scenario]

TEN_MINUTES = 600
SECONDS = 8
NAMES = ("a", "b")


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_each_window_has_one_job_whichever_worker_ticks(store: str, postgres_server: Databases) -> None:
    """One is killed and started again every two seconds; one's clock is ten minutes off (with SQLite the
    host's clock is the store's, so there all agree about it)."""
    with Stage("three schedulers", store, postgres_server) as stage:
        wrong = MovableClock(stage.folder, "wrong")
        wrong.set(TEN_MINUTES)
        stage.fleet.worker(concurrency=2)
        stage.fleet.worker(concurrency=2, env=None if store == "sqlite" else wrong.env)
        dying = stage.fleet.worker(concurrency=2)
        for worker in stage.fleet.workers:
            stage.ready(worker)
        stage.app.schedules.add("a", task="quick", every="1s", misfire="all")
        stage.app.schedules.add("b", task="quick", every="1s", misfire="all", overlap="skip")
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            time.sleep(2)
            dying.kill_all()
            dying.wait(10)
            dying = stage.fleet.worker(concurrency=2)
        stage.ready(dying)
        expected = {}
        for name in NAMES:
            stage.app.schedules.pause(name)
            one = stage.app.schedules.get(name)
            last = one.last_window
            expected[name] = tuple(
                takewhile(lambda window: window <= last, one.timing.after(one.created_at))  # noqa: B023
            )
        stage.until_final()
        stage.end_workers()
        history = stage.history()
        skipped = {run.window for run in history.runs if run.schedule == "b" and run.kind == "skipped"}
        expected["b"] = tuple(window for window in expected["b"] if window not in skipped)
        assert len(expected["a"]) >= SECONDS - 1
        assert not {run.kind for run in history.runs} - {"enqueued", "skipped"}
        verdict = check(msgspec.structs.replace(history, windows=expected))
        assert verdict.is_ok, f"{verdict}\n{stage.fleet.logs()}"
        lateness = [run.at - run.window for run in history.runs if run.schedule == "a"]
        stage.measured(
            f"{len(expected['a']) + len(expected['b'])} windows, one job each; "
            f"killed {verdict.counters['killed']}; latest tick {max(lateness).total_seconds():.2f} s"
        )
        assert max(lateness) < timedelta(seconds=60)
