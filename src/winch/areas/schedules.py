"""`app.schedules` and `@app.schedule`: define schedules, look at them and act on them."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from winch.core.errors import (
    ConfigError,
    ScheduleNotFound,
    StorageUnavailable,
    did_you_mean,
)
from winch.core.policy.cron import Dst
from winch.core.policy.schedule import (
    DEFAULT_CATCH_UP,
    MOST_CATCH_UP,
    Misfire,
    Overlap,
    choice,
    timing,
)
from winch.core.values.duration import parse_duration
from winch.core.values.redact import mask_text
from winch.engine.base.operation import Operation
from winch.engine.base.search_index import lines_of_runs
from winch.engine.client.audit import noted
from winch.engine.tasks.options import EnqueueOptions, _name, enqueue_options
from winch.engine.tasks.registry import Registry
from winch.engine.tasks.schedules import Run, Schedule, schedule_of
from winch.engine.tasks.task import Bound, Task, alike
from winch.storage.decide.schedules import (
    Answered,
    Change,
    Changed,
    Definition,
    Pause,
    Put,
    Remove,
    Resume,
    ScheduleRun,
    Skip,
    Trigger,
)
from winch.storage.params import NewJob
from winch.storage.protocol import Driver

# What of a job a schedule may say; the rest is the task's.
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
# What one enqueue may have and a schedule may not, and why.
NOT_SCHEDULED = {
    "delay": "its times say when each job runs; jitter= spreads them",
    "run_at": "its times say when each job runs",
    "id": "each scheduled time is one job, whose id Winch draws",
    "fifo": "its jobs come one after another with overlap='queue'",
    "tenant": "it belongs to no tenant; its task may enqueue jobs with tenant=",
    "conn": "a worker enqueues its jobs, in a transaction of its own",
}
POLICIES = ("misfire", "catch_up", "overlap", "jitter")
TIMES = ("cron", "every", "tz", "dst")


def define(task: Task[Any, Any], args: Mapping[str, Any] | None, said: Mapping[str, Any]) -> Definition:
    """A definition from what a person said, checked. None counts as not said."""
    given = {key: value for key, value in said.items() if value is not None}
    known = (*TIMES, *POLICIES, *JOB_OPTIONS)
    for key in given:
        if key in NOT_SCHEDULED:
            raise ConfigError(f"a schedule takes no {key}=: {NOT_SCHEDULED[key]}")
        if key not in known:
            raise ConfigError(f"a schedule has no option {key!r}{did_you_mean(key, known)}")
    when = timing(given.get("cron"), every=given.get("every"), tz=given.get("tz", "UTC"),
                  dst=given.get("dst", Dst.ONCE))  # fmt: skip
    catch_up = given.get("catch_up", DEFAULT_CATCH_UP)
    if not isinstance(catch_up, int) or isinstance(catch_up, bool) or not 1 <= catch_up <= MOST_CATCH_UP:
        raise ConfigError(f"catch_up must be a whole number from 1 to {MOST_CATCH_UP}, got {catch_up!r}")
    jitter = parse_duration(given.get("jitter", timedelta(0)), "jitter")
    options = enqueue_options({key: given[key] for key in JOB_OPTIONS if key in given}, JOB_OPTIONS)
    return Definition(
        timing=when,
        job=_job(task, args, options),
        misfire=choice(Misfire, given.get("misfire", Misfire.LATEST), "misfire"),
        catch_up=catch_up,
        overlap=choice(Overlap, given.get("overlap", Overlap.ALLOW), "overlap"),
        jitter=jitter,
    )


def check_own(task: Task[Any, Any], tasks: Registry, taker: str) -> None:
    """Raise ConfigError for a task of another app: the workers of this one could not run its jobs."""
    if task.name not in tasks or tasks.get(task.name) is not task:
        raise ConfigError(
            f"{taker}: task {task.name} belongs to another app; schedule it with its own app"
        )


def _job(task: Task[Any, Any], args: Mapping[str, Any] | None, options: EnqueueOptions) -> NewJob:
    if args is not None and not isinstance(args, Mapping):
        raise ConfigError(f"args must be a mapping of argument names to values, got {args!r}")
    packed = task.arguments.pack((), dict(args or {}))
    return Bound(task, packed, options, alike(task, options)).new_job("")


class ScheduleDesk:
    """The operations behind `app.schedules`; each is written once for both doors."""

    def __init__(
        self,
        driver: Callable[[], Driver],
        tasks: Registry,
        draw_id: Callable[[], str],
    ) -> None:
        self._driver = driver
        self._tasks = tasks
        self._draw_id = draw_id

    def add(
        self,
        name: str,
        task: str | Task[Any, Any],
        args: Mapping[str, Any] | None,
        said: Mapping[str, Any],
    ) -> Operation[Schedule]:
        _name(name, "schedule name")
        definition = define(self._task(task), args, said)
        put = Put(definition=definition.text, timing=definition.timing.key, is_new=True)
        changed = yield from self._change(name, put)
        if changed.answer is Answered.EXISTS:
            raise ConfigError(
                f"a schedule named {name!r} is there already, with another definition; change it with "
                "app.schedules.edit"
            )
        made = yield from self.get(name)
        yield from self._noted("add schedule", name, task=made.task, words=made.timing.words())
        return made

    def edit(
        self, name: str, args: Mapping[str, Any] | None, said: Mapping[str, Any]
    ) -> Operation[Schedule]:
        current = yield from self.get(name)
        before = current.definition
        when = before.timing
        kept: dict[str, Any] = {
            "misfire": before.misfire,
            "catch_up": before.catch_up,
            "overlap": before.overlap,
            "jitter": before.jitter,
        }
        given = {key: value for key, value in said.items() if value is not None}
        if not given.keys() & {"cron", "every"}:
            kept |= {"cron": when.cron, "every": when.every}
        if "every" not in given and when.cron is not None:
            kept |= {"tz": when.tz, "dst": when.dst}
        merged = {**kept, **given}
        if before.job.task in self._tasks or args is not None or given.keys() & set(JOB_OPTIONS):
            task = self._task(before.job.task)
            values = dict(args) if args is not None else msgspec.json.decode(before.job.args)
            after = define(task, values, merged)
            if not given.keys() & set(JOB_OPTIONS):
                # What was said about the job when it was added stays.
                job = msgspec.structs.replace(before.job, args=after.job.args, version=after.job.version,
                                              unique_key=after.job.unique_key,
                                              terms=after.job.terms)  # fmt: skip
                after = msgspec.structs.replace(after, job=job)
        else:
            after = _retimed(before, merged)
        put = Put(definition=after.text, timing=after.timing.key, is_new=False)
        yield from self._change(name, put)
        changed = sorted(given) + (["args"] if args is not None else [])
        words = after.timing.words()
        yield from self._noted("edit schedule", name, changed=changed, words=words)
        return (yield from self.get(name))

    def get(self, name: str) -> Operation[Schedule]:
        found = yield self._driver().schedules(name=name)
        if not found.found:
            raise ScheduleNotFound(name)
        return schedule_of(found.found[0], found.now)

    def list(self) -> Operation[builtins.list[Schedule]]:
        self._check()
        found = yield self._driver().schedules()
        return [schedule_of(row, found.now) for row in found.found]

    def pause(self, name: str, reason: str | None) -> Operation[None]:
        yield from self._change(name, Pause(reason=None if reason is None else mask_text(reason)))
        yield from self._noted("pause schedule", name, reason=reason)

    def resume(self, name: str) -> Operation[None]:
        yield from self._change(name, Resume())
        yield from self._noted("resume schedule", name)

    def remove(self, name: str) -> Operation[None]:
        yield from self._change(name, Remove())
        yield from self._noted("remove schedule", name)

    def trigger(self, name: str) -> Operation[ScheduleRun]:
        changed = yield from self._change(name, Trigger(self._draw_id()))
        run: ScheduleRun = changed.runs[0]
        known = yield self._driver().schedules(name=name)
        if known.found and (lines := lines_of_runs(known.found[0].definition, [run])):
            yield self._driver().write_lines(lines)
        yield from self._noted("trigger schedule", name, job=run.job)
        return run

    def skip(self, name: str) -> Operation[datetime]:
        """Skip the next window; returns it."""
        for _ in range(10):
            window = (yield from self.get(name)).next_at
            if window is None:
                raise ConfigError(f"schedule {name!r} has no window to come")
            changed = yield from self._change(name, Skip(window=window))
            if changed.answer is Answered.DONE:
                yield from self._noted("skip window", name, window=window.isoformat())
                return window
        raise StorageUnavailable(f"schedule {name!r} moves on faster than it can be skipped")

    def history(self, name: str, limit: int) -> Operation[builtins.list[Run]]:
        self._check()
        yield from self.get(name)
        runs: Sequence[ScheduleRun] = yield self._driver().schedule_runs(name, limit=limit)
        ids = [run.job for run in runs if run.job is not None]
        jobs = (yield self._driver().get(ids)) if ids else []
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

    def _task(self, task: str | Task[Any, Any]) -> Task[Any, Any]:
        if isinstance(task, Task):
            check_own(task, self._tasks, "app.schedules.add")
            return task
        return self._tasks.get(task)

    def _noted(self, action: str, name: str, **detail: Any) -> Operation[None]:
        yield from noted(self._driver(), action, name, **detail)

    def _check(self) -> None:
        driver = self._driver()
        if not driver.capabilities.has_schedules:
            raise ConfigError(
                f"schedules are not available on {driver.describe()} in this release; use a sqlite:/// "
                "or postgresql:// URL"
            )

    def _change(self, name: str, change: Change) -> Operation[Changed]:
        self._check()
        changed: Changed = yield self._driver().change_schedule(name, change)
        if changed.answer is Answered.MISSING:
            raise ScheduleNotFound(name)
        if changed.answer is Answered.DECLARED:
            raise ConfigError(
                f"schedule {name!r} is defined in code, which has the say as long as a worker runs it; "
                "change the code, or pause it"
            )
        return changed


def _retimed(before: Definition, merged: Mapping[str, Any]) -> Definition:
    """The definition with other times and policies, for a task that is not known here."""
    when = timing(merged.get("cron"), every=merged.get("every"), tz=merged.get("tz", "UTC"),
                  dst=merged.get("dst", Dst.ONCE))  # fmt: skip
    return msgspec.structs.replace(
        before,
        timing=when,
        misfire=choice(Misfire, merged["misfire"], "misfire"),
        catch_up=merged["catch_up"],
        overlap=choice(Overlap, merged["overlap"], "overlap"),
        jitter=parse_duration(merged["jitter"], "jitter"),
    )


__all__ = ["Run", "Schedule", "ScheduleDesk", "define"]
