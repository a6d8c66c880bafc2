"""The virtual world, when workers die, answers are lost and the store is down."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from winch import App, ConfigError, Context, JobState, StorageUnavailable
from winch.core.job import MAX_RESCUES
from winch.testing import virtual


@pytest.fixture
def app(tmp_path: Path) -> App:
    return App(f"sqlite:///{tmp_path / 'never.db'}")


@pytest.mark.parametrize("point", ["claim", "handler", "before finish"])
def test_the_job_of_a_crashed_worker_is_rescued_when_its_lease_is_over(app: App, point: Any) -> None:
    ran: list[datetime] = []

    @app.task
    async def work(*, ctx: Context) -> int:
        ran.append(world.now)
        await asyncio.sleep(0)
        return ctx.attempt

    with virtual(app) as world:
        began = world.now
        world.crash(at=point)
        job: Any = work.enqueue()  # type: ignore[call-arg]  # ctx is injected
        world.advance("29s")
        assert job.refresh().state is JobState.RUNNING  # the lease of 30 s is still good
        world.advance("16s")
        assert job.refresh().state is JobState.COMPLETED
        assert [entry.what for entry in job.record.history] == ["rescued"]
        lease, sweep = timedelta(seconds=30), timedelta(seconds=5)
        assert lease <= job.record.finished_at - began <= lease + 3 * sweep
        assert len(ran) == (1 if point == "claim" else 2)
        assert job.result() == 1  # a rescue costs no attempt


@pytest.mark.parametrize("hours", [-10, 10])
def test_a_clock_that_is_set_just_after_a_worker_died_delays_the_rescue_by_a_lease(
    app: App, hours: int
) -> None:
    """Set back, the lease of the dead worker would lie hours in the future."""
    ran: list[int] = []

    @app.task
    async def work() -> None:
        ran.append(1)
        await asyncio.sleep(0)

    with virtual(app) as world:
        world.crash(at="handler")
        job = work.enqueue()
        world.advance("1s")
        world.jump_clock(timedelta(hours=hours))
        world.advance("80s")  # two leases and a few sweeps
        assert job.refresh().state is JobState.COMPLETED
        assert len(ran) == 2


def test_a_worker_may_die_as_soon_as_it_has_started(app: App) -> None:
    @app.task
    def work(n: int) -> int:
        return n

    with virtual(app) as world:
        jobs = app.enqueue_many(work.bind(n) for n in range(30))
        world.crash(at="claim", times=2)
        world.run_once()
        assert {job.refresh().state for job in jobs} <= {JobState.RUNNING, JobState.COMPLETED}
        world.run_all()
        assert [job.result() for job in jobs] == list(range(30))
        assert max(job.record.rescues for job in jobs) == 1


def test_a_worker_that_dies_after_its_finish_loses_nothing(app: App) -> None:
    ran: list[int] = []

    @app.task
    def work() -> None:
        ran.append(1)

    with virtual(app) as world:
        world.crash(at="after finish")
        job = work.enqueue()
        world.advance("5m")
        assert job.refresh().state is JobState.COMPLETED
        assert (ran, job.record.rescues) == ([1], 0)
        assert len(app.workers.list()) == 1  # the dead one's session is over by now


def test_a_killed_handler_runs_no_line_more(app: App) -> None:
    lines: list[str] = []

    @app.task
    async def work() -> None:
        lines.append("before")
        try:
            await asyncio.sleep(10)
            lines.append("after")
        finally:
            lines.append("finally")

    with virtual(app) as world:
        work.enqueue()
        world.advance("5s")
        world.crash_worker()
        world.advance("20s")
        assert lines == ["before"]
        world.advance("1m")
        assert lines == ["before", "before", "after", "finally"]


def test_a_world_may_end_with_a_crash(app: App) -> None:
    @app.task
    async def work() -> None:
        await asyncio.sleep(10)

    with virtual(app) as world:
        work.enqueue()
        world.advance("1s")
        world.crash_worker()
    with virtual(app) as world:
        world.store_down("1h")
        world.crash_worker()
        world.advance("1m")


def test_a_job_whose_workers_vanish_again_and_again_is_dead(app: App) -> None:
    @app.task
    def poison() -> None: ...

    @app.task
    def neighbour() -> int:
        return 1

    with virtual(app) as world:
        world.crash(at="handler", times=MAX_RESCUES)
        job = poison.enqueue()
        world.run_all()
        assert job.refresh().state is JobState.DEAD
        assert job.record.rescues == MAX_RESCUES
        other = neighbour.enqueue()
        assert world.run_once() == 1
        assert other.result() == 1


def test_a_lost_answer_changes_nothing(app: App) -> None:
    ran: list[int] = []

    @app.task
    def once(n: int) -> None:
        ran.append(n)

    with virtual(app) as world:
        world.lose_reply("enqueue")
        job = once.enqueue(1)  # tried again with the same id
        assert len(world.jobs()) == 1
        world.lose_reply("finish")
        world.run_all()
        assert job.refresh().state is JobState.COMPLETED
        world.lose_reply("claim")
        second = once.enqueue(2)
        world.run_all()
        assert second.refresh().state is JobState.COMPLETED
        assert ran == [1, 2]


def test_a_store_that_is_down_only_delays(app: App) -> None:
    @app.task
    def work() -> int:
        return 1

    with virtual(app) as world:
        job = work.using(delay="10s").enqueue()
        world.store_down("30s")
        with pytest.raises(StorageUnavailable):
            work.enqueue()
        world.advance("20s")
        assert [j.state for j in world.jobs()] == [JobState.SCHEDULED]
        world.advance("20s")
        assert job.result() == 1
        assert job.record.finished_at is not None
        late = job.record.finished_at - job.record.created_at
        assert timedelta(seconds=30) <= late <= timedelta(seconds=36)


def test_unknown_crash_points_and_verbs_are_refused(app: App) -> None:
    with virtual(app) as world:
        with pytest.raises(ConfigError, match=r"no crash point 'before finsh' \(did you mean"):
            world.crash(at="before finsh")  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="the store has no verb 'fnish'"):
            world.lose_reply("fnish")
