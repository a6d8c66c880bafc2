"""Queues: which are late, paused or unserved, and one of them with its settings and their history."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from starlette.responses import Response

from winch.core.lifecycle import WAITING, JobState
from winch.core.policy.queue_settings import NO_SETTINGS, OnFull, Order, QueueSettings
from winch.core.policy.retry import StoredRetry, backoff_text
from winch.core.values.bounds import is_int, parse_int
from winch.core.values.duration import format_duration
from winch.engine.client.audit import AuditLine, acting
from winch.engine.observe.queue_counts import counted
from winch.engine.observe.queue_samples import Sample
from winch.engine.observe.throughput import MINUTE, TaskRate, percentile
from winch.engine.tasks.options import check_queue
from winch.storage.params import JobFilter, QueueInfo, SessionInfo
from winch.web import search
from winch.web.api.queues import (
    move_jobs,
    resume_queue,
    visible_queues,
    visible_sessions,
)
from winch.web.draw.pieces import Health, HealthFinding, Tile
from winch.web.draw.sparks import line
from winch.web.pages import figures
from winch.web.pages.base import go, link, one, page, part
from winch.web.pages.health import objective, of_queue, reasons_of
from winch.web.pages.show import jobs, number, sentence, span
from winch.web.pages.sure import ask, is_sure
from winch.web.problems import Problem
from winch.web.routes import WebCall, WebRoute
from winch.web.schemas.convert import job_out

MINUTES = 60
HOUR_RANGE = "1h"
SETTINGS = (
    "concurrency", "retries", "backoff", "max_depth", "max_age", "on_full", "block_for", "drain",
    "order",
)  # fmt: skip
# The actions of the audit that change a queue.
HISTORY = (
    "configure queue", "pause queue", "resume queue", "drain queue", "purge queue", "move jobs",
)  # fmt: skip
MOST_HISTORY = 12


class QueuePageQuery(msgspec.Struct, frozen=True, kw_only=True):
    range: str = HOUR_RANGE
    start: int = msgspec.field(default=0, name="from")
    end: int = msgspec.field(default=0, name="to")
    did: str = ""


def shown_value(value: Any) -> str:
    """A setting as it is typed."""
    if value is None:
        return ""
    if isinstance(value, StoredRetry):
        return backoff_text(value)
    return format_duration(value).replace(" ", "") if isinstance(value, timedelta) else str(value)


async def list_page(call: WebCall) -> Response:
    queues = await visible_queues(call)
    series = await call.site.series(MINUTE, int(time.time()), MINUTES)
    settings = await call.site.app.queues.asettings()
    rules = call.site.app.settings.alerts
    before = await figures.sample_before(call.site)
    now = datetime.now(UTC)
    rows = [
        _row(
            queue,
            series.merged(of_queue(queue.name)),
            settings.get(queue.name, NO_SETTINGS),
            objective(settings.get(queue.name), rules),
            before,
            now,
        )
        for queue in queues
    ]
    rows.sort(key=lambda row: (-row["weight"], -row["ready"], row["queue"].name))
    return await page(
        call, "queues.html", title="Queues", rows=rows, sentence=_sentence(rows), can_show=bool(rows)
    )


def _row(
    queue: QueueInfo,
    merged: Sequence[TaskRate],
    settings: QueueSettings,
    aim: timedelta,
    before: Sample | None,
    now: datetime,
) -> dict[str, Any]:
    recent = merged[-figures.RECENT :]
    per_minute = sum(rate.ended for rate in recent) / figures.recent_minutes()
    ready = queue.counts.get(JobState.READY, 0)
    waits = None if queue.oldest_ready_at is None else now - queue.oldest_ready_at
    # Jobs that have started lately waited so long; the oldest that has not may wait longer.
    total = TaskRate()
    for rate in recent:
        total.add(rate)
    stored = figures.arriving(total, queue, before)
    usual = timedelta(seconds=percentile(total.wait, 0.95) or 0.0)
    worst = None if waits is None else max(waits, usual)
    look, word, weight = _state(queue, settings, ready, worst, aim)
    return {
        "queue": queue,
        "ready": ready,
        "per_minute": per_minute,
        "stored": stored,
        "waits": waits,
        "worst": worst,
        "aim": aim,
        "spark": line(
            [float(rate.ended) for rate in merged],
            f"{sum(rate.ended for rate in merged):,} attempts ended in an hour",
        ),
        "drain": figures.drains_in(queue, per_minute, stored),
        "look": look,
        "word": word,
        "weight": weight,
    }


def _state(
    queue: QueueInfo, settings: QueueSettings, ready: int, waits: timedelta | None, aim: timedelta
) -> tuple[str, str, int]:
    """How the queue is: the look, the word, and how bad it is."""
    if ready and not queue.sessions and queue.paused_at is None:
        return "wrong", "no worker", 4
    if waits is not None and waits > aim and queue.paused_at is None:
        return "wrong", "late", 3
    if queue.paused_at is not None:
        return "paused", "paused", 2
    if settings.draining:
        return "paused", "drains", 1
    return "", "", 0


def _sentence(rows: Sequence[dict[str, Any]]) -> str:
    """What is true now, in words."""
    if not rows:
        return ""
    about = "about " if any(JobState.READY in row["queue"].inexact for row in rows) else ""
    parts = [f"{about}{jobs(sum(row['ready'] for row in rows))} ready"]
    for word, text in (
        ("no worker", "without a worker"),
        ("late", "late"),
        ("paused", "paused"),
        ("drains", "draining"),
    ):
        names = [row["queue"].name for row in rows if row["word"] == word]
        if names:
            more = f" and {len(names) - 2} more" if len(names) > 2 else ""
            parts.append(f"{', '.join(names[:2])}{more} {text}")
    if len(parts) == 1:
        parts.append("all keep up")
    return ", ".join(parts)


async def detail_page(call: WebCall) -> Response:
    name = call.queue()
    queue = next((q for q in await visible_queues(call) if q.name == name), None)
    stored = (await call.site.app.queues.asettings()).get(name, NO_SETTINGS)
    if queue is None and stored == NO_SETTINGS:
        raise Problem("not-found", f"no queue {name!r}: it has no job, no setting and no worker")
    queue = queue or QueueInfo(name=name, counts={})
    query: QueuePageQuery = call.query
    now = int(time.time())
    series = await call.site.series(MINUTE, now, MINUTES)
    of_this = of_queue(name)
    merged = series.merged(of_this)
    window = figures.window_of(query.range, query.start, query.end, now)
    if window.name != HOUR_RANGE:
        series = await call.site.series(window.span, window.end, window.count)
    aim = objective(stored, call.site.app.settings.alerts)
    tasks: dict[str, Any] = {}
    for one_ in series.rates:
        for task, rate in one_.get(name, {}).items():
            tasks.setdefault(task, TaskRate()).add(rate)
    found = await call.site.search(
        call.access, search.Search(JobFilter(queue=name)), limit=15, seconds=0.1
    )
    sessions = [s for s in await visible_sessions(call, is_ended_too=False) if name in s.queues]
    before = await figures.sample_before(call.site)
    row = _row(queue, merged, stored, aim, before, datetime.now(UTC))
    return await page(
        call,
        "queue.html",
        title=name,
        window=window,
        ranges=tuple(figures.RANGES),
        settings={field: shown_value(getattr(stored, field)) for field in SETTINGS},
        is_draining=stored.draining,
        on_full=[str(word) for word in OnFull],
        orders=[str(word) for word in Order],
        queue=queue,
        row=row,
        lag=_lag(call, queue, row, sessions, merged, before) if row["word"] == "late" else None,
        tiles=_tiles(queue, row, sessions),
        others=[one_.name for one_ in await visible_queues(call) if one_.name != name],
        waiting=_waiting(queue),
        history=await _history(call, name),
        start_worker=call.site.app.start_worker,
        sessions=sessions,
        jobs=[job_out(job) for job in found.jobs],
        tasks=[
            {
                "task": task,
                "ended": rate.ended,
                "failed": 100 * rate.broken / rate.ended if rate.ended else 0.0,
                "p50": percentile(rate.run, 0.5),
                "p95": percentile(rate.run, 0.95),
            }
            for task, rate in sorted(tasks.items(), key=lambda item: -item[1].ended)
        ],
        charts=[
            figures.throughput_chart(series, window, "outcome", now, of_this),
            figures.wait_chart(series, window, "outcome", aim.total_seconds(), of_this),
        ],
    )


def _lag(
    call: WebCall,
    queue: QueueInfo,
    row: dict[str, Any],
    sessions: Sequence[SessionInfo],
    merged: Sequence[TaskRate],
    before: Sample | None,
) -> Health:
    """Why the queue is late, and what to do."""

    def to(path: str, **more: Any) -> str:
        return link(call.request, path, **more)

    findings = [
        HealthFinding(sentence(reason.text), "", reason.remedy, reason.href, 0, "clock", "retrying")
        for reason in reasons_of(queue, sessions, merged, to, before)[:3]
    ]
    note = f"its objective is {span(row['aim'])}"
    return Health(f"Jobs wait {span(row['worst'])}", note, "wrong", findings)


def _waiting(queue: QueueInfo) -> int:
    return sum(queue.counts.get(state, 0) for state in WAITING)


def _tiles(queue: QueueInfo, row: dict[str, Any], sessions: Sequence[Any]) -> list[Tile]:
    slots, busy = sum(s.slots for s in sessions), sum(s.running for s in sessions)
    held = queue.counts.get(JobState.BLOCKED, 0)
    look = "bad" if row["word"] in ("late", "no worker") else ""
    at_limits = f"{held:,} more wait at a limit" if held else "to run now"
    has_waited = row["word"] == "late" and row["worst"] != row["waits"]
    used = f"{busy:,} of {slots:,} slots busy" if slots else "none serves it"
    return [
        Tile("Ready", counted(queue, "ready"), note=at_limits),
        Tile("Oldest waits", span(row["waits"]), look=look,
             note=f"wait p95 {span(row['worst'])}" if has_waited else row["word"] or "on time"),
        Tile("Running", f"{queue.counts.get(JobState.RUNNING, 0):,}", note="in all workers"),
        Tile("In", number(round(row["stored"])), "/min", "become ready"),
        Tile("Out", number(round(row["per_minute"])), "/min", "attempts ended"),
        Tile("Drains in", row["drain"], note="at this pace" if row["drain"].startswith("~") else ""),
        Tile("Workers", f"{len(sessions):,}", note=used, look="" if sessions else "bad"),
    ]  # fmt: skip


async def _history(call: WebCall, name: str) -> list[AuditLine]:
    """Who changed the queue, and when; only for callers that may read the audit."""
    if not call.access.may("admin") or call.access.is_narrow:
        return []
    audit = call.site.audit.read(
        limit=MOST_HISTORY, wanted=lambda line: line.target == name and line.action in HISTORY
    )
    return await call.site.client.arun(audit)


async def pause(call: WebCall) -> Response:
    name = check_queue(call.queue())
    reason, until = one(call.body, "reason"), one(call.body, "until")
    with acting(call.by):
        await call.site.app.queues.apause(name, reason=reason, until=until)
    call.note(name, reason=reason, until=until)
    return go(call, f"/queues/{part(name)}", did="paused")


async def resume(call: WebCall) -> Response:
    name = check_queue(call.queue())
    await resume_queue(call, name)
    call.note(name)
    return await _back(call, name, "resumed")


async def _back(call: WebCall, name: str, did: str) -> Response:
    """To the page of the queue; to the list where nothing is left of it."""
    call.site.forget()
    is_there = any(queue.name == name for queue in await visible_queues(call))
    is_set = name in await call.site.app.queues.asettings()
    return go(call, f"/queues/{part(name)}" if is_there or is_set else "/queues", did=did)


async def drain(call: WebCall) -> Response:
    name = check_queue(call.queue())
    reason = one(call.body, "reason")
    with acting(call.by):
        await call.site.app.queues.adrain(name, reason=reason)
    call.note(name, reason=reason)
    return go(call, f"/queues/{part(name)}", did="drained")


async def purge(call: WebCall) -> Response:
    name = check_queue(call.queue())
    count = (await call.site.app.queues.apurge(name, dry_run=True)).matched
    if not is_sure(call, count=count, name=name):
        return await ask(
            call,
            title=f"Purge {name}?",
            text=f"{jobs(count)} {'waits' if count == 1 else 'wait'} in this queue. What is deleted is "
            "gone with its arguments and logs; this cannot be undone. The audit keeps a line.",
            points=[
                ("deleted", "plain jobs"),
                ("cancelled", "jobs that a flow, a batch or another job waits for"),
                ("left alone", "running jobs, and jobs that come in meanwhile"),
            ],
            verb=f"Purge {jobs(count)}",
            back=link(call.request, f"/queues/{part(name)}"),
            count=count,
            name=name,
        )
    with acting(call.by):
        done = await call.site.app.queues.apurge(name)
    call.note(name, deleted=done.deleted, cancelled=done.cancelled)
    return await _back(call, name, "purged")


async def move(call: WebCall) -> Response:
    name = check_queue(call.queue())
    to, task, limit = (one(call.body, field) for field in ("to", "task", "limit"))
    if to is None:
        raise Problem("invalid", "name the queue that gets the jobs")
    which: dict[str, Any] = {
        "task": task,
        "limit": None if limit is None else parse_int(limit, "limit", least=1, most=10**9),
    }
    if not is_sure(call):
        found = await move_jobs(call, name, to, **which, dry_run=True)
        kind = jobs(found.matched) + ("" if task is None else f" of {task}")
        return await ask(
            call,
            title=f"Move {kind} to {to}?",
            text="They keep their state, their times and their place by age, and run where "
            f"{to} is served.",
            points=[("left alone", "running jobs, and jobs that come into the queue meanwhile")],
            verb=f"Move {jobs(found.matched)}",
            back=link(call.request, f"/queues/{part(name)}"),
        )
    await move_jobs(call, name, to, **which, dry_run=False)
    return go(call, f"/queues/{part(to)}", did="moved")


async def configure(call: WebCall) -> Response:
    """Set what the form contains; an empty field resets a setting."""
    name = check_queue(call.queue())
    given: dict[str, Any] = {}
    for field in SETTINGS:
        if field in call.body:
            value = one(call.body, field)
            given[field] = int(value) if value is not None and is_int(value) else value
    await call.site.app.queues.aconfigure(name, **given)
    call.note(name, settings={key: value for key, value in given.items() if value is not None})
    return go(call, f"/queues/{part(name)}", did="configured")


ROUTES: tuple[WebRoute, ...] = (
    WebRoute("GET", "/queues", "read", list_page, "Queues", is_page=True, applies=("queue",)),
    WebRoute("POST", "/queues/{queue}/pause", "operate", pause, "Pause", audit="pause queue",
             is_page=True, applies=("queue",)),
    WebRoute("POST", "/queues/{queue}/resume", "operate", resume, "Resume", audit="resume queue",
             is_page=True, applies=("queue",)),
    WebRoute("POST", "/queues/{queue}/drain", "operate", drain, "Drain", audit="drain queue",
             is_page=True, applies=("queue",)),
    WebRoute("POST", "/queues/{queue}/purge", "operate", purge, "Purge", audit="purge queue",
             is_page=True, applies=("queue",)),
    WebRoute("POST", "/queues/{queue}/move", "operate", move, "Move jobs", audit="move jobs",
             is_page=True, applies=("queue",)),
    WebRoute("POST", "/queues/{queue}/settings", "operate", configure, "Settings",
             audit="configure queue", is_page=True, applies=("queue",)),
    WebRoute("GET", "/queues/{queue}", "read", detail_page, "One queue", query=QueuePageQuery,
             is_page=True, applies=("queue",)),
)  # fmt: skip
