"""The worker in JavaScript, on a real server. Slow; `make test-all` installs Node."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.web.server import serving
from winch import App, Retry

pytestmark = pytest.mark.slow
WORKER = Path(__file__).parents[2] / "examples" / "node_worker" / "worker.mjs"


def test_a_worker_in_javascript(tmp_path: Path) -> None:
    node = shutil.which("node")
    assert node is not None, "no Node here: `make test-all` installs it"
    app = App(f"sqlite:///{tmp_path / 'winch.db'}")

    @app.task(name="node.thumbnail", queue="node")
    def thumbnail(image: str, width: int) -> str:
        raise AssertionError("only the other worker runs it")

    @app.task(name="node.fails", queue="node", retry=Retry.fixed("1s", attempts=1))
    def fails() -> None:
        raise AssertionError("only the other worker runs it")

    @app.task(name="python.only", queue="node")
    def python_only() -> None: ...

    app.migrate()
    jobs = app.enqueue_many([thumbnail.bind(f"{n}.png", 100) for n in range(10)])
    dead = fails.enqueue()
    other = python_only.enqueue()
    with serving(app) as address:
        env = {**os.environ, "WINCH_SERVER": address, "WINCH_BURST": "1"}
        done = subprocess.run(
            [node, WORKER, "node"], env=env, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        assert [job.result("5s") for job in jobs] == [f"{n}.png@100" for n in range(10)]
        record = dead.refresh().record
        assert record.state == "dead"
        assert record.error is not None
        assert "worker.mjs" in (record.error.traceback or "")
        assert other.refresh().state == "ready", "it takes only what it can do"
        assert app.workers.list() == []
