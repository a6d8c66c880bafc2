"""Cron expressions: when their windows are, in any time zone, on the nights when clocks are changed too.

`cronsim` finds the moments; this module is the only one that knows it. An expression whose minute and
hour are given (not `*`) means times of day, and what becomes of those on the two odd nights of a year is
the schedule's own choice (`Dst`). Every other expression means a spacing, which is kept on all nights.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from enum import StrEnum
from typing import TYPE_CHECKING

from winch.core.errors import ConfigError, did_you_mean, within
from winch.core.values.bounds import check_length

if TYPE_CHECKING:
    from cronsim import CronSim

NAMED = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
FIELDS = 5
# What each field takes besides *, a range (1-5), a list (1,15) and a step (*/5).
KNOWN = {
    "minute": "0 to 59",
    "hour": "0 to 23",
    "day-of-month": "1 to 31, L (the last day) and LW (the last weekday)",
    "month": "1 to 12 and JAN to DEC",
    "day-of-week": "0 to 7, SUN to SAT, 5L (the last Friday) and 1#2 (the second Monday)",
}
# Sixty minutes, twenty-four hours and all days, months and weekdays in full are shorter.
MAX_CHARS = 500
# No zone has ever set its clocks back by more.
LONGEST_FOLD = timedelta(hours=3)
SECOND = timedelta(seconds=1)


class Dst(StrEnum):
    """What happens to a time of day when clocks change.

    - ONCE: a skipped time runs at the first moment after the change; a repeated time runs at its first
      occurrence.
    - SKIP: as ONCE, but a skipped time does not run that day.
    - TWICE: as ONCE, but a repeated time runs twice.
    """

    ONCE = "once"
    SKIP = "skip"
    TWICE = "twice"


def check_cron(expression: object) -> str:
    """The expression with a name such as @daily spelled out. Raises ConfigError."""
    if not isinstance(expression, str):
        raise ConfigError(f"cron must be a text of five fields, got {expression!r}")
    text = " ".join(check_length(expression, MAX_CHARS, "cron").split())
    if text.startswith("@"):
        spelled = NAMED.get(text.lower())
        if spelled is None:
            raise ConfigError(f"no cron name {text!r}{did_you_mean(text, NAMED)}")
        return spelled
    if len(text.split()) != FIELDS:
        raise ConfigError(
            f"cron takes five fields (minute hour day month weekday), got {len(text.split())} in "
            f"{expression!r}"
        )
    simulated = _simulator(text, datetime(2026, 1, 1, tzinfo=UTC))
    if next(simulated, None) is None:
        raise ConfigError(f"cron {expression!r} names a day that does not exist")
    return text


def explain_cron(expression: str) -> str:
    """The expression in English."""
    return _simulator(expression, datetime(2026, 1, 1, tzinfo=UTC)).explain()


def is_time_of_day(expression: str) -> bool:
    """Whether the expression names times of day (a Dst choice matters), not a spacing."""
    minute, hour = expression.split()[:2]
    return not minute.startswith("*") and not hour.startswith("*")


def windows(expression: str, zone: tzinfo, dst: Dst, after: datetime) -> Iterator[datetime]:
    """The windows later than `after`, in order and in UTC; ends if no more come."""
    if dst is Dst.TWICE and is_time_of_day(expression):
        found = _twice(_simulated(expression, zone, after - LONGEST_FOLD), zone)
    else:
        found = _simulated(expression, zone, after)
        if dst is Dst.SKIP and is_time_of_day(expression):
            found = (moment for moment in found if _is_on_the_clock(expression, zone, moment))
    return (moment for moment in found if moment > after)


def _simulator(expression: str, start: datetime) -> CronSim:
    from cronsim import CronSim, CronSimError  # half of the processes never see a schedule

    try:
        return CronSim(expression, start)
    except CronSimError as error:
        words = _mistake(expression, within(str(error)))
        raise ConfigError(f"cron {expression!r}: {words}") from None
    except (AssertionError, IndexError, ValueError):  # it trusts some inputs more than it should
        raise ConfigError(f"cron {expression!r} cannot be read") from None


def _mistake(expression: str, words: str) -> str:
    """What is wrong with an expression, which value it is, and what its field takes."""
    name = words.removeprefix("bad ")
    values = expression.split()
    if name not in KNOWN or len(values) != FIELDS:
        return words
    value = values[list(KNOWN).index(name)]
    if name == "day-of-month" and value.isdigit() and 1 <= int(value[:3]) <= 31:
        return f"bad day-of-month {value!r}: the month {values[3]} never has it"
    return (
        f"bad {name} {value!r}; it takes {KNOWN[name]}, besides *, ranges (1-5), lists (1,15) and "
        "steps (*/5)"
    )


def _simulated(expression: str, zone: tzinfo, after: datetime) -> Iterator[datetime]:
    local = after.astimezone(UTC if _is_utc(zone) else zone)
    last = after
    for moment in _simulator(expression, local):
        found = moment.astimezone(UTC)
        # In the hour that comes twice it starts from the clock's face, and may name its first coming.
        if found > last:
            last = found
            yield found


def _is_utc(zone: tzinfo) -> bool:
    return str(zone) == "UTC"


def _is_on_the_clock(expression: str, zone: tzinfo, moment: datetime) -> bool:
    """Whether the clock showed a time that the expression names, and not the end of a jump."""
    face = moment.astimezone(zone).replace(tzinfo=None)
    return bool(next(_simulator(expression, face - SECOND)) == face)


def _twice(found: Iterator[datetime], zone: tzinfo) -> Iterator[datetime]:
    again: list[datetime] = []
    for moment in found:
        while again and again[0] <= moment:
            yield heapq.heappop(again)
        yield moment
        second = moment.astimezone(zone).replace(fold=1).astimezone(UTC)
        if second > moment:
            heapq.heappush(again, second)
    while again:
        yield heapq.heappop(again)
