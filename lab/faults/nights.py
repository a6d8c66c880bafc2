"""The nights on which clocks are changed, lived through in virtual time, with workers that die."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from typing import ClassVar
from zoneinfo import ZoneInfo

from lab.faults.base import Fault
from lab.results import Result
from winch import App
from winch.storage.decide.schedules import SCHEDULE_HEADER, WINDOW_HEADER
from winch.testing import virtual

# The evening before; two days later the night is over everywhere.
NIGHTS = {
    "Europe/London": (datetime(2026, 3, 28, 12, tzinfo=UTC), datetime(2026, 10, 24, 12, tzinfo=UTC)),
    "America/New_York": (datetime(2026, 3, 7, 12, tzinfo=UTC), datetime(2026, 10, 31, 12, tzinfo=UTC)),
}
# Inside the hour that is jumped over in spring and comes twice in autumn; and one in no such hour.
TIMES = {"Europe/London": ("30 1 * * *", "0 9 * * *"), "America/New_York": ("30 2 * * *", "30 1 * * *")}
SPAN = timedelta(days=2)


class ClockChange(Fault):
    name = "F18"
    title = "both nights on which clocks change, in London and New York, with crashing workers"
    stores = ("memory",)
    is_virtual: ClassVar[bool] = True

    @classmethod
    def play(cls, seed: int) -> Result:
        rng = random.Random(f"{seed}/F18")
        wrong: list[str] = []
        windows = crashes = 0
        for zone, nights in NIGHTS.items():
            for start in nights:
                found, died = live(zone, start, rng)
                crashes += died
                windows += sum(found.values())
                wrong += judge(zone, start, found)
        return Result(
            store="memory",
            fault=cls.name,
            title=cls.title,
            seed=seed,
            is_ok=not wrong and crashes > 0,
            observed=f"4 nights, {windows} windows, {crashes} workers died",
            seconds=0,
            violations=tuple(wrong),
        )


def live(zone: str, start: datetime, rng: random.Random) -> tuple[Counter[tuple[str, datetime]], int]:
    """Live through two days; how often each window of each schedule has a job, and how many died."""
    app = App("memory://")
    app.task(name="tick")(_nothing)
    crashes = 0
    with virtual(app, seed=rng.randrange(10**6), start=start) as world:
        for cron in (*TIMES[zone], "*/15 * * * *"):
            app.schedules.add(cron, task="tick", cron=cron, tz=zone, misfire="all")
        until = start + SPAN
        while world.now < until:
            world.advance(min(timedelta(minutes=rng.randrange(1, 90)), until - world.now))
            if rng.random() < 0.2:
                world.crash_worker()
                crashes += 1
        world.advance("5m")
        found: Counter[tuple[str, datetime]] = Counter()
        for job in world.jobs(task="tick"):
            headers = job.record.headers
            window = datetime.fromisoformat(headers[WINDOW_HEADER])
            if window <= until:
                found[headers[SCHEDULE_HEADER], window] += 1
    app.close()
    return found, crashes


def judge(zone: str, start: datetime, found: Counter[tuple[str, datetime]]) -> list[str]:
    """A time of day comes once on each day; a quarter of an hour comes each quarter of an hour."""
    wrong = [
        f"I8: {zone}: {times} jobs for {window} of {name}"
        for (name, window), times in found.items()
        if times > 1
    ]
    for cron in TIMES[zone]:
        days = Counter(
            window.astimezone(ZoneInfo(zone)).date() for name, window in found if name == cron
        )
        expected = set(_days(cron, zone, start))
        wrong += [f"I8: {zone}: {cron} has no window on {day}" for day in sorted(expected - set(days))]
        wrong += [
            f"I8: {zone}: {cron} has {times} windows on {day}"
            for day, times in days.items()
            if times > 1
        ]
    quarters = sorted(window for name, window in found if name.startswith("*/15"))
    for one, other in pairwise(quarters):
        if other - one != timedelta(minutes=15):
            wrong.append(f"I8: {zone}: {other - one} between {one} and {other} of */15")
    if len(quarters) != SPAN // timedelta(minutes=15):
        wrong.append(f"I8: {zone}: {len(quarters)} quarters of an hour in {SPAN}")
    return wrong


def _days(cron: str, zone: str, start: datetime) -> list[date]:
    """The local days on which this time of day, or the moment it is moved to, lies within the span."""
    minute, hour = (int(part) for part in cron.split()[:2])
    days = []
    local = start.astimezone(ZoneInfo(zone)).date()
    for number in range(4):
        day = local + timedelta(days=number)
        moment = datetime(day.year, day.month, day.day, hour, minute, tzinfo=ZoneInfo(zone)).astimezone(
            UTC
        )
        if start < moment <= start + SPAN:
            days.append(day)
    return days


def _nothing() -> None:
    pass
