"""`app.schedules.backfill`: the jobs of past windows that have none.

The windows go to the store in small batches, each in one transaction with the jobs and under the lock
that a tick takes. The id of a window's job is made of the schedule's name and the window. So a window
has one job, however often a backfill is repeated, wherever it is interrupted, and whatever ticks
meanwhile.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile

import msgspec

from winch.core.errors import ConfigError, ScheduleNotFound
from winch.core.policy.schedule import window_id
from winch.core.values.duration import parse_rate
from winch.engine.base.operation import Operation
from winch.engine.base.search_index import lines_of_runs
from winch.engine.client.audit import noted
from winch.engine.tasks.options import enqueue_options
from winch.engine.tasks.schedules import Schedule, schedule_of
from winch.storage.decide.schedules import (
    KEEP_RUNS,
    Answered,
    Backfill,
    Changed,
    RunKind,
    gives_way,
)
from winch.storage.protocol import Driver

MOST_WINDOWS = 10_000
BATCH = 100
LONGEST = timedelta(days=365)
MOMENT = timedelta(microseconds=1)


class Backfilled(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of a backfill: `matched` windows are in the range, and `enqueued` got a job.

    `existing` windows had a job before. `held` ones got none, because their unique key was held.
    `windows` are those that got a job, or in a dry run those that would.
    """

    name: str
    start: datetime
    end: datetime
    matched: int
    enqueued: int
    existing: int
    held: int = 0
    is_dry_run: bool = False
    windows: tuple[datetime, ...] = ()


def backfill(
    driver: Driver,
    name: str,
    start: datetime,
    end: datetime,
    *,
    dry_run: bool,
    rate: str | None,
    priority: int | str | None,
) -> Operation[Backfilled]:
    """Carry the backfill out, or with `dry_run` only look."""
    start, end = _moment(start, "start"), _moment(end, "end")
    if start >= end:
        raise ConfigError(f"start must be before end, got {start.isoformat()} and {end.isoformat()}")
    pause = 0.0 if rate is None else 1 / parse_rate(rate, "rate")
    given = {} if priority is None else {"priority": priority}
    options = enqueue_options(given, ("priority",))
    found = yield driver.schedules(name=name)
    if not found.found:
        raise ScheduleNotFound(name)
    definition = found.found[0].definition
    schedule = schedule_of(found.found[0], found.now)
    windows = _windows(schedule, start, end)
    wanted = yield from _without_job(driver, name, windows)
    if pause * len(wanted) > LONGEST.total_seconds():
        raise ConfigError(f"{len(wanted):,} jobs at rate {rate!r} take longer than a year")
    if dry_run:
        return Backfilled(
            name=name,
            start=start,
            end=end,
            matched=len(windows),
            enqueued=len(wanted),
            existing=len(windows) - len(wanted),
            is_dry_run=True,
            windows=tuple(wanted),
        )
    done: list[datetime] = []
    held = 0
    answer = Answered.DONE
    for place in range(0, len(wanted), BATCH):
        change = Backfill(
            definition=definition,
            windows=tuple(wanted[place : place + BATCH]),
            priority=options.priority,
            spacing=timedelta(seconds=pause),
            first=len(done),
        )
        changed: Changed = yield driver.change_schedule(name, change)
        answer = changed.answer
        if answer is not Answered.DONE:
            break
        if lines := lines_of_runs(definition, changed.runs):
            yield driver.kv_put(lines)
        done += [run.window for run in changed.runs if run.kind is RunKind.ENQUEUED]
        held += sum(run.kind is RunKind.HELD for run in changed.runs)
    yield from noted(
        driver,
        "backfill schedule",
        name,
        start=start.isoformat(),
        end=end.isoformat(),
        enqueued=len(done),
        rate=rate,
        priority=options.priority,
    )
    if answer is not Answered.DONE:
        raise ConfigError(
            f"schedule {name!r} was changed or removed after {len(done):,} of {len(wanted):,} windows "
            "had got their job; look at the rest with dry_run=True"
        )
    return Backfilled(
        name=name,
        start=start,
        end=end,
        matched=len(windows),
        enqueued=len(done),
        existing=len(windows) - len(done) - held,
        held=held,
        windows=tuple(done),
    )


def _moment(value: object, name: str) -> datetime:
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise ConfigError(f"{name} must be a datetime with a time zone, got {value!r}")
    return value.astimezone(UTC)


def _windows(schedule: Schedule, start: datetime, end: datetime) -> list[datetime]:
    """The windows of the range that have passed."""
    upto = min(end, schedule.now + MOMENT)
    found = takewhile(lambda window: window < upto, schedule.timing.after(start - MOMENT))
    windows = list(islice(found, MOST_WINDOWS + 1))
    if len(windows) > MOST_WINDOWS:
        raise ConfigError(
            f"schedule {schedule.name!r} has more than {MOST_WINDOWS:,} times from "
            f"{start.isoformat()} to {end.isoformat()}; backfill a shorter range"
        )
    return windows


def _without_job(driver: Driver, name: str, windows: list[datetime]) -> Operation[list[datetime]]:
    """Those of the windows that have no job yet. A hint: the store decides again."""
    if not windows:
        return []
    runs = yield driver.schedule_runs(name, limit=MOST_WINDOWS + KEEP_RUNS)
    taken = {run.window for run in runs if not gives_way(run.kind, RunKind.ENQUEUED)}
    left = [window for window in windows if window not in taken]
    wanted: list[datetime] = []
    for place in range(0, len(left), BATCH):
        batch = left[place : place + BATCH]
        jobs = yield driver.get([window_id(name, window) for window in batch])
        wanted += [window for window, job in zip(batch, jobs, strict=True) if job is None]
    return wanted
