"""Events that handlers and the store cause, as subscribers of this process receive them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from winch import App, Context, Job, JobEvent, JobState
from winch.core.job import MAX_RESCUES
from winch.engine.tasks.events import KINDS
from winch.testing import World, virtual


@pytest.fixture
def app(tmp_path: Path) -> App:
    return App(f"sqlite:///{tmp_path / 'never.db'}")


@pytest.fixture
def seen(app: App) -> list[JobEvent]:
    events: list[JobEvent] = []
    for kind in KINDS:
        app.on(kind, events.append)
    return events


@pytest.fixture
def world(app: App, seen: list[JobEvent]) -> Iterator[World]:
    @app.task(name="long")
    async def long(*, ctx: Context) -> None:
        ctx.progress(40, "resizing")
        await asyncio.sleep(600)

    with virtual(app) as world:
        yield world


def started(app: App, **options: str) -> Job[None]:
    job: Job[None] = app.tasks.get("long").using(**options).enqueue()  # type: ignore[arg-type]
    return job


def kinds(seen: list[JobEvent], job: Job[None]) -> list[str]:
    return [event.kind for event in seen if event.job_id == job.id]


def test_progress_emits_an_event(app: App, seen: list[JobEvent], world: World) -> None:
    job = started(app)
    world.advance("1s")
    assert kinds(seen, job) == ["enqueued", "started", "progress"]
    assert (seen[-1].percent, seen[-1].reason, seen[-1].attempt) == (40, "resizing", 1)


def test_a_rescue_emits_an_event(app: App, seen: list[JobEvent], world: World) -> None:
    job = started(app)
    world.advance("1s")
    world.crash_worker()
    world.advance("5m")
    assert "rescued" in kinds(seen, job)
    assert job.refresh().state is JobState.RUNNING


def test_a_job_that_a_rescue_kills_emits_its_death(app: App, seen: list[JobEvent], world: World) -> None:
    job = started(app)
    for _ in range(MAX_RESCUES):
        world.advance("1s")
        world.crash_worker()
        world.advance("5m")
    assert job.refresh().state is JobState.DEAD
    assert kinds(seen, job).count("rescued") == MAX_RESCUES
    (death,) = [event for event in seen if event.kind == "dead"]
    assert death.error is not None
    assert death.error.type == "winch.JobRescued"


def test_an_expired_job_emits_cancelled(app: App, seen: list[JobEvent], world: World) -> None:
    job = started(app, expires="1m", delay="2m")
    world.advance("5m")
    assert job.refresh().state is JobState.CANCELLED
    assert kinds(seen, job) == ["enqueued", "cancelled"]
    assert "expired" in (seen[-1].reason or "")


@pytest.mark.parametrize("way", ["job", "area", "async"])
def test_a_cancelled_waiting_job_emits_an_event(
    app: App, seen: list[JobEvent], world: World, way: str
) -> None:
    job = started(app, delay="1h")
    if way == "job":
        job.cancel("not wanted")
    elif way == "area":
        app.jobs.cancel(job.id, reason="not wanted")
    else:
        asyncio.run(app.jobs.acancel(job.id, reason="not wanted"))
    assert kinds(seen, job) == ["enqueued", "cancelled"]
    assert seen[-1].reason == "not wanted"


def test_a_cancelled_running_job_emits_one_event(app: App, seen: list[JobEvent], world: World) -> None:
    job = started(app)
    world.advance("1s")
    job.cancel()
    world.advance("10s")
    assert kinds(seen, job).count("cancelled") == 1
