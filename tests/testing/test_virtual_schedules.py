"""Schedules in virtual time: closed days, nights when clocks change, deadlines and outages."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from winch import App
from winch.storage.decide.schedules import RunKind
from winch.testing import World, virtual

BERLIN = ZoneInfo("Europe/Berlin")


@pytest.fixture
def app(tmp_path: Path) -> App:
    return App(f"sqlite:///{tmp_path / 'never.db'}")


def ran_at(world: World, *, tz: ZoneInfo = BERLIN) -> list[str]:
    """The windows whose jobs are done, as the clock on the wall shows them."""
    jobs = world.jobs(state="completed")
    windows = sorted(datetime.fromisoformat(job.record.headers["winch-window"]) for job in jobs)
    return [f"{one.astimezone(tz):%m-%d %H:%M}" for one in windows]


def test_a_closed_day_has_no_job_and_a_moved_one_has_one(app: App) -> None:
    app.schedules.calendar("de", ["2026-12-25", "2026-12-26"], weekend=["SAT", "SUN"])

    @app.schedule("0 9 * * *", tz="Europe/Berlin", calendar="de", name="daily")
    @app.task
    def daily() -> None: ...

    @app.schedule("0 7 25 * *", tz="Europe/Berlin", calendar="de", on_holiday="next", name="pay")
    @app.task
    def pay() -> None: ...

    with virtual(app, start=datetime(2026, 12, 24, tzinfo=UTC)) as world:
        world.advance("5d")
        assert ran_at(world) == ["12-24 09:00", "12-28 07:00", "12-28 09:00"]
        assert [f"{one:%m-%d}" for one in app.schedules.next("pay", 2)] == ["01-25", "02-25"]


def test_a_dst_night_with_a_closed_day_before_it(app: App) -> None:
    # Saturday is closed; its job moves to Sunday, when 02:30 does not exist.
    app.schedules.calendar("c", ["2026-03-28"])

    @app.schedule("30 2 * * *", tz="Europe/Berlin", calendar="c", on_holiday="next")
    @app.task
    def nightly() -> None: ...

    with virtual(app, start=datetime(2026, 3, 26, 12, tzinfo=UTC)) as world:
        world.advance("4d")
        assert ran_at(world) == ["03-27 02:30", "03-29 03:00", "03-30 02:30"]


@pytest.mark.parametrize("policy, hours", [("all", [5, 6]), ("latest", [6]), ("skip", [])])
def test_an_outage_of_hours_and_a_deadline(app: App, policy: str, hours: list[int]) -> None:
    @app.schedule("0 * * * *", misfire=policy, misfire_deadline="2h", name="hourly")  # type: ignore[arg-type]
    @app.task
    def hourly() -> None: ...

    with virtual(app, start=datetime(2026, 11, 18, 0, 30, tzinfo=UTC)) as world:
        world.advance("1h")  # 01:00 has its job
        world.store_down("5h")
        world.advance("5h")  # 06:30: the store answers again
        world.advance("45m")  # 07:00 is in time
        expected = [1, *hours, 7]
        assert ran_at(world, tz=ZoneInfo("UTC")) == [f"11-18 {hour:02}:00" for hour in expected]
        [missed] = [one for one in app.schedules.history("hourly") if one.kind is RunKind.MISSED]
        assert missed.note == f"{5 - len(hours)} missed"


def test_the_deadline_of_the_settings_is_for_schedules_without_one(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path / 'never.db'}", misfire_deadline="90m")

    @app.schedule("0 * * * *", misfire="all", name="short")
    @app.schedule("0 * * * *", misfire="all", misfire_deadline="1d", name="long")
    @app.task
    def hourly() -> None: ...

    with virtual(app, start=datetime(2026, 11, 18, 0, 30, tzinfo=UTC)) as world:
        world.store_down("6h")
        world.advance("6h30m")
        windows = [job.record.headers["winch-schedule"] for job in world.jobs(state="completed")]
        assert (windows.count("short"), windows.count("long")) == (2, 7)


def test_a_backfill_of_a_range_once_and_twice(app: App) -> None:
    @app.schedule(every="1m", misfire="skip", name="minutely")
    @app.task
    def minutely() -> None: ...

    start = datetime(2026, 11, 18, tzinfo=UTC)
    with virtual(app, start=start + timedelta(hours=20)) as world:
        world.advance("30m")
        seen = app.schedules.backfill("minutely", start, start + timedelta(minutes=1000), dry_run=True)
        assert (seen.matched, seen.enqueued, seen.existing, len(seen.windows)) == (1000, 1000, 0, 1000)
        assert len(world.jobs()) == 30
        done = app.schedules.backfill("minutely", start, start + timedelta(minutes=1000))
        assert (done.matched, done.enqueued, done.windows) == (1000, 1000, seen.windows)
        world.advance("30m")  # all are done, and most of the runs are forgotten
        assert len(app.schedules.history("minutely", limit=5000)) < 300
        done = app.schedules.backfill("minutely", start, start + timedelta(minutes=1000))
        assert (done.enqueued, done.existing) == (0, 1000)
        # The range that the ticker has dealt with has its jobs, up to this moment.
        done = app.schedules.backfill("minutely", start, start + timedelta(days=9))
        assert (done.matched, done.enqueued) == (21 * 60 + 1, 201)
        assert len(world.jobs(state="completed")) == 1060
