"""`make django` never skips a leg: without a Python for Django 6 it fails."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from scripts import django_suite


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine with this Python 3.11 alone: no pyenv, nothing on PATH."""
    monkeypatch.delenv("WINCH_PYTHON312", raising=False)
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setattr(sys, "version_info", (3, 11, 7))
    return tmp_path


def test_without_a_python_for_django_6_the_target_fails(bare: Path) -> None:
    with pytest.raises(SystemExit, match=r"Django 6 needs Python 3\.12: set \$WINCH_PYTHON312"):
        django_suite.main(["--only", "6.1"])


def test_a_python_is_found_in_the_environment_in_pyenv_or_on_the_path(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}" if "3.13" in name else None)
    assert django_suite.python312() == Path("/usr/bin/python3.13")
    held = bare / "versions" / "3.12.9" / "bin" / "python"
    held.parent.mkdir(parents=True)
    held.touch()
    assert django_suite.python312() == held
    monkeypatch.setenv("WINCH_PYTHON312", "/opt/python3.12")
    assert django_suite.python312() == Path("/opt/python3.12")
