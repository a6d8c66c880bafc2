"""Workers whose isolated processes cannot import the app: the worker fails, and no job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

from tests.cli.command import Command

ISOLATED = """
    import multiprocessing

    import winch

    app = winch.App()


    @app.task(isolate="process")
    def add(a: int, b: int) -> int:
        return a + b


    if __name__ == "__main__":
        add.enqueue(1, b=2)
        app.run_worker(burst=True)
"""


def test_an_isolated_task_of_a_script_is_refused_though_multiprocessing_names_the_script(
    tmp_path: Path,
) -> None:
    (tmp_path / "shop.py").write_text(textwrap.dedent(ISOLATED))
    done = subprocess.run(
        [sys.executable, "shop.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0, done.stderr
    assert "define the app at the top of an importable module" in done.stderr
    counted = subprocess.run(
        [sys.executable, "-m", "winch", "stats", "--json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    counts = json.loads(counted.stdout)["jobs"]
    assert (counts["ready"], counts["dead"]) == (1, 0), counted.stdout


VANISHING = """
    import sys

    import winch

    app = winch.App()

    if "isolated-child" in sys.argv:
        raise ImportError("the module is half written")


    @app.task(isolate="process")
    def add(a: int, b: int) -> int:
        return a + b
"""


def test_an_import_error_of_an_isolated_process_ends_the_worker_and_counts_no_crash(
    winch: Command,
) -> None:
    (winch.folder / "shop.py").write_text(textwrap.dedent(VANISHING))
    stored = winch("enqueue", "shop.add", "-A", "shop:app", "--args", '{"a": 1, "b": 2}', "--json")
    job = stored.json["id"]
    answer = winch("worker", "-A", "shop:app", "--burst")
    assert answer.code == 2, answer.err
    assert "ended before it could run one (exit code 2)" in answer.err
    assert "the module is half written" in answer.err
    shown = winch("jobs", "show", job, "--json").json
    assert (shown["state"], shown["crashes"], shown["attempt"]) == ("ready", 0, 0)


def test_an_import_error_of_an_isolated_process_is_raised_by_an_embedded_worker(
    winch: Command,
) -> None:
    (winch.folder / "shop.py").write_text(textwrap.dedent(VANISHING))
    (winch.folder / "run.py").write_text(
        "import shop\nshop.add.enqueue(1, b=2)\nshop.app.run_worker(burst=True)\n"
    )
    done = subprocess.run(
        [sys.executable, "run.py"],
        cwd=winch.folder,
        env={**os.environ, "WINCH_URL": winch.url},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "IsolationFailed: a process for isolated jobs ended before it could run one" in done.stderr
    counts = winch("stats", "--json").json["jobs"]
    assert (counts["ready"], counts["dead"]) == (1, 0)
