"""Fixtures of the command line's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.command import Command
from winch import App


@pytest.fixture
def winch(tmp_path: Path) -> Command:
    """The command in an empty folder; its store does not exist yet."""
    return Command(tmp_path)


@pytest.fixture
def app(winch: Command) -> Iterator[App]:
    """An app on the command's own store, migrated."""
    app = winch.app()
    yield app
    app.close()
