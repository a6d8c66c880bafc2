"""Rates: what workers note about ended attempts, and what readers make of it."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from winch import App, Discard, Limit, Retry, Snooze
from winch.core.gates.uses import with_gates
from winch.core.job import Claim
from winch.engine.observe import throughput
from winch.engine.observe.prometheus import Counters
from winch.engine.observe.throughput import (
    BOUNDS,
    HOUR,
    MINUTE,
    MOST_TENANTS,
    OTHER,
    Rates,
    Tally,
    TaskRate,
    percentile,
)


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
        series = app.client.run(throughput.read(driver, span, int(time.time()), 2))
        total = series.total()
        assert (total.completed, total.failed, total.dead, total.snoozed) == (5, 1, 1, 1)
        assert total.ended == 7
        assert sum(total.run.values()) == sum(total.wait.values()) == 8
        assert series.total(lambda queue, _: queue == "mail").broken == 2
        assert series.by_task()["ok"].completed == 5
    app.close()


def test_the_wait_of_each_tenant_is_published(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path / 'w.db'}")

    @app.task(name="book", queue="mail", limit=Limit(2, key="account"))
    def book(account: int) -> None: ...

    @app.task(name="plain", queue="mail")
    def plain() -> None: ...

    app.enqueue_many([book.using(tenant="acme").bind(n) for n in range(3)])
    app.enqueue_many([plain.using(tenant="zoo").bind(), plain.bind()])
    app.run_worker(queues=["mail"], burst=True)
    series = app.client.run(throughput.read(app.ready(), MINUTE, int(time.time()), 2))
    total = series.total()
    assert {tenant: number for tenant, (number, _) in total.tenants.items()} == {"acme": 3, "zoo": 1}
    assert 0 < sum(seconds for _, seconds in total.tenants.values()) <= total.wait_seconds
    counters = Counters()
    for one in series.rates:
        counters.add(one)
    text = "\n".join(counters.render())
    assert 'winch_tenant_attempts_total{queue="mail",tenant="acme"} 3' in text
    assert 'winch_tenant_wait_seconds_total{queue="mail",tenant="zoo"} 0.' in text
    app.close()


def test_tenants_above_the_limit_are_counted_as_one() -> None:
    tally = Tally("one")
    for number in range(MOST_TENANTS + 5):
        options = with_gates(None, (), f"t{number}")
        moment = datetime(2026, 3, 1, tzinfo=UTC)
        claim = Claim("i", "k", "t", 1, "{}", "q", 1, 1, moment, moment, moment, options=options)
        tally.ended(claim, "completed", 0.1)
    sent: list[Rates] = []
    tally.on_rates = sent.append
    tally.lines()
    tenants = sent[0]["q"]["t"].tenants
    assert len(tenants) == MOST_TENANTS + 1
    assert tenants[OTHER][0] == 5


def test_rates_add_up() -> None:
    one, two = (
        TaskRate(completed=1, run={3: 1}, run_seconds=0.5),
        TaskRate(completed=2, run={3: 1, 4: 2}),
    )
    one.add(two)
    assert (one.completed, one.run, one.run_seconds) == (3, {3: 2, 4: 2}, 0.5)
    before = TaskRate(tenants={"a": (1, 0.5)})
    one.add(before)
    one.add(TaskRate(tenants={"a": (2, 1.0), "b": (1, 0.25)}))
    assert one.tenants == {"a": (3, 1.5), "b": (1, 0.25)}
    assert one.less(before).tenants == {"a": (2, 1.0), "b": (1, 0.25)}
