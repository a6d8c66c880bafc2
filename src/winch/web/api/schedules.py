"""Schedules over HTTP."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import msgspec

from winch.areas.schedules import Schedules
from winch.core.errors import ScheduleNotFound
from winch.engine.tasks.schedules import Run, Schedule
from winch.web.problems import Problem
from winch.web.routes import PREFIX, WebCall, WebReply, WebRoute
from winch.web.schemas.convert import copied
from winch.web.schemas.jobs import EmptyBody, ReasonBody
from winch.web.schemas.schedules import (
    BackfillBody,
    BackfillOut,
    ChangedScheduleBody,
    NewScheduleBody,
    ScheduleDetail,
    ScheduleOut,
    ScheduleRunOut,
    SchedulesOut,
    TriggeredOut,
    WindowOut,
)

RUNS = 30
WINDOWS = 5


def schedules(call: WebCall) -> Schedules:
    """The operations on schedules."""
    return call.site.app.schedules


def schedule_out(one: Schedule) -> ScheduleOut:
    return ScheduleOut(
        name=one.name,
        task=one.task,
        queue=one.queue,
        cron=one.timing.cron,
        every_seconds=None if one.timing.every is None else one.timing.every.total_seconds(),
        tz=one.timing.tz,
        words=one.timing.words(),
        misfire=str(one.misfire),
        overlap=str(one.overlap),
        jitter_seconds=one.jitter.total_seconds(),
        calendar=None if one.timing.calendar is None else one.timing.calendar.name,
        on_holiday=None if one.timing.calendar is None else str(one.timing.on_holiday),
        misfire_deadline_seconds=None
        if (late := one.misfire_deadline) is None
        else late.total_seconds(),
        is_code=one.is_code,
        is_active=one.is_active,
        paused_at=one.paused_at,
        pause_reason=one.pause_reason,
        last_window=one.last_window,
        next_at=one.next_at,
        late_seconds=None if one.late_by is None else one.late_by.total_seconds(),
    )


def run_out(run: Run) -> ScheduleRunOut:
    return ScheduleRunOut(
        window=run.window, kind=str(run.kind), job=run.job, state=run.state, note=run.note
    )


async def visible(call: WebCall) -> list[Schedule]:
    found = await schedules(call).alist()
    return [one for one in found if _is_seen(call, one)]


async def one_of(call: WebCall) -> Schedule:
    found = await schedules(call).aget(call.path("name"))
    if not _is_seen(call, found):
        raise ScheduleNotFound(found.name)
    return found


def _is_seen(call: WebCall, one: Schedule) -> bool:
    return call.access.serves(one.queue) and call.access.runs(one.task)


async def runs_of(call: WebCall, one: Schedule, limit: int = RUNS) -> list[Run]:
    return await schedules(call).ahistory(one.name, limit=limit)


async def list_schedules(call: WebCall) -> WebReply:
    return WebReply(SchedulesOut(schedules=[schedule_out(one) for one in await visible(call)]))


async def get_schedule(call: WebCall) -> WebReply:
    one = await one_of(call)
    return WebReply(
        ScheduleDetail(
            schedule=schedule_out(one),
            next=one.next(WINDOWS),
            runs=[run_out(run) for run in await runs_of(call, one)],
        )
    )


async def add(call: WebCall) -> WebReply:
    body: NewScheduleBody = call.body
    made = await add_schedule(call, body.name, body.task, body.args, _options_of(body))
    call.note(made.name, task=made.task, words=made.timing.words(), args=body.args)
    location = f"{call.request.scope.get('root_path', '')}{S}/{quote(made.name, safe='')}"
    return WebReply(schedule_out(made), 201, {"location": location})


async def add_schedule(
    call: WebCall, name: str, task: str, args: dict[str, Any] | None, options: dict[str, Any]
) -> Schedule:
    """Add a schedule of a task and a queue that the caller may use."""
    tasks = call.site.app.tasks
    queue = options.get("queue")
    if queue is None and task in tasks.names:
        queue = tasks.get(task).options.queue
    _check_task(call, task, queue)
    return await schedules(call).aadd(name, task, args=args, **options)


async def edit(call: WebCall) -> WebReply:
    body: ChangedScheduleBody = call.body
    one = await one_of(call)
    _check_task(call, one.task, body.queue)
    options = _options_of(body)
    if not options and body.args is None:
        raise Problem("invalid", "say what is to be another")
    after = await schedules(call).aedit(one.name, args=body.args, **options)
    call.note(one.name, **options, args=body.args)
    return WebReply(schedule_out(after))


def _check_task(call: WebCall, task: str, queue: str | None) -> None:
    if not call.access.enqueues(task):
        raise Problem("forbidden", f"this token may not enqueue task {task!r}")
    if queue is not None and not call.access.serves(queue):
        raise Problem("forbidden", f"this token may not use queue {queue!r}")


def _options_of(body: ChangedScheduleBody) -> dict[str, Any]:
    names = set(ChangedScheduleBody.__struct_fields__) - {"args"}
    return {
        name: value
        for name, value in msgspec.structs.asdict(body).items()
        if name in names and value is not None
    }


async def pause(call: WebCall) -> WebReply:
    one = await one_of(call)
    await schedules(call).apause(one.name, reason=call.body.reason)
    call.note(one.name, reason=call.body.reason)
    return WebReply(schedule_out(await one_of(call)))


async def resume(call: WebCall) -> WebReply:
    one = await one_of(call)
    await schedules(call).aresume(one.name)
    call.note(one.name)
    return WebReply(schedule_out(await one_of(call)))


async def trigger(call: WebCall) -> WebReply:
    one = await one_of(call)
    job = await schedules(call).atrigger(one.name)
    call.note(one.name, job=job.id)
    return WebReply(TriggeredOut(job=job.id), 202)


async def skip(call: WebCall) -> WebReply:
    one = await one_of(call)
    window = await schedules(call).askip(one.name)
    call.note(one.name, window=window.isoformat())
    return WebReply(WindowOut(window=window))


async def backfill(call: WebCall) -> WebReply:
    body: BackfillBody = call.body
    one = await one_of(call)
    options: dict[str, Any] = {"rate": body.rate, "priority": body.priority}
    done = await schedules(call).abackfill(
        one.name, body.start, body.end, dry_run=body.dry_run, **options
    )
    call.note(one.name, start=body.start.isoformat(), end=body.end.isoformat(), dry_run=body.dry_run,
              enqueued=0 if body.dry_run else done.enqueued, **options)  # fmt: skip
    return WebReply(copied(BackfillOut, done, windows=list(done.windows)))


async def remove(call: WebCall) -> WebReply:
    one = await one_of(call)
    await schedules(call).aremove(one.name)
    call.note(one.name)
    return WebReply({"name": one.name, "is_removed": True})


S = f"{PREFIX}/schedules"
ROUTES: tuple[WebRoute, ...] = (
    WebRoute("GET", S, "read", list_schedules, "All schedules", answer=SchedulesOut,
             applies=("queue", "task")),
    WebRoute("POST", S, "operate", add, "Add a schedule", body=NewScheduleBody, answer=ScheduleOut,
             status=201, audit="add schedule", applies=("queue", "task")),
    WebRoute("PATCH", f"{S}/{{name}}", "operate", edit, "Change a schedule that no code defines",
             body=ChangedScheduleBody, answer=ScheduleOut, audit="edit schedule",
             applies=("queue", "task")),
    WebRoute("GET", f"{S}/{{name}}", "read", get_schedule,
             "One schedule, its next windows and last runs", answer=ScheduleDetail,
             applies=("queue", "task")),
    WebRoute("POST", f"{S}/{{name}}/pause", "operate", pause, "No more windows until resume",
             body=ReasonBody, answer=ScheduleOut, audit="pause schedule", applies=("queue", "task")),
    WebRoute("POST", f"{S}/{{name}}/resume", "operate", resume, "Windows count again from now on",
             body=EmptyBody, answer=ScheduleOut, audit="resume schedule", applies=("queue", "task")),
    WebRoute("POST", f"{S}/{{name}}/trigger", "operate", trigger, "Enqueue its job now", body=EmptyBody,
             answer=TriggeredOut, status=202, audit="trigger schedule", applies=("queue", "task")),
    WebRoute("POST", f"{S}/{{name}}/skip", "operate", skip, "No job for the next window", body=EmptyBody,
             answer=WindowOut, audit="skip window", applies=("queue", "task")),
    WebRoute("POST", f"{S}/{{name}}/backfill", "operate", backfill,
             "Enqueue the jobs of past windows that have none", body=BackfillBody, answer=BackfillOut,
             audit="backfill schedule", applies=("queue", "task")),
    WebRoute("DELETE", f"{S}/{{name}}", "operate", remove, "Forget a schedule", answer=dict,
             audit="remove schedule", applies=("queue", "task")),
)  # fmt: skip
