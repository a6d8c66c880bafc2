"""Cron expressions: the moments that cronsim publishes, and both odd nights of the year."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from winch.core.errors import ConfigError
from winch.core.policy.cron import NAMED, check_cron, explain_cron
from winch.core.policy.schedule import (
    MISSED_AFTER,
    MOST_CATCH_UP,
    Misfire,
    Timing,
    jittered,
    next_windows,
    owed,
    timing,
    window_id,
)

# expression | zone | start | the moments that follow: facts published with cronsim, in its tests.
FACTS = [
    line.split(" | ") for line in Path(__file__).with_name("cron_facts.txt").read_text().splitlines()
]
ZONES = ("Europe/London", "America/New_York")
HOUR = timedelta(hours=1)


def utc(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)  # type: ignore[arg-type,misc]  # year, month, day and so on


def local(moment: datetime, zone: str) -> str:
    return f"{moment.astimezone(ZoneInfo(zone)):%m-%d %H:%M %z}"


@pytest.mark.parametrize("expression, zone, start, moments", FACTS)
def test_moments_are_those_that_cronsim_publishes(
    expression: str, zone: str, start: str, moments: str
) -> None:
    began = datetime.fromisoformat(start)
    began = began if began.tzinfo else began.replace(tzinfo=ZoneInfo(zone))
    expected = [datetime.fromisoformat(moment) for moment in moments.split()]
    expected = [moment if moment.tzinfo else moment.replace(tzinfo=UTC) for moment in expected]
    assert next_windows(timing(expression, tz=zone), began, len(expected)) == expected


@pytest.mark.parametrize("dst", ["once", "skip", "twice"])
@pytest.mark.parametrize("zone", ZONES)
def test_a_time_of_day_that_is_jumped_over(zone: str, dst: str) -> None:
    # London: 01:00 becomes 02:00 on 29 March 2026; New York: 02:00 becomes 03:00 on 8 March 2026.
    is_london = zone == "Europe/London"
    cron = "30 1 * * *" if is_london else "30 2 * * *"
    start = utc(2026, 3, 28, 12) if is_london else utc(2026, 3, 7, 12)
    found = [local(w, zone) for w in next_windows(timing(cron, tz=zone, dst=dst), start, 2)]
    after_the_jump = "03-29 02:00 +0100" if is_london else "03-08 03:00 -0400"
    next_day = "03-30 01:30 +0100" if is_london else "03-09 02:30 -0400"
    day_after = "03-31 01:30 +0100" if is_london else "03-10 02:30 -0400"
    assert found == ([next_day, day_after] if dst == "skip" else [after_the_jump, next_day])


@pytest.mark.parametrize("dst", ["once", "skip", "twice"])
@pytest.mark.parametrize("zone", ZONES)
def test_a_time_of_day_that_comes_twice(zone: str, dst: str) -> None:
    # London: 02:00 becomes 01:00 on 25 October 2026; New York: 02:00 becomes 01:00 on 1 November 2026.
    is_london = zone == "Europe/London"
    start = utc(2026, 10, 24, 12) if is_london else utc(2026, 10, 31, 12)
    first = "10-25 01:30 +0100" if is_london else "11-01 01:30 -0400"
    second = "10-25 01:30 +0000" if is_london else "11-01 01:30 -0500"
    next_day = "10-26 01:30 +0000" if is_london else "11-02 01:30 -0500"
    when = timing("30 1 * * *", tz=zone, dst=dst)
    found = [local(w, zone) for w in next_windows(when, start, 3)]
    assert found[:3] == [first, second, next_day] if dst == "twice" else found[:2] == [first, next_day]


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize(
    "start", [utc(2026, 3, 7), utc(2026, 3, 28), utc(2026, 10, 24), utc(2026, 10, 31)]
)
def test_a_spacing_is_kept_on_every_night(zone: str, start: datetime) -> None:
    found = next_windows(timing("*/15 * * * *", tz=zone), start, 300)
    assert {later - sooner for sooner, later in pairwise(found)} == {HOUR / 4}


@pytest.mark.parametrize("zone", ZONES)
def test_next_after_in_a_repeated_hour_returns_no_past_moment(zone: str) -> None:
    for minutes in range(0, 3 * 60, 7):
        start = (
            utc(2026, 10, 25) if zone == "Europe/London" else utc(2026, 11, 1, 5)
        ) + minutes * HOUR / 60
        for dst in ("once", "skip", "twice"):
            window = timing("45 1 * * *", tz=zone, dst=dst).next_after(start)
            assert window is not None
            assert window > start


EXPRESSIONS = st.sampled_from(
    [
        "* * * * *",
        "*/7 * * * *",
        "30 1 * * *",
        "0,30 1-3 * * *",
        "15 2 * * 0",
        "0 0 L * *",
        "5 4 * * 5#2",
    ]
)
MOMENTS = st.integers(0, 11 * 365 * 86_400).map(lambda n: utc(2020, 1, 1) + timedelta(seconds=n))


@settings(max_examples=60, deadline=None)
@given(
    EXPRESSIONS,
    st.sampled_from([*ZONES, "UTC", "Australia/Lord_Howe", "Asia/Kathmandu", "America/St_Johns"]),
    st.sampled_from(["once", "skip", "twice"]),
    MOMENTS,
)
def test_windows_come_in_order_and_do_not_depend_on_where_one_starts(
    expression: str, zone: str, dst: str, start: datetime
) -> None:
    when = timing(expression, tz=zone, dst=dst)
    found = next_windows(when, start, 6)
    assert found == sorted(set(found))
    assert all(window > start for window in found)
    for place, window in enumerate(found[:-1]):
        assert when.next_after(window) == found[place + 1]
    between = start + (found[0] - start) / 2
    if between > start:
        assert when.next_after(between) == found[0]


@settings(max_examples=60, deadline=None)
@given(
    EXPRESSIONS, st.sampled_from(["once", "twice"]), MOMENTS, st.integers(1, 90 * 24), st.integers(1, 50)
)
def test_the_newest_due_windows_are_those_a_long_walk_finds(
    expression: str, dst: str, since: datetime, hours: int, most: int
) -> None:
    when = timing(expression, tz="Europe/London", dst=dst)
    until = since + min(hours, 24 if expression.startswith("*") else hours) * HOUR
    all_of_them = []
    for window in when.after(since):
        if window > until:
            break
        all_of_them.append(window)
    assert when.due(since, until, most) == (all_of_them[-most:], len(all_of_them) > most)


def test_every_keeps_its_spacing_from_midnight() -> None:
    found = next_windows(timing(every="10m"), utc(2026, 3, 29, 0, 55), 3)
    assert found == [utc(2026, 3, 29, 1), utc(2026, 3, 29, 1, 10), utc(2026, 3, 29, 1, 20)]


def test_names_stand_for_their_expressions() -> None:
    assert check_cron("@Daily") == "0 0 * * *"
    assert all(check_cron(name) == spelled for name, spelled in NAMED.items())
    assert check_cron("  0  9 * *  mon-fri ") == "0 9 * * mon-fri"
    assert "9" in explain_cron("0 9 * * 1")


@pytest.mark.parametrize(
    "options, match",
    [
        ({"cron": "* * * *"}, "five fields"),
        ({"cron": "0 * * * * *"}, "five fields"),
        ({"cron": "61 * * * *"}, "bad minute"),
        ({"cron": "*/0 * * * *"}, "bad minute"),
        ({"cron": "* * 31 2 *"}, "bad day-of-month '31': the month 2 never has it"),
        ({"cron": "0 0 15W * *"}, r"'15W'; it takes 1 to 31, L \(the last day\) and LW"),
        ({"cron": "0 0 L-3 * *"}, r"'L-3'; it takes 1 to 31, L \(the last day\) and LW"),
        ({"cron": "0 0 * * 5#L"}, r"'5#L'; it takes 0 to 7, .*1#2 \(the second Monday\)"),
        ({"cron": "0 0 * FOO *"}, "'FOO'; it takes 1 to 12 and JAN to DEC, besides"),
        ({"cron": "1 1 */100 * MON#4"}, "does not exist"),
        ({"cron": "@dayly"}, "@daily"),
        ({"cron": "* * L/3-LW * *"}, "cron"),
        ({"cron": 5}, "text of five fields"),
        ({"cron": "* * * * *", "tz": "Europe/Londn"}, "Europe/London"),
        ({"cron": "* * * * *", "tz": "../etc/passwd"}, "no time zone"),
        ({"cron": "* * * * *", "dst": "never"}, "dst must be one of once, skip, twice"),
        ({"cron": "* * * * *", "every": "5m"}, "not both"),
        ({}, "cron expression or every"),
        ({"every": "10ms"}, "at least 1s"),
        ({"every": "5m", "tz": "Europe/London"}, "go with a cron expression"),
    ],
)
def test_wrong_timings_are_refused_with_a_reason(options: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        timing(**options)


# -- what is owed ---------------------------------------------------------------------------------

MINUTELY = timing("* * * * *")
NOON = utc(2026, 5, 1, 12)


def minutes(*numbers: int) -> tuple[datetime, ...]:
    return tuple(NOON + timedelta(minutes=number) for number in numbers)


def test_nothing_is_owed_between_windows() -> None:
    assert owed(MINUTELY, Misfire.ALL, 10, NOON, NOON + timedelta(seconds=59)) is None


def test_a_window_in_time_gets_its_job_whatever_the_policy() -> None:
    for misfire in Misfire:
        found = owed(MINUTELY, misfire, 10, NOON, NOON + timedelta(seconds=61))
        assert found is not None
        assert (found.windows, found.missed, found.until) == (minutes(1), (), minutes(1)[0])


@pytest.mark.parametrize(
    "misfire, late, windows",
    [
        (Misfire.SKIP, 5, (5,)),
        (Misfire.SKIP, 30, ()),
        (Misfire.LATEST, 5, (5,)),
        (Misfire.LATEST, 30, (5,)),
        (Misfire.ALL, 5, (2, 3, 4, 5)),
        (Misfire.ALL, 30, (3, 4, 5)),
    ],
)
def test_missed_windows_follow_the_policy(misfire: Misfire, late: int, windows: tuple[int, ...]) -> None:
    now = NOON + timedelta(minutes=5, seconds=late)
    found = owed(MINUTELY, misfire, 3, NOON, now)
    assert found is not None
    assert found.windows == minutes(*windows)
    assert found.until == minutes(5)[0]
    assert set(found.windows) | set(found.missed) == set(minutes(1, 2, 3, 4, 5))


def test_a_year_of_missed_windows_is_counted_up_to_a_bound() -> None:
    found = owed(MINUTELY, Misfire.ALL, 100, NOON - timedelta(days=366), NOON + 3 * MISSED_AFTER)
    assert found is not None
    assert len(found.windows) == 100
    assert found.is_more
    assert len(found.missed) == MOST_CATCH_UP - 100
    assert found.until == NOON


def test_jitter_and_ids_are_the_same_for_all() -> None:
    window = minutes(1)[0]
    drawn = jittered("a", window, HOUR)
    assert window <= drawn < window + HOUR
    assert drawn == jittered("a", window, HOUR)
    assert drawn != jittered("b", window, HOUR)
    assert jittered("a", window, timedelta(0)) == window
    assert window_id("a", window) == window_id("a", window) != window_id("b", window)
    assert window_id("a", window) < window_id("a", window + timedelta(seconds=1))
    assert Timing(every=HOUR).key == timing(every="60m").key != timing(every="61m").key
