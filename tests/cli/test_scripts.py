"""Scripts that run a worker of their own."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

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
