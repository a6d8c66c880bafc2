"""A job as Django's TaskResult: status, times, errors and workers."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from django.conf import settings
from django.utils import timezone

from winch import JobState
from winch.integrations.django.api import (
    InvalidTask,
    Task,
    TaskError,
    TaskResult,
    TaskResultStatus,
)
from winch.types import Entry, Failure, JobRecord

RUN_AFTER, PRIORITY = "django-run-after", "django-priority"
STATUS: dict[JobState, Any] = {
    JobState.SCHEDULED: TaskResultStatus.READY,
    JobState.BLOCKED: TaskResultStatus.READY,
    JobState.READY: TaskResultStatus.READY,
    JobState.RETRYING: TaskResultStatus.READY,
    JobState.RUNNING: TaskResultStatus.RUNNING,
    JobState.COMPLETED: TaskResultStatus.SUCCESSFUL,
    JobState.DEAD: TaskResultStatus.FAILED,
    JobState.CANCELLED: TaskResultStatus.FAILED,
}
# The last line that Winch adds to the traceback of a handler that tried to end its process.
_NOTE = "The attempt failed with this; a job must not end its worker.\n"


def new_result(task: Any, args: Any, kwargs: Any, alias: str) -> Any:
    """The result of a task that is about to be enqueued; raises TypeError for arguments that JSON cannot
    hold."""
    return TaskResult(
        task=task,
        id="",
        status=TaskResultStatus.READY,
        enqueued_at=None,
        started_at=None,
        finished_at=None,
        last_attempted_at=None,
        args=args,
        kwargs=kwargs,
        backend=alias,
        errors=[],
        worker_ids=[],
    )


def result_of(record: JobRecord, definition: Any, alias: str) -> Any:
    """The job as Django shows it. `definition` is the task of the project's code."""
    given = json.loads(record.args)
    attempts = [entry for entry in record.history if entry.claimed_at is not None]
    times = [entry.claimed_at for entry in attempts]
    workers = [entry.session or "" for entry in attempts]
    if record.claimed_at is not None and record.claimed_at not in times:
        times.append(record.claimed_at)
        workers.append(record.session or "")
    result = TaskResult(
        task=as_enqueued(definition, record, alias),
        id=record.id,
        status=STATUS[record.state],
        enqueued_at=moment(record.created_at),
        started_at=moment(times[0]) if times else None,
        finished_at=moment(record.finished_at),
        last_attempted_at=moment(times[-1]) if times else None,
        args=given.get("args", []),
        kwargs=given.get("kwargs", {}),
        backend=alias,
        errors=_errors(record),
        worker_ids=workers,
    )
    if record.state is JobState.COMPLETED and record.result is not None:
        object.__setattr__(result, "_return_value", json.loads(record.result))
    return result


def as_enqueued(definition: Any, record: JobRecord, alias: str) -> Any:
    """The task with the queue, priority and time of this job."""
    run_after = record.headers.get(RUN_AFTER)
    changes: dict[str, Any] = {
        "priority": int(record.headers.get(PRIORITY, 0)),
        "queue_name": record.queue,
        "backend": alias,
    }
    if run_after is not None:
        changes["run_after"] = moment(datetime.fromisoformat(run_after))
    try:
        found: Task = definition.using(**changes)
    except InvalidTask:  # an operator has moved the job to a queue that the settings do not name
        return definition
    return found


def moment(value: datetime | None) -> datetime | None:
    """A time as the project has it: naive and local where USE_TZ is off."""
    if value is None or settings.USE_TZ:
        return value
    naive: datetime = timezone.make_naive(value)
    return naive


def aware(value: datetime) -> datetime:
    """A time of the project as Winch has it."""
    found: datetime = value if timezone.is_aware(value) else timezone.make_aware(value)
    return found


def _errors(record: JobRecord) -> list[Any]:
    found = [error for entry in record.history if (error := _error_of(entry)) is not None]
    if record.state is JobState.CANCELLED:
        found.append(_plain("winch.JobCancelled", record.reason or "cancelled"))
    elif record.state is JobState.DEAD and not found:
        found.append(_plain("winch.JobFailed", record.reason or "dead"))
    return found


def _error_of(entry: Entry) -> Any:
    """The error of one attempt; None for an entry that is no failed attempt."""
    if entry.error is not None:
        return as_task_error(entry.error)
    if entry.what not in ("crashed", "rescued"):
        return None
    kind = "winch.JobCrashed" if entry.what == "crashed" else "winch.JobRescued"
    return _plain(kind, entry.note or f"the attempt {entry.what}")


def as_task_error(failure: Failure) -> Any:
    """An error as Django shows it."""
    path = failure.type if "." in failure.type else f"builtins.{failure.type}"
    if failure.traceback is None:
        return _plain(path, failure.message)
    return TaskError(exception_class_path=path, traceback=failure.traceback.removesuffix(_NOTE))


def _plain(path: str, message: str) -> Any:
    return TaskError(
        exception_class_path=path, traceback=f"{path.removeprefix('builtins.')}: {message}\n"
    )
