"""Dead letters, percentiles by task and the oldest snapshot: served, alerted on, and true."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from tests.web.kit import Web
from tests.web.test_metrics import claim, samples
from winch.core.job import Failure
from winch.core.lifecycle import JobState
from winch.core.policy.alerting import AlertRules, parse_rules
from winch.engine.observe.alerts import Alerts, firing, kept_alerts
from winch.engine.observe.throughput import MINUTE, Series, Tally
from winch.storage.params import Finish


def kill(web: Web, number: int, task: str = "shop.add", error: str = "ValueError") -> None:
    """Let so many jobs of a task die of this error."""
    driver = web.app.ready()
    for n in range(number):
        web.app.tasks.get(task).enqueue(n)
        [taken] = web.claim(max=1)
        end = Finish(
            id=taken["id"], token=taken["token"], to=JobState.DEAD, what="failed",
            error=Failure(error, "no"), reason="no",
        )  # fmt: skip
        driver.run(driver.finish([end]))


def dead_jobs(web: Web, wanted: float | None) -> float | None:
    """The gauge of one task, once it is as wanted: a server shares a look for a moment."""
    deadline = time.monotonic() + 10
    while True:
        found = samples(web.ask("GET", "/metrics").text)
        value = found.get(("winch_dead_jobs", frozenset({("task", "shop.add")})))
        if value == wanted or time.monotonic() > deadline:
            return value
        time.sleep(0.2)


def test_dead_jobs_are_a_gauge(web: Web) -> None:
    assert dead_jobs(web, None) is None
    kill(web, 2)
    kill(web, 1, error="KeyError")
    assert dead_jobs(web, 3) == 3
    web.app.dead.purge(older_than="0s")
    assert dead_jobs(web, None) is None


def test_stats_show_how_long_each_task_takes(web: Web) -> None:
    driver, tally = web.app.ready(), Tally("one")
    for number in range(100):
        tally.ended(claim("shop.add", waited=0.02), "completed", 0.2 if number < 90 else 2.0)
    tally.ended(claim("shop.mail", "mail"), "failed", 0.0005)
    driver.run(driver.kv_put(tally.lines()))
    add, mail = web.api("GET", "/stats").json()["tasks"]
    assert (add["task"], add["started"], add["completed"], add["failed"]) == ("shop.add", 100, 100, 0)
    assert 0.1 < add["run"]["p50"] <= 0.25
    assert 1.0 < add["run"]["p95"] <= add["run"]["p99"] <= 2.5
    assert 0.01 < add["wait"]["p50"] <= add["wait"]["p99"] <= 0.025
    assert (mail["task"], mail["failed"]) == ("shop.mail", 1)


def test_the_command_prints_the_same(make_web: Callable[..., Web]) -> None:
    web = make_web("sqlite")
    driver, tally = web.app.ready(), Tally("one")
    tally.ended(claim("shop.add"), "completed", 0.2)
    driver.run(driver.kv_put(tally.lines()))
    served = web.api("GET", "/stats").json()["tasks"]
    env = {name: value for name, value in os.environ.items() if not name.startswith("WINCH_")}
    command = [sys.executable, "-m", "winch", "stats", "--url", web.app.settings.url]
    output = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True, env=env)
    assert json.loads(output.stdout)["tasks"] == served
    shown = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    assert re.search(r"shop\.add +1 +0 +\d+ms / \d+ms / \d+ms", shown.stdout), shown.stdout


def test_a_task_without_an_attempt_has_no_percentiles(make_web: Callable[..., Web]) -> None:
    assert make_web("memory").api("GET", "/stats").json()["tasks"] == []


@pytest.mark.servers
def test_the_oldest_snapshot_is_a_gauge_and_an_alert(make_web: Callable[..., Web]) -> None:
    web = make_web("postgres")
    gauge = ("winch_oldest_snapshot_age_seconds", frozenset[tuple[str, str]]())
    assert samples(web.ask("GET", "/metrics").text)[gauge] < 1
    driver = web.app.ready()
    alerts = Alerts(driver, parse_rules("snapshot=1s"))
    with psycopg.connect(web.app.settings.url) as conn:
        conn.execute("SET default_transaction_isolation = 'repeatable read'")
        conn.commit()
        conn.execute("SELECT count(*) FROM winch.job")
        time.sleep(1.2)
        assert samples(web.ask("GET", "/metrics").text)[gauge] >= 1.2
        asyncio.run(_look(web, alerts))
        [kept] = web.app.client.run(kept_alerts(driver))
        assert kept.alert.rule == "snapshot"
        assert "a transaction has been open for" in kept.alert.text
        conn.rollback()
    asyncio.run(_look(web, alerts))
    assert web.app.client.run(kept_alerts(driver)) == []


async def _look(web: Web, alerts: Alerts) -> None:
    await alerts.run_once()
    await web.app.driver.aclose()


@pytest.mark.parametrize("store", ["memory", "sqlite", "redis"])
def test_other_stores_have_no_snapshots(make_web: Callable[..., Web], store: str) -> None:
    assert "winch_oldest_snapshot_age_seconds" not in make_web(store).ask("GET", "/metrics").text


def test_the_rules_have_bounds_and_can_be_off() -> None:
    nothing = Series(MINUTE, 0)

    def rules(text: str, dead: int, age: timedelta) -> list[str]:
        found = firing(
            parse_rules(text), [], nothing, [], datetime.now(UTC), dead={"shop.add": dead}, snapshot=age
        )
        return [alert.rule for alert in found]

    hour = timedelta(hours=1)
    default = str(AlertRules())
    assert rules(default, 999, hour - timedelta(seconds=1)) == []
    assert rules(default, 1000, hour) == ["dead_letters", "snapshot"]
    assert rules("dead_letters=5 snapshot=off", 5, hour) == ["dead_letters"]
    assert rules("off", 10**6, 100 * hour) == []


def test_dead_letters_alert_and_end(make_web: Callable[..., Web]) -> None:
    web = make_web("sqlite")
    kill(web, 3)
    driver = web.app.ready()
    alerts = Alerts(driver, parse_rules("dead_letters=3 dead=off"))
    asyncio.run(alerts.run_once())
    [kept] = web.app.client.run(kept_alerts(driver))
    assert (kept.alert.rule, kept.alert.target, kept.alert.value) == ("dead_letters", "shop.add", 3)
    web.app.dead.purge(older_than="0s")
    asyncio.run(alerts.run_once())
    assert web.app.client.run(kept_alerts(driver)) == []
