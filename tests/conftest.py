"""What every test may ask for."""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import hypothesis
import pytest

from tests.servers import Databases, PostgresServer
from winch.drivers.sqlite.wakeups.folder import remove_if_dead

# A deadline per example measures how busy the machine is, not whether the code is right.
hypothesis.settings.register_profile("winch", hypothesis.settings(), deadline=None)
hypothesis.settings.load_profile("winch")


@pytest.fixture(scope="session", autouse=True)
def no_bells_left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No process has left the bells of a SQLite file of this run in the folder for temporary files.

    A killed process cannot clean up; a sweep removes its bells. The rest are in use: a test leaks.
    """
    yield
    gc.collect()
    ours = os.fsencode(tmp_path_factory.getbasetemp())
    left = []
    for folder in Path(tempfile.gettempdir()).glob(f"winch-bells-{os.getuid()}-*"):
        with suppress(OSError):
            if (folder / "users").read_bytes().startswith(ours) and not remove_if_dead(folder):
                left.append(f"{folder}: {(folder / 'users').read_text()}")
    assert not left, f"bells that are still in use: {left}"


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Databases]:
    """One PostgreSQL server for the whole run: $WINCH_TEST_PG, or one of our own.

    All tests share it, so no test stops it; a test that must, starts its own `PostgresServer`. It need
    not sync: no data outlives it.
    """
    if url := os.environ.get("WINCH_TEST_PG"):
        given = Databases(url)
        yield given
        given.drop_all()
    else:
        with PostgresServer(fsync=False) as server:
            yield server


@pytest.fixture
def postgres_url(postgres_server: Databases) -> Iterator[str]:
    """The URL of a database with Winch's schema that no other test sees."""
    url = postgres_server.new_store()
    yield url
    postgres_server.drop_database(url)


@pytest.fixture
def empty_postgres_url(postgres_server: Databases) -> Iterator[str]:
    """The URL of an empty database that no other test sees."""
    url = postgres_server.new_database()
    yield url
    postgres_server.drop_database(url)


@pytest.fixture
def sqlite_path(tmp_path: Path) -> Path:
    """Where a SQLite file may be made; it does not exist yet."""
    return tmp_path / "winch.db"
