"""The files in deploy/ name what exists: metrics, commands, options, paths."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import yaml

from tests import tools
from tests.web.kit import Web
from winch.engine.base import operation
from winch.engine.client.needs import Needs, publish_needs
from winch.engine.observe.worker_metrics import WorkerMetrics
from winch.storage.params import ClaimParams, NewSession

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


def test_every_alert_rule_has_its_fields() -> None:
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
def test_the_view_agrees_with_the_scaler(make_web: Callable[..., Web], store: str) -> None:
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


@pytest.mark.parametrize("store", ["memory", "sqlite", "postgres", "redis", "redis+cluster"])
def test_the_scaler_counts_by_the_label_that_jobs_need(make_web: Callable[..., Web], store: str) -> None:
    web = make_web(store)
    app = web.app
    driver = app.ready()

    @app.task(name="shop.render", queue="gpu", needs={"gpu": "h100"})
    def render() -> None: ...

    @app.task(name="shop.train", queue="gpu", needs={"gpu": "h100", "zone": "eu"})
    def train() -> None: ...

    @app.task(name="shop.resize", queue="gpu")
    def resize() -> None: ...

    needs = {task.name: Needs(task.options.needs) for task in (render, train, resize)}
    operation.run(driver, publish_needs(driver, needs))
    app.enqueue_many([*(render.bind() for _ in range(3)), *(train.bind() for _ in range(2))])
    app.enqueue_many([*(resize.bind() for _ in range(4)), web.add.bind(1)])
    render.using(delay="1h").enqueue()
    for number, labels in enumerate(({"gpu": "h100", "zone": "eu"}, {"gpu": "h100"}, {})):
        session = NewSession(
            id=f"00000000-0000-4000-8000-00000000000{number}", worker=f"w-{number}", host="h", pid=1,
            release="1", queues=("gpu",), tasks=("shop.render", "shop.train", "shop.resize"), slots=2,
            lease=timedelta(minutes=1), supervisor=f"s-{number}", labels=labels,
        )  # fmt: skip
        driver.run(driver.start_session(session))
        tasks = (("shop.train",), ("shop.render",), ("shop.resize",))[number]
        claim = ClaimParams(
            session=session.id, token=f"0000000000000000000000000000000{number}", queues=("gpu",),
            limit=1, tasks=tasks,
        )  # fmt: skip
        assert len(driver.run(driver.claim(claim))) == 1

    def asked(label: str, more: str = "") -> dict[str, int]:
        answer = web.api("GET", f"/autoscale?queue=gpu&label={label}{more}")
        assert answer.status_code == 200, answer.text
        found: dict[str, int] = answer.json()
        return found

    assert asked("gpu%3Dh100") == {"value": 5, "busy_workers": 2, "workers": 2}
    assert asked("gpu%3Dh100", "&jobs_per_worker=2")["workers"] == 3
    assert asked("gpu=h100", "&jobs_per_worker=100")["workers"] == 2, "never fewer than are busy"
    assert asked("zone=eu") == {"value": 2, "busy_workers": 1, "workers": 1}
    assert asked("zone=us") == {"value": 0, "busy_workers": 0, "workers": 0}
    assert asked("none")["value"] == 4
    assert web.api("GET", "/autoscale?label=gpu%3Dh100").json()["value"] == 5
    assert web.api("GET", "/autoscale?queue=gpu&label=gpu").status_code == 422
    if store in ("sqlite", "postgres"):
        name = "winch.backlog_by_label" if store == "postgres" else "winch_backlog_by_label"
        with app.transaction() as conn:
            rows = conn.execute(f"SELECT queue, label, value FROM {name}").fetchall()
        expected = {("gpu", "gpu=h100"): 5, ("gpu", "zone=eu"): 2, ("gpu", ""): 4, ("default", ""): 1}
        assert {(row[0], row[1]): row[2] for row in rows} == expected
    text = web.ask("GET", "/metrics").text
    assert 'winch_queue_backlog{queue="gpu",label="gpu=h100"} 5' in text
    assert 'winch_queue_backlog{queue="gpu",label=""} 4' in text
    web.api("POST", "/queues/gpu/pause", {})
    assert asked("gpu=h100")["value"] == 2, "a paused queue: those that run"


def test_every_metric_is_documented(make_web: Callable[..., Web]) -> None:
    page = (DEPLOY.parent / "docs/howto/telemetry.md").read_text()
    documented = set(re.findall(r"^\| `(winch_\w+)` \|", page, flags=re.MULTILINE))
    metrics = WorkerMetrics(beaten_at=0.0)
    both = make_web("postgres").ask("GET", "/metrics").text + metrics.render()
    assert set(re.findall(r"^# TYPE (\w+)", both, flags=re.MULTILINE)) == documented
