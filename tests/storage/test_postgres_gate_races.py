"""Claims and ends of gated jobs on PostgreSQL at once: room is neither lost nor counted twice."""

from __future__ import annotations

import json
import multiprocessing
import random
import re
import time
from collections.abc import Iterator
from datetime import timedelta

import psycopg
import pytest
from msgspec.structs import replace

from tests.storage.postgres_gated import SCOPED, ended, fifo, finish, gated, limit, rate, used
from tests.storage.postgres_kit import (
    Background,
    Store,
    connected,
    new_job,
    new_token,
    recorded,
    wait_for_lock,
)
from winch.core.gates.uses import (
    FIXED,
)
from winch.core.job import Claim
from winch.drivers.postgres.driver import PostgresDriver
from winch.drivers.postgres.verbs.gated_claims import TRIED
from winch.storage.params import Answer, ClaimParams
from winch.storage.verbs import Verb

pytestmark = pytest.mark.servers


@pytest.fixture
def store(postgres_url: str) -> Iterator[Store]:
    driver = PostgresDriver.from_url(postgres_url)
    driver.migrate()
    yield Store(driver, postgres_url)
    driver.close()


def test_a_claim_that_waited_for_a_gate_takes_what_is_left_and_pays_for_no_more(store: Store) -> None:
    """The candidates are gone when the claim has the lock. It reads again; the rate counts its jobs."""
    driver, session = store.driver, store.session()
    ids = store.add(6, **gated(rate(FIXED, 100)))
    params = ClaimParams(session=session, token=new_token(), queues=("default",), limit=3)
    with psycopg.connect(store.url) as first, connected(store.url) as watcher:
        taken = driver.run_on(first, Verb("claim", lambda: driver._gated_claims.claim(params, None)))
        second = replace(params, token=new_token())
        delayed = Background(lambda: driver.run(driver.claim(second)))
        wait_for_lock(watcher)
        first.commit()
        rest = delayed.result()
        assert sorted(c.id for c in (*taken, *rest)) == sorted(ids)
        (state,) = watcher.execute("SELECT state FROM winch.gate").fetchone() or ("",)
    assert json.loads(state)["used"] == 6


def test_a_claim_counts_the_permits_that_were_taken_while_it_waited(store: Store) -> None:
    driver, session = store.driver, store.session()
    store.add(6, **gated(limit("t", 3)))
    params = ClaimParams(session=session, token=new_token(), queues=("default",), limit=2)
    with psycopg.connect(store.url) as first, connected(store.url) as watcher:
        driver.run_on(first, Verb("claim", lambda: driver._gated_claims.claim(params, None)))
        delayed = Background(
            lambda: driver.run(driver.claim(replace(params, token=new_token(), limit=5)))
        )
        wait_for_lock(watcher)
        first.commit()
        assert len(delayed.result()) == 1
        used = watcher.execute("SELECT sum(weight) FROM winch.permit").fetchone()
    assert used == (3,)


def test_a_finish_beside_a_claim_that_holds_the_gate_frees_its_room(store: Store) -> None:
    driver, session = store.driver, store.session()
    store.add(3, **gated(limit("t", 1)))
    (mine,) = store.claim(session, 1)
    params = ClaimParams(session=session, token=new_token(), queues=("default",), limit=5)
    with psycopg.connect(store.url) as other, connected(store.url) as watcher:
        assert (
            driver.run_on(other, Verb("claim", lambda: driver._gated_claims.claim(params, None))) == []
        )
        delayed = Background(lambda: driver.run(driver.finish(ended(mine))))
        wait_for_lock(watcher)
        other.commit()
        assert delayed.result() == [Answer.TOOK]
    assert len(store.claim(session, 5)) == 1


def test_a_claim_and_an_end_under_one_limit_do_not_wait_for_each_other(store: Store) -> None:
    """The claim counts a permit until the end has returned it for good."""
    driver, session = store.driver, store.session()
    store.add(6, **gated(limit("t", 4)))
    first, second = store.claim(session, 2)
    params = ClaimParams(session=session, token=new_token(), queues=("default",), limit=1)
    with psycopg.connect(store.url) as slow:
        assert driver.run_on(slow, driver.finish(ended(first))) == [Answer.TOOK]
        beside = Background(lambda: driver.run(driver.claim(params)))
        assert len(beside.result(3)) == 1
        assert used(store, "limit:t") == 3
    with psycopg.connect(store.url) as slow:
        again = replace(params, token=new_token())
        taken = driver.run_on(slow, Verb("claim", lambda: driver._gated_claims.claim(again, None)))
        assert len(taken) == 1
        finish(driver, [second])
    assert used(store, "limit:t") == 2


def test_a_claim_waits_for_the_ends_beside_it_before_it_blocks_a_job(store: Store) -> None:
    """The end looks for blocked jobs and finds none: one that is blocked by its permit would stay so."""
    driver, session = store.driver, store.session()
    store.add(2, **gated(limit("t", 1)))
    (mine,) = store.claim(session, 1)
    with psycopg.connect(store.url) as slow, connected(store.url) as watcher:
        assert driver.run_on(slow, driver.finish(ended(mine))) == [Answer.TOOK]
        delayed = Background(lambda: store.claim(session, 1))
        wait_for_lock(watcher)
        slow.commit()
        assert len(delayed.result()) == 1
        assert watcher.execute("SELECT count(*) FROM winch.permit").fetchone() == (1,)


def test_a_permit_that_nothing_removed_does_not_stop_the_next_claim_of_its_job(store: Store) -> None:
    """As a trigger that was off leaves it."""
    session = store.session()
    [first, second] = store.add(2, **gated(limit("t", 2)))
    with connected(store.url) as conn:
        conn.execute(
            "INSERT INTO winch.permit (gate, job, token, weight) VALUES (%s, %s, gen_random_uuid(), 1)",
            ["limit:t", first],
        )
    assert [claim.id for claim in store.claim(session, 1)] == [first]
    assert used(store, "limit:t") == 1
    assert [claim.id for claim in store.claim(session, 1)] == [second]


def test_a_claim_joins_many_gates_to_what_they_hold_by_hash(store: Store) -> None:
    """The planner expects ten gates and compared each with each: with 500, a third of the claim."""
    driver, session = store.driver, store.session()
    driver.run(driver.enqueue([new_job(**gated(limit(f"k{n % 40:02}", 2))) for n in range(80)]))
    held = store.claim(session, 40)
    params = ClaimParams(session=session, token=new_token(), queues=("default",), limit=40)
    plans: list[str] = []
    with connected(store.url) as conn:
        conn.add_notice_handler(lambda notice: plans.append(notice.message_primary or ""))
        conn.execute("LOAD 'auto_explain'")
        conn.execute("SET auto_explain.log_min_duration = 0")
        conn.execute("SET auto_explain.log_nested_statements = on")
        conn.execute("SET auto_explain.log_analyze = on")
        conn.execute("SET client_min_messages = log")
        verb = Verb("claim", lambda: driver._gated_claims.claim(params, None))
        assert len(driver.run_on(conn, verb)) == len(held) == 40
        conn.execute("SET client_min_messages = notice")
    removed = [int(n) for plan in plans for n in re.findall(r"Rows Removed by Join Filter: (\d+)", plan)]
    assert any("held.gate" in plan for plan in plans)
    assert max(removed, default=0) < 2 * 40


def test_a_finish_under_a_lost_claim_frees_nothing(store: Store) -> None:
    """The fence: another claim has the job and its permit."""
    driver, session = store.driver, store.session()
    store.add(2, **gated(limit("t", 1)))
    (zombie,) = store.claim(session, 1)
    driver.run(driver.give_up(session, [zombie.token]))
    (again,) = store.claim(store.session(), 1)
    assert again.id == zombie.id
    assert driver.run(driver.finish(ended(zombie))) == [Answer.LOST]
    assert store.claim(session, 5) == []
    assert driver.run(driver.finish(ended(again))) == [Answer.TOOK]
    assert len(store.claim(session, 5)) == 1


def test_where_transactions_have_one_snapshot_the_reference_decides(store: Store) -> None:
    session = store.session()
    store.add(4, **gated(limit("t", 3)))
    params = ClaimParams(session=session, token=new_token(), queues=("default",), limit=2)
    with connected(store.url) as conn:
        database = conn.info.dbname
        conn.execute(
            f'ALTER DATABASE "{database}" SET default_transaction_isolation = "repeatable read"'
        )
    other = PostgresDriver.from_url(store.url)
    try:
        claim, steps = recorded(other.claim(params))
        claims = other.run(claim)
        assert len(claims) == 2
        assert "admit.take" in [step.sql.name for step in steps]
        finish(other, claims)
    finally:
        other.close()
    with connected(store.url) as conn:
        assert conn.execute("SELECT count(*) FROM winch.permit").fetchone() == (0,)


def test_a_breaker_counts_the_end_of_a_member_that_claims_the_next_one(store: Store) -> None:
    """The statement for members knows no breakers: it leaves such ends to the reference."""
    driver, session = store.driver, store.session()
    store.add(2, **gated(fifo(), SCOPED))
    (claim,) = store.claim(session, 1)
    then = ClaimParams(session=session, token=new_token(), queues=("default",), limit=1)
    answers, _ = driver.run(driver.finish_and_claim(ended(claim), then))
    assert answers == [Answer.TOOK]
    with connected(store.url) as conn:
        (state,) = conn.execute("SELECT state FROM winch.gate WHERE key = 'scope:bank'").fetchone() or (
            "",
        )
    assert [end[1:] for end in json.loads(state)["ends"]] == [[1, 0]]


def work(url: str) -> None:
    """Claim, finish, and claim with a finish until there is nothing left; the end of a real process."""
    driver = PostgresDriver.from_url(url)
    mine = Store(driver, url)
    session = mine.session(lease=timedelta(seconds=2))
    draw = random.Random(1)
    claims: list[Claim] = []
    while True:
        driver.run(driver.beat([session]))
        claims = claims or mine.claim(session, 4)
        time.sleep(0.005)
        if claims and draw.random() < 0.5:
            then = ClaimParams(
                session=session, token=new_token(), queues=("default",), limit=len(claims)
            )
            _, claims = driver.run(driver.finish_and_claim(ended(*claims), then))
        elif claims:
            driver.run(driver.finish(ended(*claims)))
            claims = []


def test_processes_at_one_hot_gate_never_exceed_it_and_a_kill_leaks_nothing(store: Store) -> None:
    """Two processes claim at a limit of three, with FIFO keys beside it. One is killed with permits in
    its hands, and its session is rescued."""
    driver = store.driver
    jobs = [new_job(**gated(limit("t", 3))) for _ in range(150)]
    jobs += [new_job(**gated(fifo(f"k{n % 4}"), limit("u", 2))) for n in range(80)]
    driver.run(driver.enqueue(jobs))
    spawn = multiprocessing.get_context("spawn")
    workers = [spawn.Process(target=work, args=(store.url,), daemon=True) for _ in range(2)]
    for worker in workers:
        worker.start()
    most = {"limit:t": 0, "limit:u": 0}
    is_killed, left = False, 0
    try:
        with connected(store.url) as watcher:
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline:
                rows = watcher.execute(
                    "SELECT permit.gate, sum(weight), count(*) FILTER (WHERE job.state <> 'running')"
                    " FROM winch.permit JOIN winch.job ON job.id = permit.job"
                    " WHERE permit.token IS NOT NULL GROUP BY permit.gate"
                ).fetchall()
                for gate, used, idle in rows:
                    most[gate] = max(most[gate], used)
                    assert idle == 0, "a permit of a job that does not run"
                (left,) = watcher.execute("SELECT count(*) FROM winch.job").fetchone() or (0,)
                if not is_killed and left < 170 and rows:
                    workers[0].kill()
                    is_killed = True
                if is_killed:
                    driver.run(driver.rescue())
                if left == 0:
                    break
            assert left == 0, f"{left} jobs were left"
            assert watcher.execute("SELECT count(*) FROM winch.permit").fetchone() == (0,)
    finally:
        for worker in workers:
            worker.kill()
            worker.join()
    assert is_killed
    assert 0 < most["limit:t"] <= 3
    assert 0 < most["limit:u"] <= 2


def test_a_claim_without_a_free_slot_looks_at_few_jobs_where_gates_are_closed(store: Store) -> None:
    """The worker's own jobs hold those gates. Symptom: each claim blocked the whole queue."""
    driver, session = store.driver, store.session()

    def claim(most: int, free: int | None) -> tuple[list[Claim], list[int], int]:
        params = ClaimParams(
            session=session, token=new_token(), queues=("default",), limit=most, free=free
        )
        verb, steps = recorded(driver.claim(params))
        claims = driver.run(verb)
        with connected(store.url) as conn:
            row = conn.execute("SELECT count(*) FROM winch.job WHERE state = 'blocked'").fetchone()
        assert row is not None
        tried = [step.values["limit"] for step in steps if step.sql.name == "claim.gated"]
        return claims, tried, row[0]

    members = [new_job(**gated(fifo())) for _ in range(1500)]
    driver.run(driver.enqueue(members))
    [head], _, blocked = claim(1, 1)
    last = new_job(**gated(fifo("other")))
    driver.run(driver.enqueue([last]))
    assert blocked < 100
    assert claim(200, 0) == ([], [200], blocked), "it blocks nothing"
    assert claim(200, 0) == ([], [TRIED], blocked)
    # With a free slot it goes on until it has a job. What it passed over is taken in its turn.
    [other], _, passed = claim(1, 1)
    assert (other.id, passed) == (last.id, len(members) - 1)
    more = [new_job(**gated(fifo(f"k{n}"))) for n in range(100)]
    driver.run(driver.enqueue(more))
    found, tried, _ = claim(60, 0)
    assert (len(found), tried) == (60, [TRIED, 60 - TRIED]), "what it tried was open: it takes the rest"
    then_params = ClaimParams(session=session, token=new_token(), queues=("default",), limit=1)
    answers, following = driver.run(driver.finish_and_claim(ended(head), then_params))
    assert (answers, [one.id for one in following]) == ([Answer.TOOK], [members[1].id])
