"""Stores that tests of the engine share."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.redis_servers import RedisCluster, RedisServer

_schemas = itertools.count()


@pytest.fixture(scope="session")
def redis_server() -> Iterator[str]:
    """One Redis server for the whole run."""
    with RedisServer() as server:
        yield server.url


@pytest.fixture(scope="session")
def redis_cluster() -> Iterator[str]:
    """One cluster of three primaries for the whole run."""
    with RedisCluster(replicas=0) as cluster:
        yield cluster.url


@pytest.fixture(params=["sqlite", "postgres", "redis", "redis+cluster"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty store that no other test sees, of every kind that a fleet can share."""
    kind: str = request.param
    if kind == "sqlite":
        return f"sqlite:///{tmp_path}/winch.db"
    if kind == "postgres":
        url: str = request.getfixturevalue("postgres_url")
        return url
    server: str = request.getfixturevalue("redis_server" if kind == "redis" else "redis_cluster")
    return f"{server}?schema=engine{next(_schemas)}"
