"""`@app.schedule` and `app.schedules`, on the real engine in virtual time."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Literal

import pytest

from winch import App, ConfigError, Context, ScheduleNotFound, Unique, UnknownTask
from winch.engine.maintenance.ticker import Ticker
from winch.storage.decide.schedules import RunKind, ScheduleRow, ScheduleRows
from winch.testing import virtual

LONDON = "Europe/London"


def new_app() -> App:
    return App("memory://")


def test_a_schedule_in_code_runs_by_the_clock() -> None:
    app = new_app()
    ran: list[datetime] = []

    @app.schedule("30 1 * * *", tz=LONDON)
    @app.task(name="nightly")
    def nightly() -> None:
        ran.append(world.now)

    # The night on which 01:30 comes twice.
    with virtual(app, start=datetime(2026, 10, 24, tzinfo=UTC)) as world:
        world.advance("3d")
        assert ran == [
            datetime(2026, 10, day, hour, 30, tzinfo=UTC) for day, hour in ((24, 0), (25, 0), (26, 1))
        ]
        [found] = app.schedules.list()
        assert (found.name, found.is_code, found.is_active, found.late_by) == (
            "nightly",
            True,
            True,
            None,
        )
        runs = app.schedules.history("nightly")
        assert [(run.kind, run.state) for run in runs] == [(RunKind.ENQUEUED, "completed")] * 3


def test_every_and_a_dead_worker_and_an_outage_leave_no_window_out() -> None:
    app = new_app()
    windows: list[str] = []

    @app.schedule(every="1m", misfire="all")
    @app.task(name="tick")
    async def tick(ctx: Context) -> None:
        windows.append(ctx.headers["winch-window"])

    with virtual(app) as world:
        world.advance("5m")
        world.crash_worker()
        world.advance("5m")
        world.store_down("7m")
        world.advance("10m")
        world.lose_reply("change_schedule", 3)
        world.advance("5m")
        assert len(windows) == len(set(windows)) == 25


def slow_jobs(overlap: Literal["allow", "skip", "queue"]) -> tuple[int, int]:
    """How many jobs of 2.5 minutes a schedule of every minute gives in ten, and how many at once."""
    app = new_app()
    running: list[int] = []
    most: list[int] = []

    @app.schedule(every="1m", overlap=overlap)
    @app.task(name="slow")
    async def slow() -> None:
        running.append(1)
        most.append(len(running))
        await asyncio.sleep(150)
        running.pop()

    with virtual(app) as world:
        world.advance("10m")
        return len(world.jobs(task="slow")), max(most)


def test_a_slow_job_and_the_overlap_policies() -> None:
    assert slow_jobs("allow") == (10, 3)
    # Skipped ones leave the time to the next window empty; a queued one begins when the one before ends.
    assert slow_jobs("skip") == (4, 1)
    assert slow_jobs("queue") == (4, 1)


def test_a_dynamic_schedule_through_its_life() -> None:
    app = new_app()

    @app.task(name="report", queue="reports")
    def report(id: int, note: str = "") -> None: ...

    with virtual(app) as world:
        one = app.schedules.add(
            "report-7", task="report", cron="*/5 * * * *", args={"id": 7}, priority=5
        )
        assert (one.task, one.args, one.queue, one.is_code) == ("report", '{"id":7}', "reports", False)
        assert (
            app.schedules.add("report-7", report, cron="*/5 * * * *", args={"id": 7}, priority=5) == one
        )
        world.advance("11m")
        assert [job.record.priority for job in world.jobs(task="report")] == [5, 5]
        app.schedules.pause("report-7", reason="stocktaking")
        assert app.schedules.get("report-7").pause_reason == "stocktaking"
        world.advance("30m")
        assert len(world.jobs(task="report")) == 2
        app.schedules.resume("report-7")
        world.advance("5m")
        assert len(world.jobs(task="report")) == 3
        job = app.schedules.trigger("report-7")
        world.run_all()
        assert job.refresh().state == "completed"
        edited = app.schedules.edit("report-7", every="1h", args={"id": 8})
        assert (edited.args, edited.timing.every, edited.timing.cron) == (
            '{"id":8}',
            timedelta(hours=1),
            None,
        )
        assert edited.definition.job.priority == 5
        following = app.schedules.next("report-7", 3)
        assert app.schedules.skip("report-7") == following[0]
        world.advance("2h")
        kinds = [run.kind for run in app.schedules.history("report-7", limit=3)]
        assert kinds == ["enqueued", "skipped", "triggered"]
        app.schedules.remove("report-7")
        assert app.schedules.list() == []
        with pytest.raises(ScheduleNotFound, match="report-7"):
            app.schedules.trigger("report-7")


def test_wrong_arguments_are_refused_before_anything_is_stored() -> None:
    app = new_app()

    @app.schedule("@daily", name="nightly")
    @app.task(name="report", unique=Unique("id"))
    def report(id: int = 1) -> None: ...

    with virtual(app) as world:
        world.run_once()
        add = app.schedules.add
        with pytest.raises(UnknownTask, match="report"):
            add("x", task="reports", cron="@daily")
        with pytest.raises(ConfigError, match="catch_up"):
            add("x", task="report", cron="@daily", catch_up=0)
        with pytest.raises(ConfigError, match="overlap must be one of"):
            add("x", task="report", cron="@daily", overlap="wait")  # type: ignore[arg-type]
        with pytest.raises(
            ConfigError, match="a schedule takes no fifo=: its jobs come one after another"
        ):
            add("x", task="report", cron="@daily", fifo="k")
        with pytest.raises(ConfigError, match=r"no option 'prioritty' \(did you mean 'priority'"):
            add("x", task="report", cron="@daily", prioritty=1)
        with pytest.raises(Exception, match="no argument 'idd'"):
            add("x", task="report", cron="@daily", args={"idd": 1})
        with pytest.raises(ConfigError, match="defined in the code"):
            add("nightly", task="report", cron="@daily")
        with pytest.raises(ConfigError, match="defined in the code"):
            app.schedules.edit("nightly", cron="@hourly")
        with pytest.raises(ConfigError, match="defined in the code"):
            app.schedules.remove("nightly")
        add("x", task="report", cron="@daily")
        with pytest.raises(ConfigError, match="another definition"):
            add("x", task="report", cron="@hourly")
        assert [one.name for one in app.schedules.list()] == ["nightly", "x"]
    with pytest.raises(ConfigError, match="two schedules are named 'report'"):
        app.schedule("@daily")(app.schedule("@hourly")(report))
    with pytest.raises(ConfigError, match=r"goes above @app\.task"):
        app.schedule("@daily")(lambda: None)  # type: ignore[type-var]


def test_a_schedule_that_cannot_be_read_does_not_stop_the_others() -> None:
    app = new_app()

    @app.task(name="ok")
    def ok() -> None: ...

    with virtual(app) as world:
        app.schedules.add("ok", task="ok", every="1m")
        driver = app.ready()
        at = world.now
        broken = ScheduleRow(name="a", definition="{}", is_code=False, created_at=at, last_window=at)
        driver._state.schedules.rows["a"] = broken  # type: ignore[attr-defined]

        async def tick() -> None:
            await Ticker(driver, 1.0).run_once()

        world._clock.move_to(61.0)
        found: ScheduleRows = driver.run(driver.schedules(name="ok"))
        asyncio.run(tick())
        assert driver.run(driver.schedules(name="ok")).found[0].last_window > found.found[0].last_window
