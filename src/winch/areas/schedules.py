"""`app.schedules`: entries that enqueue jobs by the clock; define them, look at them, act on them."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime
from typing import Any, Literal

import msgspec

from winch.areas.scheduling.backfill import Backfilled, backfill
from winch.areas.scheduling.definition import JOB_OPTIONS, check_own, define, retimed, schedule_options
from winch.core.errors import ConfigError, ScheduleNotFound, StorageUnavailable
from winch.core.policy.calendar import calendar
from winch.core.values.duration import Duration
from winch.core.values.redact import mask_text
from winch.engine.base.operation import Operation
from winch.engine.base.search_index import lines_of_runs
from winch.engine.client.audit import noted
from winch.engine.client.client import Client
from winch.engine.client.job import Job
from winch.engine.client.twins import blocking, twin
from winch.engine.moving.holding import refuse_resume
from winch.engine.tasks.options import _name
from winch.engine.tasks.runtime import Runtime
from winch.engine.tasks.schedules import Run, Schedule, schedule_of
from winch.engine.tasks.task import Task
from winch.storage.decide.schedules import (
    Answered,
    Change,
    Changed,
    Pause,
    Put,
    Remove,
    Resume,
    ScheduleRows,
    ScheduleRun,
    Skip,
    Trigger,
)


class Schedules:
    """`app.schedules`: list, add, change, pause and trigger schedules."""

    def __init__(self, client: Client, runtime: Runtime) -> None:
        self._client = client
        self._tasks = runtime.tasks
        self._calendars = runtime.schedules.calendars

    def calendar(
        self, name: str, days: Iterable[date | str] = (), *, weekend: Iterable[str] = ()
    ) -> None:
        """Define a calendar of closed days for the schedules of this code.

            app.schedules.calendar("de", ["2026-12-25", "2026-12-26"], weekend=["SAT", "SUN"])

        A schedule with `calendar="de"` has no job on these days, or with `on_holiday="next"` one on
        the next open day. The days are those of its time zone.
        """
        _name(name, "calendar name")
        if name in self._calendars:
            raise ConfigError(f"two calendars are named {name!r}")
        self._calendars[name] = calendar(name, days, weekend)

    @blocking
    def add(
        self,
        /,
        name: str,
        task: str | Task[Any, Any],
        *,
        cron: str | None = None,
        every: Duration | None = None,
        tz: str | None = None,
        dst: Literal["once", "skip", "twice"] | None = None,
        misfire: Literal["skip", "latest", "all"] | None = None,
        catch_up: int | None = None,
        overlap: Literal["allow", "skip", "queue"] | None = None,
        jitter: Duration | None = None,
        calendar: str | None = None,
        on_holiday: Literal["skip", "next"] | None = None,
        misfire_deadline: Duration | None = None,
        args: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Operation[Schedule]:
        """Add a schedule that stays until it is removed.

            app.schedules.add("weekly", report, cron="0 9 * * MON", tz="Europe/Berlin")

        Adding the same schedule again has no effect. Another definition under the same name is
        refused.
        """
        given = schedule_options(cron, every, tz, dst, misfire, catch_up, overlap, jitter, calendar,
                                 on_holiday, misfire_deadline, options)  # fmt: skip
        _name(name, "schedule name")
        definition = define(self._task(task), args, given, self._calendars)
        put = Put(definition=definition.text, timing=definition.timing.key, is_new=True)
        changed = yield from self._change(name, put)
        if changed.answer is Answered.EXISTS:
            raise ConfigError(
                f"a schedule named {name!r} already exists with another definition; change it with "
                "app.schedules.edit"
            )
        made = yield from self._get(name)
        yield from self._noted("add schedule", name, task=made.task, words=made.timing.words())
        return made

    @twin(add)
    def aadd(self) -> None:
        """`add` without blocking the event loop."""

    @blocking
    def edit(
        self,
        /,
        name: str,
        *,
        cron: str | None = None,
        every: Duration | None = None,
        tz: str | None = None,
        dst: Literal["once", "skip", "twice"] | None = None,
        misfire: Literal["skip", "latest", "all"] | None = None,
        catch_up: int | None = None,
        overlap: Literal["allow", "skip", "queue"] | None = None,
        jitter: Duration | None = None,
        calendar: str | None = None,
        on_holiday: Literal["skip", "next"] | None = None,
        misfire_deadline: Duration | None = None,
        args: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Operation[Schedule]:
        """Change these fields of a schedule; new times count from now on. Refused for one that code
        defines.
        """
        given = schedule_options(cron, every, tz, dst, misfire, catch_up, overlap, jitter, calendar,
                                 on_holiday, misfire_deadline, options)  # fmt: skip
        return (yield from self._edit(name, args, given))

    @twin(edit)
    def aedit(self) -> None:
        """`edit` without blocking the event loop."""

    @blocking
    def get(self, name: str) -> Operation[Schedule]:
        """The schedule with this name. Raises ScheduleNotFound."""
        return (yield from self._get(name))

    @twin(get)
    def aget(self) -> None:
        """`get` without blocking the event loop."""

    @blocking
    def list(self) -> Operation[builtins.list[Schedule]]:
        """All schedules, by name."""
        found = yield self._client.driver().schedules()
        return [schedule_of(row, found.now) for row in found.found]

    @twin(list)
    def alist(self) -> None:
        """`list` without blocking the event loop."""

    @blocking
    def pause(self, name: str, *, reason: str | None = None) -> Operation[None]:
        """Stop its windows until `resume`."""
        yield from self._change(name, Pause(reason=None if reason is None else mask_text(reason)))
        yield from self._noted("pause schedule", name, reason=reason)

    @twin(pause)
    def apause(self) -> None:
        """`pause` without blocking the event loop."""

    @blocking
    def resume(self, name: str) -> Operation[None]:
        """Start its windows again from now on. Windows that passed meanwhile get no job."""
        driver = self._client.driver()
        rows: ScheduleRows = yield driver.schedules(name=name)
        for row in rows.found:
            yield from refuse_resume(driver, f"schedule {name!r}", row.pause_reason)
        yield from self._change(name, Resume())
        yield from self._noted("resume schedule", name)

    @twin(resume)
    def aresume(self) -> None:
        """`resume` without blocking the event loop."""

    @blocking
    def trigger(self, name: str) -> Operation[Job[Any]]:
        """Enqueue its job now, whatever the time and the policies are."""
        changed = yield from self._change(name, Trigger(self._client.draw_id()))
        run: ScheduleRun = changed.runs[0]
        known = yield self._client.driver().schedules(name=name)
        if known.found and (lines := lines_of_runs(known.found[0].definition, [run])):
            yield self._client.driver().kv_put(lines)
        yield from self._noted("trigger schedule", name, job=run.job)
        return Job(self._client, run.job or "")

    @twin(trigger)
    def atrigger(self) -> None:
        """`trigger` without blocking the event loop."""

    @blocking
    def skip(self, name: str) -> Operation[datetime]:
        """Skip the next window and return it."""
        for _ in range(10):
            window = (yield from self._get(name)).next_at
            if window is None:
                raise ConfigError(f"schedule {name!r} has no time left to run")
            changed = yield from self._change(name, Skip(window=window))
            if changed.answer is Answered.DONE:
                yield from self._noted("skip window", name, window=window.isoformat())
                return window
        raise StorageUnavailable(f"schedule {name!r} changes faster than it can be skipped")

    @twin(skip)
    def askip(self) -> None:
        """`skip` without blocking the event loop."""

    @blocking
    def backfill(
        self,
        name: str,
        start: datetime,
        end: datetime,
        *,
        dry_run: bool = False,
        rate: str | None = None,
        priority: int | str | None = None,
    ) -> Operation[Backfilled]:
        """Enqueue the jobs of past windows that have none, from `start` up to but not including `end`.

        Each window has one job, however often this runs and whatever else ticks. `dry_run` only
        returns the windows. `rate` ("30/m") spreads the jobs over time; `priority` is theirs alone.
        """
        driver = self._client.driver()
        return (
            yield from backfill(driver, name, start, end, dry_run=dry_run, rate=rate, priority=priority)
        )

    @twin(backfill)
    def abackfill(self) -> None:
        """`backfill` without blocking the event loop."""

    @blocking
    def remove(self, name: str) -> Operation[None]:
        """Remove the schedule; its jobs stay. Refused for one that the code of a live worker defines."""
        yield from self._change(name, Remove())
        yield from self._noted("remove schedule", name)

    @twin(remove)
    def aremove(self) -> None:
        """`remove` without blocking the event loop."""

    @blocking
    def next(self, name: str, count: int = 5) -> Operation[builtins.list[datetime]]:
        """The next windows, in UTC."""
        return (yield from self._get(name)).next(count)

    @twin(next)
    def anext(self) -> None:
        """`next` without blocking the event loop."""

    @blocking
    def history(self, name: str, *, limit: int = 30) -> Operation[builtins.list[Run]]:
        """The latest windows and their jobs, newest first."""
        yield from self._get(name)
        runs: Sequence[ScheduleRun] = yield self._client.driver().schedule_runs(name, limit=limit)
        ids = [run.job for run in runs if run.job is not None]
        jobs = (yield self._client.driver().get(ids)) if ids else []
        by_id = {job.id: job for job in jobs if job is not None}
        return [
            Run(
                window=run.window,
                kind=run.kind,
                at=run.at,
                job=run.job,
                state=by_id[run.job].state if run.job in by_id else None,
                finished_at=by_id[run.job].finished_at if run.job in by_id else None,
                note=run.note,
            )
            for run in runs
        ]

    @twin(history)
    def ahistory(self) -> None:
        """`history` without blocking the event loop."""

    # -- what they share ---------------------------------------------------------------------------

    def _get(self, name: str) -> Operation[Schedule]:
        found = yield self._client.driver().schedules(name=name)
        if not found.found:
            raise ScheduleNotFound(name)
        return schedule_of(found.found[0], found.now)

    def _edit(
        self, name: str, args: Mapping[str, Any] | None, options: Mapping[str, Any]
    ) -> Operation[Schedule]:
        current = yield from self._get(name)
        before = current.definition
        when = before.timing
        kept: dict[str, Any] = {
            "misfire": before.misfire,
            "catch_up": before.catch_up,
            "overlap": before.overlap,
            "jitter": before.jitter,
            "misfire_deadline": before.misfire_deadline,
        }
        given = {key: value for key, value in options.items() if value is not None}
        if not given.keys() & {"cron", "every"}:
            kept |= {"cron": when.cron, "every": when.every}
        if "every" not in given and when.cron is not None:
            kept |= {"tz": when.tz, "dst": when.dst}
        if when.calendar is not None and given.get("calendar") != "":
            kept |= {"calendar": when.calendar, "on_holiday": when.on_holiday}
        merged = {**kept, **given}
        if before.job.task in self._tasks or args is not None or given.keys() & set(JOB_OPTIONS):
            task = self._task(before.job.task)
            values = dict(args) if args is not None else msgspec.json.decode(before.job.args)
            after = define(task, values, merged, self._calendars)
            if not given.keys() & set(JOB_OPTIONS):
                # The job's options from the time when it was added stay.
                job = msgspec.structs.replace(before.job, args=after.job.args, version=after.job.version,
                                              unique_key=after.job.unique_key,
                                              terms=after.job.terms)  # fmt: skip
                after = msgspec.structs.replace(after, job=job)
        else:
            after = retimed(before, merged, self._calendars)
        put = Put(definition=after.text, timing=after.timing.key, is_new=False)
        yield from self._change(name, put)
        changed = sorted(given) + (["args"] if args is not None else [])
        words = after.timing.words()
        yield from self._noted("edit schedule", name, changed=changed, words=words)
        return (yield from self._get(name))

    def _task(self, task: str | Task[Any, Any]) -> Task[Any, Any]:
        if isinstance(task, Task):
            check_own(task, self._tasks, "app.schedules.add")
            return task
        return self._tasks.get(task)

    def _noted(self, action: str, name: str, **detail: Any) -> Operation[None]:
        yield from noted(self._client.driver(), action, name, **detail)

    def _change(self, name: str, change: Change) -> Operation[Changed]:
        changed: Changed = yield self._client.driver().change_schedule(name, change)
        if changed.answer is Answered.MISSING:
            raise ScheduleNotFound(name)
        if changed.answer is Answered.DECLARED:
            raise ConfigError(
                f"schedule {name!r} is defined in the code of a running worker, and the code wins; "
                "change the code, or pause it"
            )
        return changed
