"""Every public name, setting, command, route, metric, event and error has its line in the reference."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

import winch
from winch.cli import COMMANDS, HIDDEN
from winch.engine.base.settings import _OTHER_VARIABLES, Settings
from winch.engine.tasks.events import KINDS
from winch.web.mount import ROUTES
from winch.web.problems import PROBLEMS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
# Variables between Winch's own processes, and of the tests and benchmarks.
INNER = {
    "WINCH_BURST", "WINCH_CELL_LINE", "WINCH_CHILD_LINK", "WINCH_FAULTS_AT_ONCE", "WINCH_HISTORY",
    "WINCH_SERVER", "WINCH_TOKEN", "WINCH_UPDATE_GOLDEN",
}  # fmt: skip


def described() -> set[str]:
    """The names that a reference page shows with their docstrings."""
    text = "".join(page.read_text() for page in (DOCS / "reference").glob("*.md"))
    return {name.rpartition(".")[2] for name in re.findall(r"^::: ([\w.]+)", text, flags=re.MULTILINE)}


@pytest.mark.parametrize(
    "module", ["winch", "winch.types", "winch.errors", "winch.testing", "winch.web"]
)
def test_every_public_name(module: str) -> None:
    assert {*importlib.import_module(module).__all__} - described() == set()


def test_every_area() -> None:
    areas = [name for name in dir(winch.App) if not name.startswith("_")]
    text = (DOCS / "reference/areas.md").read_text()
    for name in ("jobs", "dead", "queues", "schedules", "workers", "limits", "flows", "outbox"):
        assert name in areas
        assert f"winch.areas.{name}." in text


def test_every_command() -> None:
    text = (DOCS / "reference/cli.md").read_text()
    for name in COMMANDS:
        assert (f"## winch {name}\n" in text) is (name not in HIDDEN)


def test_every_setting_and_variable() -> None:
    text = (DOCS / "configuration.md").read_text() + (DOCS / "howto/telemetry.md").read_text()
    for name in (f"WINCH_{field.upper()}" for field in Settings.__struct_fields__):
        assert f"`{name}`" in text
    for name in _OTHER_VARIABLES - INNER:
        assert name in text, name


def test_every_route_and_problem() -> None:
    text = (DOCS / "reference/http.md").read_text()
    for route in ROUTES:
        if not route.is_page:
            assert f"### {route.method} {route.path} " in text
    for code in PROBLEMS:
        assert f"| `{code}` |" in text


def test_every_metric_and_event() -> None:
    text = (DOCS / "howto/telemetry.md").read_text()
    source = "".join(
        path.read_text()
        for folder in ("web", "engine/observe")
        for path in (ROOT / "src/winch" / folder).glob("*.py")
    )
    metrics = set(re.findall(r'"(winch_[a-z]+_[a-z_]+|winch_workers)"', source)) - {"winch_is_timed"}
    assert len(metrics) > 20
    for name in metrics:
        assert f"| `{name}` |" in text, name
    for kind in KINDS:
        assert f"`{kind}`" in text, kind
