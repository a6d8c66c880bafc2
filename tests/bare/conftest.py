"""An environment that has Winch and its three dependencies, and no extra."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Bare:
    """The environment's interpreter, and a folder to work in."""

    python: Path
    folder: Path

    def __call__(self, *args: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        """Run the interpreter with nothing inherited that could bring in another environment."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("WINCH_", "PYTHON"))}
        return subprocess.run(
            [str(self.python), *args],
            cwd=self.folder,
            env=kept,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )


@pytest.fixture(scope="session")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as a user does it: `python -m venv v && v/bin/pip install .`"""
    folder = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", str(folder / "v")], check=True)
    python = folder / "v" / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, str(ROOT)], check=True, cwd=folder)
    return python


@pytest.fixture
def bare(bare_python: Path, tmp_path: Path) -> Bare:
    return Bare(bare_python, tmp_path)
