"""Plain jobs that are stored one call at a time: others see them while the disk is waited for, and their
caller hears of them only when they are on the disk."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from tests.storage.test_sqlite import make_job, make_session, make_token
from winch.core.errors import StorageUnavailable
from winch.core.lifecycle import JobState
from winch.drivers.sqlite.driver import SqliteDriver
from winch.storage.params import ClaimParams

SYNC = os.fdatasync
Syncing = Callable[[Callable[[int], None]], None]


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[SqliteDriver]:
    driver = SqliteDriver(tmp_path / "winch.db")
    driver.run(driver.enqueue([make_job()]))  # opens what is to be open
    yield driver
    driver.close()


@pytest.fixture
def syncing(monkeypatch: pytest.MonkeyPatch) -> Syncing:
    """Do something at each sync, before it."""

    def put(act: Callable[[int], None]) -> None:
        def sync(fd: int) -> None:
            act(fd)
            SYNC(fd)

        monkeypatch.setattr(os, "fdatasync", sync)

    return put


def count(driver: SqliteDriver) -> int:
    """How many jobs somebody sees who has nothing to do with the driver."""
    conn = sqlite3.connect(driver._connections.path)
    [(jobs,)] = conn.execute("SELECT count(*) FROM winch_job")
    conn.close()
    return int(jobs)


def refuse(*_: object) -> None:
    raise OSError(errno.EIO, "Input/output error")


def test_it_is_synced_once_after_its_commit_and_before_its_caller_goes_on(
    driver: SqliteDriver, syncing: Syncing
) -> None:
    seen: list[int] = []
    syncing(lambda _: seen.append(count(driver)))
    for jobs in (2, 3, 4):
        driver.run(driver.enqueue([make_job()]))
        assert seen == list(range(2, jobs + 1))


def test_a_bulk_of_plain_jobs_too(driver: SqliteDriver, syncing: Syncing) -> None:
    seen: list[int] = []
    syncing(lambda _: seen.append(count(driver)))
    driver.run(driver.enqueue([make_job() for _ in range(20)]))
    assert seen == [21]


def test_others_take_it_while_the_disk_is_waited_for(driver: SqliteDriver, syncing: Syncing) -> None:
    """Their own commit waits for the disk, and takes with it what was written before."""
    other = SqliteDriver(driver._connections.path)
    session = make_session()
    other.run(other.start_session(session))
    taken: list[str] = []

    def claim(_: int) -> None:
        params = ClaimParams(session=session.id, token=make_token(), queues=("default",), limit=9)
        taken.extend(claim.id for claim in other.run(other.claim(params)))

    claim(0)  # what is there already
    taken.clear()
    syncing(claim)
    job = make_job()
    driver.run(driver.enqueue([job]))
    assert taken == [job.id]
    other.close()


def test_what_others_may_know_of_is_synced_before_they_can_see_it(
    driver: SqliteDriver, syncing: Syncing
) -> None:
    """A job whose id or key somebody else may name, and all that is no enqueue: SQLite does it."""
    syncing(lambda _: pytest.fail("synced by ourselves"))
    driver.run(driver.enqueue([make_job(unique_key="k")]))
    driver.run(driver.enqueue([make_job(is_given_id=True)]))
    job = make_job(delay=timedelta(hours=1))
    driver.run(driver.enqueue([job]))
    driver.run(driver.cancel([job.id], by="me"))


def test_a_store_that_keeps_events_leaves_it_to_sqlite(driver: SqliteDriver, syncing: Syncing) -> None:
    """Who reads events remembers how far, so nothing may be read that a power cut takes back. Also where
    events were turned on by somebody else, while the file was open here."""
    other = SqliteDriver(driver._connections.path, events=True)
    other.migrate()
    syncing(lambda _: pytest.fail("synced by ourselves"))
    other.run(other.enqueue([make_job()]))
    driver._connections._next_look = 0.0
    driver.run(driver.enqueue([make_job()]))
    assert count(driver) == 3
    other.close()


def test_a_sync_goes_on_when_the_driver_is_closed_meanwhile(
    driver: SqliteDriver, syncing: Syncing
) -> None:
    syncing(lambda _: driver._connections.close())
    driver.run(driver.enqueue([make_job()]))
    assert count(driver) == 2


def test_a_sync_that_failed_is_told_and_what_it_left_is_written_again(
    driver: SqliteDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = driver._connections.producer()
    outcomes: list[Callable[[int], None]] = [refuse, SYNC]

    def sync(fd: int) -> None:
        outcomes.pop(0)(fd)

    monkeypatch.setattr(os, "fdatasync", sync)
    job = make_job()
    with pytest.raises(StorageUnavailable, match="does not reach the disk") as told:
        driver.run(driver.enqueue([job]))
    assert told.value.maybe_applied
    assert outcomes == []  # written again, and that was synced
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        before.execute("SELECT 1")
    [again] = driver.run(driver.enqueue([job], is_repeat=True))
    assert not again.is_new
    monkeypatch.setattr(os, "fdatasync", SYNC)
    driver.run(driver.enqueue([make_job()]))
    conn = sqlite3.connect(driver._connections.path)
    assert conn.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    conn.close()
    assert count(driver) == 3


def test_nothing_more_is_written_until_it_has_reached_the_disk(
    driver: SqliteDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fdatasync", refuse)
    with pytest.raises(StorageUnavailable, match="does not reach the disk"):
        driver.run(driver.enqueue([make_job()]))
    there = count(driver)
    for _ in range(2):
        with pytest.raises(StorageUnavailable, match="does not reach the disk") as told:
            driver.run(driver.enqueue([make_job()]))
        assert not told.value.maybe_applied
        with pytest.raises(StorageUnavailable, match="does not reach the disk"), driver.transaction():
            pytest.fail("got the file")
    assert count(driver) == there
    monkeypatch.setattr(os, "fdatasync", SYNC)
    driver.run(driver.enqueue([make_job()]))
    assert count(driver) == there + 1
    assert driver.run(driver.counts())[JobState.READY] == there + 1
