"""What a schedule is defined by: the options of `@app.schedule` and `app.schedules.add`, checked."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import msgspec

from winch.core.errors import ConfigError, did_you_mean
from winch.core.policy.calendar import Calendar
from winch.core.policy.cron import Dst
from winch.core.policy.schedule import (
    DEFAULT_CATCH_UP,
    MOST_CATCH_UP,
    Misfire,
    Overlap,
    Timing,
    choice,
    deadline_of,
    timing,
)
from winch.core.values.duration import Duration, parse_duration
from winch.engine.tasks.options import EnqueueOptions, enqueue_options
from winch.engine.tasks.registry import Registry
from winch.engine.tasks.task import Bound, Task, alike
from winch.storage.decide.schedules import Definition
from winch.storage.params import NewJob

# Options of a job that a schedule may set; the rest comes from the task.
JOB_OPTIONS = (
    "queue",
    "priority",
    "expires",
    "timeout",
    "retry",
    "retention",
    "tags",
    "headers",
    "unique",
)
# Options of an enqueue that a schedule refuses, and why.
NOT_SCHEDULED = {
    "delay": "its times say when each job runs; jitter= spreads them",
    "run_at": "its times say when each job runs",
    "id": "each scheduled time is one job, whose id Winch draws",
    "fifo": "its jobs come one after another with overlap='queue'",
    "tenant": "it belongs to no tenant; its task may enqueue jobs with tenant=",
    "conn": "a worker enqueues its jobs, in a transaction of its own",
}
POLICIES = ("misfire", "catch_up", "overlap", "jitter", "misfire_deadline")
TIMES = ("cron", "every", "tz", "dst", "calendar", "on_holiday")


def define(
    task: Task[Any, Any],
    args: Mapping[str, Any] | None,
    options: Mapping[str, Any],
    calendars: Mapping[str, Calendar],
) -> Definition:
    """A checked definition from the options of a call. None counts as not given."""
    given = {key: value for key, value in options.items() if value is not None}
    known = (*TIMES, *POLICIES, *JOB_OPTIONS)
    for key in given:
        if key in NOT_SCHEDULED:
            raise ConfigError(f"a schedule takes no {key}=: {NOT_SCHEDULED[key]}")
        if key not in known:
            raise ConfigError(f"a schedule has no option {key!r}{did_you_mean(key, known)}")
    when = _timing(given, calendars)
    catch_up = given.get("catch_up", DEFAULT_CATCH_UP)
    if not isinstance(catch_up, int) or isinstance(catch_up, bool) or not 1 <= catch_up <= MOST_CATCH_UP:
        raise ConfigError(f"catch_up must be a whole number from 1 to {MOST_CATCH_UP}, got {catch_up!r}")
    jitter = parse_duration(given.get("jitter", timedelta(0)), "jitter")
    of_job = enqueue_options({key: given[key] for key in JOB_OPTIONS if key in given}, JOB_OPTIONS)
    return Definition(
        timing=when,
        job=_job(task, args, of_job),
        misfire=choice(Misfire, given.get("misfire", Misfire.LATEST), "misfire"),
        catch_up=catch_up,
        overlap=choice(Overlap, given.get("overlap", Overlap.ALLOW), "overlap"),
        jitter=jitter,
        misfire_deadline=_deadline(given),
    )


def _timing(given: Mapping[str, Any], calendars: Mapping[str, Calendar]) -> Timing:
    days = given.get("calendar")
    if isinstance(days, str):
        if days and days not in calendars:
            raise ConfigError(
                f"no calendar named {days!r}{did_you_mean(days, calendars)}; define it with "
                "app.schedules.calendar before the schedule"
            )
        days = calendars[days] if days else None
    return timing(
        given.get("cron"),
        every=given.get("every"),
        tz=given.get("tz", "UTC"),
        dst=given.get("dst", Dst.ONCE),
        calendar=days,
        on_holiday=given.get("on_holiday"),
    )


def _deadline(given: Mapping[str, Any]) -> timedelta | None:
    return None if (value := given.get("misfire_deadline")) is None else deadline_of(value)


def check_own(task: Task[Any, Any], tasks: Registry, taker: str) -> None:
    """Raise ConfigError for a task of another app: the workers of this one could not run its jobs."""
    if task.name not in tasks or tasks.get(task.name) is not task:
        raise ConfigError(
            f"{taker}: task {task.name} belongs to another app; schedule it with its own app"
        )


def _job(task: Task[Any, Any], args: Mapping[str, Any] | None, options: EnqueueOptions) -> NewJob:
    if args is not None and not isinstance(args, Mapping):
        raise ConfigError(f"args must be a mapping of argument names to values, got {args!r}")
    packed = task.arguments.pack_named(dict(args or {}))
    return Bound(task, packed, options, alike(task, options)).new_job("")


def schedule_options(
    cron: str | None,
    every: Duration | None,
    tz: str | None,
    dst: str | None,
    misfire: str | None,
    catch_up: int | None,
    overlap: str | None,
    jitter: Duration | None,
    calendar: str | None,
    on_holiday: str | None,
    misfire_deadline: Duration | None,
    options: Mapping[str, Any],
) -> dict[str, Any]:
    """All options of one call, as `define` takes them."""
    return {
        "cron": cron,
        "every": every,
        "tz": tz,
        "dst": dst,
        "misfire": misfire,
        "catch_up": catch_up,
        "overlap": overlap,
        "jitter": jitter,
        "calendar": calendar,
        "on_holiday": on_holiday,
        "misfire_deadline": misfire_deadline,
        **options,
    }


def retimed(
    before: Definition, merged: Mapping[str, Any], calendars: Mapping[str, Calendar]
) -> Definition:
    """The definition with other times and policies, for a task that is not known here."""
    when = _timing(merged, calendars)
    return msgspec.structs.replace(
        before,
        timing=when,
        misfire=choice(Misfire, merged["misfire"], "misfire"),
        catch_up=merged["catch_up"],
        overlap=choice(Overlap, merged["overlap"], "overlap"),
        jitter=parse_duration(merged["jitter"], "jitter"),
        misfire_deadline=_deadline(merged),
    )
