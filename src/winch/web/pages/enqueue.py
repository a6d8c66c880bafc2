"""A job by hand, from the signature of its task; and a list of jobs as a file to take away."""

from __future__ import annotations

import csv
import io
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

import msgspec
from starlette.responses import Response, StreamingResponse

from winch.core.errors import WinchError
from winch.core.job import JobRecord
from winch.core.values import codec
from winch.core.values.bounds import is_int
from winch.web import search
from winch.web.access import EVERY_NARROWING
from winch.web.api import jobs as api
from winch.web.pages.base import go, one, page
from winch.web.pages.jobs import FILTERS, JobsQuery
from winch.web.pages.show import compact
from winch.web.problems import Problem, problem_of
from winch.web.routes import WebCall, WebRoute
from winch.web.schemas.convert import job_out
from winch.web.schemas.jobs import NewJobBody

FIELDS = ("task", "args", "queue", "delay", "priority", "unique", "tags")
MOST_EXPORTED = 10_000
COLUMNS = ("id", "task", "state", "queue", "priority", "attempt", "max_attempts", "created_at", "run_at",
           "claimed_at", "finished_at", "tags", "error", "args")  # fmt: skip
# A spreadsheet takes a cell that begins like this for a formula.
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


# What stands in the form where a parameter has no default, by its type.
EXAMPLES: dict[str, Any] = {"int": 0, "float": 0.0, "str": "", "bool": False}


class NewQuery(msgspec.Struct, frozen=True, kw_only=True):
    task: str = ""


async def new_page(call: WebCall) -> Response:
    return await _form(call, {"task": call.query.task})


async def _form(call: WebCall, given: dict[str, str], error: str = "", status: int = 200) -> Response:
    tasks = call.site.app.tasks
    elsewhere = {name for session in await call.site.live_sessions() for name in session.tasks}
    names = [name for name in {*tasks.names, *elsewhere} if call.access.enqueues(name)]
    task = given.get("task", "")
    is_known = task in tasks.names and task in names
    parameters = tasks.get(task).arguments.parameters if is_known else ()
    if parameters and not given.get("args"):
        skeleton = {
            name: EXAMPLES.get(kind) if default is None else default
            for name, kind, default in parameters
        }
        given = {**given, "args": msgspec.json.format(msgspec.json.encode(skeleton), indent=2).decode()}
    return await page(
        call,
        "new_job.html",
        status,
        title="New job",
        given={name: given.get(name, "") for name in FIELDS},
        names=sorted(names),
        parameters=parameters,
        is_known=is_known,
        error=error,
    )


async def enqueue(call: WebCall) -> Response:
    given = {name: one(call.body, name) or "" for name in FIELDS}
    try:
        args = codec.loads_strict(given["args"] or "{}", what="the arguments")
        if not isinstance(args, dict):
            raise Problem("invalid", "the arguments must be a JSON object: names and values")
        tags = [tag.strip() for tag in given["tags"].split(",") if tag.strip()]
        body = NewJobBody(
            task=given["task"],
            args=args,
            tags=tags,
            queue=given["queue"] or None,
            delay=given["delay"] or None,
            priority=_priority(given["priority"]),
            unique=given["unique"] or None,
        )
        new = await api.new_job(call, body, None, None)
        [stored] = await api.store(call, [new])
    except WinchError as wrong:
        problem = problem_of(wrong)
        if problem.status >= 500:
            raise
        return await _form(call, given, problem.detail, problem.status)
    except Problem as problem:
        if problem.code not in ("invalid", "unknown-task"):
            raise
        return await _form(call, given, problem.detail, problem.status)
    job_id = stored.holder or stored.id
    call.note(job_id, task=body.task, queue=new.queue)
    if not call.access.may("read"):
        return go(call, "/jobs/new", did="enqueued")
    return go(call, f"/jobs/{job_id}", did="enqueued")


def _priority(text: str) -> int | str | None:
    return int(text) if is_int(text) else text or None


# -- to take away ------------------------------------------------------------------------------------


async def _matching(call: WebCall) -> AsyncIterator[list[JobRecord]]:
    query: JobsQuery = call.query
    wanted = search.parse(**{name: getattr(query, name) for name in FILTERS if getattr(query, name)})
    after, count = query.cursor, 0
    while count < MOST_EXPORTED:
        found = await call.site.search(call.access, wanted, after=after, limit=200)
        count += len(found.jobs)
        yield found.jobs
        after = found.next
        if after is None or (found.is_partial and not found.jobs):
            return


def cell(value: Any) -> str:
    """A value for a spreadsheet: a formula becomes a text."""
    if value is None:
        return ""
    text = value.isoformat() if isinstance(value, datetime) else str(value)
    return f"'{text}" if text.startswith(FORMULA) else text


async def as_csv(call: WebCall) -> Response:
    async def rows() -> AsyncIterator[bytes]:
        yield _line(COLUMNS)
        async for jobs in _matching(call):
            for job in map(job_out, jobs):
                cells: dict[str, Any] = {name: getattr(job, name, None) for name in COLUMNS}
                cells["tags"] = ", ".join(job.tags)
                cells["error"] = "" if job.error is None else f"{job.error.name}: {job.error.message}"
                cells["args"] = compact(job.args, 2000)
                yield _line([cell(cells[name]) for name in COLUMNS])

    return _file(rows(), "text/csv", "jobs.csv")


def _line(cells: Any) -> bytes:
    out = io.StringIO()
    csv.writer(out).writerow(cells)
    return out.getvalue().encode()


async def as_ndjson(call: WebCall) -> Response:
    async def rows() -> AsyncIterator[bytes]:
        async for jobs in _matching(call):
            for job in jobs:
                yield msgspec.json.encode(job_out(job)) + b"\n"

    return _file(rows(), "application/x-ndjson", "jobs.ndjson")


def _file(rows: AsyncIterator[bytes], kind: str, name: str) -> Response:
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    return StreamingResponse(rows, media_type=f"{kind}; charset=utf-8", headers=headers)


ROUTES: tuple[WebRoute, ...] = (
    WebRoute(
        "GET",
        "/jobs/new",
        "enqueue",
        new_page,
        "New job",
        query=NewQuery,
        is_page=True,
        applies=EVERY_NARROWING,
    ),
    WebRoute(
        "POST",
        "/jobs/new",
        "enqueue",
        enqueue,
        "New job",
        audit="enqueue",
        is_page=True,
        applies=EVERY_NARROWING,
    ),
    WebRoute(
        "GET",
        "/jobs.csv",
        "read",
        as_csv,
        "Jobs as CSV",
        query=JobsQuery,
        is_page=True,
        applies=EVERY_NARROWING,
    ),
    WebRoute(
        "GET",
        "/jobs.ndjson",
        "read",
        as_ndjson,
        "Jobs as NDJSON",
        query=JobsQuery,
        is_page=True,
        applies=EVERY_NARROWING,
    ),
)
