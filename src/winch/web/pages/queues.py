"""Queues and workers."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from starlette.responses import Response

from winch.core.lifecycle import JobState
from winch.core.policy.queue_settings import NO_SETTINGS, OnFull
from winch.core.policy.retry import StoredRetry, backoff_text
from winch.core.values.bounds import is_int
from winch.core.values.duration import format_duration
from winch.engine.observe import throughput
from winch.engine.observe.throughput import MINUTE, percentile
from winch.engine.tasks.options import check_queue
from winch.storage.params import JobFilter, QueueInfo
from winch.web import search
from winch.web.api.queues import pause_queue, resume_queue, visible_queues, visible_sessions
from winch.web.pages.base import go, one, page, part
from winch.web.pages.charts import ChartRow, bars, lines, spark
from winch.web.pages.show import span
from winch.web.problems import Problem
from winch.web.routes import WebCall, WebRoute
from winch.web.schemas import job_out

MINUTES = 60
SETTINGS = ("concurrency", "retries", "backoff", "max_depth", "max_age", "on_full", "drain")


def shown_value(value: Any) -> str:
    """A setting as it is typed."""
    if value is None:
        return ""
    if isinstance(value, StoredRetry):
        return backoff_text(value)
    return format_duration(value).replace(" ", "") if isinstance(value, timedelta) else str(value)


async def list_page(call: WebCall) -> Response:
    queues = await visible_queues(call)
    series = await call.site.client.arun(
        throughput.read(call.site.driver, MINUTE, int(time.time()), MINUTES)
    )
    rows = []
    for queue in queues:
        merged = series.merged(_of(queue.name))
        done = [float(rate.ended) for rate in merged]
        per_minute = sum(done[-5:]) / 5
        rows.append(
            {
                "queue": queue,
                "per_minute": per_minute,
                "spark": spark(done[-30:], f"{sum(done[-30:]):,.0f} attempts ended in 30 minutes"),
                "drain": _drain(queue, per_minute),
            }
        )
    return await page(call, "queues.html", title="Queues", rows=rows)


def _of(wanted: str) -> Callable[[str, str], bool]:
    return lambda queue, _: queue == wanted


def _drain(queue: QueueInfo, per_minute: float) -> str:
    """How long the backlog takes at the present pace."""
    ready = queue.counts.get(JobState.READY, 0)
    if not ready:
        return "–"
    if queue.paused_at is not None:
        return "paused"
    return f"~{span(60 * ready / per_minute)}" if per_minute else "not moving"


async def detail_page(call: WebCall) -> Response:
    name = call.queue()
    queue = next((q for q in await visible_queues(call) if q.name == name), None)
    if queue is None:
        raise Problem("not-found", f"no queue {name!r}: it has no job, no setting and no worker")
    series = await call.site.client.arun(
        throughput.read(call.site.driver, MINUTE, int(time.time()), MINUTES)
    )
    merged = series.merged(_of(name))
    labels = [datetime.fromtimestamp(at, UTC).strftime("%H:%M") for at in series.times]
    done = sum(rate.ended for rate in merged)
    tasks: dict[str, Any] = {}
    for one_ in series.rates:
        for task, rate in one_.get(name, {}).items():
            tasks.setdefault(task, throughput.TaskRate()).add(rate)
    found = await call.site.search(call.access, search.Search(JobFilter(queue=name)), limit=15)
    sessions = [s for s in await visible_sessions(call, is_ended_too=False) if name in s.queues]
    found_settings = await call.site.app.queues.asettings()
    stored = found_settings.get(name, NO_SETTINGS)
    return await page(
        call,
        "queue.html",
        title=f"Queue {name}",
        settings={field: shown_value(getattr(stored, field)) for field in SETTINGS},
        on_full=[str(word) for word in OnFull],
        queue=queue,
        start_worker=call.site.app.start_worker,
        sessions=sessions,
        jobs=[job_out(job) for job in found.jobs],
        tasks=[
            {"task": task, "ended": rate.ended, "broken": rate.broken, "p95": percentile(rate.run, 0.95)}
            for task, rate in sorted(tasks.items(), key=lambda item: -item[1].ended)
        ],
        charts=[
            bars(
                "Attempts that ended",
                [
                    ChartRow("completed", "tone-completed", [rate.completed for rate in merged]),
                    ChartRow("failed, retried", "tone-retrying", [r.failed + r.crashed for r in merged]),
                    ChartRow("dead", "tone-dead", [rate.deaths for rate in merged]),
                ],
                labels,
                f"{done:,} attempts ended in the last hour.",
            ),
            lines(
                "Wait in queue",
                [
                    ChartRow("p50", "tone-completed", [percentile(rate.wait, 0.5) for rate in merged]),
                    ChartRow("p95", "tone-running", [percentile(rate.wait, 0.95) for rate in merged]),
                ],
                labels,
                "How long jobs waited before a worker took them.",
                unit="s",
            ),
        ],
    )


async def pause(call: WebCall) -> Response:
    name = check_queue(call.queue())
    reason = one(call.body, "reason")
    await pause_queue(call, name, reason)
    call.note(name, reason=reason)
    return go(call, f"/queues/{part(name)}", did="paused")


async def resume(call: WebCall) -> Response:
    name = check_queue(call.queue())
    await resume_queue(call, name)
    call.note(name)
    return go(call, f"/queues/{part(name)}", did="resumed")


async def configure(call: WebCall) -> Response:
    """Set what the form contains; an empty field resets a setting."""
    name = check_queue(call.queue())
    given: dict[str, Any] = {}
    for field in SETTINGS:
        value = one(call.body, field)
        given[field] = int(value) if value is not None and is_int(value) else value
    await call.site.app.queues.aconfigure(name, **given)
    call.note(name, settings={key: value for key, value in given.items() if value is not None})
    return go(call, f"/queues/{part(name)}", did="configured")


async def workers_page(call: WebCall) -> Response:
    mine = await visible_sessions(call, is_ended_too=True)
    now = datetime.now(UTC)
    live = [s for s in mine if s.ended_at is None]
    running = await call.site.search(
        call.access, search.Search(JobFilter(states=(JobState.RUNNING,))), limit=200
    )
    by_session: dict[str, list[Any]] = {}
    for job in running.jobs:
        by_session.setdefault(job.session or "", []).append(job_out(job))
    return await page(
        call,
        "workers.html",
        title="Workers",
        start_worker=call.site.app.start_worker,
        live=live,
        ended=[s for s in mine if s.ended_at is not None][:50],
        running=by_session,
        lost=[s for s in live if s.lease_until < now],
        releases=sorted({s.release for s in live if s.release}),
    )


ROUTES: tuple[WebRoute, ...] = (
    WebRoute("GET", "/queues", "read", list_page, "Queues", is_page=True, applies=("queue",)),
    WebRoute("POST", "/queues/{queue}/pause", "operate", pause, "Pause", audit="pause queue",
             is_page=True, applies=("queue",)),
    WebRoute("POST", "/queues/{queue}/resume", "operate", resume, "Resume", audit="resume queue",
             is_page=True, applies=("queue",)),
    WebRoute("POST", "/queues/{queue}/settings", "operate", configure, "Settings",
             audit="configure queue", is_page=True, applies=("queue",)),
    WebRoute("GET", "/queues/{queue}", "read", detail_page, "One queue", is_page=True,
             applies=("queue",)),
    WebRoute("GET", "/workers", "read", workers_page, "Workers", is_page=True, applies=("queue",)),
)  # fmt: skip
