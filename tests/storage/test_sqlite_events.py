"""The events that triggers write on SQLite, beside those of the reference."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.storage.sqlite_jobs import make_job, make_session
from winch.core.job import MAX_CRASHES
from winch.core.lifecycle import JobState
from winch.core.values.ids import job_id, random_id
from winch.drivers.memory import MemoryDriver
from winch.drivers.sqlite.driver import SqliteDriver
from winch.storage.crash_report import CrashReport
from winch.storage.params import (
    Answer,
    ClaimParams,
    ClaimRef,
    Event,
    Finish,
    NewJob,
)
from winch.storage.protocol import Driver

NOW = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.fixture
def driver(sqlite_path: Path) -> Iterator[SqliteDriver]:
    opened = SqliteDriver(sqlite_path)
    yield opened
    opened.close()


def play(driver: Driver) -> dict[str, list[Event]]:
    """A story in which every kind of change happens in every way; the events by job."""
    now = NOW

    def later(seconds: float = 1) -> datetime:
        nonlocal now
        now += timedelta(seconds=seconds)
        return now

    names = iter(range(1000))
    ids: list[str] = []

    def new(**fields: object) -> NewJob:
        ids.append(job_id(next(names), bytes(8)))
        return make_job(id=ids[-1], **fields)

    def token() -> str:
        return random_id(next(names).to_bytes(16, "big"))

    def session() -> str:
        opened = make_session(id=token())
        driver.run(driver.start_session(opened, now=later()))
        return opened.id

    def take(holder: str, limit: int) -> list[ClaimRef]:
        params = ClaimParams(session=holder, token=token(), queues=("default",), limit=limit)
        return [ClaimRef(c.id, c.token) for c in driver.run(driver.claim(params, now=later()))]

    def end(ref: ClaimRef, to: JobState, **fields: object) -> Answer:
        values = {"id": ref.id, "token": ref.token, "to": to, "what": "failed", **fields}
        outcome = Finish(**values)  # type: ignore[arg-type]  # fields of any type, by name
        return driver.run(driver.finish([outcome], now=later()))[0]

    first = session()
    driver.run(driver.enqueue([new() for _ in range(8)], now=later()))
    driver.run(driver.enqueue([new(delay=timedelta(seconds=5))], now=later()))
    targets = (
        *(JobState.COMPLETED, JobState.RETRYING, JobState.SCHEDULED, JobState.READY),
        *(JobState.CANCELLED, JobState.DEAD),
    )
    for ref, to in zip(take(first, 6), targets, strict=True):
        end(ref, to, counts=to is not JobState.SCHEDULED)
        end(ref, to)
    driver.run(driver.promote(now=later(10)))
    held = take(first, 6)
    driver.run(driver.cancel([ref.id for ref in held[3:]], by="me", now=later()))
    driver.run(driver.release([held[0], held[3]], now=later()))
    driver.run(driver.give_up(first, [held[1].token], now=later()))
    held = take(first, 3)
    second = session()
    held += take(second, 9)
    driver.run(driver.cancel([held[0].id], by="me", now=later()))
    driver.run(driver.end_session(first, CrashReport(held[1:2], "killed"), now=later()))
    driver.run(driver.rescue(now=later(60)))
    for _ in range(MAX_CRASHES):
        third = session()
        refs = take(third, 9)
        driver.run(driver.end_session(third, CrashReport(refs, "killed"), now=later()))
    driver.run(driver.retry(ids, by="me", now=later()))
    driver.run(driver.cancel(ids[:4], by="me", reason="enough", now=later()))
    driver.run(driver.delete(ids, by="me", now=later()))
    driver.run(driver.enqueue([new(keep=timedelta(0))], now=later()))
    end(take(session(), 1)[0], JobState.COMPLETED)
    driver.run(driver.prune(now=later()))
    events = driver.run(driver.events())
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    found: dict[str, list[Event]] = {}
    for event in events:
        found.setdefault(event.job, []).append(event)
    return found


def without_seq(event: Event) -> tuple[object, ...]:
    """Jobs changed by one call have no order among themselves."""
    return (
        *(event.v, event.kind, event.state, event.token, event.by_token),
        *(event.session, event.attempt, event.at),
    )


class Clock:
    def now(self) -> datetime:
        return NOW

    def time(self) -> float:
        return NOW.timestamp()

    def monotonic(self) -> float:
        return 0.0


def test_triggers_write_the_events_of_the_reference(sqlite_path: Path) -> None:
    driver = SqliteDriver(sqlite_path, events=True)
    found, expected = play(driver), play(MemoryDriver(Clock(), events=True))
    driver.close()
    assert found.keys() == expected.keys()
    for job, events in expected.items():
        assert [without_seq(e) for e in found[job]] == [without_seq(e) for e in events]
    kinds = {event.kind for events in expected.values() for event in events}
    assert kinds == {
        *("enqueued", "promoted", "claimed", "finished", "released", "rescued", "cancelled"),
        *("retried", "deleted"),
    }


def test_without_events_there_are_no_triggers_and_with_them_the_schema_waits_for_them(
    driver: SqliteDriver,
) -> None:
    driver.run(driver.enqueue([make_job()]))
    assert driver.run(driver.events()) == []
    watched = SqliteDriver(driver._address.path, events=True)
    assert not watched.check_schema().is_ready
    assert "CREATE TRIGGER" in watched.migration_sql()
    assert watched.migrate() == ["events"]
    assert watched.check_schema().is_ready
    driver.run(driver.enqueue([make_job()]))
    assert [event.kind for event in watched.run(watched.events())] == ["enqueued"]
    watched.close()
