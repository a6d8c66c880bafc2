"""One job: what it is, why it is where it is, its life, and what can be done to it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec
from starlette.responses import Response

from winch.core.errors import WinchError
from winch.core.job import JobRecord
from winch.core.lifecycle import JobState
from winch.core.values import codec
from winch.core.values.bounds import parse_int
from winch.core.values.ids import is_id
from winch.core.values.redact import MASK, shown
from winch.storage.decide.schedules import SCHEDULE_HEADER
from winch.storage.params import JobFilter
from winch.web import search
from winch.web.access import EVERY_NARROWING
from winch.web.api import jobs as api
from winch.web.api.queues import start_replay
from winch.web.draw.diff import changes, pretty_lines
from winch.web.draw.frames import Block, blocks
from winch.web.draw.timeline import phases, timeline
from winch.web.pages.base import curl, go, one, page, part
from winch.web.problems import Problem, problem_of
from winch.web.routes import WebCall, WebRoute
from winch.web.schemas.convert import job_detail
from winch.web.schemas.jobs import EntryOut, JobDetail, NewJobBody
from winch.web.schemas.queues import ReplayBody

MOST_LOG_LINES = 500
# Jobs are looked for by a tag one by one: a page of a store with very many does not wait for the last.
MOST_RELATED, RELATED_SECONDS = 5, 0.05
# The tag of a job that was made from another one.
AGAIN = "again:"
# Longer arguments are not edited in a page, and not copied from one.
MOST_EDITED, MOST_COPIED = 20_000, 4000


@dataclass(frozen=True)
class AttemptView:
    """One attempt as the page shows it: what became of it, where it ran, its error and its log."""

    entry: EntryOut
    worker: str
    blocks: Sequence[Block]
    lines: Sequence[LogLine]


@dataclass(frozen=True)
class LogLine:
    text: str
    look: str


async def detail_page(call: WebCall) -> Response:
    return await _page(call, await call.job())


async def _page(call: WebCall, record: JobRecord, status: int = 200, **more: Any) -> Response:
    now = datetime.now(UTC)
    why = await api.why_of(call, record)
    driver = call.site.driver
    sessions = await driver.arun(driver.sessions(is_ended_too=True))
    workers = {session.id: session.worker for session in sessions}
    keys = call.site.app.runtime.keys()
    record = call.site.client.revealed(record) if keys is not None else record
    detail = job_detail(record)
    attempts = [
        AttemptView(
            entry,
            workers.get(entry.session or "", entry.session or ""),
            blocks(entry.error.traceback or f"{entry.error.name}: {entry.error.message}")
            if entry.error
            else (),
            log_lines(entry.log),
        )
        for entry in reversed(detail.history)
        if entry.error is not None or entry.log
    ]
    context: dict[str, Any] = {
        "job": detail,
        "why": why,
        "sentence": _sentence(detail, now),
        "timeline": timeline(phases(record, now, why), now),
        "workers": workers,
        "attempts": attempts,
        "log": log_lines(detail.log),
        "spent": _spent(record.claimed_at, record.finished_at, record.state, now),
        "is_known": record.task in call.site.app.tasks.names,
        "can_edit": _can_edit(call, record),
        "edited": "\n".join(pretty_lines(detail.args)) if len(record.args) <= MOST_EDITED else "",
        "to_queue": "",
        "attempts_more": "",
        "changes": None,
        "error": "",
        "copies": _copies(call, detail),
        "relations": await _relations(call, record),
        **more,
    }
    return await page(call, "job.html", status, title=record.task, **context)


class Relation(NamedTuple):
    """Something that the job belongs to: what it is, its name, and its address."""

    name: str
    text: str
    href: str


async def _relations(call: WebCall, record: JobRecord) -> list[Relation]:
    """The schedule and the flow of the job, the job that it repeats, and those that repeat it."""
    found = []
    if schedule := record.headers.get(SCHEDULE_HEADER):
        found.append(Relation("Schedule", schedule, f"/schedules/{part(schedule)}"))
    for tag in record.tags:
        name, _, value = tag.partition(":")
        if name == "flow" and is_id(value):
            found.append(Relation("Flow", value, f"/flows/{value}"))
        elif tag.startswith(AGAIN) and is_id(value):
            found.append(Relation("Repeats", value, f"/jobs/{value}"))
    if record.state.is_final:
        wanted = search.Search(JobFilter(tag=AGAIN + record.id))
        again = await call.site.search(call.access, wanted, limit=MOST_RELATED, seconds=RELATED_SECONDS)
        found += [Relation("Repeated by", job.id, f"/jobs/{job.id}") for job in again.jobs]
    return found


def log_lines(text: str | None) -> list[LogLine]:
    """A log by lines, with the look of those that warn."""
    found = []
    for line in (text or "").splitlines()[-MOST_LOG_LINES:]:
        head = line[:60].upper()
        look = "is-wrong" if "ERROR" in head or "CRITICAL" in head else ""
        found.append(LogLine(line[:4000], look or ("is-warning" if "WARN" in head else "")))
    return found


def _sentence(job: JobDetail, now: datetime) -> str:
    """What is true of the job now, in a few words."""
    match job.state:
        case JobState.RETRYING:
            return f"Attempt {job.attempt} failed; it waits for attempt {job.attempt + 1}"
        case JobState.SCHEDULED:
            return "It waits for its time"
        case JobState.BLOCKED:
            return "It is blocked"
        case JobState.READY:
            return "It waits for a worker"
        case JobState.RUNNING:
            return f"Attempt {job.attempt} runs"
        case JobState.COMPLETED:
            return "It has completed"
        case JobState.CANCELLED:
            return "It was cancelled"
        case JobState.DEAD:
            return f"It is dead after {job.attempt} {'attempt' if job.attempt == 1 else 'attempts'}"


def _can_edit(call: WebCall, record: JobRecord) -> bool:
    """Whether the arguments may be edited here: those that are shown, of a job that has ended."""
    if not record.state.is_final or len(record.args) > MOST_EDITED:
        return False
    if not isinstance(shown(record.args), dict):
        return False
    return call.access.may("operate")


def _copies(call: WebCall, job: JobDetail) -> dict[str, str]:
    """The same job elsewhere; masked values stay masked."""
    args = job.args if isinstance(job.args, dict) else {}
    command = call.site.app.command
    only = {
        "show": f"{command} jobs show {job.id}",
        "why": f"{command} why {job.id}",
        "API": curl(call, f"/api/v1/jobs/{job.id}"),
    }
    if len(msgspec.json.encode(args)) > MOST_COPIED:
        return only
    text = msgspec.json.encode(args).decode()
    if all(name.isidentifier() for name in args):
        given = ", ".join(f"{name}={value!r}" for name, value in args.items())
    else:
        given = f"**{args!r}"
    body = msgspec.json.encode({"task": job.task, "args": args, "queue": job.queue}).decode()
    sends = ("-X", "POST", "-H", "Content-Type: application/json", "-d", body)
    return {
        "Python": f"app.tasks.get({job.task!r}).enqueue({given})",
        "command line": f"{command} "
        + shlex.join(["enqueue", job.task, "--args", text, "--queue", job.queue]),
        "curl": curl(call, "/api/v1/jobs", *sends),
        **only,
    }


# -- edit and replay ---------------------------------------------------------------------------------


def restored(edited: Any, masked: Any, real: Any) -> Any:
    """The edited arguments with the real values where the page showed a mask and it was left there."""
    if edited == masked and masked != real and not isinstance(edited, dict | list):
        return real
    if isinstance(edited, dict) and isinstance(masked, dict) and isinstance(real, dict):
        return {
            name: restored(value, masked[name], real[name]) if name in masked and name in real else value
            for name, value in edited.items()
        }
    if isinstance(edited, list) and isinstance(masked, list) and len(edited) == len(masked):
        return [restored(*three) for three in zip(edited, masked, real, strict=True)]
    return edited


async def edit(call: WebCall) -> Response:
    """Replay a job with edited arguments: first what changes, then the deed."""
    record = await call.job()
    if not _can_edit(call, record):
        raise Problem("invalid", "only a job that has ended, with arguments that are shown, is edited")
    keys = call.site.app.runtime.keys()
    clear = call.site.client.revealed(record) if keys is not None else record
    form = call.body
    text = one(form, "args") or "{}"
    queue, more = one(form, "to_queue"), one(form, "attempts")
    given: dict[str, Any] = {
        "edited": text,
        "to_queue": queue or "",
        "attempts_more": more or "",
    }
    masked = shown(clear.args)
    try:
        edited = codec.loads_strict(text, what="the arguments")
        if not isinstance(edited, dict):
            raise Problem("invalid", "the arguments must be a JSON object: names and values")
        args = restored(edited, masked, codec.loads(clear.args))
        if MASK in json.dumps(args) and MASK not in clear.args:
            raise Problem("invalid", f"a masked value, {MASK}, can stay where it is but not move")
        attempts = None if more is None else parse_int(more, "attempts", least=1, most=1000)
        if record.task in call.site.app.tasks.names:
            task = call.site.app.tasks.get(record.task)
            task.arguments.check(task.arguments.pack((), args))
        elif edited != masked:
            raise Problem(
                "invalid", "this server does not know the task, so it cannot check new arguments"
            )
        if one(form, "action") != "replay":
            call.is_preview = True
            return await _page(call, record, **given, changes=changes(masked, edited))
        is_changed = edited != masked
        if record.state is JobState.DEAD:
            body = ReplayBody(
                ids=[record.id], args=args if is_changed else None, attempts=attempts, to_queue=queue
            )
            done = await start_replay(call, body)
            if done.acted != 1:
                raise Problem("conflict", done.note or "the job was not replayed")
            call.note(record.id, operation=done.id)
            return go(call, f"/jobs/{record.id}", did="replayed")
        new = NewJobBody(
            task=record.task,
            args=args,
            queue=queue or record.queue,
            priority=record.priority,
            tenant=record.tenant,
            tags=[*(tag for tag in record.tags if not tag.startswith(AGAIN)), AGAIN + record.id],
        )
        [stored] = await api.store(call, [await api.new_job(call, new, None, None)])
    except WinchError as wrong:
        problem = problem_of(wrong)
        if problem.status >= 500:
            raise
        return await _page(call, record, problem.status, **given, error=problem.detail)
    except Problem as problem:
        return await _page(call, record, problem.status, **given, error=problem.detail)
    call.note(record.id, job=stored.id, args=sorted(args) if is_changed else None)
    return go(call, f"/jobs/{stored.holder or stored.id}", did="enqueued")


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
        "/jobs/{id}/edit",
        "operate",
        edit,
        "Edit and replay",
        audit="edit and replay",
        is_page=True,
        applies=EVERY_NARROWING,
    ),
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
