"""Schedules with their next windows and last runs; limits and the jobs that wait at them."""

from __future__ import annotations

from typing import Any

from markupsafe import Markup
from starlette.responses import Response

from winch.core.policy.schedule import Misfire, Overlap
from winch.core.values import codec
from winch.core.values.redact import shown
from winch.engine.tasks.gates import limit_text
from winch.engine.tasks.schedules import Run
from winch.web.api import schedules as api
from winch.web.api.limits import limits_of
from winch.web.pages.base import go, one, page, part
from winch.web.pages.queues import shown_value
from winch.web.pages.show import stamp
from winch.web.problems import Problem
from winch.web.routes import WebCall, WebRoute

STRIP = 30


def tone_of(run: Run) -> str:
    """The colour of a run in the strip: its job's state, or why it has none."""
    if run.state is not None:
        return f"tone-{run.state}"
    return "tone-cancelled"


def strip(runs: list[Run]) -> Markup:
    """The last runs as a row of small bars, oldest first."""
    bars = [
        Markup(
            '<rect class="{}" x="{}" y="2" width="6" height="18" rx="2"><title>{}</title></rect>'
        ).format(
            tone_of(run),
            place * 8,
            f"{stamp(run.window)}: {run.kind}{'' if run.state is None else f', {run.state}'}",
        )
        for place, run in enumerate(reversed(runs[:STRIP]))
    ]
    good = sum(run.state == "completed" for run in runs)
    label = f"{good} of the last {len(runs)} windows completed" if runs else "no windows yet"
    return Markup('<svg class="strip" viewBox="0 0 240 22" role="img" aria-label="{}">{}</svg>').format(
        label, Markup("").join(bars)
    )


async def list_page(call: WebCall) -> Response:
    rows: list[dict[str, Any]] = []
    for schedule in (await api.visible(call))[:200]:
        runs = await api.runs_of(call, schedule, STRIP)
        rows.append({"schedule": schedule, "strip": strip(runs), "last": runs[0] if runs else None})
    return await page(
        call,
        "schedules.html",
        title="Schedules",
        rows=rows,
        tasks=[name for name in call.site.app.tasks.names if call.access.runs(name)],
    )


async def detail_page(call: WebCall) -> Response:
    schedule = await api.one_of(call)
    runs = await api.runs_of(call, schedule)
    return await page(
        call,
        "schedule.html",
        title=f"Schedule {schedule.name}",
        schedule=schedule,
        runs=runs,
        strip=strip(runs),
        args=shown(schedule.args),
        windows=schedule.next(api.WINDOWS),
        every="" if schedule.timing.every is None else shown_value(schedule.timing.every),
        misfires=[str(word) for word in Misfire],
        overlaps=[str(word) for word in Overlap],
    )


async def act(call: WebCall) -> Response:
    schedule = await api.one_of(call)
    schedules = api.schedules(call)
    action = one(call.body, "action") or ""
    where = f"/schedules/{part(schedule.name)}"
    reason = one(call.body, "reason")
    call.note(schedule.name, action=action, reason=reason)
    match action:
        case "pause":
            await schedules.apause(schedule.name, reason=reason)
            return go(call, where, did="schedule-paused")
        case "resume":
            await schedules.aresume(schedule.name)
            return go(call, where, did="schedule-resumed")
        case "trigger":
            job = await schedules.atrigger(schedule.name)
            call.note(schedule.name, job=job.id)
            return go(call, f"/jobs/{job.id}", did="enqueued")
        case "skip":
            await schedules.askip(schedule.name)
            return go(call, where, did="skipped")
        case "edit":
            timing = _timing(call)
            call.note(schedule.name, **timing)
            await schedules.aedit(schedule.name, **timing)
            return go(call, where, did="schedule-changed")
        case "remove":
            if one(call.body, "sure") != "yes":
                raise Problem("bad-request", "tick the box to remove the schedule")
            await schedules.aremove(schedule.name)
            return go(call, "/schedules", did="schedule-removed")
    raise Problem("invalid", "action must be one of pause, resume, trigger, skip, edit, remove")


def _timing(call: WebCall) -> dict[str, Any]:
    timing = {name: one(call.body, name) for name in ("cron", "every", "tz", "misfire", "overlap")}
    if timing["every"] is not None:
        timing["tz"] = None
    return {name: value for name, value in timing.items() if value is not None}


async def add(call: WebCall) -> Response:
    name, task = one(call.body, "name") or "", one(call.body, "task") or ""
    args = codec.loads_strict(one(call.body, "args") or "{}", what="the arguments")
    if not isinstance(args, dict):
        raise Problem("invalid", "the arguments must be a JSON object: names and values")
    timing = _timing(call)
    await api.add_schedule(call, name, task, args, timing)
    call.note(name, task=task, args=args, **timing)
    return go(call, f"/schedules/{part(name)}", did="schedule-added")


async def limits_page(call: WebCall) -> Response:
    found = await limits_of(call)
    return await page(
        call,
        "limits.html",
        title="Limits",
        rows=[{"limit": limit, "allowed": limit_text(limit.spec)} for limit in found],
    )


ROUTES: tuple[WebRoute, ...] = (
    WebRoute(
        "GET", "/schedules", "read", list_page, "Schedules", is_page=True, applies=("queue", "task")
    ),
    WebRoute(
        "GET",
        "/schedules/{name}",
        "read",
        detail_page,
        "One schedule",
        is_page=True,
        applies=("queue", "task"),
    ),
    WebRoute(
        "POST",
        "/schedules/{name}",
        "operate",
        act,
        "Act on a schedule",
        audit="schedule",
        is_page=True,
        applies=("queue", "task"),
    ),
    WebRoute(
        "POST",
        "/schedules",
        "operate",
        add,
        "Add a schedule",
        audit="add schedule",
        is_page=True,
        applies=("queue", "task"),
    ),
    WebRoute("GET", "/limits", "read", limits_page, "Limits", is_page=True),
)
