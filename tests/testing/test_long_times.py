"""Long outages and clocks that jump: afterwards jobs start and end as before, in the same worker."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from winch import App, JobState, Limit
from winch.testing import World, virtual

OUTAGES = [
    *("5m", "45m", "90m"),
    *(pytest.param(long, marks=pytest.mark.slow) for long in ("10h", "3d")),
]
JUMPS = [timedelta(hours=hours) for hours in (3, 30, -3, -30)]
# Twice the lease and a sweep: by then whatever a dead worker held runs again.
SOON = "5m"


@pytest.fixture
def app(tmp_path: Path) -> App:
    app = App(f"sqlite:///{tmp_path / 'never.db'}")

    @app.task(name="work")
    async def work(seconds: float = 0.0) -> str:
        await asyncio.sleep(seconds)
        return "done"

    @app.task(name="limited", limit=Limit(1))
    async def limited() -> None:
        pass

    return app


def every_loop_works(app: App, world: World) -> None:
    """One job for each loop of the worker: it ends only if that loop still turns."""
    work, limited = app.tasks.get("work"), app.tasks.get("limited")
    plain = [work.enqueue() for _ in range(20)]
    later = work.using(delay="30s").enqueue()
    gated = [limited.enqueue() for _ in range(3)]
    slow = work.enqueue(3600.0)
    world.advance(SOON)
    assert {job.refresh().state for job in (*plain, later, *gated)} == {JobState.COMPLETED}
    assert slow.refresh().state is JobState.RUNNING
    slow.cancel()
    world.advance(SOON)
    assert slow.refresh().state is JobState.CANCELLED
    world.crash(at="handler")  # the rescuer's part, and the next worker's
    again = work.enqueue()
    world.advance(SOON)
    assert again.refresh().state is JobState.COMPLETED


@pytest.mark.parametrize("outage", OUTAGES)
def test_every_loop_goes_on_after_an_outage(app: App, outage: str) -> None:
    with virtual(app) as world:
        first = app.tasks.get("work").enqueue(60.0)
        world.advance("30s")
        world.store_down(outage)
        world.advance(outage)
        crew = world._crew
        world.advance(SOON)
        assert first.refresh().state is JobState.COMPLETED
        assert crew is not None
        assert world._crew is crew, "the worker that met the outage lives"
        every_loop_works(app, world)


@pytest.mark.parametrize("jump", JUMPS, ids=str)
def test_every_loop_goes_on_after_the_clock_was_set(app: App, jump: timedelta) -> None:
    with virtual(app) as world:
        running = app.tasks.get("work").enqueue(600.0)
        world.advance("30s")
        world.jump_clock(jump)
        world.advance("10m")
        assert running.refresh().state is JobState.COMPLETED
        every_loop_works(app, world)
