"""What goes over HTTP: the types that are read, written and described in the OpenAPI document."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import msgspec

from winch.core.job import Entry, Failure, JobRecord, level_of
from winch.core.lifecycle import JobState, allowed
from winch.core.redact import mask, mask_text, shown
from winch.storage.params import DeadGroup, QueueInfo, SessionInfo

Limit = Annotated[int, msgspec.Meta(ge=1, le=200)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
Uuid = Annotated[str, msgspec.Meta(pattern="^[0-9a-fA-F-]{32,36}$")]
Duration = Annotated[str, msgspec.Meta(max_length=40, description="Like 250ms, 30s, 5m, 2h, 1d.")]


class Body(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request's body: unknown fields are refused, not ignored."""


# -- jobs --------------------------------------------------------------------------------------------


class NewJobBody(Body, frozen=True, kw_only=True):
    task: Name
    args: dict[str, Any] = {}
    queue: Name | None = None
    priority: int | str | None = None
    delay: Duration | None = None
    run_at: datetime | None = None
    expires: Duration | None = None
    timeout: Duration | None = None
    unique: Name | None = None
    fifo: Name | None = None
    tenant: Name | None = None
    tags: list[str] = []
    headers: dict[str, str] = {}
    id: Uuid | None = None


class BulkBody(Body, frozen=True, kw_only=True):
    jobs: Annotated[list[NewJobBody], msgspec.Meta(min_length=1, max_length=10_000)]


class JobQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    state: Annotated[str | None, msgspec.Meta(description="One state or several, by commas.")] = None
    queue: str | None = None
    task: str | None = None
    tag: str | None = None
    group: Annotated[str | None, msgspec.Meta(description="The fingerprint of dead jobs.")] = None
    q: Annotated[
        str | None,
        msgspec.Meta(description="Words like task:x state:dead args.user:7 error:Timeout attempt:>3"),
    ] = None
    cursor: str | None = None
    limit: Limit = 50


class FilterBody(Body, frozen=True, kw_only=True):
    """Which jobs a bulk action is for, as in `GET /jobs`. An empty filter needs `all`."""

    state: str | None = None
    queue: str | None = None
    task: str | None = None
    tag: str | None = None
    group: str | None = None
    q: str | None = None
    ids: Annotated[list[Uuid], msgspec.Meta(max_length=10_000)] | None = None
    all: bool = False
    reason: Annotated[str, msgspec.Meta(max_length=500)] | None = None
    dry_run: bool = False


class ReasonBody(Body, frozen=True, kw_only=True):
    reason: Annotated[str, msgspec.Meta(max_length=500)] | None = None


class EmptyBody(Body, frozen=True, kw_only=True):
    pass


class ErrorOut(msgspec.Struct, frozen=True, kw_only=True):
    type: str
    message: str
    traceback: str | None = None


class JobOut(msgspec.Struct, frozen=True, kw_only=True):
    """A job in a list. Values of telling names (password, token, …) are masked."""

    id: str
    task: str
    state: JobState
    queue: str
    priority: int
    tenant: str | None
    args: Any
    tags: list[str]
    attempt: int
    max_attempts: int | None
    created_at: datetime
    run_at: datetime
    claimed_at: datetime | None
    finished_at: datetime | None
    progress: Any
    error: ErrorOut | None
    reason: str | None
    group: str | None


class EntryOut(msgspec.Struct, frozen=True, kw_only=True):
    what: str
    at: datetime
    attempt: int | None
    session: str | None
    claimed_at: datetime | None
    by: str | None
    note: str | None
    error: ErrorOut | None
    log: str | None


class JobDetail(JobOut, frozen=True, kw_only=True):
    version: int
    headers: dict[str, str]
    expires_at: datetime | None
    cancel_requested_at: datetime | None
    crashes: int
    rescues: int
    session: str | None
    unique: str | None
    fifo: str | None
    result: Any
    log: str | None
    history: list[EntryOut]
    actions: list[str]


class JobPage(msgspec.Struct, frozen=True, kw_only=True):
    """`is_partial`: the search stopped after `scanned` jobs; `next` goes on from there."""

    jobs: list[JobOut]
    next: str | None
    scanned: int | None = None
    is_partial: bool = False


class Enqueued(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    is_new: bool


class BulkOut(msgspec.Struct, frozen=True, kw_only=True):
    jobs: list[Enqueued]


class ResultOut(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    state: JobState
    result: Any
    error: ErrorOut | None


class WhyOut(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    state: JobState
    why: str


class ActedOut(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    was: JobState


class OperationOut(msgspec.Struct, frozen=True, kw_only=True):
    """A bulk action under way or done. `matched` jobs were met, `acted` took it, `refused` did not."""

    id: str
    action: str
    by: str
    state: str
    started_at: datetime
    finished_at: datetime | None = None
    matched: int = 0
    acted: int = 0
    refused: int = 0
    is_dry_run: bool = False
    note: str | None = None


# -- working -----------------------------------------------------------------------------------------


class ClaimBody(Body, frozen=True, kw_only=True):
    max: Annotated[int, msgspec.Meta(ge=1, le=100)] = 1
    lease: Duration = "30s"
    wait: Duration = "0s"
    worker: Annotated[str, msgspec.Meta(min_length=1, max_length=100)] = "http"
    tasks: list[Name] | None = None


class ClaimedJob(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    task: str
    version: int
    args: Any
    queue: str
    attempt: int
    token: str
    fence: int
    lease_until: datetime
    created_at: datetime
    expires_at: datetime | None
    headers: dict[str, str]
    checkpoint: Any


class ClaimedOut(msgspec.Struct, frozen=True, kw_only=True):
    jobs: list[ClaimedJob]


class CompleteBody(Body, frozen=True, kw_only=True):
    token: str
    result: Any = None


class FailBody(Body, frozen=True, kw_only=True):
    token: str
    error: str | ErrorOut = "failed"
    retry_in: Duration | None = None
    is_final: bool = False


class BeatBody(Body, frozen=True, kw_only=True):
    token: str
    lease: Duration | None = None
    progress: Any = None
    checkpoint: Any = None
    log: Annotated[str, msgspec.Meta(max_length=8192)] | None = None


class BeatOut(msgspec.Struct, frozen=True, kw_only=True):
    lease_until: datetime
    is_cancel_requested: bool


class TokenBody(Body, frozen=True, kw_only=True):
    token: str


class FinishedOut(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    state: JobState | None


# -- queues, workers, the dead -----------------------------------------------------------------------


class QueueOut(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    counts: dict[JobState, int]
    paused_at: datetime | None
    pause_reason: str | None
    oldest_ready_at: datetime | None
    sessions: int


class QueueSettingsBody(Body, frozen=True, kw_only=True):
    """What to set; null takes a setting back."""

    concurrency: int | msgspec.UnsetType | None = msgspec.UNSET
    retries: int | msgspec.UnsetType | None = msgspec.UNSET
    backoff: Duration | msgspec.UnsetType | None = msgspec.UNSET
    max_depth: int | msgspec.UnsetType | None = msgspec.UNSET
    max_age: Duration | msgspec.UnsetType | None = msgspec.UNSET
    on_full: Name | msgspec.UnsetType | None = msgspec.UNSET
    block_for: Duration | msgspec.UnsetType | None = msgspec.UNSET
    drain: Name | msgspec.UnsetType | None = msgspec.UNSET


class QueueSettingsOut(msgspec.Struct, frozen=True, kw_only=True):
    queue: str
    settings: dict[str, Any]


class QueuesOut(msgspec.Struct, frozen=True, kw_only=True):
    queues: list[QueueOut]


class WorkerOut(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    worker: str
    host: str
    pid: int
    release: str
    queues: list[str]
    tasks: list[str]
    slots: int
    running: int
    started_at: datetime
    lease_until: datetime
    ended_at: datetime | None
    end_reason: str | None


class WorkersOut(msgspec.Struct, frozen=True, kw_only=True):
    workers: list[WorkerOut]


class WorkerQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    all: bool = False


class GroupQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    task: str | None = None
    queue: str | None = None
    limit: Limit = 50


class GroupOut(msgspec.Struct, frozen=True, kw_only=True):
    group: str
    task: str
    error: ErrorOut
    count: int
    first_at: datetime
    last_at: datetime
    sample_id: str


class GroupsOut(msgspec.Struct, frozen=True, kw_only=True):
    groups: list[GroupOut]


class ReplayBody(Body, frozen=True, kw_only=True):
    ids: Annotated[list[Uuid], msgspec.Meta(min_length=1, max_length=10_000)] | None = None
    task: Name | None = None
    queue: Name | None = None
    group: Name | None = None
    all: bool = False
    rate: Annotated[str, msgspec.Meta(max_length=20, description="Like 100/s.")] | None = None
    args: dict[str, Any] | None = None
    attempts: Annotated[int, msgspec.Meta(ge=1, le=1000)] | None = None
    to_queue: Name | None = None
    force: bool = False
    dry_run: bool = False


class StatsOut(msgspec.Struct, frozen=True, kw_only=True):
    """Counts stop at `jobs_capped_at`."""

    store: str
    jobs: dict[JobState, int]
    jobs_capped_at: int
    queues: list[QueueOut]
    workers: int
    slots: int
    running: int


class ScaleQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    queue: str | None = None


class ScaleOut(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs that could run now: ready ones and running ones."""

    value: int


class ScheduleOut(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    task: str
    queue: str
    cron: str | None
    every_seconds: float | None
    tz: str
    words: str
    misfire: str
    overlap: str
    jitter_seconds: float
    is_code: bool
    is_active: bool
    paused_at: datetime | None
    pause_reason: str | None
    last_window: datetime
    next_at: datetime | None
    late_seconds: float | None


class SchedulesOut(msgspec.Struct, frozen=True, kw_only=True):
    schedules: list[ScheduleOut]


class ScheduleRunOut(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one window; `state` is its job's."""

    window: datetime
    kind: str
    job: str | None
    state: JobState | None
    note: str | None


class ScheduleDetail(msgspec.Struct, frozen=True, kw_only=True):
    schedule: ScheduleOut
    next: list[datetime]
    runs: list[ScheduleRunOut]


class TriggeredOut(msgspec.Struct, frozen=True, kw_only=True):
    job: str


class WindowOut(msgspec.Struct, frozen=True, kw_only=True):
    window: datetime


class LimitOut(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    allowed: str
    used: int
    waiting: int
    is_live: bool
    by: str | None
    set_at: datetime | None


class LimitsOut(msgspec.Struct, frozen=True, kw_only=True):
    limits: list[LimitOut]


class ScheduleBody(Body, frozen=True, kw_only=True):
    """What a schedule is; for a change only what is to be another, and null for what is to be gone."""

    cron: Name | None = None
    every: Duration | None = None
    tz: Name | None = None
    dst: Name | None = None
    misfire: Name | None = None
    overlap: Name | None = None
    jitter: Duration | None = None
    catch_up: int | None = None
    args: dict[str, Any] | None = None
    queue: Name | None = None
    priority: int | str | None = None
    expires: Duration | None = None
    tags: list[str] | None = None


class NewScheduleBody(ScheduleBody, frozen=True, kw_only=True):
    name: Name
    task: Name


# -- flows -------------------------------------------------------------------------------------------


class FlowQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    cursor: str | None = None
    limit: Limit = 50


class FlowOut(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    name: str
    kind: str
    members: int
    tasks: list[str]


class FlowsOut(msgspec.Struct, frozen=True, kw_only=True):
    flows: list[FlowOut]
    next: str | None


class FlowNodeOut(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    task: str
    count: int
    after: list[str]


class FlowMemberOut(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    task: str
    state: JobState


class FlowDetail(msgspec.Struct, frozen=True, kw_only=True):
    flow: FlowOut
    state: str
    counts: dict[JobState, int]
    nodes: list[FlowNodeOut]
    members: list[FlowMemberOut]
    is_partial: bool


class CountOut(msgspec.Struct, frozen=True, kw_only=True):
    jobs: int


class SignalBody(Body, frozen=True, kw_only=True):
    payload: Any = None
    id: Name | None = None


class SignalOut(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    is_new: bool


class AuditQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    cursor: str | None = None
    limit: Limit = 50


class AuditLineOut(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    at: datetime
    who: str
    via: str
    origin: str
    action: str
    target: str
    detail: dict[str, Any]


class AuditOut(msgspec.Struct, frozen=True, kw_only=True):
    lines: list[AuditLineOut]
    next: str | None


class EventsQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    queues: str | None = None


class HealthOut(msgspec.Struct, frozen=True, kw_only=True):
    status: str
    checks: dict[str, str] = {}


class ProblemOut(msgspec.Struct, frozen=True, kw_only=True):
    type: str
    title: str
    status: int
    detail: str
    instance: str
    code: str
    request_id: str


# -- from records ------------------------------------------------------------------------------------


def _told(text: str | None) -> str | None:
    return None if text is None else mask_text(text)


def error_out(error: Failure | None, *, with_traceback: bool = False) -> ErrorOut | None:
    if error is None:
        return None
    traceback = _told(error.traceback) if with_traceback else None
    return ErrorOut(type=error.type, message=mask_text(error.message), traceback=traceback)


def job_out(job: JobRecord) -> JobOut:
    return JobOut(**_common(job, with_traceback=False))


def _common(job: JobRecord, *, with_traceback: bool) -> dict[str, Any]:
    return {
        "id": job.id,
        "task": job.task,
        "state": job.state,
        "queue": job.queue,
        "priority": level_of(job.priority),
        "tenant": job.tenant,
        "args": shown(job.args),
        "tags": list(job.tags),
        "attempt": job.attempt,
        "max_attempts": job.max_attempts,
        "created_at": job.created_at,
        "run_at": job.run_at,
        "claimed_at": job.claimed_at,
        "finished_at": job.finished_at,
        "progress": shown(job.progress),
        "error": error_out(job.error, with_traceback=with_traceback),
        "reason": _told(job.reason),
        "group": job.fingerprint,
    }


ACTIONS = ("cancel", "retry", "delete")


def job_detail(job: JobRecord) -> JobDetail:
    return JobDetail(
        **_common(job, with_traceback=True),
        version=job.version,
        headers=mask(dict(job.headers)),
        expires_at=job.expires_at,
        cancel_requested_at=job.cancel_requested_at,
        crashes=job.crashes,
        rescues=job.rescues,
        session=job.session,
        unique=job.unique_key,
        fifo=job.fifo,
        result=shown(job.result),
        log=_told(job.log),
        history=[_entry_out(entry) for entry in job.history],
        actions=[verb for verb in allowed(job.state) if verb in ACTIONS],
    )


def _entry_out(entry: Entry) -> EntryOut:
    return EntryOut(
        what=entry.what,
        at=entry.at,
        attempt=entry.attempt or None,
        session=entry.session,
        claimed_at=entry.claimed_at,
        by=entry.by,
        note=_told(entry.note),
        error=error_out(entry.error, with_traceback=True),
        log=_told(entry.log),
    )


def queue_out(queue: QueueInfo) -> QueueOut:
    return QueueOut(
        name=queue.name,
        counts=dict(queue.counts),
        paused_at=queue.paused_at,
        pause_reason=queue.pause_reason,
        oldest_ready_at=queue.oldest_ready_at,
        sessions=queue.sessions,
    )


def worker_out(session: SessionInfo) -> WorkerOut:
    return WorkerOut(
        id=session.id,
        worker=session.worker,
        host=session.host,
        pid=session.pid,
        release=session.release,
        queues=list(session.queues),
        tasks=list(session.tasks),
        slots=session.slots,
        running=session.running,
        started_at=session.started_at,
        lease_until=session.lease_until,
        ended_at=session.ended_at,
        end_reason=session.end_reason,
    )


def group_out(group: DeadGroup) -> GroupOut:
    return GroupOut(
        group=group.fingerprint,
        task=group.task,
        error=ErrorOut(type=group.error_type, message=mask_text(group.message)),
        count=group.count,
        first_at=group.first_at,
        last_at=group.last_at,
        sample_id=group.sample_id,
    )
