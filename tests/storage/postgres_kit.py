"""What the tests of the PostgreSQL driver share: a store to play with, and connections that look over
its shoulder."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import psycopg

from winch.core.job import Claim, JobRecord
from winch.core.lifecycle import JobState
from winch.core.values.ids import job_id, random_id
from winch.drivers.postgres.driver import PostgresDriver
from winch.drivers.postgres.fast.handover import ClaimingPostgresBell
from winch.drivers.postgres.statements import Statement
from winch.storage.params import Answer, ClaimParams, Finish, NewJob, NewSession
from winch.storage.verbs import Verb

T = TypeVar("T")

TERMINATE = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE application_name = 'winch' AND datname = current_database()"
)


def new_id() -> str:
    return job_id(time.time_ns() * 4096 // 1_000_000, secrets.token_bytes(8))


def new_token() -> str:
    return random_id(secrets.token_bytes(16))


def new_job(**fields: Any) -> NewJob:
    return NewJob(**{"id": new_id(), "task": "mail.send", "args": "{}", **fields})


def new_session(**fields: Any) -> NewSession:
    known = {"worker": "w", "host": "h", "pid": 1, "release": "1", "queues": ("default",)}
    rest = {"id": new_token(), "tasks": ("mail.send",), "slots": 8, "lease": timedelta(seconds=30)}
    return NewSession(**{**known, **rest, **fields})


class Store:
    """A driver and the verbs a test needs most."""

    def __init__(self, driver: PostgresDriver, url: str = "") -> None:
        self.driver = driver
        self.url = url

    def add(self, count: int = 1, **fields: Any) -> list[str]:
        jobs = [new_job(**fields) for _ in range(count)]
        return [stored.id for stored in self.driver.run(self.driver.enqueue(jobs))]

    def session(self, **fields: Any) -> str:
        session = new_session(**fields)
        self.driver.run(self.driver.start_session(session))
        return session.id

    def claim(self, session: str, limit: int = 1, **fields: Any) -> list[Claim]:
        params = {"token": new_token(), "queues": ("default",), **fields}
        return self.driver.run(self.driver.claim(ClaimParams(session=session, limit=limit, **params)))

    def complete(self, *claims: Claim) -> list[Answer]:
        outcomes = [completed(claim) for claim in claims]
        return self.driver.run(self.driver.finish(outcomes))

    def get(self, job: str) -> JobRecord:
        (found,) = self.driver.run(self.driver.get([job]))
        assert found is not None
        return found


def completed(claim: Claim) -> Finish:
    return Finish(id=claim.id, token=claim.token, to=JobState.COMPLETED, what="completed")


def claiming_bell(driver: PostgresDriver, queues: Sequence[str]) -> ClaimingPostgresBell:
    bell = driver.claiming_bell(queues)
    assert isinstance(bell, ClaimingPostgresBell)
    return bell


def recorded(verb: Verb[T]) -> tuple[Verb[T], list[Statement]]:
    """The verb again, and the list in which its steps will be found when it has run."""
    seen: list[Statement] = []

    def steps() -> Generator[Any, Any, T]:
        body = verb.steps()
        try:
            step = next(body)
            while True:
                seen.append(step)
                step = body.send((yield step))
        except StopIteration as stop:
            result: T = stop.value
            return result

    return Verb(verb.name, steps, verb.is_read), seen


@contextmanager
def connected(url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


class Background(threading.Thread):
    """A call in a thread of its own; `result` waits for it and raises what it raised."""

    def __init__(self, call: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._call = call
        self._error: BaseException | None = None
        self._value: Any = None
        self.start()

    def run(self) -> None:
        try:
            self._value = self._call()
        except BaseException as error:  # raised again by result()
            self._error = error

    def result(self, timeout: float = 20) -> Any:
        self.join(timeout)
        assert not self.is_alive(), "the call did not come back"
        if self._error is not None:
            raise self._error
        return self._value


def wait_for_lock(watcher: psycopg.Connection[Any], count: int = 1) -> None:
    """Wait until a session waits for a lock in this database."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        row = watcher.execute(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() AND wait_event_type = 'Lock'"
        ).fetchone()
        if row is not None and row[0] >= count:
            return
        time.sleep(0.01)
    raise AssertionError("no session waits for a lock")
