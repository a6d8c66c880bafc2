"""The files in deploy/ name what exists: metrics, commands, options, paths."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from tests.web.kit import Web
from winch.cli import cli
from winch.engine.vitals import Vitals
from winch.web.mount import ROUTES

DEPLOY = Path(__file__).parents[2] / "deploy"


def test_the_rules_name_metrics_that_are_served(make_web: Callable[..., Web]) -> None:
    web = make_web()
    served = set(re.findall(r"^# TYPE (\w+)", web.ask("GET", "/metrics").text, flags=re.MULTILINE))
    rules = (DEPLOY / "prometheus/alerts.yml").read_text()
    named = set(re.findall(r"\bwinch_\w+", rules))
    assert named
    assert named <= served


def test_every_metric_is_documented(make_web: Callable[..., Web]) -> None:
    page = (DEPLOY.parent / "docs/howto/telemetry.md").read_text()
    documented = set(re.findall(r"^\| `(winch_\w+)` \|", page, flags=re.MULTILINE))
    vitals = Vitals(beaten_at=0.0)
    both = make_web("sqlite").ask("GET", "/metrics").text + vitals.metrics()
    assert set(re.findall(r"^# TYPE (\w+)", both, flags=re.MULTILINE)) == documented


@pytest.mark.parametrize("file", ["systemd/winch-worker@.service", "systemd/winch-serve.service"])
def test_units_start_commands_that_exist(file: str) -> None:
    [command] = re.findall(
        r"^ExecStart=\S*/winch (.*)$", (DEPLOY / file).read_text(), flags=re.MULTILINE
    )
    name, *options = command.split()
    with click.Context(cli) as context:
        found = cli.get_command(context, name)
        assert found is not None
        known = {option for param in found.params for option in param.opts}
    assert {option for option in options if option.startswith("--")} <= known


def test_the_scaler_asks_a_route_that_exists() -> None:
    text = (DEPLOY / "keda/scaledobject.yaml").read_text()
    [path] = re.findall(r"http://[^/]+(/[^?\"]+)", text)
    assert path in {route.path for route in ROUTES}
    assert "valueLocation: value" in text
