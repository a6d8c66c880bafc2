"""One target per driver, each on a real store, kept for the whole run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

# The suite ships with the package, so pytest would not explain its asserts by itself.
pytest.register_assert_rewrite("winch.testing.conformance")

from tests.servers import Databases  # noqa: E402  # after the line above, or it has no effect
from winch.testing.conformance import (  # noqa: E402  # the same
    MemoryTarget,
    PostgresTarget,
    SqliteTarget,
    Target,
)


@pytest.fixture(scope="session")
def runner() -> Iterator[asyncio.Runner]:
    """The event loop that all targets live on."""
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="session")
def target_of(
    request: pytest.FixtureRequest, runner: asyncio.Runner, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Target]]:
    """The target of a driver by name; made, with its server, when first asked for."""
    made: dict[str, Target] = {}

    def make(driver: str) -> Target:
        match driver:
            case "memory":
                return MemoryTarget()
            case "sqlite":
                return SqliteTarget(tmp_path_factory.mktemp("sqlite"))
            case "postgres":
                server: Databases = request.getfixturevalue("postgres_server")
                return PostgresTarget(server.new_database())
            case _:
                raise ValueError(f"no driver named {driver!r}")

    def get(driver: str) -> Target:
        if driver not in made:
            made[driver] = make(driver)
        return made[driver]

    yield get
    for target in made.values():
        runner.run(target.aclose())
        target.close()
