"""Claims by the hundred: their jobs stay filed as ready, one row names them all. Reads of
running jobs find them as before, and the row goes when it names no job any more."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from tests.storage.postgres_kit import Store, completed, connected, new_job, new_token
from winch.core.gates.uses import FIFO, GateUse, with_gates
from winch.core.lifecycle import JobState
from winch.drivers.postgres.driver import PostgresDriver
from winch.drivers.postgres.verbs.base import MANY
from winch.storage.params import Answer, ClaimParams, ClaimRef, Finish

pytestmark = pytest.mark.servers


@pytest.fixture(scope="module")
def database(postgres_server: Any) -> Iterator[str]:
    url = postgres_server.new_store()
    driver = PostgresDriver.from_url(url)
    driver.migrate()
    driver.close()
    yield url
    postgres_server.drop_database(url)


@pytest.fixture
def store(database: str) -> Iterator[Store]:
    driver = PostgresDriver.from_url(database)
    with connected(database) as conn:
        for table in ("job", "lease", "session"):
            conn.execute(f"DELETE FROM winch.{table}")
    yield Store(driver, database)
    driver.close()


def rows(store: Store, what: str) -> list[tuple[Any, ...]]:
    with connected(store.url) as conn:
        return conn.execute(what).fetchall()


def later(**span: float) -> datetime:
    return datetime.now(UTC) + timedelta(**span)


def test_only_claims_by_the_hundred_leave_their_jobs_filed_as_ready(store: Store) -> None:
    session = store.session()
    store.add(MANY + 1)
    assert len(store.claim(session, MANY, gated=0)) == MANY
    assert rows(store, "SELECT count(*) FROM winch.job WHERE filed = 'ready'") == [(MANY + 1,)]
    assert rows(store, "SELECT unended, cardinality(ids) FROM winch.lease") == [(MANY, MANY)]
    assert len(store.claim(session, MANY - 1, gated=0)) == 1
    assert rows(store, "SELECT count(*) FROM winch.job WHERE filed = 'running'") == [(1,)]
    assert rows(store, "SELECT count(*) FROM winch.lease") == [(1,)]


def test_reads_of_running_jobs_find_jobs_filed_as_ready(store: Store) -> None:
    session, driver = store.session(), store.driver
    store.add(MANY + 5)
    claims = store.claim(session, MANY, gated=0)
    held = driver.run(driver.held(session))
    assert set(held) == {ClaimRef(claim.id, claim.token) for claim in claims}
    (info,) = driver.run(driver.sessions())
    assert info.running == MANY
    counts = driver.run(driver.counts())
    assert (counts[JobState.RUNNING], counts[JobState.READY]) == (MANY, 5)
    assert len(store.claim(store.session(), MANY, gated=0)) == 5
    driver.run(driver.end_session(session))
    assert len(store.claim(store.session(), 2 * MANY, gated=0)) == MANY


def test_the_row_of_a_claim_goes_when_its_jobs_are_done(store: Store) -> None:
    session, driver = store.session(), store.driver
    store.add(2 * MANY)
    first = store.claim(session, MANY, gated=0)
    second = store.claim(session, MANY, gated=0)
    assert set(store.complete(*first[:40])) == {Answer.TOOK}
    assert set(store.complete(*first[40:], *second[:30])) == {Answer.TOOK}
    # A call that took only in part counts nothing: the number must not be below what runs.
    again = [completed(claim) for claim in (*first[:5], *second[30:60])]
    answers = driver.run(driver.finish(again))
    assert answers == [Answer.ALREADY] * 5 + [Answer.TOOK] * 30
    left = dict(rows(store, "SELECT token::text, unended FROM winch.lease"))
    assert left == {first[0].token: 0, second[0].token: MANY - 30}
    driver.run(driver.rescue())
    assert rows(store, "SELECT token::text FROM winch.lease") == [(second[0].token,)]
    # What still runs of the other is filed as running after a while; the row goes after that.
    driver.run(driver.rescue(now=later(seconds=6)))
    assert len(rows(store, "SELECT FROM winch.job WHERE filed = 'running'")) == MANY - 60
    driver.run(driver.rescue(now=later(seconds=6)))
    assert rows(store, "SELECT FROM winch.lease") == []
    assert len(driver.run(driver.held(session))) == MANY - 60
    assert set(store.complete(*second[60:])) == {Answer.TOOK}


def test_jobs_of_a_lease_are_rescued_and_given_up_like_others(store: Store) -> None:
    session, driver = store.session(), store.driver
    ids = store.add(2 * MANY)
    first = store.claim(session, MANY, gated=0)
    second = store.claim(session, MANY, gated=0)
    assert driver.run(driver.give_up(session, [first[0].token])) == MANY
    rescued = driver.run(driver.rescue(now=later(minutes=5)))
    assert {one.id for one in rescued} == {claim.id for claim in second}
    assert {job.state for job in driver.run(driver.get(ids)) if job} == {JobState.READY}
    assert set(store.complete(*first, *second)) == {Answer.LOST}
    driver.run(driver.rescue(now=later(minutes=5)))
    assert rows(store, "SELECT FROM winch.lease") == []


def test_a_stale_token_ends_nothing(store: Store) -> None:
    session, driver = store.session(), store.driver
    store.add(MANY)
    (claim, *_) = store.claim(session, MANY, gated=0)
    stale = Finish(id=claim.id, token=session, to=JobState.COMPLETED, what="completed")
    assert driver.run(driver.finish([stale])) == [Answer.LOST]
    assert store.get(claim.id).state is JobState.RUNNING
    assert store.complete(claim) == [Answer.TOOK]


def test_leases_without_running_jobs_are_not_scanned(store: Store) -> None:
    """Rows of which nothing runs wait for a sweep; until then they slow no statement."""
    session, other = store.session(), store.session()
    store.add(3 * MANY)
    ended = store.claim(session, MANY, gated=0)
    store.driver.run(store.driver.finish([completed(claim) for claim in ended]))
    left = store.claim(session, MANY, gated=0)
    store.claim(other, MANY, gated=0)
    with connected(store.url) as conn:
        plan = conn.execute(
            "EXPLAIN (ANALYZE, TIMING off, FORMAT json) SELECT * FROM winch.claimed WHERE session = %s",
            [session],
        ).fetchone()
    assert plan is not None
    [members] = [node for node in nodes(plan[0][0]["Plan"]) if node["Node Type"] == "Function Scan"]
    assert members["Actual Loops"] == 1, "one lease of this session has jobs that run"
    assert members["Actual Rows"] == len(left)


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for inner in plan.get("Plans", ()):
        yield from nodes(inner)


def test_the_next_members_of_many_keys_are_claimed_by_the_hundred(store: Store) -> None:
    """The finish claims them as a claim does: it writes no index, and reads find them."""
    session, driver = store.session(), store.driver
    options = [with_gates(None, [GateUse(f"fifo:k{n}", FIFO)]) for n in range(MANY)]
    members = [new_job(options=text, fifo=f"k{n}") for _ in range(3) for n, text in enumerate(options)]
    driver.run(driver.enqueue(members))
    heads = store.claim(session, MANY)
    params = ClaimParams(session=session, token=new_token(), queues=("default",), limit=MANY)
    ends = [replace(completed(claim), is_gated=True) for claim in heads]
    answers, claims = driver.run(driver.finish_and_claim(ends, params))
    assert answers == [Answer.TOOK] * MANY
    assert {claim.id for claim in claims} == {job.id for job in members[MANY : 2 * MANY]}
    assert rows(store, "SELECT count(*) FROM winch.job WHERE filed = 'running'") == [(0,)]
    leases = dict(rows(store, "SELECT token::text, unended FROM winch.lease"))
    assert leases[params.token] == MANY
    held = driver.run(driver.held(session))
    assert set(held) == {ClaimRef(claim.id, claim.token) for claim in claims}
    # The end of their session frees them. They keep their turns.
    driver.run(driver.end_session(session))
    again = store.claim(store.session(), 2 * MANY)
    assert {claim.id for claim in again} == {claim.id for claim in claims}
