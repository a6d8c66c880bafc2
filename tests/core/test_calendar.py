"""Holiday calendars: which windows remain, which ones move, and what a calendar refuses."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from winch import ConfigError
from winch.core.policy.calendar import MAX_DAYS, Calendar, calendar, moments_of
from winch.core.policy.cron import Dst
from winch.core.policy.schedule import Misfire, Timing, next_windows, owed, timing

BERLIN = ZoneInfo("Europe/Berlin")
# Christmas of 2026: a Friday and a Saturday.
CHRISTMAS = calendar("de", ["2026-12-25", date(2026, 12, 26)], weekend=["sat", "SUN"])


def local(made: Timing, after: datetime, count: int) -> list[str]:
    return [f"{one.astimezone(made.zone):%m-%d %H:%M}" for one in next_windows(made, after, count)]


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=BERLIN).astimezone(UTC)


def test_closed_days_have_no_window() -> None:
    made = timing("30 9 * * *", tz="Europe/Berlin", calendar=CHRISTMAS)
    assert local(made, at("2026-12-23"), 5) == [
        "12-23 09:30", "12-24 09:30", "12-28 09:30", "12-29 09:30", "12-30 09:30",
    ]  # fmt: skip
    assert made.words().endswith(", not on closed days of de")


def test_windows_of_closed_days_come_on_the_next_open_day() -> None:
    made = timing("0 9 25 * *", tz="Europe/Berlin", calendar=CHRISTMAS, on_holiday="next")
    # October's is a Sunday; December's is followed by a Saturday and a Sunday.
    assert local(made, at("2026-10-01"), 4) == [
        "10-26 09:00",
        "11-25 09:00",
        "12-28 09:00",
        "01-25 09:00",
    ]


@pytest.mark.parametrize("start", ["2026-12-25T08:00", "2026-12-25T09:00", "2026-12-26T23:00",
                                   "2026-12-27T12:00", "2026-12-28T08:59"])  # fmt: skip
def test_a_moved_window_is_found_from_any_moment_before_it(start: str) -> None:
    made = timing("0 9 25 * *", tz="Europe/Berlin", calendar=CHRISTMAS, on_holiday="next")
    assert local(made, at(start), 1) == ["12-28 09:00"]
    assert local(made, at("2026-12-28T09:00"), 1) == ["01-25 09:00"]


def test_windows_that_meet_are_one_and_each_is_found_from_every_start() -> None:
    made = timing("0,30 9 * * *", tz="Europe/Berlin", calendar=CHRISTMAS, on_holiday="next")
    whole = list(islice(made.after(at("2026-12-20")), 40))
    assert whole == sorted(set(whole))
    days = {one.astimezone(BERLIN).date() for one in whole}
    assert not any(CHRISTMAS.is_closed(day) for day in days)
    for place, start in enumerate(whole[:-5]):
        assert list(islice(made.after(start), 4)) == whole[place + 1 : place + 5]
        before = start - timedelta(microseconds=1)
        assert list(islice(made.after(before), 2)) == whole[place : place + 2]


def test_the_days_are_those_of_the_time_zone() -> None:
    one_day = calendar("c", ["2026-12-25"])
    made = timing("0 1 * * *", tz="Pacific/Kiritimati", calendar=one_day)  # 14 hours ahead of UTC
    found = next_windows(made, datetime(2026, 12, 23, 12, tzinfo=UTC), 2)
    # 01:00 there on the 25th is 11:00 UTC on the 24th: that one is closed.
    assert [f"{one:%d %H}" for one in found] == ["25 11", "26 11"]
    spaced = timing(every="12h", calendar=one_day)
    found = next_windows(spaced, datetime(2026, 12, 24, 12, tzinfo=UTC), 2)
    assert [f"{one:%d %H}" for one in found] == ["26 00", "26 12"]


# In Berlin clocks go forward on Sunday, 2026-03-29, and back on Sunday, 2026-10-25.
@pytest.mark.parametrize(
    "day, expression, dst, found",
    [
        ("2026-03-28", "30 2 * * SAT", "once", ["2026-03-29T01:00"]),
        ("2026-03-28", "30 2 * * SAT", "twice", ["2026-03-29T01:00"]),
        ("2026-03-28", "30 2 * * SAT", "skip", []),
        ("2026-10-24", "30 2 * * SAT", "once", ["2026-10-25T00:30"]),
        ("2026-10-24", "30 2 * * SAT", "skip", ["2026-10-25T00:30"]),
        ("2026-10-24", "30 2 * * SAT", "twice", ["2026-10-25T00:30", "2026-10-25T01:30"]),
    ],
)
def test_a_window_moves_to_a_night_when_clocks_change(
    day: str, expression: str, dst: str, found: list[str]
) -> None:
    closed = calendar("c", [day])
    made = timing(expression, tz="Europe/Berlin", dst=dst, calendar=closed, on_holiday="next")
    start = datetime.fromisoformat(day).replace(tzinfo=UTC)
    windows = [one for one in next_windows(made, start, 3) if one < start + timedelta(days=3)]
    assert [f"{one:%Y-%m-%dT%H:%M}" for one in windows] == found


def test_a_time_that_never_comes_is_the_first_moment_after_the_change() -> None:
    face = datetime.fromisoformat("2026-03-29T02:30")
    assert moments_of(face, BERLIN, Dst.ONCE) == [datetime(2026, 3, 29, 1, tzinfo=UTC)]
    beirut = ZoneInfo("Asia/Beirut")  # midnight itself is skipped there
    [moment] = moments_of(datetime.fromisoformat("2026-03-29T00:10"), beirut, Dst.ONCE)
    assert f"{moment.astimezone(beirut):%d %H:%M}" == "29 01:00"


@pytest.mark.parametrize(
    "given, match",
    [
        ({"days": "2026-12-25"}, "lists, not one text"),
        ({"days": ["25.12.2026"]}, "a date such as 2026-12-25, got '25.12.2026'"),
        ({"days": [datetime(2026, 12, 25, tzinfo=UTC)]}, "a date such as"),
        ({"days": [7]}, "a date such as"),
        ({"days": [], "weekend": ["SAD"]}, "weekend takes MON, TUE, .* got 'SAD'"),
        ({"days": [], "weekend": ["MON", "TUE", "WED", "THU", "FRI", "SAT", "SUN"]}, "no day open"),
        ({"days": [date(2026, 1, 1) + timedelta(days=n) for n in range(32)]}, "32 closed days in a row"),
        ({"days": [date(2026, 1, 1) + timedelta(days=2 * n) for n in range(1001)]}, "1,001 days"),
    ],
)  # fmt: skip
def test_mistakes_of_calendars(given: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        calendar("c", **given)


@pytest.mark.parametrize(
    "given, match",
    [
        ({"cron": "0 9 * * *", "on_holiday": "skip"}, "goes with calendar="),
        ({"cron": "0 9 * * *", "calendar": CHRISTMAS, "on_holiday": "later"}, "one of skip, next"),
        ({"every": "5m", "calendar": CHRISTMAS, "on_holiday": "next"}, "no time of day to keep"),
        ({"cron": "*/5 9 * * *", "calendar": CHRISTMAS, "on_holiday": "next"}, "no time of day to keep"),
        ({"cron": "0 9 * * SUN", "calendar": CHRISTMAS}, "all times of the schedule are on closed days"),
    ],
)  # fmt: skip
def test_mistakes_of_timings(given: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        timing(**given)


def test_a_timing_with_a_calendar_has_a_short_key_that_follows_its_days() -> None:
    days = [date(2026, 1, 1) + timedelta(days=2 * n) for n in range(MAX_DAYS)]
    one = timing("0 9 * * *", calendar=calendar("c", days))
    other = timing("0 9 * * *", calendar=calendar("c", days[1:]))
    assert one.key != other.key
    assert len(one.key) < 100
    assert one.key == timing("0 9 * * *", calendar=calendar("c", days)).key
    assert Calendar(name="c").next_open(date(2026, 1, 1)) == date(2026, 1, 2)


# -- the misfire deadline ----------------------------------------------------------------------------


def test_a_window_later_than_the_deadline_is_not_made_up_for() -> None:
    now = datetime(2026, 11, 18, 12, 30, tzinfo=UTC)
    hourly = timing("0 * * * *")
    since = now - timedelta(hours=8)
    found = owed(hourly, Misfire.ALL, 100, since, now, timedelta(hours=2, minutes=30))
    assert found is not None
    assert [one.hour for one in found.windows] == [10, 11, 12]
    assert [one.hour for one in found.missed] == [5, 6, 7, 8, 9]
    found = owed(hourly, Misfire.LATEST, 100, since, now, timedelta(minutes=29))
    assert found is not None
    assert (found.windows, len(found.missed), found.until.hour) == ((), 8, 12)
