"""Schedules: the week ahead, the last runs of each, and backfill of what was missed."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from markupsafe import Markup
from starlette.responses import Response

from winch.areas.scheduling.backfill import Backfilled
from winch.core.errors import ConfigError
from winch.core.policy.schedule import Misfire, Overlap
from winch.core.values import codec
from winch.core.values.redact import shown
from winch.engine.tasks.schedules import Run, Schedule
from winch.web.api import schedules as api
from winch.web.draw.sparks import week
from winch.web.pages.base import go, link, one, page, part
from winch.web.pages.queues import shown_value
from winch.web.pages.show import clock, jobs, stamp, zone
from winch.web.pages.sure import ask, is_sure
from winch.web.problems import Problem
from winch.web.routes import WebCall, WebRoute

STRIP = 30
MOST_SHOWN = 200
DAYS = 7
# Of one schedule in a week: one of every second has more, and the picture says enough.
MOST_WINDOWS = 11_000
BACKFILL = ("start", "end", "rate")


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
    label = f"{good} of the last {len(runs)} runs completed" if runs else "no run yet"
    return Markup('<svg class="strip" viewBox="0 0 240 22" role="img" aria-label="{}">{}</svg>').format(
        label, Markup("").join(bars)
    )


async def list_page(call: WebCall) -> Response:
    rows: list[dict[str, Any]] = []
    found = await api.visible(call)
    for schedule in found[:MOST_SHOWN]:
        runs = await api.runs_of(call, schedule, STRIP)
        rows.append({"schedule": schedule, "strip": strip(runs), "last": runs[0] if runs else None})
    starts, counts = _week(found)
    return await page(
        call,
        "schedules.html",
        title="Schedules",
        rows=rows,
        sentence=_sentence(found),
        calendar=week(starts, counts, lambda at: clock(at, "%a %d %b")) if found else "",
        busiest=_busiest(starts, counts),
        tasks=[name for name in call.site.app.tasks.names if call.access.enqueues(name)],
    )


def _week(found: list[Schedule]) -> tuple[datetime, list[list[int]]]:
    """How many windows are due in each hour of the next days, in the zone of the page."""
    starts = datetime.now(zone()).replace(hour=0, minute=0, second=0, microsecond=0)
    ends = starts + timedelta(days=DAYS)
    counts = [[0] * 24 for _ in range(DAYS)]
    for schedule in found:
        if schedule.paused_at is not None or not schedule.is_active:
            continue
        after = max(schedule.now, schedule.last_window)
        for place, window in enumerate(schedule.timing.after(after)):
            if window >= ends or place >= MOST_WINDOWS:
                break
            local = window.astimezone(zone())
            day = (local.date() - starts.date()).days
            if 0 <= day < DAYS:
                counts[day][local.hour] += 1
    return starts, counts


def _busiest(starts: datetime, counts: list[list[int]]) -> str:
    number, day, hour = max((n, -d, -h) for d, row in enumerate(counts) for h, n in enumerate(row))
    if not number:
        return "none is due"
    at = starts + timedelta(days=-day)
    return f"the busiest hour is {clock(at, '%A')} {-hour:02}:00, with {jobs(number)}"


def _sentence(found: list[Schedule]) -> str:
    if not found:
        return ""
    live = [one_ for one_ in found if one_.is_active and one_.paused_at is None]
    late = [one_.name for one_ in live if one_.late_by]
    paused = sum(one_.paused_at is not None for one_ in found)
    parts = [f"{len(found):,} {'schedule' if len(found) == 1 else 'schedules'}"]
    if paused:
        parts.append(f"{paused:,} paused")
    idle = sum(not one_.is_active and one_.paused_at is None for one_ in found)
    if idle:
        parts.append(f"{idle:,} not active")
    parts.append(f"{', '.join(late[:2])} late" if late else "none is late")
    return ", ".join(parts)


async def detail_page(call: WebCall, preview: Backfilled | None = None, error: str = "") -> Response:
    schedule = await api.one_of(call)
    runs = await api.runs_of(call, schedule)
    return await page(
        call,
        "schedule.html",
        422 if error else 200,
        title=schedule.name,
        preview=preview,
        error=error,
        form={name: (one(call.body, name) or "") if call.body else "" for name in BACKFILL},
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
        case "preview" | "backfill":
            return await _backfill(call, schedule, is_preview=action == "preview")
        case "edit":
            timing = _timing(call)
            call.note(schedule.name, **timing)
            await schedules.aedit(schedule.name, **timing)
            return go(call, where, did="schedule-changed")
        case "remove":
            if not is_sure(call):
                return await ask(
                    call,
                    title=f"Remove {schedule.name}?",
                    text=f"It enqueues {schedule.task} no more. The jobs that it has enqueued stay.",
                    verb="Remove 1 schedule",
                    back=link(call.request, where),
                )
            await schedules.aremove(schedule.name)
            return go(call, "/schedules", did="schedule-removed")
    raise Problem(
        "invalid",
        "action must be one of pause, resume, trigger, skip, preview, backfill, edit, remove",
    )


async def _backfill(call: WebCall, schedule: Schedule, *, is_preview: bool) -> Response:
    """The jobs of past windows that have none: counted first, then enqueued."""
    try:
        start, end = (_moment(one(call.body, name), name) for name in ("start", "end"))
        rate = one(call.body, "rate")
        done = await api.schedules(call).abackfill(
            schedule.name, start, end, dry_run=is_preview, rate=rate
        )
    except ConfigError as error:
        call.is_preview = True
        return await detail_page(call, error=str(error))
    if is_preview:
        call.is_preview = True
        return await detail_page(call, preview=done)
    call.note(
        schedule.name, start=start.isoformat(), end=end.isoformat(), enqueued=done.enqueued, rate=rate
    )
    return go(call, f"/schedules/{part(schedule.name)}", did="backfilled")


def _moment(text: str | None, name: str) -> datetime:
    """A moment as a form sends it: in the zone of the page, unless it has one of its own."""
    try:
        moment = datetime.fromisoformat(text or "")
    except ValueError:
        raise ConfigError(
            f"{name} must be a date and a time like 2026-03-01T12:00, got {text!r}"
        ) from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=zone())


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
)
