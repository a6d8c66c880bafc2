"""One target per driver, each on a real store, kept for the whole run."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

# The suite ships with the package, so pytest would not explain its asserts by itself.
pytest.register_assert_rewrite("winch.testing.conformance")

from tests.redis_servers import RedisCluster, RedisServer  # noqa: E402  # below, or the line above is late
from tests.servers import Databases  # noqa: E402  # the same
from winch.testing.conformance import (  # noqa: E402  # the same
    MemoryTarget,
    PostgresTarget,
    RedisTarget,
    SqliteTarget,
    Target,
)


@pytest.fixture(scope="session")
def runner() -> Iterator[asyncio.Runner]:
    """The event loop that all targets live on."""
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="session")
def memory_target() -> Target:
    return MemoryTarget()


@pytest.fixture(scope="session")
def sqlite_target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    target = SqliteTarget(tmp_path_factory.mktemp("sqlite"))
    yield target
    target.close()


@pytest.fixture(scope="session")
def postgres_target(postgres_server: Databases, runner: asyncio.Runner) -> Iterator[Target]:
    target = PostgresTarget(postgres_server.new_store())
    yield target
    runner.run(target.aclose())
    target.close()


@pytest.fixture(scope="session")
def postgres_leases_target(postgres_server: Databases, runner: asyncio.Runner) -> Iterator[Target]:
    """Where every claim is made as those by the hundred are."""
    target = PostgresTarget(postgres_server.new_store())
    for driver in target._drivers.values():
        driver._base.batch_from = 1  # type: ignore[attr-defined]
    yield target
    runner.run(target.aclose())
    target.close()


@pytest.fixture(scope="session")
def redis_target(runner: asyncio.Runner) -> Iterator[Target]:
    with ExitStack() as stack:
        url = os.environ.get("WINCH_TEST_REDIS") or stack.enter_context(RedisServer()).url
        target = RedisTarget(url)
        yield target
        runner.run(target.aclose())
        target.close()


@pytest.fixture(scope="session")
def redis_cluster_target(runner: asyncio.Runner) -> Iterator[Target]:
    with RedisCluster() as cluster:
        target = RedisTarget(cluster.url)
        yield target
        runner.run(target.aclose())
        target.close()


@pytest.fixture(scope="session")
def target_of(request: pytest.FixtureRequest) -> Callable[[str], Target]:
    """The target of a driver by name; made, with its server, when first asked for."""

    def get(driver: str) -> Target:
        target: Target = request.getfixturevalue(f"{driver.replace('+', '_')}_target")
        return target

    return get
