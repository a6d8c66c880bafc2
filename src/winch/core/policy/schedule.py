"""When a schedule has its windows, and what is done about those that were missed. Pure arithmetic.

A window is a moment at which a schedule wants a job. Windows follow from the schedule's timing alone, so
any number of processes agree about them; the only state is the last window that was dealt with.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from enum import StrEnum
from functools import lru_cache
from itertools import islice, takewhile
from typing import TypeVar

import msgspec

from winch.core.errors import ConfigError, did_you_mean
from winch.core.job import EPOCH, to_micros
from winch.core.policy.calendar import Calendar, OnHoliday, moved_to_open, without_closed
from winch.core.policy.cron import Dst, check_cron, explain_cron, is_time_of_day, windows
from winch.core.values.bounds import check_length
from winch.core.values.duration import Duration, format_duration, parse_duration
from winch.core.values.ids import job_id

E = TypeVar("E", bound=StrEnum)

# A window is missed when no process dealt with it for so long: then the misfire policy applies.
MISSED_AFTER = timedelta(seconds=10)
# A deadline below that would lose windows that are in time.
SHORTEST_DEADLINE = MISSED_AFTER
# How many missed windows "all" makes up for, by default and at most.
DEFAULT_CATCH_UP = 100
MOST_CATCH_UP = 1000
SHORTEST = timedelta(seconds=1)
MAX_ZONE_CHARS = 100
# Where the search for the newest windows begins; it goes back further while it finds too few.
FIRST_LOOK_BACK = timedelta(hours=1)


class Misfire(StrEnum):
    """What happens to missed windows: no job, one job for the newest, or one job for each."""

    SKIP = "skip"
    LATEST = "latest"
    ALL = "all"


class Overlap(StrEnum):
    """What happens while the job of an earlier window is not final: enqueue, skip, or queue one."""

    ALLOW = "allow"
    SKIP = "skip"
    QUEUE = "queue"


class Timing(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A cron expression in a time zone, or a spacing counted from midnight UTC, and the days on which
    it does not run.
    """

    cron: str | None = None
    every: timedelta | None = None
    tz: str = "UTC"
    dst: Dst = Dst.ONCE
    calendar: Calendar | None = None
    on_holiday: OnHoliday = OnHoliday.SKIP

    @property
    def key(self) -> str:
        """A text that is equal for equal timings, in every process."""
        text = msgspec.json.encode(self, order="deterministic")
        if self.calendar is None:
            return text.decode()
        return f"sha256:{hashlib.sha256(text).hexdigest()}"  # a calendar has up to a thousand days

    @property
    def zone(self) -> tzinfo:
        """The time zone."""
        return zone_of(self.tz)

    def after(self, moment: datetime) -> Iterator[datetime]:
        """The windows after this moment, in order and in UTC."""
        if self.calendar is None:
            return self._on_all_days(moment)
        if self.on_holiday is OnHoliday.NEXT:
            return moved_to_open(self.calendar, self._on_all_days, self.zone, self.dst, moment)
        return without_closed(self.calendar, self._on_all_days, self.zone, moment)

    def _on_all_days(self, moment: datetime) -> Iterator[datetime]:
        if self.cron is not None:
            return windows(self.cron, self.zone, self.dst, moment)
        return self._spaced(moment)

    def _spaced(self, moment: datetime) -> Iterator[datetime]:
        every = self.every or timedelta(days=1)  # never: a timing has one or the other
        number = (moment - EPOCH) // every
        while True:
            number += 1
            try:
                yield EPOCH + number * every
            except OverflowError:
                return

    def next_after(self, moment: datetime) -> datetime | None:
        """The first window after this moment; None if there is none."""
        return next(self.after(moment), None)

    def due(self, since: datetime, until: datetime, most: int) -> tuple[list[datetime], bool]:
        """The newest windows after `since` and up to `until`, oldest first, and whether there are
        older ones.
        """
        look_back = FIRST_LOOK_BACK
        while True:
            start = max(since, until - look_back)
            found = list(takewhile(lambda window: window <= until, self.after(start)))
            if start == since or len(found) > most:
                return found[-most:] if most else [], len(found) > most
            look_back *= 4

    def words(self) -> str:
        """The timing in English: "every day at 02:00"."""
        if self.every is not None:
            words = f"every {format_duration(self.every)}"
        else:
            words = explain_cron(self.cron or "")
        if self.calendar is None:
            return words
        instead = "the next open day instead of" if self.on_holiday is OnHoliday.NEXT else "not on"
        return f"{words}, {instead} closed days of {self.calendar.name}"

    @property
    def is_moved_by_dst(self) -> bool:
        """Whether clock changes move its windows."""
        return self.cron is not None and self.tz != "UTC" and is_time_of_day(self.cron)


def timing(
    cron: str | None = None,
    *,
    every: Duration | None = None,
    tz: str = "UTC",
    dst: str = Dst.ONCE,
    calendar: Calendar | None = None,
    on_holiday: str | None = None,
) -> Timing:
    """A timing from text that a user gave. Raises ConfigError."""
    found = _on_all_days(cron, every, tz, dst)
    if calendar is None:
        if on_holiday is not None:
            raise ConfigError("on_holiday goes with calendar=, which has the days")
        return found
    moved = choice(OnHoliday, on_holiday or OnHoliday.SKIP, "on_holiday")
    if moved is OnHoliday.NEXT and not (found.cron and is_time_of_day(found.cron)):
        raise ConfigError(
            "on_holiday='next' goes with a cron expression whose minute and hour are given; a spacing "
            "has no time of day to keep"
        )
    found = msgspec.structs.replace(found, calendar=calendar, on_holiday=moved)
    if found.next_after(datetime(2026, 1, 1, tzinfo=UTC)) is None:
        raise ConfigError(f"all times of the schedule are on closed days of {calendar.name!r}")
    return found


def _on_all_days(cron: str | None, every: Duration | None, tz: str, dst: str) -> Timing:
    if (cron is None) == (every is None):
        raise ConfigError('a schedule takes a cron expression or every="5m", and not both')
    policy = choice(Dst, dst, "dst")
    zone_of(tz)
    if cron is not None:
        return Timing(cron=check_cron(cron), tz=tz, dst=policy)
    if tz != "UTC" or policy is not Dst.ONCE:
        raise ConfigError("tz and dst go with a cron expression; every= keeps its spacing in any zone")
    spacing = parse_duration(every if every is not None else "", "every")
    if spacing < SHORTEST:
        raise ConfigError(f"every must be at least 1s, got {every!r}")
    return Timing(every=spacing)


@lru_cache(maxsize=256)
def zone_of(name: str) -> tzinfo:
    """The time zone of this IANA name. Raises ConfigError."""
    if name == "UTC":
        return UTC
    if isinstance(name, str):
        check_length(name, MAX_ZONE_CHARS, "tz")
    from zoneinfo import ZoneInfo, available_timezones  # half of the processes never see a schedule

    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError, TypeError):
        known = sorted(available_timezones())
        hint = did_you_mean(name, known) if known else "; install the package tzdata"
        raise ConfigError(f"no time zone named {name!r}{hint}") from None


def choice(kind: type[E], value: object, what: str) -> E:
    """One of the words of `kind`. Raises ConfigError."""
    words = [str(one) for one in kind]
    if value not in words:
        hint = did_you_mean(value, words) if isinstance(value, str) else ""
        raise ConfigError(f"{what} must be one of {', '.join(words)}, got {value!r}{hint}")
    return kind(str(value))


def deadline_of(value: Duration, name: str = "misfire_deadline") -> timedelta:
    """How late a missed window may still get a job. Raises ConfigError."""
    found = parse_duration(value, name)
    if found < SHORTEST_DEADLINE:
        raise ConfigError(
            f"{name} must be at least {format_duration(SHORTEST_DEADLINE)}, got {value!r}; a time is "
            "missed only after that"
        )
    return found


class Owed(msgspec.Struct, frozen=True):
    """What is owed at one moment: the windows that get a job, those that were missed and get none, and
    the window up to which everything is dealt with. `is_more`: more were missed than are named."""

    windows: tuple[datetime, ...]
    missed: tuple[datetime, ...]
    is_more: bool
    until: datetime


def owed(
    timing: Timing,
    misfire: Misfire,
    catch_up: int,
    since: datetime,
    now: datetime,
    deadline: timedelta | None = None,
) -> Owed | None:
    """What the windows after `since` come to now; None when none is due.

    A window dealt with in time always gets its job. Of those that were missed, "all" makes up for the
    newest `catch_up`, "latest" for the newest one if nothing newer is due, "skip" for none. A window
    that is late by more than the deadline is never made up for.
    """
    found, is_more = timing.due(since, now, MOST_CATCH_UP)
    if not found:
        return None
    fresh = [window for window in found if window > now - MISSED_AFTER]
    missed = found[: len(found) - len(fresh)]
    if misfire is Misfire.ALL:
        made_up = missed[-catch_up:]
    elif misfire is Misfire.LATEST and not fresh:
        made_up = missed[-1:]
    else:
        made_up = []
    if deadline is not None:
        made_up = [window for window in made_up if window >= now - deadline]
    return Owed(
        windows=tuple(made_up + fresh),
        missed=tuple(missed[: len(missed) - len(made_up)]),
        is_more=is_more,
        until=found[-1],
    )


def jittered(name: str, window: datetime, jitter: timedelta) -> datetime:
    """When the job of this window is due: derived from name and window, so that all processes agree."""
    if not jitter:
        return window
    return window + jitter * (int.from_bytes(_drawn("jitter", name, window)) / 2**64)


def window_id(name: str, window: datetime) -> str:
    """The id of this window's job: the same in every process."""
    return job_id(to_micros(window) * 4096 // 1000, _drawn("id", name, window))


def _drawn(what: str, name: str, window: datetime) -> bytes:
    return hashlib.sha256(f"{what} {window.isoformat()} {name}".encode()).digest()[:8]


def next_windows(timing: Timing, after: datetime, count: int) -> list[datetime]:
    return list(islice(timing.after(after), count))
