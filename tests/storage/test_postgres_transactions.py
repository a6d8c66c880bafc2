"""Connections lent for transactions: kept, and reset each time."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import psycopg
import pytest
from psycopg.rows import dict_row

from tests.servers import Databases
from winch import App, StorageUnavailable
from winch.drivers.postgres.connections import transactions
from winch.drivers.postgres.driver import PostgresDriver

BACKEND = "SELECT pg_backend_pid()"


@pytest.fixture
def driver(postgres_server: Databases) -> Iterator[PostgresDriver]:
    driver = PostgresDriver.from_url(postgres_server.new_database())
    yield driver
    driver.close()


def backend(driver: PostgresDriver) -> int:
    with driver.transaction() as conn:
        return int(conn.execute(BACKEND).fetchone()[0])


def test_consecutive_transactions_share_one_connection(driver: PostgresDriver) -> None:
    assert len({backend(driver) for _ in range(5)}) == 1


def test_nothing_is_left_of_the_transaction_before(driver: PostgresDriver) -> None:
    with driver.transaction() as first:
        first.row_factory = dict_row
        first.execute("SET search_path TO pg_catalog")
        first.execute("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY")
        first.execute("CREATE TEMP TABLE mine (n int)")
        first.execute("SELECT pg_advisory_lock(7)")
        cursor = first.cursor()
    with driver.transaction() as second:
        asked = (
            "SELECT current_setting('search_path'), current_setting('transaction_read_only'), "
            "to_regclass('mine'), count(*) FROM pg_locks WHERE locktype = 'advisory'"
        )
        assert second.execute(asked).fetchone() == ('"$user", public', "off", None, 0)
    for used in (first, cursor):
        with pytest.raises(psycopg.OperationalError, match="closed"):
            used.execute("SELECT 1")


def test_after_an_error_the_next_one_is_another_and_nothing_is_written(driver: PostgresDriver) -> None:
    with driver.transaction() as conn:
        conn.execute("CREATE TABLE t (n int)")
    before = backend(driver)
    with pytest.raises(psycopg.DataError), driver.transaction() as conn:
        conn.execute("INSERT INTO t SELECT 1 / (2 - n) FROM generate_series(1, 2) AS n")
    assert backend(driver) != before
    with driver.transaction() as conn:
        assert conn.execute("SELECT count(*) FROM t").fetchone() == (0,)


def test_a_connection_cut_while_idle_is_noticed(driver: PostgresDriver) -> None:
    cut = backend(driver)
    with psycopg.connect(**driver._address.params, autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(%s)", (cut,))
    assert backend(driver) != cut


def test_a_connection_cut_in_a_transaction_raises(driver: PostgresDriver) -> None:
    with pytest.raises(StorageUnavailable), driver.transaction() as conn:
        conn.execute("SELECT pg_terminate_backend(pg_backend_pid())")


def test_a_link_is_lent_so_often_and_then_replaced(
    driver: PostgresDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "MOST_LOANS", 2)
    assert len({backend(driver) for _ in range(6)}) == 2


def test_a_forked_child_has_its_own(driver: PostgresDriver) -> None:
    mine = backend(driver)
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writer, str(backend(driver)).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as end:
        theirs = int(end.read())
    os.waitpid(pid, 0)
    assert theirs != mine
    assert backend(driver) == mine


def test_the_same_in_an_event_loop(postgres_server: Databases) -> None:
    driver = PostgresDriver.from_url(postgres_server.new_database())

    async def story() -> None:
        found = []
        for _ in range(3):
            async with driver.atransaction() as conn:
                found.append((await (await conn.execute(BACKEND)).fetchone())[0])
                await conn.execute("SET search_path TO pg_catalog")
        async with driver.atransaction() as conn:
            pass
        with pytest.raises(psycopg.OperationalError, match="closed"):
            await conn.execute("SELECT 1")
        async with driver.atransaction() as conn:
            shown = await (await conn.execute("SHOW search_path")).fetchone()
        assert shown == ('"$user", public',)
        assert len(set(found)) == 1
        with pytest.raises(ValueError, match="no"):
            async with driver.atransaction():
                raise ValueError("no")
        async with driver.atransaction() as conn:
            assert (await (await conn.execute(BACKEND)).fetchone())[0] != found[0]
        await driver.aclose()

    asyncio.run(story())


def test_jobs_in_transactions_do_not_connect_each(postgres_server: Databases) -> None:
    app = App(postgres_server.new_database())
    app.migrate()
    with app.transaction() as conn:
        first = conn.execute(BACKEND).fetchone()
    with app.transaction() as conn:
        assert conn.execute(BACKEND).fetchone() == first
    app.close()
