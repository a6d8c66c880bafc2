"""Turns of tenants on PostgreSQL: what `draw_turns` takes, and when it decides nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import psycopg
import pytest

from tests.storage.postgres_gated import gated, limit
from tests.storage.postgres_kit import Store, connected
from winch.core.gates.uses import GateUse
from winch.core.job import Claim
from winch.core.policy.queue_settings import QueueRule
from winch.drivers.postgres.driver import PostgresDriver
from winch.storage.params import Answer, ClaimRef

pytestmark = pytest.mark.servers


@pytest.fixture
def store(postgres_url: str) -> Iterator[Store]:
    driver = PostgresDriver.from_url(postgres_url)
    driver.migrate()
    yield Store(driver, postgres_url)
    driver.close()


def add(store: Store, tenant: str, count: int = 1, **fields: Any) -> list[str]:
    return store.add(count, **gated(tenant=tenant), **fields)


def tenants_of(store: Store, claims: list[Claim]) -> list[str | None]:
    return [store.get(claim.id).tenant for claim in claims]


def calls_of_leave_gates(conn: psycopg.Connection[Any]) -> int:
    row = conn.execute(
        "SELECT coalesce(sum(calls), 0) FROM pg_stat_xact_user_functions WHERE funcname = 'leave_gates'"
    ).fetchone()
    assert row is not None
    return int(row[0])


def test_tenants_take_turns_whatever_their_backlog(store: Store) -> None:
    session = store.session()
    add(store, "flood", 300)
    add(store, "small", 2)
    claims = store.claim(session, 6)
    assert Counter(tenants_of(store, claims)) == {"flood": 4, "small": 2}
    assert tenants_of(store, claims)[:4] == ["flood", "small", "flood", "small"]


def test_a_job_that_another_transaction_has_is_left_alone_and_costs_its_tenant_no_turn(
    store: Store,
) -> None:
    session = store.session()
    first, second = add(store, "a", 2)
    other = add(store, "b", 2)
    with connected(store.url) as conn, conn.transaction():
        conn.execute("SELECT FROM winch.job WHERE id = %s FOR UPDATE", [first])
        claims = store.claim(session, 3)
    assert {claim.id for claim in claims} == {second, *other}
    assert [claim.id for claim in store.claim(session, 3)] == [first]


def test_tenants_whose_jobs_all_run_do_not_shrink_the_claims_of_the_others(store: Store) -> None:
    session = store.session()
    busy = [f"busy {number}" for number in range(99)]
    for tenant in busy:
        add(store, tenant)
    # By the hundred: the jobs keep their places in the index of ready ones while they run.
    assert len(store.claim(session, 99)) == 99
    add(store, "flood", 400)
    assert len(store.claim(session, 200)) == 200


def test_a_queue_that_gets_a_concurrency_while_jobs_of_tenants_run_gets_its_permits_back(
    store: Store,
) -> None:
    driver, session = store.driver, store.session()
    add(store, "a", 4)
    running = store.claim(session, 2)
    driver.run(driver.set_queue("default", QueueRule(concurrency=2)))
    assert store.claim(session, 2) == []
    assert store.complete(*running) == [Answer.TOOK] * 2
    # The permits of a claim under the rule come back, too, by an end that knows nothing of them.
    again = store.claim(session, 2)
    assert len(again) == 2
    assert store.complete(*again) == [Answer.TOOK] * 2
    with connected(store.url) as conn:
        assert conn.execute("SELECT count(*) FROM winch.permit").fetchone() == (0,)


def test_a_job_that_had_a_permit_of_its_queue_shows_no_gate(store: Store) -> None:
    driver, session = store.driver, store.session()
    driver.run(driver.set_queue("default", QueueRule(concurrency=2)))
    [job] = add(store, "a")
    [claim] = store.claim(session)
    assert store.get(job).gate is None
    driver.run(driver.release([ClaimRef(claim.id, claim.token)]))
    assert store.get(job).gate is None
    assert [again.id for again in store.claim(session)] == [job]


@pytest.mark.parametrize("uses, looks", [((), 0), ((limit(),), 1)], ids=["turn", "limit"])
def test_only_a_job_that_may_hold_a_permit_looks_for_one_at_its_end(
    store: Store, uses: tuple[GateUse, ...], looks: int
) -> None:
    session = store.session()
    [job] = store.add(1, **gated(*uses, tenant="a"))
    store.claim(session)
    with connected(store.url) as conn, conn.transaction():
        conn.execute("SET LOCAL track_functions = 'all'")
        conn.execute("DELETE FROM winch.job WHERE id = %s", [job])
        assert calls_of_leave_gates(conn) == looks


def test_two_processes_that_claim_at_once_share_the_turns(store: Store, postgres_url: str) -> None:
    """Each reads candidates that the other one takes while it waits for the gate. No job is claimed
    twice, and no tenant gets more turns than another: six jobs of four tenants leave the claims uneven,
    and the next claim of either process makes that good."""
    for tenant in "abcd":
        add(store, tenant, 150)
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as workers:
        found = [job for jobs in workers.map(claims_of_a_process, [postgres_url] * 2) for job in jobs]
    assert len(found) == len({job for job, _ in found})
    served = Counter(tenant for _, tenant in found)
    assert max(served.values()) - min(served[tenant] for tenant in "abcd") <= 1


def claims_of_a_process(url: str) -> list[tuple[str, str | None]]:
    """The jobs of twenty claims of six, with their tenants."""
    driver = PostgresDriver.from_url(url)
    mine = Store(driver, url)
    session = mine.session()
    claims = [claim for _ in range(20) for claim in mine.claim(session, 6)]
    found = [
        (job.id, job.tenant) for job in driver.run(driver.get([claim.id for claim in claims])) if job
    ]
    driver.close()
    return found
