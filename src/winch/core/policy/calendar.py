"""Holiday calendars: days on which a schedule does not run, or runs on the next open day instead.

A calendar is data: dates, and days of the week. Its days are those of the schedule's time zone. A
schedule keeps the days of its calendar in its own definition, so that every process finds the same
windows without any further reading.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from enum import StrEnum

import msgspec

from winch.core.errors import ConfigError, did_you_mean
from winch.core.policy.cron import Dst

MAX_DAYS = 1000
# More closed days in a row than any calendar has; it bounds every search for an open one.
MOST_IN_A_ROW = 31
# After so many closed days without an open one between them, no window is left.
MOST_JUMPS = MAX_DAYS + 400
WEEKDAYS = ("MON", "TUE", "WED", "THU", "FRI", "SAT", "SUN")
DAY = timedelta(days=1)
MOMENT = timedelta(microseconds=1)
SECOND = timedelta(seconds=1)

Windows = Callable[[datetime], Iterator[datetime]]


class OnHoliday(StrEnum):
    """What happens to a window on a closed day: no job, or the same time on the next open day."""

    SKIP = "skip"
    NEXT = "next"


class Calendar(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Closed days: `days` are dates in order, `weekend` numbers of weekdays, 0 for Monday."""

    name: str
    days: tuple[date, ...] = ()
    weekend: tuple[int, ...] = ()

    def is_closed(self, day: date) -> bool:
        """Whether this day is closed."""
        if day.weekday() in self.weekend:
            return True
        place = bisect_left(self.days, day)
        return place < len(self.days) and self.days[place] == day

    def next_open(self, day: date) -> date:
        """The first open day after this one."""
        day += DAY
        while self.is_closed(day):
            day += DAY
        return day

    def closed_before(self, day: date) -> date:
        """The first of the closed days in a row that end with this day or with the day before; the
        day itself where there are none."""
        while self.is_closed(day - DAY):
            day -= DAY
        return day


def calendar(name: str, days: Iterable[date | str], weekend: Iterable[str] = ()) -> Calendar:
    """A calendar from what a user gave. Raises ConfigError."""
    if isinstance(days, str | bytes) or isinstance(weekend, str | bytes):
        raise ConfigError(f"calendar {name!r}: days and weekend are lists, not one text")
    found = sorted({_day(name, one) for one in days})
    if len(found) > MAX_DAYS:
        raise ConfigError(f"calendar {name!r} has {len(found):,} days; {MAX_DAYS:,} is the most")
    made = Calendar(
        name=name, days=tuple(found), weekend=tuple(sorted({_weekday(name, one) for one in weekend}))
    )
    if len(made.weekend) == len(WEEKDAYS):
        raise ConfigError(f"calendar {name!r}: a weekend of seven days leaves no day open")
    for day in found:
        count = (made.next_open(day) - made.closed_before(day)).days
        if count > MOST_IN_A_ROW:
            raise ConfigError(
                f"calendar {name!r} has {count} closed days in a row from "
                f"{made.closed_before(day)}; {MOST_IN_A_ROW} is the most"
            )
    return made


def _day(name: str, given: object) -> date:
    if isinstance(given, str):
        text = given
        try:
            given = date.fromisoformat(text)
        except ValueError:
            raise ConfigError(
                f"calendar {name!r}: a day is a date such as 2026-12-25, got {text[:40]!r}"
            ) from None
    if not isinstance(given, date) or isinstance(given, datetime) or not 1970 <= given.year <= 9000:
        raise ConfigError(f"calendar {name!r}: a day is a date such as 2026-12-25, got {given!r}")
    return given


def _weekday(name: str, given: object) -> int:
    if not isinstance(given, str) or given.upper() not in WEEKDAYS:
        hint = did_you_mean(given.upper(), WEEKDAYS) if isinstance(given, str) else ""
        raise ConfigError(f"calendar {name!r}: weekend takes {', '.join(WEEKDAYS)}, got {given!r}{hint}")
    return WEEKDAYS.index(given.upper())


# -- windows ----------------------------------------------------------------------------------------


def without_closed(
    calendar: Calendar, base: Windows, zone: tzinfo, after: datetime
) -> Iterator[datetime]:
    """The windows after this moment that are on open days."""
    start, jumps, is_open = after, 0, True
    while is_open:
        is_open = False
        for window in base(start):
            day = window.astimezone(zone).date()
            if not calendar.is_closed(day):
                jumps = 0
                yield window
                continue
            jumps += 1
            if jumps > MOST_JUMPS:
                return
            # The rest of the closed days is passed over in one step.
            start = max(window, _start_of(calendar.next_open(day), zone) - MOMENT)
            is_open = True
            break


def moved_to_open(
    calendar: Calendar, base: Windows, zone: tzinfo, dst: Dst, after: datetime
) -> Iterator[datetime]:
    """The windows after this moment, where those of closed days come at the same time of the next open
    day. Two that meet there are one."""
    # What moves here from earlier days is on the closed days right before.
    first = calendar.closed_before(after.astimezone(zone).date())
    moved: list[datetime] = []
    last = after
    for window in base(min(after, _start_of(first, zone) - MOMENT)):
        while moved and moved[0] <= window:
            found = heapq.heappop(moved)
            if found > last:
                last = found
                yield found
        face = window.astimezone(zone).replace(tzinfo=None, fold=0)
        if not calendar.is_closed(face.date()):
            if window > last:
                last = window
                yield window
            continue
        there = datetime.combine(calendar.next_open(face.date()), face.time())
        for moment in moments_of(there, zone, dst):
            if moment not in moved:
                heapq.heappush(moved, moment)
    while moved:
        found = heapq.heappop(moved)
        if found > last:
            last = found
            yield found


def moments_of(face: datetime, zone: tzinfo, dst: Dst) -> list[datetime]:
    """When the clock shows this time of day, by the schedule's choice on the two odd nights."""
    first = face.replace(tzinfo=zone, fold=0).astimezone(UTC)
    second = face.replace(tzinfo=zone, fold=1).astimezone(UTC)
    if first == second:
        return [first]
    if second > first:  # it comes twice
        return [first, second] if dst is Dst.TWICE else [first]
    if dst is Dst.SKIP:
        return []
    # It never comes: the first moment after the change, which lies between the two.
    offset = second.astimezone(zone).utcoffset()
    while first - second > SECOND:
        middle = (second + (first - second) / 2).replace(microsecond=0)
        if middle.astimezone(zone).utcoffset() == offset:
            second = max(middle, second + MOMENT)
        else:
            first = middle
    return [first]


def _start_of(day: date, zone: tzinfo) -> datetime:
    return datetime.combine(day, time.min, tzinfo=zone).astimezone(UTC)
