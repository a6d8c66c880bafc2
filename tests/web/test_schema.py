"""The description of the API against the API: every answer matches it, whatever is sent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.web.server import serving
from winch import App
from winch.web import throttle
from winch.web.mount import ROUTES
from winch.web.tokens import Tokens

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
# Endless, by design.
STREAMS = {"GET /api/v1/events", "GET /api/v1/jobs/{id}/events"}


def test_schemathesis_finds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All checks and all phases, with a token. It sends more wrong tokens than a server lets pass."""
    monkeypatch.setattr(throttle, "MOST", 1_000_000)
    app = App(f"sqlite:///{tmp_path}/winch.db")

    @app.task(name="add")
    def add(a: int) -> int:
        return a

    app.migrate()
    app.enqueue_many([add.bind(n) for n in range(20)])
    token, _ = app.client.run(Tokens(app.driver).create("schemathesis", ("admin",)))
    report = tmp_path / "report.json"
    with serving(app, auth="tokens") as address:
        run = subprocess.run(
            [
                *(sys.executable, "-m", "schemathesis.cli"),
                *("--config-file", str(HERE / "schemathesis.toml")),
                *("run", f"{address}/api/v1/openapi.json"),
                *("--checks", "all", "--exclude-path-regex", "events$"),
                *("--max-examples", "20", "--request-timeout", "60", "--max-response-time", "45"),
                *("--continue-on-failure", "--warnings", "off", "--report", "json"),
                *("--report-json-path", str(report), "--no-color"),
            ],
            env={
                **os.environ,
                "WINCH_TOKEN": token,
                "SCHEMATHESIS_HOOKS": "tests.web.schema_hooks",
                "PYTHONPATH": str(HERE.parent.parent),
            },
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
    assert run.returncode == 0, run.stdout[-20_000:] + run.stderr[-2_000:]
    described = {f"{route.method} {route.path}" for route in ROUTES if not route.is_page}
    assert f"Tested: {len(described - STREAMS - {'GET /api/v1/openapi.json'})}" in run.stdout
    assert json.loads(report.read_text())
