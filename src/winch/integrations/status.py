"""The status of a job as a web application shows it to its own users.

The modules for FastAPI, Starlette, Flask and Litestar share it. It holds no arguments and no messages of
errors: these belong to operators, and the dashboard shows them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from winch import Job
    from winch.types import JobRecord

RETRY_AFTER = "1"
"""Seconds after which a client may read the status again."""


@dataclass(frozen=True, slots=True)
class JobStatus:
    """One job as its caller may see it.

        JobStatus(id="…", state="completed", attempt=1, created_at=now, result="/reports/7.pdf")

    `progress` is a percentage. `error` is the type of the last error of a dead job. `result` is the
    result of a completed job, where the application shows results.
    """

    id: str
    state: str
    attempt: int
    created_at: datetime
    finished_at: datetime | None = None
    progress: float | None = None
    message: str | None = None
    result: Any = None
    error: str | None = None

    @property
    def is_final(self) -> bool:
        """Whether the status changes no more."""
        return self.finished_at is not None


def status_of(job: Job[Any], *, with_result: bool = False) -> JobStatus:
    """The status of a job that was just read."""
    is_shown = with_result and job.record.state == "completed"
    return _status(job.record, job.result() if is_shown else None)


async def astatus_of(job: Job[Any], *, with_result: bool = False) -> JobStatus:
    """`status_of` without blocking the event loop."""
    is_shown = with_result and job.record.state == "completed"
    return _status(job.record, await job.aresult() if is_shown else None)


def _status(record: JobRecord, result: object) -> JobStatus:
    progress = {} if record.progress is None else msgspec.json.decode(record.progress)
    is_dead = record.state == "dead"
    return JobStatus(
        id=record.id,
        state=str(record.state),
        attempt=record.attempt,
        created_at=record.created_at,
        finished_at=record.finished_at,
        progress=progress.get("percent"),
        message=progress.get("message"),
        result=msgspec.to_builtins(result),
        error=record.error.type if is_dead and record.error is not None else None,
    )


def accepted_body(job: Job[Any], location: str, more: Mapping[str, object] | None) -> dict[str, Any]:
    """The body of the answer 202 for a stored job."""
    return {"id": job.id, "location": location, **(more or {})}


__all__ = ["RETRY_AFTER", "JobStatus", "accepted_body", "astatus_of", "status_of"]
