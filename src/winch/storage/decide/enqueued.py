"""What becomes of a job that a store takes: ready or scheduled, and the answer for its producer."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from winch.core.job import JobRecord
from winch.core.lifecycle import JobState
from winch.storage.params import Enqueued, NewJob

# Looking a member up in its enumeration takes longer than the rest of an answer.
_READY, _SCHEDULED = JobState.READY, JobState.SCHEDULED


def stored_at(moment: datetime, jobs: Sequence[NewJob]) -> list[Enqueued]:
    """The answers for jobs that were all stored at this moment, which may be in any time zone."""
    if moment.tzinfo is not UTC:
        moment = moment.astimezone(UTC)
    return [
        Enqueued(job.id, True, None, False, False, moment, _READY)
        if (job.delay is None and job.run_at is None) or not _is_later(job, moment)
        else Enqueued(job.id, True, None, False, False, moment, _SCHEDULED)
        for job in jobs
    ]


def new_record(job: NewJob, moment: datetime, *, seq: int | None = None) -> JobRecord:
    """The job as it is when a store has taken it at this moment."""
    due = moment + job.delay if job.delay is not None else job.run_at
    is_later = due is not None and due > moment
    return JobRecord(
        id=job.id,
        task=job.task,
        version=job.version,
        args=job.args,
        queue=job.queue,
        priority=job.priority,
        created_at=moment,
        run_at=due if is_later and due is not None else moment,
        state=_SCHEDULED if is_later else _READY,
        tenant=job.tenant,
        fifo=job.fifo,
        unique_key=job.unique_key,
        tags=job.tags,
        headers=job.headers,
        options=job.options,
        expires_at=None if job.expires is None else moment + job.expires,
        max_attempts=job.max_attempts,
        keep=job.keep,
        seq=seq,
    )


def _is_later(job: NewJob, moment: datetime) -> bool:
    if job.delay is not None:
        return job.delay > timedelta(0)
    return job.run_at is not None and job.run_at > moment
