"""Real stores for the matrix, one run of all wanted pairs on each, and how many pairs ran at its end."""

from __future__ import annotations

import math
import os
import random
import secrets
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.matrix.runs import PAIRS, Played, play
from tests.redis_servers import RedisCluster, RedisServer
from tests.servers import Databases

STORES = ("memory", "sqlite", "postgres", "redis", "redis+cluster")
# Everything runs here each time. On the others a tenth does, drawn again each time, and with the slow
# tests everything.
EACH_TIME = ("memory", "sqlite")
SEED_VARIABLE = "WINCH_TEST_MATRIX_SEED"
SEED = int(os.environ.get(SEED_VARIABLE) or secrets.randbelow(1_000_000))

# By (store, what became of the pair): ran, refused, broken.
COUNTS: Counter[tuple[str, str]] = Counter()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if {"store", "pair"} <= set(metafunc.fixturenames):
        tenth = {store: _tenth(store) for store in STORES}
        params = [
            pytest.param(
                store,
                name,
                marks=[pytest.mark.slow] * (name not in tenth[store]),
                id=f"{name.replace(' ', '-')}-{store}",
            )
            for store in STORES
            for name in map(str, PAIRS)
        ]
        metafunc.parametrize(("store", "pair"), params)


def _tenth(store: str) -> set[str]:
    names = [str(pair) for pair in PAIRS]
    if store in EACH_TIME:
        return set(names)
    rng = random.Random(f"{SEED}/{store}")
    return set(rng.sample(names, math.ceil(len(names) / 10)))


@pytest.fixture(scope="session")
def url_of(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., str]]:
    """The URL of an empty store by its name; its server is started at first use. On Redis
    `schema` separates stores."""
    servers: dict[str, str] = {}
    with ExitStack() as stack:

        def redis(store: str) -> str:
            if store not in servers:
                if store == "redis":
                    servers[store] = stack.enter_context(RedisServer()).url
                else:
                    servers[store] = stack.enter_context(RedisCluster()).url
            return servers[store]

        def get(store: str, schema: str = "matrix") -> str:
            match store:
                case "memory":
                    return "memory://"
                case "sqlite":
                    return f"sqlite:///{tmp_path_factory.mktemp('matrix') / 'winch.db'}"
                case "postgres":
                    databases: Databases = request.getfixturevalue("postgres_server")
                    return databases.new_store()
                case _:
                    return f"{redis(store)}?schema={schema}"

        yield get


@pytest.fixture(scope="session")
def played(
    request: pytest.FixtureRequest,
    url_of: Callable[..., str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str], Played]:
    """What became of the pairs on a store, of all that this run of pytest wants to know about."""
    done: dict[str, Played] = {}

    def get(store: str) -> Played:
        if store not in done:
            wanted = {
                item.callspec.params.get("pair")
                for item in request.session.items
                if isinstance(item, pytest.Function)
                and hasattr(item, "callspec")
                and item.callspec.params.get("store") == store
            }
            pairs = [pair for pair in PAIRS if str(pair) in wanted]
            folder: Path = tmp_path_factory.mktemp("history")
            done[store] = play(url_of(store), pairs, folder)
        return done[store]

    return get


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not COUNTS:
        return
    terminalreporter.section("pairs of features")
    for store in STORES:
        found = {what: COUNTS[store, what] for what in ("ran", "refused", "broken")}
        if number := sum(found.values()):
            words = ", ".join(f"{count} {what}" for what, count in found.items())
            terminalreporter.write_line(f"{store:<14} {number:>3} of {len(PAIRS)} pairs: {words}")
    terminalreporter.write_line(f"the tenth on the servers was drawn with {SEED_VARIABLE}={SEED}")
