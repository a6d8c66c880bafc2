"""Limits and FIFO keys while their holders are killed, or stopped for longer than their lease."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from tests.faults.stage import STORES, Stage
from tests.servers import Databases
from tests.storage.postgres_kit import new_job, new_session, new_token
from winch.core.gates.uses import LIMIT, GateUse, with_gates
from winch.core.lifecycle import JobState
from winch.drivers.postgres.driver import PostgresDriver
from winch.drivers.postgres.statements import Statement
from winch.storage.params import ClaimParams

pytestmark = [pytest.mark.servers, pytest.mark.faults]


def shared(stage: Stage) -> list[str]:
    """Jobs under a limit of two, and two accounts whose entries must keep their order. The first two
    take long, so that their worker still runs them when the fault comes."""
    jobs = stage.enqueue("limited", 4.0, times=2) + stage.enqueue("limited", 0.3, times=6)
    for _ in range(3):
        for account in ("acct:1", "acct:2"):
            jobs += stage.enqueue("slow", 0.1, fifo=account)
    return jobs


def settled(stage: Stage, jobs: list[str]) -> None:
    assert {job.state for job in stage.jobs(jobs)} == {JobState.COMPLETED}
    driver = stage.app.driver
    left = {info.name: (info.used, info.waiting) for info in driver.run(driver.limits())}
    assert left == {"limit:limited": (0, 0)}


@pytest.mark.scenario
@pytest.mark.parametrize("store", STORES)
def test_a_killed_holder_neither_leaks_nor_doubles_a_permit(
    store: str, postgres_server: Databases
) -> None:
    with Stage("kill -9 under a limit", store, postgres_server) as stage:
        other, doomed = stage.two_workers(processes=1)
        jobs = shared(stage)
        stage.until(lambda: len(stage.runs()) >= 2, 10, "two starts")
        other.wake()
        doomed.kill_supervisor()
        stage.until_final()
        verdict = stage.judge()
        assert verdict.counters["killed"] == 1
        assert verdict.counters["runs"] > len(jobs)  # it was killed with permits in its hands
        settled(stage, jobs)


@pytest.mark.scenario
@pytest.mark.parametrize("store", STORES)
def test_a_key_goes_on_when_a_worker_that_claims_with_its_finishes_is_killed(
    store: str, postgres_server: Databases
) -> None:
    """Most finishes of a short member claim the next one: the kill meets such a call, or its reply."""
    with Stage("kill -9 between members", store, postgres_server) as stage:
        other, doomed = stage.two_workers(processes=1)
        jobs = stage.enqueue("slow", 0.02, times=60, fifo="acct:1")
        stage.until(lambda: len(stage.runs()) >= 8, 20, "eight starts")
        other.wake()
        doomed.kill_all()
        stage.until(lambda: doomed.process.poll() is not None, 10, "its death")
        stage.until_final()
        verdict = stage.judge()
        assert verdict.counters["killed"] == 1
        assert {job.state for job in stage.jobs(jobs)} == {JobState.COMPLETED}


@pytest.mark.scenario
@pytest.mark.parametrize("store", STORES)
def test_a_zombie_holds_no_permit(store: str, postgres_server: Databases) -> None:
    with Stage("SIGSTOP under a limit", store, postgres_server) as stage:
        other, sleeper = stage.two_workers(processes=1)
        jobs = shared(stage)
        stage.until(lambda: len(stage.runs()) >= 2, 10, "two starts")
        other.wake()
        sleeper.stop()
        stage.until(lambda: bool(stage.events("rescued")), 15, "a rescue")
        sleeper.go_on()
        stage.until_final()
        verdict = stage.judge(takeover_limit=None)
        assert verdict.counters["stopped"] >= 1
        settled(stage, jobs)


# -- the lock itself ----------------------------------------------------------------------------------

BROKEN = """
CREATE OR REPLACE FUNCTION winch.lock_gates(keys text[], purpose text DEFAULT 'open') RETURNS integer
LANGUAGE sql AS 'SELECT 0'
"""


@contextmanager
def one_permit(server: Databases) -> Iterator[tuple[PostgresDriver, str]]:
    """A store with a job in each of two queues, both under a limit of one."""
    url = server.new_store()
    driver = PostgresDriver.from_url(url)
    try:
        driver.migrate()
        options = with_gates(None, [GateUse("limit:t", LIMIT, "limit:t", n=1)])
        driver.run(driver.enqueue([new_job(options=options, queue=queue) for queue in "ab"]))
        yield driver, url
    finally:
        driver.close()
        server.drop_database(url)


class SlowClaim:
    """A claim of one job, sent statement by statement on a connection of its own: decided in the store,
    or in Python."""

    def __init__(
        self,
        driver: PostgresDriver,
        conn: psycopg.Connection[tuple[Any, ...]],
        queue: str,
        *,
        is_in_store: bool,
    ) -> None:
        session = new_session()
        driver.run(driver.start_session(session))
        params = ClaimParams(session=session.id, token=new_token(), queues=(queue,), limit=1)
        self._conn = conn
        claims = driver._gated_claims
        self._steps = (
            claims.claim(params, None)
            if is_in_store
            else claims.claim_in_python(params, [queue], [], 1, None)
        )
        self._step: Statement | None = next(self._steps)

    def go_on(self, until: str | None = None) -> None:
        """Send the statements up to and with the one of this name, or all and the commit."""
        while self._step is not None:
            name = self._step.sql.name
            cursor = self._conn.execute(self._step.sql.text, self._step.values)
            try:
                self._step = self._steps.send(cursor.fetchall() if cursor.description else [])
            except StopIteration:
                self._step = None
            if name == until:
                return
        self._conn.commit()


# A gate without a row yet is locked by the first transaction that writes its row.
@pytest.mark.parametrize("last", ["claim.gated", "admit.look"])
@pytest.mark.parametrize("is_broken, is_known", [(False, False), (False, True), (True, False)])
def test_without_the_gates_lock_two_claims_would_share_a_permit(
    is_broken: bool, is_known: bool, last: str, postgres_server: Databases
) -> None:
    with (
        one_permit(postgres_server) as (driver, url),
        psycopg.connect(url) as one,
        psycopg.connect(url) as two,
        ThreadPoolExecutor(1) as thread,
    ):
        if is_broken:
            one.execute(BROKEN)
            one.commit()
        if is_known:
            one.execute("INSERT INTO winch.gate (key) VALUES ('limit:t')")
            one.commit()
        is_in_store = last == "claim.gated"
        first = SlowClaim(driver, one, "a", is_in_store=is_in_store)
        second = SlowClaim(driver, two, "b", is_in_store=is_in_store)
        first.go_on(last)
        rival = thread.submit(second.go_on)
        if is_broken:
            rival.result(timeout=10)  # it does not wait, and has seen no permit either
        else:
            wait([rival], timeout=0.3)
            assert not rival.done(), "the second claim must wait for the first one's gate"
        first.go_on()
        rival.result(timeout=10)
        [info] = driver.run(driver.limits())
        assert info.used == (2 if is_broken else 1)
