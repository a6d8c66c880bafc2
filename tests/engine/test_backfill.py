"""`app.schedules.backfill` on the stores that a fleet shares: each window has one job."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest

import winch
from winch import App, ConfigError, ScheduleNotFound
from winch.engine.maintenance.ticker import Ticker

START = datetime(2026, 3, 1, tzinfo=UTC)
END = START + timedelta(minutes=1000)

CHILD = """
import sys
from datetime import datetime
from winch import App
from winch.areas.scheduling import backfill

backfill.BATCH = 10
app = App(sys.argv[1])
app.schedules.backfill("minutely", *map(datetime.fromisoformat, sys.argv[2:]))
"""


def new_app(url: str) -> App:
    app = App(url)
    app.driver.migrate()

    @app.task(name="minute", retention="30d")
    def minute() -> None: ...

    app.schedules.add("minutely", minute, every="1m", misfire="all", catch_up=1000)
    return app


def windows(app: App) -> list[str]:
    found: list[str] = []
    after: str | None = None
    while True:
        page = app.jobs.list(task="minute", limit=500, after=after)
        found += [job.record.headers["winch-window"] for job in page]
        if (after := page.next) is None:
            return found


def run_all(app: App) -> None:
    app.run_worker(burst=True, concurrency=50)


@pytest.fixture
def app(store_url: str) -> Iterator[App]:
    made = new_app(store_url)
    yield made
    made.close()


def test_a_thousand_windows_twice_are_a_thousand_jobs(app: App, store_url: str) -> None:
    """While a ticker runs, and with a process that is killed on the way."""
    given = (store_url, START.isoformat(), END.isoformat())
    child = subprocess.Popen([sys.executable, "-c", CHILD, *given])
    deadline = time.monotonic() + 60
    while not (before := len(windows(app))) and time.monotonic() < deadline:
        time.sleep(0.005)
    child.kill()
    child.wait()
    assert 0 < before < 1000
    stop = threading.Event()

    async def tick() -> None:
        other = App(store_url)
        ticker = Ticker(other.ready(), 0.01)
        while not stop.is_set():
            await ticker.run_once()
            await asyncio.sleep(0.01)
        await other.aclose()

    ticking = threading.Thread(target=lambda: asyncio.run(tick()))
    ticking.start()
    try:
        outcomes: list[int] = []

        def fill() -> None:
            outcomes.append(app.schedules.backfill("minutely", START, END).enqueued)

        both = [threading.Thread(target=fill) for _ in range(2)]
        for thread in both:
            thread.start()
        for thread in both:
            thread.join()
    finally:
        stop.set()
        ticking.join()
    found = [one for one in windows(app) if one < END.isoformat()]
    assert len(found) == len(set(found)) == 1000
    assert sum(outcomes) <= 1000 - before
    run_all(app)
    # All are done, and the runs of most are forgotten with the next change.
    app.schedules.trigger("minutely")
    assert len(app.schedules.history("minutely", limit=5000)) < 300
    again = app.schedules.backfill("minutely", START, END)
    assert (again.matched, again.enqueued, again.existing) == (1000, 0, 1000)
    found = [one for one in windows(app) if one < END.isoformat()]
    assert len(found) == len(set(found)) == 1000


# -- what the call itself does: one store is enough ---------------------------------------------------


@pytest.fixture
def one(tmp_path: Path) -> App:
    return new_app(f"sqlite:///{tmp_path}/winch.db")


def test_a_preview_changes_nothing_and_lists_what_would_come(one: App) -> None:
    seen = one.schedules.backfill("minutely", START, START + timedelta(minutes=3), dry_run=True)
    assert seen.is_dry_run
    assert seen.windows == tuple(START + n * timedelta(minutes=1) for n in range(3))
    assert windows(one) == []
    lines = [line.action for line in one.audit.list()]
    assert "backfill schedule" not in lines
    done = one.schedules.backfill("minutely", START, START + timedelta(minutes=3))
    assert (done.windows, done.enqueued) == (seen.windows, 3)
    line = next(line for line in one.audit.list() if line.action == "backfill schedule")
    assert (line.target, line.detail["enqueued"]) == ("minutely", 3)


def test_a_rate_and_a_priority(one: App) -> None:
    end = START + timedelta(minutes=250)
    one.schedules.backfill("minutely", START, end, rate="60/m", priority="low")
    jobs = sorted(
        (job.record for job in one.jobs.list(task="minute", limit=500)),
        key=lambda job: job.headers["winch-window"],
    )
    assert len(jobs) == 250
    assert {job.priority for job in jobs} == {one.jobs.list(task="minute")[0].record.priority}
    gaps = [later.run_at - earlier.run_at for earlier, later in pairwise(jobs)]
    # Batches are due from the moment at which each is stored.
    assert all(timedelta(seconds=0.9) < gap < timedelta(seconds=5) for gap in gaps)


@pytest.mark.parametrize(
    "start, end, options, match",
    [
        (END, START, {}, "start must be before end"),
        (START.replace(tzinfo=None), END, {}, "start must be a datetime with a time zone"),
        (START, "2026-01-01", {}, "end must be a datetime with a time zone"),
        (START, START + timedelta(days=30), {}, "more than 10,000 times"),
        (START, END, {"rate": "1/d"}, "rate must look like"),
        (START, END, {"rate": "0.1/h"}, "1,000 jobs at rate '0.1/h' take longer than a year"),
        (START, END, {"priority": "urgent!"}, "priority must be"),
    ],
)
def test_mistakes(one: App, start: datetime, end: datetime, options: dict[str, str], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        one.schedules.backfill("minutely", start, end, **options)  # type: ignore[arg-type]
    assert windows(one) == []


def test_no_such_schedule(one: App) -> None:
    with pytest.raises(ScheduleNotFound):
        one.schedules.backfill("none", START, END)


def test_a_calendar_is_defined_once_and_known_by_name(one: App) -> None:
    one.schedules.calendar("de", ["2026-12-25"])
    with pytest.raises(ConfigError, match="two calendars are named 'de'"):
        one.schedules.calendar("de", [])
    with pytest.raises(ConfigError, match=r"no calendar named 'dee'.*did you mean 'de'"):
        one.schedules.add("c", "minute", cron="0 9 * * *", calendar="dee")
    made = one.schedules.add("c", "minute", cron="0 9 * * *", calendar="de", misfire_deadline="1h")
    assert (made.timing.calendar.name, made.misfire_deadline) == ("de", timedelta(hours=1))  # type: ignore[union-attr]
    # Another program knows neither the calendar nor the task; what it does not change stays.
    other = App(one.settings.url)
    edited = other.schedules.edit("c", cron="0 10 25 * *", on_holiday="next")
    assert edited.timing.on_holiday == "next"
    assert edited.timing.calendar == made.timing.calendar
    assert edited.misfire_deadline == timedelta(hours=1)
    christmas = datetime(2026, 12, 20, tzinfo=UTC)
    assert edited.timing.next_after(christmas) == datetime(2026, 12, 26, 10, tzinfo=UTC)
    plain = other.schedules.edit("c", calendar="")
    assert plain.timing.calendar is None
    assert plain.timing.next_after(christmas) == datetime(2026, 12, 25, 10, tzinfo=UTC)


def test_a_deadline_below_ten_seconds_is_refused(one: App) -> None:
    with pytest.raises(ConfigError, match="misfire_deadline must be at least 10s, got '5s'"):
        one.schedules.edit("minutely", misfire_deadline="5s")
    with pytest.raises(ConfigError, match="code: misfire_deadline must be at least 10s"):
        _ = winch.App("memory://", misfire_deadline="1s").settings
