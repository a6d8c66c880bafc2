"""Where a Redis store is, by its URL, and what the driver refuses there."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from datetime import timedelta

import pytest

from tests.redis_servers import RedisServer
from winch import App
from winch.core.errors import ConfigError, EnqueueUncertain, StorageFull, StorageUnavailable
from winch.core.lifecycle import JobState
from winch.core.values.ids import job_id, random_id
from winch.drivers.connect import connect
from winch.drivers.redis.address import parse_url
from winch.drivers.redis.driver import RedisDriver
from winch.storage.params import (
    Answer,
    ClaimParams,
    Finish,
    NewJob,
    NewSession,
)
from winch.testing.conformance.target import WallClock


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
def driver(server: RedisServer) -> Iterator[RedisDriver]:
    driver = RedisDriver.from_url(server.url)
    driver.erase()
    yield driver
    driver.close()


def new_job(tick: int, **fields: object) -> NewJob:
    job = {"id": job_id(tick, bytes(8)), "task": "mail.send", "args": "{}", **fields}
    return NewJob(**job)  # type: ignore[arg-type]


# -- where the store is ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "scheme, same",
    [
        ("valkey", "redis"),
        ("valkeys", "rediss"),
        ("valkey+sentinel", "redis+sentinel"),
        ("valkeys+cluster", "rediss+cluster"),
    ],
)
def test_valkey_is_another_word_for_redis(scheme: str, same: str) -> None:
    path = "/main" if "sentinel" in scheme else ""
    assert parse_url(f"{scheme}://db.example:7000{path}") == parse_url(f"{same}://db.example:7000{path}")
    driver = connect(f"{scheme}://db.example:7000{path}", clock=WallClock())
    assert driver.describe().startswith(f"{same}://")


def test_a_store_is_used_by_its_valkey_address(server: RedisServer) -> None:
    app = App(server.url.replace("redis://", "valkey://"))

    @app.task
    def add(a: int, b: int) -> int:
        return a + b

    job = add.enqueue(1, 2)
    app.run_worker(burst=True)
    assert job.result() == 3
    app.close()


def test_without_a_replica_an_enqueue_is_uncertain_after_a_fifth_of_the_timeout(
    server: RedisServer,
) -> None:
    app = App(f"{server.url}?replicated=1&timeout=2s&schema=alone")

    @app.task(name="t")
    def task() -> None: ...

    app.ready()
    began = time.monotonic()
    with pytest.raises(EnqueueUncertain, match="0 of 1 replicas have confirmed") as caught:
        task.enqueue()
    assert 0.3 < time.monotonic() - began < 2.0
    assert [job.id for job in app.jobs.list()] == list(caught.value.ids)
    app.close()


def test_urls_are_taken_apart() -> None:
    place = parse_url("rediss://ada:se%40cret@db.example:7000/3?schema=shop&timeout=2s&replicated=1")
    assert (place.user, place.password, place.database) == ("ada", "se@cret", 3)
    assert place.servers == (("db.example", 7000),)
    assert (place.prefix, place.timeout, place.replicated) == ("{shop}:", 2.0, 1)
    assert "cret" not in place.describe()
    place = parse_url("redis+sentinel://a,b:1,[::1]:2/main")
    assert place.servers == (("a", 26379), ("b", 1), ("::1", 2))
    assert place.service == "main"


@pytest.mark.parametrize(
    "url, text",
    [
        ("redis://h/zero", "number of a database"),
        ("redis://h?tiemout=1", "did you mean 'timeout'"),
        ("redis://h?timeout=soon", "timeout"),
        ("redis://h?schema=A-B", "schema"),
        ("redis://h?replicated=9", "replicated"),
        ("redis://h:port", "address"),
        ("redis+sentinel://h", "mymaster"),
        ("redis+cluster://h/1", "database 0"),
    ],
)
def test_a_wrong_url_is_refused_with_a_reason(url: str, text: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(text)):
        parse_url(url)


# -- refusals ----------------------------------------------------------------------------------------


@pytest.mark.servers
def test_a_server_that_drops_keys_is_refused(server: RedisServer) -> None:
    server.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    try:
        with pytest.raises(ConfigError, match="maxmemory-policy is allkeys-lru"):
            RedisDriver.from_url(server.url).run(RedisDriver.from_url(server.url).counts())
    finally:
        server.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")


@pytest.mark.servers
def test_a_server_that_is_not_there_is_unavailable_and_nothing_was_applied() -> None:
    driver = RedisDriver.from_url("redis://127.0.0.1:1")
    with pytest.raises(StorageUnavailable, match="cannot connect") as caught:
        driver.run(driver.enqueue([new_job(1)]))
    assert not caught.value.maybe_applied


@pytest.mark.servers
def test_full_memory_keeps_jobs_out_but_lets_workers_finish(
    server: RedisServer, driver: RedisDriver
) -> None:
    jobs = [new_job(tick) for tick in range(5)]
    driver.run(driver.enqueue(jobs))
    session, token = random_id(b"s" * 16), random_id(b"t" * 16)
    driver.run(
        driver.start_session(
            NewSession(
                id=session,
                worker="w",
                host="h",
                pid=1,
                release="1",
                queues=("default",),
                tasks=("mail.send",),
                slots=1,
                lease=timedelta(seconds=30),
            )
        )
    )
    params = ClaimParams(session=session, token=token, queues=("default",), limit=3)
    claims = driver.run(driver.claim(params))
    server.ask("CONFIG", "SET", "maxmemory", "1mb")
    try:
        with pytest.raises(StorageFull, match="nothing was written"):
            driver.run(driver.enqueue([new_job(99)]))
        assert driver.run(driver.get([new_job(99).id])) == [None]
        outcomes = [
            Finish(id=c.id, token=token, to=JobState.COMPLETED, what="completed") for c in claims
        ]
        assert driver.run(driver.finish(outcomes)) == [Answer.TOOK] * 3
        assert driver.run(driver.beat([session]))[0].is_live
    finally:
        server.ask("CONFIG", "SET", "maxmemory", "0")
    assert driver.run(driver.enqueue([new_job(99)]))[0].is_new
