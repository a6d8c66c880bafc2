"""The site on each store, asked in process; one loop for the whole run."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.redis_servers import RedisServer
from tests.servers import Databases, emptied
from tests.web.kit import LoopThread, Web
from winch import App
from winch.web.mount import build
from winch.web.site import SiteConfig

STORES = ("memory", "sqlite", "postgres", "redis")
PRINTED: list[str] = []
TIMED: list[str] = []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if PRINTED:
        terminalreporter.section("narrowed access: routes × roles × narrowings")
        for line in PRINTED:
            terminalreporter.line(line)
    if TIMED:
        terminalreporter.section("ten tasks by clicks")
        for line in sorted(TIMED):
            terminalreporter.line(line)


@pytest.fixture(scope="session")
def runner() -> Iterator[LoopThread]:
    runner = LoopThread()
    yield runner
    runner.close()


@pytest.fixture(scope="session")
def web_postgres(postgres_server: Databases) -> str:
    """One migrated database for all of these tests."""
    return postgres_server.new_store()


@pytest.fixture(scope="session")
def web_redis() -> Iterator[str]:
    """One server for all of these tests; each has a schema of its own."""
    if url := os.environ.get("WINCH_TEST_REDIS"):
        yield url
    else:
        with RedisServer() as server:
            yield server.url


@pytest.fixture
def url_of(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[[str], str]:
    """The URL of an empty store of each kind."""

    def get(store: str) -> str:
        if store == "memory":
            return "memory://"
        if store == "sqlite":
            return f"sqlite:///{tmp_path / 'winch.db'}"
        if store == "redis":
            url = request.getfixturevalue("web_redis")
            return f"{url}{'&' if '?' in url else '?'}schema=web{secrets.token_hex(6)}"
        return emptied(request.getfixturevalue("web_postgres"))

    return get


@pytest.fixture
def make_web(runner: LoopThread, url_of: Callable[[str], str]) -> Iterator[Callable[..., Web]]:
    """A site with some tasks; `store` chooses where, the rest is SiteConfig's."""
    made: list[Web] = []

    def make(store: str = "memory", **config: object) -> Web:
        app = App(url_of(store))
        app.migrate()
        config.setdefault("auth", "open")
        config.setdefault("hosts", frozenset({"localhost"}))
        web = Web(app, build(app, SiteConfig(**config)), runner)  # type: ignore[arg-type]
        made.append(web)
        return web

    yield make
    for web in made:
        web.close()


@pytest.fixture(params=STORES)
def web(request: pytest.FixtureRequest, make_web: Callable[..., Web]) -> Web:
    """The open site on each store in turn."""
    return make_web(request.param)
