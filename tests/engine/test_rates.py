"""Rates: what workers note about ended attempts, and what readers make of it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from winch import App, Discard, Retry, Snooze
from winch.engine import rates
from winch.engine.rates import BOUNDS, HOUR, MINUTE, Rate, percentile


def test_a_percentile_lies_within_its_bucket() -> None:
    assert percentile({}, 0.5) is None
    assert percentile({3: 10}, 0.5) == pytest.approx(0.0075)
    assert percentile({0: 50, 6: 50}, 0.95) == pytest.approx(0.095)
    assert BOUNDS[9] < (percentile({9: 1, 10: 99}, 0.99) or 0) <= BOUNDS[10]
    assert percentile({len(BOUNDS): 1}, 1.0) == BOUNDS[-1] * 2


def test_a_worker_writes_what_became_of_its_jobs(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path / 'w.db'}")

    @app.task(name="ok")
    def ok() -> None: ...

    @app.task(name="bad", queue="mail", retry=Retry.fixed("1h", attempts=2))
    def bad() -> None:
        raise ValueError("no")

    @app.task(name="doomed", queue="mail")
    def doomed() -> None:
        raise Discard("never")

    @app.task(name="later", queue="mail")
    def later() -> None:
        raise Snooze("1h")

    app.enqueue_many([ok.bind() for _ in range(5)] + [bad.bind(), doomed.bind(), later.bind()])
    app.run_worker(queues=["default", "mail"], burst=True)
    driver = app.ready()
    # Across the turn of a minute or an hour, two spans hold all of it.
    for span in (MINUTE, HOUR):
        series = app.client.run(rates.read(driver, span, int(time.time()), 2))
        total = series.total()
        assert (total.completed, total.failed, total.dead, total.snoozed) == (5, 1, 1, 1)
        assert total.ended == 7
        assert sum(total.run.values()) == sum(total.wait.values()) == 8
        assert series.total(lambda queue, _: queue == "mail").broken == 2
        assert series.by_task()["ok"].completed == 5
    app.close()


def test_rates_add_up() -> None:
    one, two = Rate(completed=1, run={3: 1}, run_seconds=0.5), Rate(completed=2, run={3: 1, 4: 2})
    one.add(two)
    assert (one.completed, one.run, one.run_seconds) == (3, {3: 2, 4: 2}, 0.5)
