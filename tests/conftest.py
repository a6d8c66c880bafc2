"""What every test may ask for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from tests.servers import Databases, PostgresServer

# A deadline per example measures how busy the machine is, not whether the code is right.
hypothesis.settings.register_profile("winch", hypothesis.settings(), deadline=None)
hypothesis.settings.load_profile("winch")


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Databases]:
    """One PostgreSQL server for the whole run: $WINCH_TEST_PG, or one of our own.

    Shared by all tests, so nobody stops it; a test that must, starts a `PostgresServer` for itself. That
    is why it need not sync: nothing is to outlive it.
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
