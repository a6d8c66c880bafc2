"""`app.run_worker(…)` has every option of `winch worker`."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from datetime import timedelta
from pathlib import Path

import click
import pytest

from winch import App, ConfigError
from winch.areas.launch.supervised import child_command
from winch.cli.run.child import worker_child
from winch.cli.run.worker import worker
from winch.engine.supervisor.worker_options import worker_flags

ROOT = Path(__file__).parents[2]
CODE = """
import os
from winch import App

app = App("sqlite:///{path}")

@app.task
def pid(number: int) -> int:
    return os.getpid()
"""


def of_command(command: click.Command) -> set[str]:
    return {option.name or "" for option in command.params}


def test_the_command_line_has_just_these_options() -> None:
    source = {"app_spec", "url", "schema", "config", "verbose"}
    assert of_command(worker) == source | set(worker_flags())
    assert of_command(worker_child) == source | {
        name for name, flag in worker_flags().items() if flag.is_childs
    }


def test_a_child_gets_the_options_as_the_command_line_has_them() -> None:
    given = {
        "queues": "a,b",
        "concurrency": 3,
        "processes": 4,
        "labels": {"gpu": "h100", "zone": "eu"},
        "queue_limits": {"a": 2},
        "queue_rates": {"b": "10/s"},
        "burst": True,
        "grace": timedelta(milliseconds=1500),
        "max_jobs": 5,
        "max_memory": "1GB",
        "max_lifetime": "1h",
        "no_replace": True,
        "report_busy": "/tmp/busy",
        "reload": True,
        "health_port": 1,
        "health_host": "::1",
    }
    assert set(given) == set(worker_flags())
    words = child_command(given, {"app": "shop:app", "url": None}, verbose=2)
    assert words[4:] == [
        *("--app", "shop:app", "--queues", "a,b", "--concurrency", "3"),
        *("--label", "gpu=h100", "--label", "zone=eu"),
        *("--queue-limits", "a=2", "--queue-rates", "b=10/s", "--burst"),
        *("--grace", "1.500000s", "--max-jobs", "5", "--max-memory", "1GB", "--max-lifetime", "1h"),
        *("-v", "-v"),
    ]
    with worker_child.make_context("worker-child", words[4:]) as context:
        assert context.params["grace"] == "1.500000s"
        assert context.params["labels"] == ("gpu=h100", "zone=eu")


def test_an_unknown_option_is_named_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"no option 'procceses' \(did you mean 'processes'\?\)"):
        App("memory://").run_worker(procceses=2)  # type: ignore[call-arg]  # as a caller without types


def test_processes_need_an_app_that_can_be_imported() -> None:
    with pytest.raises(ConfigError, match="have to import the app"):
        App("memory://").run_worker(processes=2)


def test_grace_ends_an_embedded_worker(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path / 'w.db'}", grace="1h")
    app.migrate()

    @app.task(name="t")
    def task() -> None: ...

    task.enqueue()
    assert app.run_worker(queues=["default"], concurrency=2, burst=True, grace="2s") == 0
    app.close()


def test_a_supervisor_runs_processes_and_leaves_the_signals_alone(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(CODE.format(path=tmp_path / "w.db"))
    script = """
    import signal
    import shop

    shop.app.migrate()
    jobs = [shop.pid.enqueue(n) for n in range(20)]
    before = signal.getsignal(signal.SIGTERM)
    code = shop.app.run_worker(
        queues={"default": 1}, concurrency=2, processes=2, max_jobs=5, burst=True, health_port=0
    )
    assert signal.getsignal(signal.SIGTERM) is before
    pids = {job.result("1s") for job in jobs}
    print("code", code, "processes", len(pids))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    words = done.stdout.split()
    assert words[:2] == ["code", "0"]
    assert int(words[3]) >= 1
    assert signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
