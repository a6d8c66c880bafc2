"""`make wagtail`: Wagtail's own tests that enqueue, with Winch as the backend of its tasks.

    python scripts/wagtail_suite.py
    python scripts/wagtail_suite.py --label wagtail.images

This script makes an environment with the newest Wagtail of the package index, downloads its source
release, which has the tests, and runs them twice: as they are, and with Winch in place of the immediate
backend. A test that passes without Winch must pass with it, or be named below with the reason. Wagtail
enqueues at every save of a model, for its reference index, so nearly all of its tests enqueue. The
labels below are the apps whose tests look at what a task did.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "wagtail"
sys.path.insert(0, str(ROOT))

from scripts.django_suite import python312  # noqa: E402  # found by the path above

LABELS = (
    "wagtail.contrib.frontend_cache",
    "wagtail.tests.test_reference_index",
    "wagtail.documents.tests.test_models",
    "wagtail.images.tests.test_models",
    "wagtail.images.tests.test_signal_handlers",
)
# What cannot pass with Winch, and why.
EXPECTED: dict[str, str] = {}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--label", action="append", help="tests to run, in place of the usual ones")
    labels = parser.parse_args(arguments).label or LABELS
    python, source = prepared()
    found = {suite: run(python, source, suite, labels) for suite in ("plain", "winch")}
    plain, own = found["plain"], found["winch"]
    wrong = sorted(set(own["failed"]) - set(plain["failed"]) - set(EXPECTED))
    wrong += sorted(name for name in plain["failed"] if name.startswith("unittest.loader."))
    if own["run"] != plain["run"] or not own["enqueued"]:
        wrong.append(f"{own['run']} tests ran, {plain['run']} without Winch; {own['jobs']} jobs")
    print(
        f"{source.name}: {own['run'] - len(own['failed'])} of {own['run']} pass "
        f"({plain['run'] - len(plain['failed'])} without Winch); {len(own['enqueued'])} enqueue, "
        f"{own['jobs']} jobs, {own['states']}"
    )
    for name, why in sorted(plain["failed"].items()):
        print(f"fails without Winch too: {name}: {why}")
    for line in wrong:
        print(f"NOT AS EXPECTED: {line}{reason(own['failed'].get(line))}")
    return 1 if wrong else 0


def reason(text: str | None) -> str:
    return f": {text}" if text else ""


def prepared() -> tuple[Path, Path]:
    """An environment with the newest Wagtail, and the source of that release."""
    BUILD.mkdir(parents=True, exist_ok=True)
    folder = BUILD / "venv"
    python, stamp = folder / "bin" / "python", folder / "installed"
    if not stamp.exists():
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([python312(), "-m", "venv", folder], check=True)
        install = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        subprocess.run([*install, "wagtail[testing]", "-e", str(ROOT)], check=True)
        stamp.touch()
    version = "import importlib.metadata as m; print(m.version('wagtail'))"
    known = subprocess.run([python, "-c", version], capture_output=True, text=True, check=True)
    name = f"wagtail-{known.stdout.strip()}"
    if not (BUILD / name).exists():
        command = [str(python), "-m", "pip", "download", "-q", "--disable-pip-version-check"]
        command += ["--no-deps", "--no-binary", "wagtail", "-d", str(BUILD), name.replace("-", "==")]
        subprocess.run(command, check=True)
        with tarfile.open(BUILD / f"{name}.tar.gz") as packed:
            packed.extractall(BUILD, filter="data")
    return python, BUILD / name


def run(python: Path, source: Path, suite: str, labels: Sequence[str]) -> dict[str, Any]:
    """Run the tests in the environment; returns what the last line holds."""
    done = subprocess.run(
        [python, ROOT / "scripts" / "wagtail_tests.py", source, suite, *labels],
        env={**os.environ, "PYTHONPATH": str(ROOT / "scripts")},
        capture_output=True,
        text=True,
        check=False,
        timeout=3600,
        cwd=source,  # some tests open images by a path relative to it
    )
    last = done.stdout.strip().rpartition("\n")[2]
    if done.returncode or not last.startswith("{"):
        raise SystemExit(f"{source.name} {suite} did not run:\n{done.stdout}\n{done.stderr}")
    found: dict[str, Any] = json.loads(last)
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
