"""The numbers of FIFO members on PostgreSQL: one sequence, which no transaction holds."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from tests.storage.postgres_kit import Store, connected, new_id, new_job
from winch.core.job import to_micros
from winch.drivers.postgres.driver import PostgresDriver
from winch.storage.params import NewJob
from winch.testing.conformance.cases.gates.gates import fifo, gated

pytestmark = pytest.mark.servers
HOUR = 3_600_000_000


@pytest.fixture
def store(postgres_url: str) -> Iterator[Store]:
    driver = PostgresDriver.from_url(postgres_url)
    driver.migrate()
    yield Store(driver, postgres_url)
    driver.close()


def member(**fields: Any) -> NewJob:
    return new_job(**gated(fifo()), **fields)


def number(store: Store, job: NewJob) -> int:
    found = store.get(job.id).seq
    assert found is not None
    return found


def test_producers_in_open_transactions_do_not_wait_for_each_other(store: Store) -> None:
    """The first to draw a number commits last, and comes last: its number is the smaller one, but the
    other was claimed before it could be seen."""
    early, late = member(), member()
    driver = store.driver
    session = store.session()
    with connected(store.url) as one, connected(store.url) as other:
        for conn in (one, other):
            conn.autocommit = False
            conn.execute("SET statement_timeout = '5s'")
        driver.run_on(one, driver.enqueue([early]))
        driver.run_on(other, driver.enqueue([late]))  # would time out if it waited for the first
        other.commit()
        assert [claim.id for claim in store.claim(session, limit=5)] == [late.id]
        one.commit()
    assert store.claim(session, limit=5) == []
    assert number(store, early) < number(store, late)


def test_a_rolled_back_number_is_a_gap_and_no_more(store: Store) -> None:
    first, gone, second = member(), member(), member()
    driver = store.driver
    driver.run(driver.enqueue([first]))
    with connected(store.url) as conn:
        conn.autocommit = False
        driver.run_on(conn, driver.enqueue([gone]))
        conn.rollback()
    driver.run(driver.enqueue([second]))
    assert number(store, first) + 1 < number(store, second)


def test_a_sequence_that_was_set_back_is_brought_forward(store: Store) -> None:
    """As after a copy of the tables without their sequences: members that are stored then come last."""
    driver = store.driver
    before, after = [member() for _ in range(3)], [member() for _ in range(3)]
    driver.run(driver.enqueue(before))
    with connected(store.url) as conn:
        conn.execute("SELECT setval('winch.job_seq', 7)")
    driver.run(driver.enqueue(after))
    numbers = [number(store, job) for job in (*before, *after)]
    assert numbers == sorted(set(numbers))
    created = to_micros(store.get(after[0].id).created_at)
    assert created - HOUR <= numbers[-1] <= created + HOUR


def test_many_producers_that_meet_a_sequence_set_back_draw_each_number_once(store: Store) -> None:
    with connected(store.url) as conn:
        conn.execute("SELECT setval('winch.job_seq', 1)")

    def draw(_: int) -> list[int]:
        with psycopg.connect(store.url.partition("?")[0], autocommit=True) as mine:
            return [row[0] for row in mine.execute(
                "SELECT winch.next_seq() FROM generate_series(1, 50)"
            ).fetchall()]  # fmt: skip

    with ThreadPoolExecutor(8) as pool:
        drawn = list(pool.map(draw, range(8)))
    for own in drawn:
        assert own == sorted(own)
    every = [one for own in drawn for one in own]
    assert len(set(every)) == len(every)


def test_only_members_of_fifo_keys_draw_numbers(store: Store) -> None:
    """A plain job pays nothing for the order of others."""

    def last() -> int:
        with connected(store.url) as conn:
            row = conn.execute("SELECT last_value FROM winch.job_seq").fetchone()
            assert row is not None
            return int(row[0])

    driver = store.driver
    driver.run(driver.enqueue([member()]))
    drawn = last()
    store.add(3)
    store.add(1, tags=("a",))
    driver.run(driver.enqueue([new_job(id=new_id(), is_given_id=True), new_job(tenant="acme")]))
    assert last() == drawn
    driver.run(driver.enqueue([member(is_given_id=True)]))
    assert last() == drawn + 1
