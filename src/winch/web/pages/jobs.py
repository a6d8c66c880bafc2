"""Jobs: the list with its search box, one job with its timeline, and what can be done to them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

import msgspec
from starlette.responses import Response

from winch.core.errors import ConfigError
from winch.core.lifecycle import JobState
from winch.web import search
from winch.web.access import EVERY_NARROWING
from winch.web.api import jobs as api
from winch.web.api.queues import CAP
from winch.web.draw.timeline import draw, phases
from winch.web.finding import Found
from winch.web.pages.base import go, one, page, part
from winch.web.problems import Problem
from winch.web.routes import WebCall, WebRoute
from winch.web.schemas import ACTIONS, FilterBody, job_detail, job_out

FILTERS = ("q", "state", "queue", "task", "tag", "group")


class JobsQuery(msgspec.Struct, frozen=True, kw_only=True):
    q: str = ""
    state: str = ""
    queue: str = ""
    task: str = ""
    tag: str = ""
    group: str = ""
    cursor: str | None = None
    did: str = ""


async def list_page(call: WebCall) -> Response:
    query: JobsQuery = call.query
    filters = {name: getattr(query, name) for name in FILTERS if getattr(query, name)}
    error = ""
    found = Found()
    try:
        wanted = search.parse(**filters)
        found = await call.site.search(call.access, wanted, after=query.cursor, limit=50)
    except ConfigError as wrong:
        error = str(wrong)
    driver = call.site.driver
    counts = {} if call.access.is_narrow else await driver.arun(driver.counts(cap=CAP))
    queues = await _queue_names(call)
    tasks = {job.task for job in found.jobs}
    if not call.access.is_narrow:
        tasks |= {name for session in await call.site.live_sessions() for name in session.tasks}
    return await page(
        call,
        "jobs.html",
        title="Jobs",
        jobs=[job_out(job) for job in found.jobs],
        found=found,
        is_searched=bool(filters),
        filters={name: filters.get(name, "") for name in FILTERS},
        error=error,
        counts=counts,
        cap=CAP,
        queues=queues,
        tasks=sorted({*tasks, *(call.access.tasks or ())})[:200],
        actions=ACTIONS,
        curl=f"/api/v1/jobs?{urlencode(filters)}" if filters else "/api/v1/jobs",
        cli=_command(filters),
    )


async def _queue_names(call: WebCall) -> list[str]:
    """The queues to choose from: all, or the caller's own."""
    if call.access.is_narrow:
        return list(call.access.queues or ())
    return [queue.name for queue in await call.site.queues()]


def _command(filters: dict[str, str]) -> str:
    options = [
        f"--{name} {filters[name]}" for name in ("state", "queue", "task", "tag") if name in filters
    ]
    return " ".join(["winch jobs list", *options])


async def detail_page(call: WebCall) -> Response:
    record = await call.job()
    now = datetime.now(UTC)
    why = await api.why_of(call, record)
    found = phases(record, now, why)
    sessions = {
        session.id: session
        for session in await call.site.driver.arun(call.site.driver.sessions(is_ended_too=True))
    }
    keys = call.site.app.runtime.keys()
    detail = job_detail(call.site.client.revealed(record) if keys is not None else record)
    task = call.site.app.tasks.get(record.task) if record.task in call.site.app.tasks.names else None
    return await page(
        call,
        "job.html",
        title=record.task,
        job=detail,
        why=why,
        phases=found,
        gantt=draw(found, now),
        workers={key: session.worker for key, session in sessions.items()},
        is_known=task is not None,
        spent=_spent(record.claimed_at, record.finished_at, record.state, now),
    )


def _spent(claimed: datetime | None, finished: datetime | None, state: JobState, now: datetime) -> Any:
    if claimed is None:
        return None
    if state is JobState.RUNNING:
        return now - claimed
    return None if finished is None else finished - claimed


async def cancel(call: WebCall) -> Response:
    record = await call.job()
    reason = one(call.body, "reason")
    await call.site.client.acancel(record.id, reason=reason, by=call.by)
    call.note(record.id, task=record.task, reason=reason)
    return go(call, f"/jobs/{record.id}", did="cancelled")


async def retry(call: WebCall) -> Response:
    record = await call.job()
    await call.site.client.aretry(record.id, by=call.by)
    call.note(record.id, task=record.task, was=record.state)
    return go(call, f"/jobs/{record.id}", did="retried")


async def delete(call: WebCall) -> Response:
    record = await call.job()
    if one(call.body, "sure") != "yes":
        raise Problem("bad-request", "tick the box to delete the job: it cannot be brought back")
    await call.site.client.adelete(record.id, by=call.by)
    call.note(record.id, task=record.task, was=record.state)
    return go(call, "/jobs", did="deleted")


async def bulk(call: WebCall) -> Response:
    """Act on the ticked rows, or on all that the filter matches: first a count, then the deed."""
    action = one(call.body, "action") or ""
    if action not in ACTIONS:
        raise Problem("invalid", f"action must be one of {', '.join(ACTIONS)}")
    ids = call.body.get("id", [])
    filters = {name: one(call.body, name) for name in FILTERS}
    is_all = one(call.body, "scope") == "matching"
    if not is_all and not ids:
        raise Problem("invalid", "no job is ticked")
    body = FilterBody(
        **({name: value for name, value in filters.items() if value} if is_all else {}),
        ids=None if is_all else ids,
        all=is_all,
        reason=one(call.body, "reason"),
        dry_run=is_all and one(call.body, "sure") != "yes",
    )
    done = await api.bulk(call, action, body)
    if body.dry_run:
        return await page(
            call,
            "confirm.html",
            title=f"{action.capitalize()} jobs",
            action=action,
            operation=done,
            filters={name: value for name, value in filters.items() if value},
        )
    return go(call, f"/operations/{part(done.id)}")


ROUTES: tuple[WebRoute, ...] = (
    WebRoute(
        "GET", "/jobs", "read", list_page, "Jobs", query=JobsQuery, is_page=True, applies=EVERY_NARROWING
    ),
    WebRoute(
        "POST",
        "/jobs",
        "operate",
        bulk,
        "Act on jobs",
        audit="bulk",
        is_page=True,
        applies=EVERY_NARROWING,
    ),
    WebRoute("GET", "/jobs/{id}", "read", detail_page, "One job", is_page=True, applies=EVERY_NARROWING),
    WebRoute(
        "POST",
        "/jobs/{id}/cancel",
        "operate",
        cancel,
        "Cancel",
        audit="cancel",
        is_page=True,
        applies=EVERY_NARROWING,
    ),
    WebRoute(
        "POST",
        "/jobs/{id}/retry",
        "operate",
        retry,
        "Retry",
        audit="retry",
        is_page=True,
        applies=EVERY_NARROWING,
    ),
    WebRoute(
        "POST",
        "/jobs/{id}/delete",
        "operate",
        delete,
        "Delete",
        audit="delete",
        is_page=True,
        applies=EVERY_NARROWING,
    ),
)
