"""Sockets of lost connections: the loop stops watching them, and no call waits for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import psycopg
import pytest

from tests.storage.postgres_kit import TERMINATE, Store, connected
from winch.drivers.postgres.connections.libpq import OwnConnection, PendingAnswer
from winch.drivers.postgres.driver import PostgresDriver

pytestmark = [pytest.mark.servers, pytest.mark.faults]


@pytest.fixture
def store(postgres_url: str) -> Iterator[Store]:
    driver = PostgresDriver.from_url(postgres_url)
    driver.migrate()
    yield Store(driver, postgres_url)
    driver.close()


def test_a_connection_that_is_lost_leaves_its_number_to_the_next(store: Store) -> None:
    """libpq closes the socket while it reads. Its watcher must be gone by then: the event loop
    would take the next socket of that number for the old one, and fail, or miss its events."""

    async def work() -> None:
        bell = driver.claiming_bell(["default"])
        await bell.arm()
        for _ in range(10):
            await asyncio.to_thread(terminate)
            await asyncio.sleep(0.01)  # long enough to notice, not to come back
            runs = driver.arun(driver.counts()), driver.arun(driver.has_gated(["default"]))
            found = await asyncio.gather(*runs, return_exceptions=True)
            assert [e for e in found if isinstance(e, BaseException)] == []
            async with asyncio.timeout(10):
                while not bell._listener.is_up:  # noqa: ASYNC110  # there is no event for it
                    await asyncio.sleep(0.01)
        await bell.aclose()
        await driver.aclose()

    def terminate() -> None:
        with connected(store.url) as conn:
            conn.execute(TERMINATE)

    driver = store.driver
    asyncio.run(work())


def test_an_answer_that_is_cut_off_is_watched_no_more(store: Store) -> None:
    """As soon as the loss is known, and before another socket can be opened."""

    async def work() -> None:
        loop = asyncio.get_running_loop()
        connection = await psycopg.AsyncConnection.connect(store.url, autocommit=True)
        link = OwnConnection(connection)
        fileno = connection.pgconn.socket
        connection.pgconn.send_query(b"SELECT pg_terminate_backend(pg_backend_pid())")
        answer = PendingAnswer(link)
        watched: list[bool] = []
        answer._whole.add_done_callback(lambda _: watched.append(loop.remove_reader(fileno)))
        with pytest.raises(psycopg.OperationalError):
            await answer.whole()
        assert watched == [False]
        await connection.close()

    asyncio.run(work())


def test_cutting_a_connection_fails_a_call_that_no_reader_watches(store: Store) -> None:
    async def work() -> None:
        loop = asyncio.get_running_loop()
        connection = await psycopg.AsyncConnection.connect(store.url, autocommit=True)
        link = OwnConnection(connection)
        connection.pgconn.send_query(b"SELECT pg_sleep(60)")
        answer = PendingAnswer(link)
        assert loop.remove_reader(connection.fileno())
        loop.call_later(0.1, link.cut)
        with pytest.raises(psycopg.OperationalError, match="cut"):
            await asyncio.wait_for(answer.whole(), 10)
        link.cut()  # nothing is under way
        await connection.close()
        link.cut()

    asyncio.run(work())
