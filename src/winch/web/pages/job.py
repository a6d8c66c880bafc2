"""One job: what it is, why it is where it is, its life, and what can be done to it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from starlette.responses import Response

from winch.core.lifecycle import JobState
from winch.web.access import EVERY_NARROWING
from winch.web.api import jobs as api
from winch.web.draw.timeline import draw, phases
from winch.web.pages.base import go, one, page
from winch.web.problems import Problem
from winch.web.routes import WebCall, WebRoute
from winch.web.schemas import job_detail


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


ROUTES: tuple[WebRoute, ...] = (
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
