"""A handler that forks processes and terminates them does not stop its worker."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.fleet import ROOT
from winch import App, JobState


@pytest.mark.parametrize("kind", ["worker", "embedded"])
def test_a_terminated_fork_of_a_handler_stops_neither_the_worker_nor_its_neighbours(
    tmp_path: Path, kind: str
) -> None:
    url = f"sqlite:///{tmp_path / 'winch.db'}"
    app = App(url)
    app.migrate()
    starts = tmp_path / "starts"
    beside = app.task(name="neighbour")(lambda path, seconds: None).enqueue(str(starts), 4.0)
    jobs = [
        app.task(name="terminate")(lambda times: None).enqueue(20),
        app.task(name="pool")(lambda: None).enqueue(),
    ]
    env = {name: value for name, value in os.environ.items() if not name.startswith("WINCH_")}
    argv = ["-m", "winch", "worker", "-A", "tests.engine.forking_app:app", "-c", "4", "--burst"]
    if kind == "embedded":
        argv = ["-c", "from tests.engine.forking_app import app; app.run_worker(burst=True)"]
    done = subprocess.run(
        [sys.executable, *argv],
        cwd=ROOT,
        env=env | {"FORK_URL": url},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    states = {job.refresh().state for job in (beside, *jobs)}
    assert states == {JobState.COMPLETED}, done.stderr
    assert len(starts.read_text().split()) == 1, f"the neighbour ran once\n{done.stderr}"
    assert done.returncode == 0
    assert "SIGTERM" not in done.stderr
    app.close()
