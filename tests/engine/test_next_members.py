"""A worker that ends a member of a FIFO key claims the next one with the same call."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.redis_servers import RedisServer
from winch import App
from winch.engine.worker.fetcher import Fetcher
from winch.storage.params import Answer, Finish
from winch.storage.verbs import Verb
from winch.testing.flaky import FlakyStorage

T = TypeVar("T")
pytestmark = pytest.mark.servers


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/winch.db"
    elif request.param == "postgres":
        yield request.getfixturevalue("postgres_url")
    else:
        with RedisServer() as server:
            yield server.url


class Watched(FlakyStorage):
    """Counts the verbs of a worker, and the jobs that its finishes claimed."""

    def __init__(self, app: App) -> None:
        super().__init__(app.driver)
        self.verbs: Counter[str] = Counter()
        self.handed = 0
        app._driver = self.driver

    async def arun(self, verb: Verb[T]) -> T:
        self.verbs[verb.name] += 1
        result: Any = await super().arun(verb)
        if verb.name == "finish_and_claim":
            self.handed += len(result[1])
        return result  # type: ignore[no-any-return]


def test_one_key_needs_one_call_for_each_job(url: str) -> None:
    app = App(url)
    seen: list[int] = []
    running = 0

    @app.task
    async def entry(n: int) -> None:
        nonlocal running
        assert running == 0
        running += 1
        await asyncio.sleep(0)
        seen.append(n)
        running -= 1

    async def main() -> Watched:
        jobs = await app.aenqueue_many([entry.using(fifo="acct:7").bind(n) for n in range(60)])
        store = Watched(app)
        async with app.worker(concurrency=5):
            for job in jobs:
                await job
        await app.aclose()
        return store

    store = asyncio.run(main())
    assert seen == list(range(60))
    assert store.handed >= 55
    assert store.verbs["finish_and_claim"] <= 60
    assert store.verbs["claim"] < 30


def test_a_lost_reply_costs_a_heartbeat_and_keeps_the_order(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The finish is repeated without a claim, and what the lost reply had claimed is given up."""
    monkeypatch.setenv("WINCH_HEARTBEAT", "0.3s")
    monkeypatch.setenv("WINCH_LEASE", "3s")
    app = App(url)
    seen: list[int] = []

    @app.task
    async def entry(n: int) -> None:
        seen.append(n)

    async def main() -> Watched:
        jobs = await app.aenqueue_many([entry.using(fifo="acct:7").bind(n) for n in range(12)])
        store = Watched(app)
        store.fail_after("finish_and_claim", times=2)
        store.fail_before("finish_and_claim", times=1)
        async with asyncio.timeout(30), app.worker(concurrency=5):
            for job in jobs:
                await job
        await app.aclose()
        return store

    store = asyncio.run(main())
    assert seen == list(range(12))
    assert store.counters["after finish_and_claim"] == 2
    assert store.verbs["finish"] >= 3
    assert store.verbs["give_up"] >= 1


def test_a_quiet_worker_claims_nothing_with_its_finishes(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = App(url)
    fetchers: list[Fetcher] = []
    given: list[list[Answer] | None] = []
    real = Fetcher.finish_and_claim

    async def noted(self: Fetcher, outcomes: Sequence[Finish]) -> list[Answer] | None:
        fetchers.append(self)
        given.append(await real(self, outcomes))
        return given[-1]

    monkeypatch.setattr(Fetcher, "finish_and_claim", noted)
    seen: list[int] = []

    @app.task
    async def entry(n: int) -> None:
        seen.append(n)
        if n == 3:
            fetchers[0].quiet(is_quiet=True)
            await asyncio.sleep(0.3)  # a claim that was on its way has come back

    async def main() -> None:
        jobs = await app.aenqueue_many([entry.using(fifo="acct:7").bind(n) for n in range(6)])
        async with app.worker(concurrency=5):
            await jobs[3]
            await asyncio.sleep(0.5)
            assert seen == [0, 1, 2, 3]
            assert given[-1] is None
            fetchers[0].quiet(is_quiet=False)
            await jobs[5]
        await app.aclose()

    asyncio.run(main())
    assert seen == list(range(6))


def test_keys_share_a_worker_with_one_slot(url: str) -> None:
    """A long key keeps no older job waiting: a finish takes what a claim would take first."""
    app = App(url)
    seen: list[str] = []

    @app.task
    async def entry(key: str) -> None:
        seen.append(key)

    async def main() -> None:
        keys = [key for _ in range(10) for key in "abc"]
        jobs = await app.aenqueue_many([entry.using(fifo=f"key:{key}").bind(key) for key in keys])
        async with app.worker(concurrency=1):
            for job in jobs:
                await job
        await app.aclose()

    asyncio.run(main())
    assert Counter(seen) == dict.fromkeys("abc", 10)
    for place in range(10):
        assert set(Counter(seen[: 3 * place + 3])) == set("abc")
