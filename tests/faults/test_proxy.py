"""The proxy does to a real PostgreSQL what it documents, and nothing else."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import psycopg
import pytest

from lab.proxy import Frames, Proxy

pytestmark = [pytest.mark.servers, pytest.mark.faults]


@pytest.fixture
def direct(postgres_url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("create table item (id int primary key)")
        yield connection


@pytest.fixture
def proxy(postgres_url: str, direct: psycopg.Connection) -> Iterator[Proxy]:
    parts = urlsplit(postgres_url)
    assert parts.hostname is not None
    assert parts.port is not None
    with Proxy((parts.hostname, parts.port)) as running:
        yield running


@pytest.fixture
def url(postgres_url: str, proxy: Proxy) -> str:
    return proxy.url(postgres_url)


def items(direct: psycopg.Connection) -> list[int]:
    return [row[0] for row in direct.execute("select id from item order by id")]


def test_it_passes_everything_on(url: str, direct: psycopg.Connection) -> None:
    with psycopg.connect(url) as connection:
        connection.execute("insert into item select generate_series(1, 10000)")
        rows = connection.execute("select repeat('x', 1000), id from item").fetchall()
    assert len(rows) == 10_000
    assert len(items(direct)) == 10_000


def test_an_autocommitted_insert_takes_effect_and_its_answer_is_lost(
    url: str, proxy: Proxy, direct: psycopg.Connection
) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        cut = proxy.cut_after_request("insert into item")
        assert connection.execute("select 1").fetchall() == [(1,)]
        with pytest.raises(psycopg.OperationalError):
            connection.execute("insert into item values (%s)", [1])
    assert cut.wait(1)
    assert cut.count == proxy.counters["cut"] == 1
    assert items(direct) == [1]


def test_a_simple_query_is_recognised(url: str, proxy: Proxy, direct: psycopg.Connection) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        cut = proxy.cut_after_request("insert into item")
        connection.pgconn.exec_(b"insert into item values (1); insert into item values (2)")
        with pytest.raises(psycopg.OperationalError):
            connection.execute("select 1")
    assert cut.count == 1
    assert items(direct) == [1, 2]


def test_inside_a_transaction_the_answer_to_the_commit_is_lost(
    url: str, proxy: Proxy, direct: psycopg.Connection
) -> None:
    connection = psycopg.connect(url)
    proxy.cut_after_request("insert into item")
    connection.execute("insert into item values (1)")
    assert connection.execute("select count(*) from item").fetchone() == (1,)
    assert items(direct) == []
    with pytest.raises(psycopg.OperationalError):
        connection.commit()
    assert proxy.counters["swallowed"] == 1
    assert items(direct) == [1]
    connection.close()


def test_a_pipelined_transaction_takes_effect_and_its_answers_are_lost(
    url: str, proxy: Proxy, direct: psycopg.Connection
) -> None:
    connection = psycopg.connect(url, autocommit=True)
    proxy.cut_after_request("insert into item")
    with pytest.raises(psycopg.OperationalError), connection.pipeline():  # noqa: PT012  # leaving raises
        connection.execute("begin")
        connection.execute("insert into item values (1)")
        connection.execute("insert into item values (2)")
        connection.execute("commit")
    assert proxy.counters["swallowed"] == 1
    assert items(direct) == [1, 2]
    connection.close()


def test_a_prepared_statement_is_recognised_by_its_text(
    url: str, proxy: Proxy, direct: psycopg.Connection
) -> None:
    connection = psycopg.connect(url, autocommit=True, prepare_threshold=0)
    connection.execute("insert into item values (%s)", [1])
    proxy.cut_after_request("insert into item")
    with pytest.raises(psycopg.OperationalError):
        connection.execute("insert into item values (%s)", [2])  # only Bind and Execute are sent
    assert proxy.counters["swallowed"] == 1
    assert items(direct) == [1, 2]
    connection.close()


def test_an_error_and_a_rollback_are_not_swallowed(
    url: str, proxy: Proxy, direct: psycopg.Connection
) -> None:
    direct.execute("insert into item values (1)")
    with psycopg.connect(url) as connection:
        cut = proxy.cut_after_request("insert into item")
        with pytest.raises(psycopg.errors.UniqueViolation):
            connection.execute("insert into item values (1)")
        connection.rollback()
        connection.execute("insert into item values (2)")
        connection.rollback()
        assert cut.count == 0
        connection.execute("insert into item values (3)")
        with pytest.raises(psycopg.OperationalError):
            connection.commit()
    assert items(direct) == [1, 3]


def test_a_statement_that_touched_nothing_is_not_worth_a_cut(
    url: str, proxy: Proxy, direct: psycopg.Connection
) -> None:
    direct.execute("insert into item values (1)")
    with psycopg.connect(url) as connection:
        cut = proxy.cut_after_request("update item")
        connection.execute("update item set id = 7 where id = 6")
        connection.commit()
        assert cut.count == 0
        connection.execute("update item set id = 7 where id = 1")
        with pytest.raises(psycopg.OperationalError):
            connection.commit()
    assert items(direct) == [7]


def test_every_connection_is_cut_and_new_ones_work(url: str, proxy: Proxy) -> None:
    first, second = psycopg.connect(url), psycopg.connect(url)
    assert proxy.cut() == 2
    for connection in (first, second):
        with pytest.raises(psycopg.OperationalError):
            connection.execute("select 1")
        connection.close()
    with psycopg.connect(url) as third:
        assert third.execute("select 1").fetchone() == (1,)


def test_a_stalled_network_delivers_nothing_until_it_resumes(url: str, proxy: Proxy) -> None:
    with psycopg.connect(url) as connection:
        answers: list[object] = []
        with proxy.stall():
            asking = threading.Thread(
                target=lambda: answers.append(connection.execute("select 1").fetchone())
            )
            asking.start()
            asking.join(0.2)
            assert answers == []
        asking.join(5)
        assert answers == [(1,)]


def test_packets_are_delayed(url: str, proxy: Proxy) -> None:
    with psycopg.connect(url) as connection:
        with proxy.delay(0.1):
            began = time.monotonic()
            connection.execute("select 1")
            assert time.monotonic() - began >= 0.2  # there and back
        assert proxy.counters["delayed"] == 1


@pytest.mark.parametrize("size", [1, 3, 7, 100])
def test_frames_are_found_however_the_bytes_arrive(size: int) -> None:
    start = b"\x00\x00\x00\x08\x04\xd2\x16\x2f"  # a request for encryption
    hello = b"\x00\x00\x00\x0d\x00\x03\x00\x00user\x00"
    query = b"Q\x00\x00\x00\x0dselect 1\x00"
    data = start + hello + query + query
    frames = Frames(has_start=True)
    found = [frame for i in range(0, len(data), size) for frame in frames.feed(data[i : i + size])]
    assert found == [(b"", start), (b"", hello), (b"Q", query), (b"Q", query)]
