"""Jobs: enqueue, look, act; one, many at once, or by filter."""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import msgspec
from starlette.responses import Response

from winch.core.errors import JobFailed, JobNotFound, UnknownTask
from winch.core.gates.uses import with_gates
from winch.core.job import JobRecord
from winch.core.lifecycle import JobState
from winch.core.policy.limits import uses
from winch.core.policy.retry import DEFAULT_RETRY
from winch.core.values import codec
from winch.core.values.ids import known_as
from winch.core.values.json_schema import refuse_misfit
from winch.core.values.redact import shown
from winch.engine.base import operation
from winch.engine.base.operation import Operation
from winch.engine.client import why as reasons
from winch.engine.client.contracts import Contract
from winch.engine.tasks.options import EnqueueOptions, enqueue_options, stored_options
from winch.storage.decide.enqueued import new_record
from winch.storage.params import Acted, NewJob
from winch.storage.params import Enqueued as Stored
from winch.web import search
from winch.web.access import EVERY_NARROWING
from winch.web.api.headers import job_headers
from winch.web.operations import walk
from winch.web.problems import Problem
from winch.web.routes import PREFIX, WebCall, WebReply, WebRoute
from winch.web.schemas.convert import error_out, job_detail, job_out
from winch.web.schemas.jobs import (
    ActedOut,
    BulkBody,
    BulkOut,
    Enqueued,
    FilterBody,
    JobDetail,
    JobPage,
    JobQuery,
    NewJobBody,
    OperationOut,
    ReasonBody,
    ResultOut,
    RetryBody,
    WhyOut,
)

LONGEST_WAIT = timedelta(seconds=60)
# How often a request that waits looks whether its token still holds.
CHECK_EVERY = 2.0
# The header of a job that remembers what an Idempotency-Key was used for.
REQUEST_HEADER = "winch-request"
_KEYS = uuid.UUID("6f1d3a52-0f0e-5b7c-9a43-77696e636821")

# -- enqueue -----------------------------------------------------------------------------------------


async def enqueue(call: WebCall) -> WebReply:
    body: NewJobBody = call.body
    key = call.request.headers.get("idempotency-key")
    given_id, digest = None, None
    if key is not None:
        given_id, digest = _key_id(call, key), _digest(body)
    new = await new_job(call, body, given_id, digest)
    stored, answer = await call.site.client.astore_one(new)
    await check_others(call, [answer])
    job_id = answer.holder or answer.id
    if digest is not None and not answer.is_new:
        await _check_reuse(call, job_id, digest)
    headers = {"location": f"{call.request.scope.get('root_path', '')}{PREFIX}/jobs/{job_id}"}
    wait = _wait(call.request.headers.get("prefer", ""))
    if wait is not None:
        headers["preference-applied"] = f"wait={int(wait.total_seconds())}"
        try:
            record, value = await _awaited(call, job_id, wait)
            return WebReply(_result_out(record, value), 200, headers)
        except JobFailed:
            return WebReply(_result_out(await call.job(job_id), None), 200, headers)
        except TimeoutError:
            pass
    fresh = _as_read(stored, answer)
    return WebReply(job_detail(await call.job(job_id) if fresh is None else fresh), 202, headers)


def _as_read(new: NewJob, answer: Stored) -> JobRecord | None:
    """A job that was stored now, as a read would give it; None where only the store knows. This saves
    a call of the store for each plain job."""
    if not answer.is_new or answer.created_at is None or answer.state is not JobState.READY:
        return None
    if new.delay is not None or new.run_at is not None or new.expires is not None:
        return None
    return new_record(new, answer.created_at)


async def enqueue_bulk(call: WebCall) -> WebReply:
    body: BulkBody = call.body
    # All are checked before the first is stored.
    new = [await new_job(call, job, None, None) for job in body.jobs]
    answers: list[Enqueued] = []
    for start in range(0, len(new), 1000):
        answers += [
            Enqueued(id=stored.holder or stored.id, is_new=stored.is_new)
            for stored in await store(call, new[start : start + 1000])
        ]
    return WebReply(BulkOut(jobs=answers), 202)


async def store(call: WebCall, jobs: Sequence[NewJob]) -> list[Stored]:
    """Store the jobs. A narrowed caller hears nothing of a job of others that holds an id or a key."""
    client = call.site.client
    stored = await client.arun(client.store(jobs, None))
    await check_others(call, stored)
    return stored


async def check_others(call: WebCall, stored: Sequence[Stored]) -> None:
    """Refuse to name a job that a narrowed caller must not see."""
    if not call.access.is_narrow:
        return
    there = [one.holder or one.id for one in stored if not one.is_new]
    if there:
        found = await call.site.client.arun(_read(call, there))
        for record in found:
            if record is not None and not call.access.sees(record):
                raise Problem("duplicate", "another job holds the id or the unique key; use another")


def _read(call: WebCall, ids: Sequence[str]) -> Operation[list[JobRecord | None]]:
    found: list[JobRecord | None] = yield call.site.driver.get(ids)
    return found


async def new_job(call: WebCall, body: NewJobBody, given_id: str | None, digest: str | None) -> NewJob:
    """The request as a job to store, checked as far as this server knows the task."""
    access, app = call.access, call.site.app
    if not access.enqueues(body.task):
        raise Problem("forbidden", f"this token may not enqueue task {body.task!r}")
    if access.tenant is not None and body.tenant not in (None, access.tenant):
        raise Problem("forbidden", "this token is for another tenant")
    headers = job_headers(call.request.headers, body.headers)
    if digest is not None:
        headers[REQUEST_HEADER] = digest
    options: dict[str, Any] = {
        "queue": body.queue,
        "priority": body.priority,
        "delay": body.delay,
        "run_at": body.run_at,
        "expires": body.expires,
        "unique": body.unique,
        "tags": body.tags or None,
        "headers": headers or None,
        "id": body.id or given_id,
    }
    if body.timeout is not None:
        options["timeout"] = body.timeout
    options["tenant"] = access.tenant or body.tenant
    # One tenant's keys never meet another's.
    is_of_tenant = access.tenant is not None and body.fifo is not None
    options["fifo"] = f"{access.tenant}:{body.fifo}" if is_of_tenant else body.fifo
    options = {name: value for name, value in options.items() if value is not None}
    if body.task in app.tasks:
        task = app.tasks.get(body.task)
        bound = (task.using(**options) if options else task).bind(**body.args)
        new = bound.new_job(app.client.draw_id())
    else:
        contract = await call.site.contract(body.task)
        if contract is not None:
            refuse_misfit(contract.schema, body.args, f"{body.task}: args")
            options = _of_contract(contract) | options
        given = enqueue_options(options, tuple(EnqueueOptions.__struct_fields__))
        new = await _named(call, body, given, is_declared=contract is not None)
    if access.tenant is not None:
        key = None if new.unique_key is None else f"{access.tenant}:{new.unique_key}"
        new = msgspec.structs.replace(new, unique_key=key)
    if not access.serves(new.queue):
        raise Problem("forbidden", f"this token may not use queue {new.queue!r}")
    return new


def _of_contract(contract: Contract) -> dict[str, Any]:
    """The options that a contract gives where a producer leaves them out."""
    given: dict[str, Any] = {"queue": contract.queue, "timeout": contract.timeout}
    if contract.attempts is not None:
        given["retry"] = msgspec.structs.replace(DEFAULT_RETRY, attempts=contract.attempts)
    return {name: value for name, value in given.items() if value is not None}


async def _named(
    call: WebCall, body: NewJobBody, options: EnqueueOptions, *, is_declared: bool
) -> NewJob:
    """A job of a task that this process does not know: a contract or some live worker must."""
    sessions = [] if is_declared else await call.site.live_sessions()
    is_known = is_declared or any(
        # A session without tasks takes any: one that pushes, or one over HTTP.
        body.task in session.tasks or (not session.tasks and options.queue in session.queues)
        for session in sessions
    )
    if not is_known and not (sessions and options.queue is not None and call.access.may("work")):
        raise UnknownTask(body.task, {name for session in sessions for name in session.tasks})
    stored = stored_options(options)
    if options.fifo is not None or options.tenant is not None:
        # A FIFO key and a tenant are turns to wait for; the task's own gates are not known here.
        turns = uses(body.task, (), None, (), options.fifo, str)
        stored = with_gates(stored, turns, options.tenant)
    return NewJob(
        id=options.id or call.site.app.client.draw_id(),
        is_given_id=options.id is not None,
        task=body.task,
        args=codec.dumps(body.args, what="args"),
        queue=options.queue or "default",
        priority=options.priority or 0,
        delay=options.delay,
        run_at=options.run_at,
        expires=options.expires,
        tags=options.tags,
        headers=options.headers,
        options=stored,
        fifo=None if options.fifo is None else options.fifo.key,
        tenant=options.tenant,
        max_attempts=None if options.retry is None else options.retry.attempts,
        unique_key=None if options.unique is None else options.unique.key,
    )


def _key_id(call: WebCall, key: str) -> str:
    """The id of the job that this key stands for: the same key of the same caller is the same job."""
    key = key.strip()
    if key.startswith('"') and key.endswith('"') and len(key) > 1:
        key = key[1:-1]
    if not key or len(key) > 256 or not key.isprintable():
        raise Problem("bad-request", "Idempotency-Key must be 1 to 256 printable characters")
    if call.body.id is not None:
        raise Problem("bad-request", "a request has an id or an Idempotency-Key, not both")
    return str(uuid.uuid5(_KEYS, f"{call.access.credential}\n{call.access.tenant or ''}\n{key}"))


def _digest(body: NewJobBody) -> str:
    return hashlib.sha256(msgspec.json.encode(body, order="sorted")).hexdigest()


async def _check_reuse(call: WebCall, job_id: str, digest: str) -> None:
    record = await call.site.client.aget(job_id)
    if record.headers.get(REQUEST_HEADER) not in (None, digest):
        raise Problem(
            "key-reused", "this Idempotency-Key was used for a job with other contents; draw a new key"
        )


async def _awaited(call: WebCall, job_id: str, wait: timedelta) -> tuple[JobRecord, Any]:
    """The job and its result; raises TimeoutError, or the problem of a caller whose token has ended."""
    deadline = time.monotonic() + wait.total_seconds()
    while True:
        left = deadline - time.monotonic()
        try:
            part = timedelta(seconds=max(0.0, min(left, CHECK_EVERY)))
            return await call.site.client.aresult(job_id, part)
        except TimeoutError:
            if left <= CHECK_EVERY:
                raise
            await call.check_current()


def _wait(prefer: str) -> timedelta | None:
    for part in prefer.split(","):
        name, _, value = part.strip().partition("=")
        if name.strip().lower() == "wait" and value.strip().isdecimal() and len(value.strip()) < 9:
            return min(timedelta(seconds=int(value)), LONGEST_WAIT)
    return None


# -- look --------------------------------------------------------------------------------------------


async def list_jobs(call: WebCall) -> WebReply:
    query: JobQuery = call.query
    wanted = search.parse(
        query.q, state=query.state, queue=query.queue, task=query.task, tag=query.tag, group=query.group
    )
    found = await call.site.search(call.access, wanted, after=query.cursor, limit=query.limit)
    headers = {}
    if found.next is not None:
        url = call.request.url.include_query_params(cursor=found.next)
        headers["link"] = f'<{url.path}?{url.query}>; rel="next"'
    page = JobPage(
        jobs=[job_out(job) for job in found.jobs],
        next=found.next,
        # How many jobs others have is none of a narrowed caller's business.
        scanned=found.scanned if wanted.tests and not call.access.is_narrow else None,
        is_partial=found.is_partial,
    )
    return WebReply(page, 200, headers)


async def get(call: WebCall) -> WebReply | Response:
    detail = job_detail(await call.job())
    tag = f'"{hashlib.sha256(msgspec.json.encode(detail)).hexdigest()[:24]}"'
    if call.request.headers.get("if-none-match") == tag:
        return Response(None, 304, {"etag": tag})
    headers = {"etag": tag}
    if not detail.state.is_final:
        headers["retry-after"] = "1"
    return WebReply(detail, 200, headers)


async def result(call: WebCall) -> WebReply:
    """The result as the handler returned it; 202 while there is none yet."""
    record = await call.job()
    if not record.state.is_final:
        body = ResultOut(id=record.id, state=record.state, result=None, error=None)
        return WebReply(body, 202, {"retry-after": "1"})
    record = call.site.client.revealed(record)
    return WebReply(_result_out(record, shown(record.result, reveal=True)))


def _result_out(record: JobRecord, value: Any) -> ResultOut:
    error = None if record.state is JobState.COMPLETED else error_out(record.error)
    return ResultOut(id=record.id, state=record.state, result=value, error=error)


async def why(call: WebCall) -> WebReply:
    record = await call.job()
    return WebReply(WhyOut(id=record.id, state=record.state, why=await why_of(call, record)))


async def why_of(call: WebCall, record: JobRecord) -> str:
    """Why the job is where it is; without the ids and the number of other jobs for a narrowed caller."""
    driver = call.site.driver
    start = call.site.app.start_worker
    asked = reasons.why(driver, record.id, names_others=not call.access.is_narrow, start=start)
    text = await operation.arun(driver, asked)
    if text is None:
        raise JobNotFound(record.id)
    return text


# -- act ---------------------------------------------------------------------------------------------


async def cancel(call: WebCall) -> WebReply:
    record = await call.job()
    was = await call.site.client.acancel(record.id, reason=call.body.reason, by=call.by)
    call.note(record.id, task=record.task, was=was, reason=call.body.reason)
    return WebReply(ActedOut(id=record.id, was=was))


async def retry(call: WebCall) -> WebReply:
    record = await call.job()
    was = await call.site.client.aretry(record.id, by=call.by, from_step=call.body.from_step)
    call.note(record.id, task=record.task, was=was, from_step=call.body.from_step)
    return WebReply(ActedOut(id=record.id, was=was))


async def delete(call: WebCall) -> WebReply:
    record = await call.job()
    was = await call.site.client.adelete(record.id, by=call.by)
    call.note(record.id, task=record.task, was=was)
    return WebReply(ActedOut(id=record.id, was=was))


async def bulk_cancel(call: WebCall) -> WebReply:
    return await _bulk(call, "cancel")


async def bulk_retry(call: WebCall) -> WebReply:
    return await _bulk(call, "retry")


async def bulk_delete(call: WebCall) -> WebReply:
    return await _bulk(call, "delete")


async def _bulk(call: WebCall, action: str) -> WebReply:
    done = await bulk(call, action, call.body)
    location = f"{call.request.scope.get('root_path', '')}{PREFIX}/operations/{done.id}"
    return WebReply(done, 202, {"location": location})


async def bulk(call: WebCall, action: str, body: FilterBody) -> OperationOut:
    """Begin a bulk action on what the filter selects; the API and the dashboard share it."""
    filters = {
        name: getattr(body, name)
        for name in ("q", "state", "queue", "task", "tag", "group")
        if getattr(body, name) is not None
    }
    if not filters and body.ids is None and not body.all:
        raise Problem("invalid", 'an empty filter is every job: say {"all": true} if that is meant')
    wanted = search.parse(**filters)
    if body.ids is not None:
        ids = tuple(dict.fromkeys(known_as(job_id, "id") for job_id in body.ids))
        wanted = search.Search(wanted.which, ids, wanted.tests, wanted.args)
    driver, finder, by = call.site.driver, call.site.finder(call.access), call.by

    def act(ids: Sequence[str]) -> Operation[list[Acted]]:
        if action == "cancel":
            answers = yield driver.cancel(ids, by=by, reason=body.reason)
        elif action == "retry":
            answers = yield driver.retry(ids, by=by)
        else:
            answers = yield driver.delete(ids, by=by)
        acted: list[Acted] = answers
        return acted

    chosen = None if body.dry_run else act
    done = await call.site.operations.start(
        action,
        by,
        lambda note: walk(finder, wanted, chosen, note),
        credential=call.access.credential,
        is_dry_run=body.dry_run,
    )
    shown_ids = None if body.ids is None else len(body.ids)
    call.note(done.id, filter=filters or None, ids=shown_ids, dry_run=body.dry_run or None)
    call.detail["matched"] = done.matched
    return done


async def get_operation(call: WebCall) -> WebReply:
    return WebReply(await operation_of(call))


async def operation_of(call: WebCall) -> OperationOut:
    """The bulk action named in the path. A narrowed caller sees those that it started."""
    found = await call.site.operations.get(call.path("id"), call.access)
    if found is None:
        raise Problem("not-found", f"no operation {call.path('id')!r}; they are kept for a week")
    return found


J = f"{PREFIX}/jobs"
ROUTES: tuple[WebRoute, ...] = (
    WebRoute("POST", J, "enqueue", enqueue, "Enqueue a job", body=NewJobBody, answer=JobDetail,
             status=202, also=(200,), is_work=True, applies=EVERY_NARROWING),
    WebRoute("POST", f"{J}:bulk", "enqueue", enqueue_bulk, "Enqueue many jobs", body=BulkBody,
             answer=BulkOut, status=202, is_work=True, applies=EVERY_NARROWING),
    WebRoute("POST", f"{J}:cancel", "operate", bulk_cancel, "Cancel the jobs a filter names",
             body=FilterBody, answer=OperationOut, status=202, audit="cancel jobs",
             applies=EVERY_NARROWING),
    WebRoute("POST", f"{J}:retry", "operate", bulk_retry, "Retry the jobs a filter names",
             body=FilterBody, answer=OperationOut, status=202, audit="retry jobs",
             applies=EVERY_NARROWING),
    WebRoute("POST", f"{J}:delete", "operate", bulk_delete, "Delete the jobs a filter names",
             body=FilterBody, answer=OperationOut, status=202, audit="delete jobs",
             applies=EVERY_NARROWING),
    WebRoute("GET", f"{PREFIX}/operations/{{id}}", "operate", get_operation, "How far a bulk action is",
             answer=OperationOut, applies=EVERY_NARROWING),
    WebRoute("GET", J, "read", list_jobs, "List jobs, newest first", query=JobQuery, answer=JobPage,
             applies=EVERY_NARROWING),
    WebRoute("GET", f"{J}/{{id}}", "read", get, "One job", answer=JobDetail, also=(304,),
             applies=EVERY_NARROWING),
    WebRoute("GET", f"{J}/{{id}}/result", "enqueue", result, "What the job returned", answer=ResultOut,
             also=(202,), applies=EVERY_NARROWING),
    WebRoute("GET", f"{J}/{{id}}/why", "read", why, "Why the job is where it is", answer=WhyOut,
             applies=EVERY_NARROWING),
    WebRoute("POST", f"{J}/{{id}}/cancel", "operate", cancel, "Cancel a job", body=ReasonBody,
             answer=ActedOut, audit="cancel", applies=EVERY_NARROWING),
    WebRoute("POST", f"{J}/{{id}}/retry", "operate", retry, "Make a job ready now", body=RetryBody,
             answer=ActedOut, audit="retry", applies=EVERY_NARROWING),
    WebRoute("DELETE", f"{J}/{{id}}", "operate", delete, "Delete a job", answer=ActedOut, audit="delete",
             applies=EVERY_NARROWING),
)  # fmt: skip
