"""What a job costs on SQLite: statements and bytes written, which do not depend on the machine."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from winch.core.job import Claim
from winch.core.lifecycle import JobState
from winch.core.values.ids import job_ids
from winch.drivers.sqlite.connections import writer
from winch.drivers.sqlite.connections.writer import wal_bytes
from winch.drivers.sqlite.driver import SqliteDriver
from winch.storage.decide.waits import AWAITED_HEADER, Dependencies, job_key
from winch.storage.params import ClaimParams, Finish, NewJob, NewSession, Wait

JOBS = 500
TOKEN = "01234567-89ab-4def-8123-456789abcdef"
SESSION = "11234567-89ab-4def-8123-456789abcdef"


class Cost:
    """The statements that the writing connection ran, and how much its log has grown."""

    def __init__(self, driver: SqliteDriver) -> None:
        self._driver = driver
        self._writer: sqlite3.Connection = driver._connections.writer()
        self.statements: list[str] = []
        self.bytes = 0

    def __enter__(self) -> Cost:
        self._before = wal_bytes(self._driver._connections.path)
        self._writer.set_trace_callback(self._see)
        return self

    def _see(self, statement: str) -> None:
        # A trigger is reported as the same statement once more, for every row.
        if not statement.startswith("--") and statement not in self.statements[-1:]:
            self.statements.append(statement)

    def __exit__(self, *_: object) -> None:
        self._writer.set_trace_callback(None)
        self.bytes = wal_bytes(self._driver._connections.path) - self._before


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqliteDriver]:
    monkeypatch.setattr(writer, "CHECKPOINT_BYTES", 1 << 40)  # so that the log only grows
    driver = SqliteDriver(tmp_path / "cost.db")
    driver.migrate()
    driver.run(
        driver.start_session(
            NewSession(
                id=SESSION,
                worker="w",
                host="h",
                pid=1,
                release="",
                queues=("default",),
                tasks=("shop.mail",),
                slots=10,
                lease=timedelta(seconds=30),
            )
        )
    )
    yield driver
    driver.close()


def new_jobs(count: int) -> list[NewJob]:
    ids = job_ids(7 * 10**15, bytes(range(8)) * count)
    return [NewJob(id=one, task="shop.mail", args='{"to":"ada"}') for one in ids]


def claimed(driver: SqliteDriver) -> list[Claim]:
    params = ClaimParams(
        session=SESSION, token=TOKEN, queues=("default",), limit=JOBS, tasks=("shop.mail",)
    )
    return driver.run(driver.claim(params))


def ended(claims: list[Claim]) -> list[Finish]:
    return [
        Finish(id=one.id, token=one.token, to=JobState.COMPLETED, what="completed") for one in claims
    ]


def test_a_lone_enqueue_is_one_statement_that_commits_by_itself(driver: SqliteDriver) -> None:
    with Cost(driver) as cost:
        driver.run(driver.enqueue(new_jobs(1)))
    assert len(cost.statements) == 1, cost.statements
    assert cost.bytes <= 2 * 4200  # a page of the table and one of the index of ready jobs


def test_a_claim_of_a_lone_job_is_two_statements_in_a_transaction(driver: SqliteDriver) -> None:
    [job] = new_jobs(1)
    driver.run(driver.enqueue([job]))
    params = ClaimParams(session=SESSION, token=TOKEN, queues=("default",), limit=10)
    with Cost(driver) as cost:
        claims = driver.run(driver.claim(params))
    assert [claim.id for claim in claims] == [job.id]
    assert len(cost.statements) == 4, cost.statements


def test_a_batch_goes_through_its_life_in_few_statements_and_bytes(driver: SqliteDriver) -> None:
    with Cost(driver) as stored:
        driver.run(driver.enqueue(new_jobs(JOBS)))
    with Cost(driver) as taken:
        claims = claimed(driver)
    with Cost(driver) as finished:
        driver.run(driver.finish(ended(claims)))
    assert len(claims) == JOBS
    assert [len(cost.statements) for cost in (stored, taken, finished)] == [1, 4, 5]
    assert stored.bytes / JOBS < 300
    assert taken.bytes / JOBS < 430
    assert finished.bytes / JOBS < 850
    # A trigger on each deletion of a live job cost half of it.
    table = "SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'winch_job'"
    assert driver._connections.writer().execute(table).fetchall() == []


@pytest.mark.parametrize("is_waited_for", [False, True])
def test_the_end_of_an_awaited_job_is_recorded_only_while_a_waiter_exists(
    driver: SqliteDriver, is_waited_for: bool
) -> None:
    first, second = new_jobs(2)
    awaited = msgspec.structs.replace(first, headers={AWAITED_HEADER: "1"})
    driver.run(driver.enqueue([awaited]))
    [claim] = claimed(driver)
    conn = driver._connections.writer()
    if is_waited_for:
        driver.run(
            driver.enqueue_after([second], Dependencies([(second.id, [Wait(job_key(first.id))])]))
        )
    conn.execute("DELETE FROM winch_recheck")
    driver.run(driver.finish(ended([claim])))
    keys = [row[0] for row in conn.execute("SELECT key FROM winch_recheck")]
    assert keys == [job_key(first.id)] * is_waited_for
    if not is_waited_for:  # a later waiter looks for itself
        driver.run(
            driver.enqueue_after([second], Dependencies([(second.id, [Wait(job_key(first.id))])]))
        )
    driver.run(driver.unblock())
    [found] = driver.run(driver.get([second.id]))
    assert found is not None
    assert found.state is JobState.READY


def test_jobs_of_two_tasks_are_two_statements_wherever_they_stand(driver: SqliteDriver) -> None:
    jobs = new_jobs(100)
    mixed = [NewJob(id=job.id, task=f"t{place % 2}", args=job.args) for place, job in enumerate(jobs)]
    with Cost(driver) as cost:
        driver.run(driver.enqueue(mixed))
    assert len(cost.statements) == 4, cost.statements
