"""What an enqueue answers with, without a second read; and aliases in place of ids."""

from __future__ import annotations

import asyncio
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from winch import App, ConfigError, Job, JobNotFound, JobState, Unique
from winch.core.values.ids import known_as


@pytest.fixture
def app(tmp_path: Path) -> App:
    made = App(f"sqlite:///{tmp_path / 'w.db'}")
    made.migrate()

    @made.task(name="add", unique=Unique("a"))
    def add(a: int) -> int:
        return a + 1

    @made.task(name="plain")
    def plain(a: int) -> int:
        return a + 1

    return made


def without_reads(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on a read fails."""

    def refuse(*_: Any) -> Any:
        raise AssertionError("the enqueue answered with all of it")

    monkeypatch.setattr(app.client, "get", refuse)
    monkeypatch.setattr(app.client, "aget", refuse)


def stored_now(job: Job[Any]) -> bool:
    return abs(datetime.now(UTC) - job.created_at) < timedelta(minutes=5)


def test_a_new_job_has_its_state_and_time_without_a_read(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    add, plain = app.tasks.get("add"), app.tasks.get("plain")
    without_reads(app, monkeypatch)
    jobs = [plain.enqueue(1), add.enqueue(2), add.using(delay="1h").enqueue(3)]
    jobs += app.enqueue_many([plain.bind(4), plain.using(delay="1h").bind(5)])
    jobs.append(asyncio.run(plain.aenqueue(6)))
    states = [JobState.READY, JobState.READY, JobState.SCHEDULED] * 2
    states[3:] = [JobState.READY, JobState.SCHEDULED, JobState.READY]
    assert [job.first_state for job in jobs] == states
    assert all(stored_now(job) for job in jobs)
    monkeypatch.undo()
    for job in jobs:
        assert job.created_at == app.jobs.get(job.id).created_at
        assert job.first_state == app.jobs.get(job.id).state


def test_the_holder_of_a_key_is_read(app: App) -> None:
    add = app.tasks.get("add")
    first = add.using(delay="1h").enqueue(1)
    again = add.enqueue(1)
    assert (again.id, again.is_new, again.first_state) == (first.id, False, None)
    assert again.state is JobState.SCHEDULED
    assert again.created_at == first.created_at


def test_the_first_state_stays_as_it_was(app: App) -> None:
    job = app.tasks.get("plain").enqueue(1)
    app.run_worker(burst=True)
    assert job.state is JobState.COMPLETED
    assert job.first_state is JobState.READY


# -- aliases -------------------------------------------------------------------------------------------


def test_an_alias_names_one_job(app: App) -> None:
    plain = app.tasks.get("plain")
    first = plain.using(id="order-7").enqueue(1)
    again = plain.using(id="order-7").enqueue(2)
    other = plain.using(id="order-8").enqueue(3)
    assert uuid.UUID(first.id).version == 5
    assert (again.id, again.is_new) == (first.id, False)
    assert other.id != first.id
    found = app.jobs.get("order-7")
    assert (found.id, found.record.headers) == (first.id, {"winch-alias": "order-7"})
    assert app.jobs.cancel("order-7") is JobState.READY
    assert app.jobs.get("order-7").state is JobState.CANCELLED
    app.jobs.delete("order-7")
    with pytest.raises(JobNotFound, match="order-7"):
        app.jobs.get("order-7")


def test_an_alias_stands_for_the_same_id_in_every_release() -> None:
    assert known_as("order-7") == "d49232df-36c7-5c8e-b386-f147db35e0a7"
    assert known_as("Bestellung ä") != known_as("Bestellung a")


@pytest.mark.parametrize(
    "mistyped",
    ["018f5b3a-7c1d-7000-8000-00000000000", "018f5b3a7c1d70008000000000000001ff", "", " ", "a\nb"],
)
def test_a_mistyped_uuid_is_no_alias(app: App, mistyped: str) -> None:
    with pytest.raises(ConfigError, match="id must be a UUID"):
        app.tasks.get("plain").using(id=mistyped)
    with pytest.raises(JobNotFound):
        app.jobs.get(mistyped)


def test_an_alias_has_a_longest_length(app: App) -> None:
    with pytest.raises(ConfigError, match="id"):
        app.tasks.get("plain").using(id="order " * 40)
