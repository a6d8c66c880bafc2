"""Run the cells of the support matrix that this machine has, and name those that it lacks.

    python -m scripts.matrix                              every cell
    python -m scripts.matrix postgres                     every PostgreSQL
    python -m scripts.matrix python-3.12 valkey-9         these cells; one that is missing is a failure

A cell is one version of Python, PostgreSQL, Redis or Valkey. It runs the conformance suite of the stores
concerned, and a fault test: a worker is killed with `kill -9`, and another worker takes its jobs over.

    Python        from PATH or pyenv, in an environment of its own under build/: memory and SQLite
    PostgreSQL    $WINCH_TEST_PG_BIN, the folders of the usual packages, the wheel of the extra `dev`
    Redis         $WINCH_TEST_REDIS_BIN, redis-server and valkey-server on PATH, the wheel
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scripts.release.install import find_python
from tests.redis_servers import wheel_redis
from tests.servers import has_postgres, postgres_version, usual_folders, wheel_postgres

ROOT = Path(__file__).resolve().parent.parent
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
POSTGRES = ("14", "15", "16", "17", "18")
REDIS = ("redis-7", "redis-8", "valkey-8", "valkey-9")
CELLS = (*(f"python-{version}" for version in PYTHONS), *(f"postgres-{n}" for n in POSTGRES), *REDIS)

TAKEN_OVER = "the_jobs_of_a_killed_worker_are_taken_over"


@dataclass(frozen=True)
class Cell:
    """One version that is here: its exact title, the interpreter for its tests, and their commands."""

    name: str
    version: str
    python: Path
    commands: tuple[tuple[str, ...], ...]
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Result:
    cell: Cell
    seconds: float
    lines: tuple[str, ...]
    is_ok: bool


def worker_test(store: str) -> tuple[str, ...]:
    file = "test_redis.py" if store == "redis" else "test_kills.py"
    chosen = TAKEN_OVER if store == "redis" else f"{TAKEN_OVER} and {store}"
    return ("-m", "pytest", "-q", "-p", "no:cacheprovider", f"tests/faults/{file}", "-k", chosen)


def conformance(*drivers: str) -> tuple[str, ...]:
    return ("scripts/conformance.py", *drivers)


# -- what is here ------------------------------------------------------------------------------------


def python_cells(wanted: Sequence[str]) -> Iterator[Cell]:
    for version in PYTHONS:
        name = f"python-{version}"
        if name in wanted and (python := find_python(version)) is not None:
            own = environment_of(python, version)
            output = subprocess.run(
                [own, "--version"], capture_output=True, text=True, check=True
            ).stdout
            commands = (
                ("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/core"),
                conformance("memory", "sqlite"),
                worker_test("sqlite"),
            )
            yield Cell(name, output.strip(), own, commands)


def environment_of(python: Path, version: str) -> Path:
    """The interpreter of an environment with Winch and its tools, recreated when pyproject changes."""
    digest = hashlib.sha256((ROOT / "pyproject.toml").read_bytes()).hexdigest()[:12]
    folder = ROOT / "build" / f"python-{version}-{digest}"
    own, stamp = folder / "bin/python", folder / ".installed"
    if not stamp.exists():
        subprocess.run([python, "-m", "venv", "--clear", str(folder)], check=True)
        pip = [str(own), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "-e", ".[all,dev]"], cwd=ROOT, check=True)
        stamp.touch()
    return own


def postgres_cells(wanted: Sequence[str]) -> Iterator[Cell]:
    given = os.environ.get("WINCH_TEST_PG_BIN", "")
    folders = [Path(given) if given else None, *usual_folders(), wheel_postgres()]
    found: dict[str, tuple[tuple[int, ...], Path]] = {}
    for folder in folders:
        if folder is not None and has_postgres(folder):
            version = postgres_version(folder)
            found.setdefault(f"postgres-{version[0]}", (version, folder))
    for name in wanted:
        if name in found:
            version, folder = found[name]
            title = f"PostgreSQL {'.'.join(map(str, version))}"
            commands = (conformance("postgres"), worker_test("postgres"))
            yield Cell(name, title, Path(sys.executable), commands, {"WINCH_TEST_PG_BIN": str(folder)})


def redis_cells(wanted: Sequence[str]) -> Iterator[Cell]:
    given = os.environ.get("WINCH_TEST_REDIS_BIN", "")
    on_path = (shutil.which("redis-server"), shutil.which("valkey-server"))
    programs = [Path(program) for program in (given, *on_path) if program and Path(program).is_file()]
    found: dict[str, tuple[str, Path]] = {}
    for program in [*programs, *filter(None, [wheel_redis()])]:
        output = subprocess.run(
            [program, "--version"], capture_output=True, text=True, check=True
        ).stdout
        # "Redis server v=7.0.15 sha=…", "Valkey server v=9.1.2 sha=…"
        if match := re.match(r"(\w+) server v=((\d+)[\d.]*)", output):
            found.setdefault(f"{match[1].lower()}-{match[3]}", (f"{match[1]} {match[2]}", program))
    for name in wanted:
        if name in found:
            title, program = found[name]
            commands = (conformance("redis", "redis+cluster"), worker_test("redis"))
            environment = {"WINCH_TEST_REDIS_BIN": str(program)}
            yield Cell(name, title, Path(sys.executable), commands, environment)


# -- runs --------------------------------------------------------------------------------------------


def run(cell: Cell) -> Result:
    """Run the cell's commands to the first that fails; each one's last line is its summary."""
    print(f"\n--- {cell.name}: {cell.version} ---", flush=True)
    # A server that is set by its URL would be used in place of the cell's own.
    kept = {
        key: value
        for key, value in os.environ.items()
        if key not in ("WINCH_TEST_PG", "WINCH_TEST_REDIS")
    }
    started = time.monotonic()
    lines = []
    for command in cell.commands:
        done = subprocess.run(
            [cell.python, *command], cwd=ROOT, env=kept | cell.environment,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        printed = done.stdout.strip().splitlines()
        if done.returncode != 0:
            print("\n".join(printed[-60:]), flush=True)
            return Result(
                cell, time.monotonic() - started, (f"failed: {' '.join(command)}",), is_ok=False
            )
        is_conformance = command[0].endswith("conformance.py")
        lines += [line for line in printed if " passed" in line] if is_conformance else printed[-1:]
        print("\n".join(lines), flush=True)
    return Result(cell, time.monotonic() - started, tuple(lines), is_ok=True)


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cells", nargs="*", metavar="cell", help=f"any of: {', '.join(CELLS)}")
    options = parser.parse_args(argv)
    for cell in options.cells:
        if not any(name == cell or name.startswith(f"{cell}-") for name in CELLS):
            parser.error(f"no cell named {cell!r}; expected any of: {', '.join(CELLS)}")
    wanted = [
        name
        for name in CELLS
        if not options.cells or name in options.cells or name.rpartition("-")[0] in options.cells
    ]
    cells = [*python_cells(wanted), *postgres_cells(wanted), *redis_cells(wanted)]
    results = [run(cell) for cell in cells]

    print("\nCell          version              seconds  result")
    for result in results:
        outcome = "passed" if result.is_ok else "FAILED"
        print(f"{result.cell.name:<13} {result.cell.version:<20} {result.seconds:>7.0f}  {outcome}")
    absent = [name for name in wanted if name not in {cell.name for cell in cells}]
    if absent:
        print(f"not on this machine, not run: {', '.join(absent)}")
    is_missing = bool(set(absent) & set(options.cells))  # of those that were named one by one
    return 0 if results and all(result.is_ok for result in results) and not is_missing else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
