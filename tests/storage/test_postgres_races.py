"""Races, with the locks held by hand: claim against rescue and end_session, finish against what changes
the row at the same time. Each in both orders."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from tests.storage.postgres_kit import (
    Background,
    Store,
    completed,
    connected,
    new_token,
    wait_for_lock,
)
from winch.core.lifecycle import JobState
from winch.core.policy.queue_settings import QueueRule
from winch.drivers.postgres.driver import PostgresDriver
from winch.storage.crash_report import CrashReport
from winch.storage.params import Answer, ClaimParams, Finish

pytestmark = pytest.mark.servers
LATER = timedelta(minutes=5)


@pytest.fixture
def store(postgres_url: str) -> Iterator[Store]:
    driver = PostgresDriver.from_url(postgres_url)
    driver.migrate()
    yield Store(driver, postgres_url)
    driver.close()


def later() -> datetime:
    return datetime.now(UTC) + LATER


def claiming(session: str) -> ClaimParams:
    return ClaimParams(session=session, token=new_token(), queues=("default",), limit=10)


def test_a_claim_delayed_behind_a_rescue_takes_nothing(store: Store) -> None:
    session, (job,) = store.session(), store.add()
    driver = store.driver
    with psycopg.connect(store.url) as sweeper, connected(store.url) as watcher:
        driver.run_on(sweeper, driver.rescue(now=later()))  # holds the session until it commits
        delayed = Background(lambda: driver.run(driver.claim(claiming(session))))
        wait_for_lock(watcher)
        sweeper.commit()
        assert delayed.result() == []
    assert store.get(job).state is JobState.READY


def test_a_claim_behind_a_rescue_that_rolls_back_goes_on(store: Store) -> None:
    session, (job,) = store.session(), store.add()
    driver = store.driver
    with psycopg.connect(store.url) as sweeper, connected(store.url) as watcher:
        driver.run_on(sweeper, driver.rescue(now=later()))
        delayed = Background(lambda: driver.run(driver.claim(claiming(session))))
        wait_for_lock(watcher)
        sweeper.rollback()
        assert [claim.id for claim in delayed.result()] == [job]


def test_a_rescue_leaves_a_session_with_a_claim_on_its_way(store: Store) -> None:
    session, (job,) = store.session(), store.add()
    driver = store.driver
    with psycopg.connect(store.url) as worker:
        (claim,) = driver.run_on(worker, driver.claim(claiming(session)))
        assert driver.run(driver.rescue(now=later())) == []
        worker.commit()
        # The next sweep has it all.
        (rescued,) = driver.run(driver.rescue(now=later()))
    assert (rescued.id, rescued.token) == (job, claim.token)
    assert store.complete(claim) == [Answer.LOST]


def test_setting_a_concurrency_waits_for_a_claim_on_its_way_and_counts_it(store: Store) -> None:
    session = store.session()
    store.add(3)
    driver = store.driver
    with psycopg.connect(store.url) as worker, connected(store.url) as watcher:
        taken = driver.run_on(
            worker,
            driver.claim(ClaimParams(session=session, token=new_token(), queues=("default",), limit=2)),
        )
        setting = Background(lambda: driver.run(driver.set_queue("default", QueueRule(concurrency=2))))
        wait_for_lock(watcher)
        worker.commit()
        setting.result()
    assert [limit.used for limit in driver.run(driver.limits())] == [2]
    assert driver.run(driver.claim(claiming(session))) == []
    store.complete(taken[0])
    assert len(driver.run(driver.claim(claiming(session)))) == 1


@pytest.mark.parametrize("limit", [1, 100])
@pytest.mark.parametrize("gated", [None, 0])
def test_a_claim_behind_a_setting_reads_it(store: Store, limit: int, gated: int | None) -> None:
    session = store.session()
    store.add(5)
    driver = store.driver
    with psycopg.connect(store.url) as operator, connected(store.url) as watcher:
        driver.run_on(operator, driver.set_queue("default", QueueRule(concurrency=1)))
        params = ClaimParams(
            session=session, token=new_token(), queues=("default",), limit=limit, gated=gated
        )
        delayed = Background(lambda: driver.run(driver.claim(params)))
        wait_for_lock(watcher)
        operator.commit()
        assert len(delayed.result()) == (1 if gated is None else 0)
    assert len(driver.run(driver.claim(claiming(session)))) == (0 if gated is None else 1)


def test_a_beat_does_not_wait_for_claims_nor_claims_for_beats(store: Store) -> None:
    session = store.session()
    store.add(2)
    driver = store.driver
    with psycopg.connect(store.url) as one:
        driver.run_on(
            one,
            driver.claim(ClaimParams(session=session, token=new_token(), queues=("default",), limit=1)),
        )
        assert driver.run(driver.beat([session]))[0].is_live
    with psycopg.connect(store.url) as one:
        driver.run_on(one, driver.beat([session]))
        assert len(driver.run(driver.claim(claiming(session)))) == 1


def test_a_beat_behind_a_rescue_does_not_revive_the_lease(store: Store) -> None:
    session = store.session()
    driver = store.driver
    with psycopg.connect(store.url) as sweeper, connected(store.url) as watcher:
        driver.run_on(sweeper, driver.rescue(now=later()))
        delayed = Background(lambda: driver.run(driver.beat([session])))
        wait_for_lock(watcher)
        sweeper.commit()
        (pulse,) = delayed.result()
    assert not pulse.is_live


def test_the_end_of_a_session_waits_for_its_claim_and_takes_what_it_took(store: Store) -> None:
    session, (job,) = store.session(), store.add()
    driver = store.driver
    with psycopg.connect(store.url) as worker, connected(store.url) as watcher:
        driver.run_on(worker, driver.claim(claiming(session)))
        ending = Background(lambda: driver.run(driver.end_session(session, CrashReport([], "signal 9"))))
        wait_for_lock(watcher)
        worker.commit()
        assert [rescued.id for rescued in ending.result()] == [job]
    assert store.get(job).state is JobState.READY


def test_a_claim_delayed_behind_the_end_of_its_session_takes_nothing(store: Store) -> None:
    session, (job,) = store.session(), store.add()
    driver = store.driver
    with psycopg.connect(store.url) as ending, connected(store.url) as watcher:
        driver.run_on(ending, driver.end_session(session))
        delayed = Background(lambda: driver.run(driver.claim(claiming(session))))
        wait_for_lock(watcher)
        ending.commit()
        assert delayed.result() == []
    assert store.get(job).state is JobState.READY


def test_a_rescue_never_takes_a_claim_made_after_it_looked(store: Store) -> None:
    """The job of a dead session is released and claimed by a live one while the rescue waits to look."""
    dead, live = store.session(), store.session(lease=timedelta(hours=1))
    store.add()
    (old,) = store.claim(dead)
    driver = store.driver
    with psycopg.connect(store.url) as between, connected(store.url) as watcher:
        between.execute("SELECT FROM winch.job FOR UPDATE")
        # A lock that SKIP LOCKED does not skip: on the whole table.
        between.execute("LOCK TABLE winch.session IN ACCESS EXCLUSIVE MODE")
        rescuing = Background(lambda: driver.run(driver.rescue(now=later())))
        wait_for_lock(watcher)
        driver.run_on(between, driver.give_up(dead, [old.token]))
        (new,) = driver.run_on(between, driver.claim(claiming(live)))
        between.commit()
        assert rescuing.result() == []
    assert store.complete(new) == [Answer.TOOK]


@pytest.mark.parametrize("to", [JobState.COMPLETED, JobState.RETRYING, JobState.DEAD])
def test_a_finish_takes_a_row_that_is_changed_at_the_same_time(store: Store, to: JobState) -> None:
    session = store.session()
    store.add()
    (claim,) = store.claim(session)
    driver = store.driver
    outcome = Finish(id=claim.id, token=claim.token, to=to, what="failed")
    with psycopg.connect(store.url) as progress, connected(store.url) as watcher:
        progress.execute("UPDATE winch.job SET progress = '50' WHERE id = %s", [claim.id])
        finishing = Background(lambda: driver.run(driver.finish([outcome])))
        wait_for_lock(watcher)
        progress.commit()
        assert finishing.result() == [Answer.TOOK]
    job = store.get(claim.id)
    assert (job.state, job.progress) == (to, "50")


@pytest.mark.parametrize("to", [JobState.COMPLETED, JobState.RETRYING])
def test_a_finish_behind_a_cancel_carries_it_out(store: Store, to: JobState) -> None:
    session = store.session()
    store.add()
    (claim,) = store.claim(session)
    driver = store.driver
    outcome = Finish(id=claim.id, token=claim.token, to=to, what="failed")
    with psycopg.connect(store.url) as operator, connected(store.url) as watcher:
        driver.run_on(operator, driver.cancel([claim.id], by="ada"))
        finishing = Background(lambda: driver.run(driver.finish([outcome])))
        wait_for_lock(watcher)
        operator.commit()
        assert finishing.result() == [Answer.TOOK]
    wanted = JobState.COMPLETED if to is JobState.COMPLETED else JobState.CANCELLED
    assert store.get(claim.id).state is wanted


@pytest.mark.parametrize("verb", ["cancel", "retry", "delete"])
def test_an_operator_behind_a_finish_is_answered_by_what_it_left(store: Store, verb: str) -> None:
    session = store.session()
    store.add()
    (claim,) = store.claim(session)
    driver = store.driver
    with psycopg.connect(store.url) as worker, connected(store.url) as watcher:
        driver.run_on(worker, driver.finish([completed(claim)]))
        acting = Background(lambda: driver.run(getattr(driver, verb)([claim.id], by="ada")))
        wait_for_lock(watcher)
        worker.commit()
        (acted,) = acting.result()
    assert (acted.state, acted.took) == (JobState.COMPLETED, verb != "cancel")


def test_two_retries_at_once_bring_a_job_back_once(store: Store) -> None:
    session = store.session()
    store.add()
    (claim,) = store.claim(session)
    store.complete(claim)
    driver = store.driver
    with psycopg.connect(store.url) as first, connected(store.url) as watcher:
        driver.run_on(first, driver.retry([claim.id], by="ada"))
        second = Background(lambda: driver.run(driver.retry([claim.id], by="bob")))
        wait_for_lock(watcher)
        first.commit()
        (acted,) = second.result()
    assert (acted.state, acted.took) == (JobState.READY, False)
    assert [entry.by for entry in store.get(claim.id).history if entry.what == "retried"] == ["ada"]


def drain(url: str, found: multiprocessing.Queue[list[str]]) -> None:
    store = Store(PostgresDriver.from_url(url))
    session, taken = store.session(), []
    while claims := store.claim(session, 7):
        taken += [claim.id for claim in claims]
    store.driver.close()
    found.put(taken)


def test_no_job_goes_to_two_processes(store: Store) -> None:
    ids = store.add(500)
    spawn = multiprocessing.get_context("spawn")
    found: multiprocessing.Queue[list[str]] = spawn.Queue()
    workers = [spawn.Process(target=drain, args=(store.url, found)) for _ in range(3)]
    for worker in workers:
        worker.start()
    seen = [job for _ in workers for job in found.get(timeout=60)]
    for worker in workers:
        worker.join(30)
    assert sorted(seen) == sorted(ids)
