"""The files in deploy/ name what exists: metrics, commands, options, paths."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests import tools
from tests.web.kit import Web
from winch.engine.observe.worker_metrics import WorkerMetrics

DEPLOY = Path(__file__).parents[2] / "deploy"


def test_the_rules_name_metrics_that_are_served(make_web: Callable[..., Web]) -> None:
    web = make_web("postgres")
    served = set(re.findall(r"^# TYPE (\w+)", web.ask("GET", "/metrics").text, flags=re.MULTILINE))
    rules = (DEPLOY / "prometheus/alerts.yml").read_text()
    board = (DEPLOY / "grafana/winch.json").read_text()
    served |= set(
        re.findall(r"^# TYPE (\w+)", WorkerMetrics(beaten_at=0.0).render(), flags=re.MULTILINE)
    )
    for text in (rules, board):
        named = {
            re.sub(r"_bucket$", "", name)
            for name in re.findall(r"\bwinch_\w+", text)
            if name != "winch_"
        }
        assert named
        assert named <= served


def test_the_rules_are_rules() -> None:
    [group] = yaml.safe_load((DEPLOY / "prometheus/alerts.yml").read_text())["groups"]
    assert len(group["rules"]) > 8
    for rule in group["rules"]:
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        assert rule["annotations"]["summary"]
        for left, right in ("()", "{}", "[]"):
            assert rule["expr"].count(left) == rule["expr"].count(right)


def test_prometheus_takes_the_rules() -> None:
    promtool = tools.program("promtool", install="scripts/promtool.sh .venv/bin")
    command = [promtool, "check", "rules", str(DEPLOY / "prometheus/alerts.yml")]
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_grafana_dashboard_has_its_rows_and_variables() -> None:
    board = json.loads((DEPLOY / "grafana/winch.json").read_text())
    assert [one["name"] for one in board["templating"]["list"]] == ["datasource", "job", "queue", "task"]
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    rows = [panel["title"] for panel in panels if panel["type"] == "row"]
    assert rows[1:] == [
        "Throughput",
        "Latency",
        "Failures",
        "Backlog",
        "Workers",
        "Schedules and limits",
    ]
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for target in panel.get("targets", []):
            expr = target["expr"]
            assert target["datasource"]["uid"] == "${datasource}"
            for left, right in ("()", "{}", "[]"):
                assert expr.count(left) == expr.count(right), expr


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_the_view_says_what_the_scaler_says(make_web: Callable[..., Web], store: str) -> None:
    web = make_web(store)
    for number in range(3):
        web.add.enqueue(number)
        web.mail.enqueue("ada")
    web.claim(max=1)
    web.claim("mail", max=2)
    web.add.using(delay="1h").enqueue(1)
    web.api("POST", "/queues/mail/pause", {})
    asked = {
        queue: web.api("GET", f"/autoscale?queue={queue}").json()["value"]
        for queue in ("default", "mail")
    }
    assert asked == {"default": 3, "mail": 2}
    name = "winch.backlog" if store == "postgres" else "winch_backlog"
    with web.app.transaction() as conn:
        rows = conn.execute(f"SELECT queue, value FROM {name}").fetchall()
    assert {row[0]: row[1] for row in rows} == asked


def test_every_metric_is_documented(make_web: Callable[..., Web]) -> None:
    page = (DEPLOY.parent / "docs/howto/telemetry.md").read_text()
    documented = set(re.findall(r"^\| `(winch_\w+)` \|", page, flags=re.MULTILINE))
    metrics = WorkerMetrics(beaten_at=0.0)
    both = make_web("postgres").ask("GET", "/metrics").text + metrics.render()
    assert set(re.findall(r"^# TYPE (\w+)", both, flags=re.MULTILINE)) == documented
