"""Wake-ups: heard across processes at once, sent only when somebody waits, and never needed."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.storage.postgres_kit import Store, connected, new_job
from winch.drivers.postgres.driver import PostgresDriver
from winch.drivers.postgres.listen import RENEW, PostgresBell

pytestmark = pytest.mark.servers


@pytest.fixture
def store(postgres_url: str) -> Iterator[Store]:
    driver = PostgresDriver.from_url(postgres_url)
    driver.migrate()
    yield Store(driver, postgres_url)
    driver.close()


@asynccontextmanager
async def belled(store: Store, *queues: str, due: bool = False) -> AsyncIterator[PostgresBell]:
    bell = store.driver.bell(queues, due=due)
    try:
        await bell.arm()
        yield bell
    finally:
        await bell.aclose()
        await store.driver.aclose()


@contextmanager
def ears(url: str, channel: str) -> Iterator[psycopg.Connection[Any]]:
    """A listener of the test's own."""
    with connected(url) as conn:
        conn.execute(f"LISTEN {channel}")
        yield conn


def heard(conn: psycopg.Connection[Any], seconds: float = 0.2) -> list[str]:
    return [notify.payload for notify in conn.notifies(timeout=seconds)]


def test_a_job_of_another_process_is_heard_at_once(store: Store) -> None:
    """The other process tells when it committed, by the same monotonic clock."""
    script = textwrap.dedent(
        f"""
        import sys, time
        from tests.storage.postgres_kit import Store
        from winch.drivers.postgres.driver import PostgresDriver
        store = Store(PostgresDriver.from_url({store.url!r}))
        store.driver.run(store.driver.counts())
        sys.stdin.readline()
        for _ in range(10):
            store.add()
            print(time.monotonic(), flush=True)
            sys.stdin.readline()
        store.driver.close()
        """
    )

    async def listen() -> list[float]:
        other = subprocess.Popen(
            [sys.executable, "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path.cwd(),
        )
        assert other.stdin is not None
        assert other.stdout is not None
        late = []
        async with belled(store, "default") as bell:
            for _ in range(10):
                await bell.arm()
                other.stdin.write("\n")
                other.stdin.flush()
                assert await bell.wait(20)
                at = time.monotonic()
                late.append(at - float(await asyncio.to_thread(other.stdout.readline)))
            other.stdin.write("\n")
            other.stdin.flush()
        other.stdin.close()
        other.stdout.close()
        other.wait(20)
        return late

    late = asyncio.run(listen())
    assert sorted(late)[len(late) // 2] < 0.05, late


def test_nothing_is_sent_while_nobody_waits(store: Store) -> None:
    with ears(store.url, store.driver._place.channel) as listening:
        store.add(5)
        store.add(delay=timedelta(seconds=1))
        store.driver.run(store.driver.promote())
        assert heard(listening) == []


def test_one_call_sends_one_wake_up_with_its_queues(store: Store) -> None:
    async def work() -> None:
        async with belled(store, "a", "b", "c"):
            jobs = [new_job(queue=queue) for queue in ("a", "b", "b", "other") for _ in range(50)]
            await store.driver.arun(store.driver.enqueue(jobs))

    with ears(store.url, store.driver._place.channel) as listening:
        asyncio.run(work())
        (payload,) = heard(listening)
        assert sorted(payload.strip("[]").replace('"', "").split(", ")) == ["a", "b"]


def test_too_many_queues_for_a_payload_ring_for_all(store: Store) -> None:
    queues = [f"queue-{n:03}-{'x' * 200}" for n in range(60)]

    async def work() -> bool:
        async with belled(store, *queues) as bell:
            await store.driver.arun(store.driver.enqueue([new_job(queue=queue) for queue in queues]))
            return await bell.wait(5)

    with ears(store.url, store.driver._place.channel) as listening:
        assert asyncio.run(work())
        assert heard(listening) == ["[]"]


def test_waiting_is_said_seldom_whoever_waits(store: Store) -> None:
    async def work() -> None:
        async with belled(store, "default") as one:
            other = store.driver.bell(["default"])
            for _ in range(50):
                await one.arm()
                await other.arm()
            await other.aclose()

    with connected(store.url) as watcher:
        asyncio.run(work())
        row = watcher.execute(
            "SELECT xmin::text, waiting_until > clock_timestamp() + '10 s' FROM winch.queue"
        ).fetchone()
        assert row is not None
        asyncio.run(work())
        again = watcher.execute("SELECT xmin::text, true FROM winch.queue").fetchone()
    assert row == again, "a row that was good for a while was written again"
    assert RENEW < 10


def test_a_queue_that_somebody_waits_for_is_no_queue_to_list(store: Store) -> None:
    async def work() -> None:
        async with belled(store, "awaited", due=True):
            pass

    asyncio.run(work())
    assert store.driver.run(store.driver.queues()) == []


@pytest.mark.faults
def test_a_listener_that_was_killed_comes_back(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        async with belled(store, "default") as bell:
            listener = bell._listener
            assert listener.is_up
            assert store.driver.facts().listener == "up"
            with connected(store.url) as killer:
                killer.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE query LIKE 'LISTEN%' AND datname = current_database()"
                )
            for _ in range(500):
                await asyncio.sleep(0.01)
                if not listener.is_up:
                    break
            for _ in range(500):
                await asyncio.sleep(0.01)
                if listener.is_up:
                    break
            assert listener.is_up
            await bell.arm()
            await store.driver.arun(store.driver.enqueue([new_job()]))
            assert await bell.wait(5)

    with caplog.at_level(logging.WARNING):
        asyncio.run(work())
    assert "polling goes on" in caplog.text


@pytest.mark.faults
def test_waiting_never_raises_where_nobody_answers() -> None:
    store = Store(PostgresDriver.from_url("postgresql://127.0.0.1:1/x"))

    async def work() -> float:
        async with belled(store, "default", due=True) as bell:
            started = time.monotonic()
            assert not await bell.wait(0.2)
            assert not bell._listener.is_up
            assert "down" in bell._listener.state
            return time.monotonic() - started

    assert asyncio.run(work()) < 2


def test_a_direct_address_for_wake_ups_may_be_given(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> bool:
        async with belled(store, "default") as bell:
            await store.driver.arun(store.driver.enqueue([new_job()]))
            return await bell.wait(0.3)

    monkeypatch.setenv("WINCH_LISTEN_URL", "postgresql://127.0.0.1:1/x")
    assert not asyncio.run(work())
    monkeypatch.setenv("WINCH_LISTEN_URL", store.url)
    assert asyncio.run(work())
