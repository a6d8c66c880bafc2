"""Records of the store, converted to the schemas that the API returns: secrets masked."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from winch.areas.dead_groups import NO_MARK, GroupMark
from winch.core.job import Entry, Failure, JobRecord
from winch.core.lifecycle import allowed
from winch.core.values.redact import mask, mask_text, shown
from winch.engine.observe.usage import ProcessUsage
from winch.storage.params import DeadGroup, QueueInfo, SessionInfo
from winch.web.schemas.jobs import EntryOut, ErrorOut, JobDetail, JobOut
from winch.web.schemas.queues import GroupOut, QueueOut, WorkerOut

T = TypeVar("T", bound=msgspec.Struct)


def copied(schema: type[T], record: object, **others: Any) -> T:
    """The schema with the fields that `record` has under the same names, and with these others."""
    same = {name for name in schema.__struct_fields__ if name not in others}
    return schema(**{name: getattr(record, name) for name in same}, **others)


def _masked(text: str | None) -> str | None:
    return None if text is None else mask_text(text)


def error_out(error: Failure | None, *, with_traceback: bool = False) -> ErrorOut | None:
    if error is None:
        return None
    traceback = _masked(error.traceback) if with_traceback else None
    return ErrorOut(type=error.type, message=mask_text(error.message), traceback=traceback)


def job_out(job: JobRecord) -> JobOut:
    return JobOut(**_common(job, with_traceback=False))


def _common(job: JobRecord, *, with_traceback: bool) -> dict[str, Any]:
    return {
        "id": job.id,
        "task": job.task,
        "state": job.state,
        "queue": job.queue,
        "priority": job.priority,
        "tenant": job.tenant,
        "args": shown(job.args),
        "tags": [mask_text(tag) for tag in job.tags],
        "attempt": job.attempt,
        "max_attempts": job.max_attempts,
        "crashes": job.crashes,
        "rescues": job.rescues,
        "created_at": job.created_at,
        "run_at": job.run_at,
        "claimed_at": job.claimed_at,
        "finished_at": job.finished_at,
        "progress": shown(job.progress),
        "error": error_out(job.error, with_traceback=with_traceback),
        "reason": _masked(job.reason),
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
        session=job.session,
        unique=_masked(job.unique_key),
        fifo=_masked(job.fifo),
        result=shown(job.result),
        log=_masked(job.log),
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
        note=_masked(entry.note),
        error=error_out(entry.error, with_traceback=True),
        log=_masked(entry.log),
    )


def queue_out(queue: QueueInfo) -> QueueOut:
    return QueueOut(
        name=queue.name,
        counts=dict(queue.counts),
        paused_at=queue.paused_at,
        pause_reason=_masked(queue.pause_reason),
        oldest_ready_at=queue.oldest_ready_at,
        sessions=queue.sessions,
        inexact=sorted(queue.inexact),
    )


def worker_out(session: SessionInfo, usage: ProcessUsage | None = None) -> WorkerOut:
    return copied(
        WorkerOut,
        session,
        cpu=None if usage is None else usage.cpu,
        memory=None if usage is None else usage.memory,
        max_memory=None if usage is None else usage.max_memory,
        loop_lag=None if usage is None else usage.lag,
        is_quiet=usage is not None and usage.is_quiet,
        queues=list(session.queues),
        tasks=list(session.tasks),
        end_reason=_masked(session.end_reason),
    )


def group_out(group: DeadGroup, mark: GroupMark = NO_MARK) -> GroupOut:
    return copied(
        GroupOut,
        group,
        state=mark.state_of(group),
        assignee=mark.assignee,
        group=group.fingerprint,
        error=ErrorOut(type=group.error_type, message=mask_text(group.message)),
    )
