"""What happens to jobs in this process, for subscribers of `app.on(kind, function)`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import timedelta
from time import monotonic
from typing import Any

import msgspec

from winch.core.errors import ConfigError, did_you_mean
from winch.core.job import Claim, Failure, JobRecord
from winch.core.lifecycle import JobState
from winch.engine.base.log import log

KINDS = (
    "enqueued",
    "started",
    "progress",
    "completed",
    "retrying",
    "snoozed",
    "cancelled",
    "dead",
    "crashed",
    "rescued",
    "lost",
)


# A subscriber that fails for every event would fill the log with one traceback.
LOG_EVERY = 60.0


class JobEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event of one job in this process, for subscribers of `app.on`."""

    kind: str
    job_id: str
    task: str
    queue: str
    attempt: int = 0
    duration: timedelta | None = None
    error: Failure | None = None
    reason: str | None = None
    """Why it is cancelled, dead or put off; the message of a progress."""
    percent: float | None = None
    """How far the job is, with a progress."""


class Events:
    """The subscribers. One that fails is logged, once a minute, and never hurts a job."""

    def __init__(self) -> None:
        self._subscribers: dict[str, list[Callable[[JobEvent], Any]]] = {}
        self.is_heard: bool = False
        # By subscriber: when its failure was last logged, and how many were not since.
        self._failures: dict[Callable[[JobEvent], Any], tuple[float, int]] = {}

    def on(self, kind: str, function: Callable[[JobEvent], Any]) -> None:
        if kind not in KINDS:
            raise ConfigError(
                f"no event named {kind!r}{did_you_mean(kind, KINDS)}; choose from {', '.join(KINDS)}"
            )
        if inspect.iscoroutinefunction(function):
            raise ConfigError(
                "a subscriber is a plain function, called where the event happens; "
                "start a task in it, or enqueue a job, for longer work"
            )
        self._subscribers.setdefault(kind, []).append(function)
        self.is_heard = True

    def wants(self, kind: str) -> bool:
        return kind in self._subscribers

    def send(self, kind: str, job: Claim | JobRecord, **facts: Any) -> None:
        """`publish` what happened to this job, where a subscriber wants it."""
        if kind in self._subscribers:
            self.publish(
                JobEvent(
                    kind=kind,
                    job_id=job.id,
                    task=job.task,
                    queue=job.queue,
                    attempt=job.attempt,
                    **facts,
                )
            )

    def publish(self, event: JobEvent) -> None:
        for function in self._subscribers.get(event.kind, ()):
            try:
                function(event)
            except Exception:
                self._log_failure(function, event)

    def _log_failure(self, function: Callable[[JobEvent], Any], event: JobEvent) -> None:
        now = monotonic()
        logged_at, silent = self._failures.get(function, (-LOG_EVERY, 0))
        if now - logged_at < LOG_EVERY:
            self._failures[function] = (logged_at, silent + 1)
            return
        self._failures[function] = (now, 0)
        more = f"; {silent} more failures since the last line" if silent else ""
        log.exception("a subscriber to %r failed for job %s%s", event.kind, event.job_id, more)


def kind_of(to: JobState) -> str:
    """The event that an attempt's end makes. A job that continues later, no attempt spent, snoozes."""
    match to:
        case JobState.COMPLETED | JobState.CANCELLED | JobState.DEAD | JobState.RETRYING:
            return str(to)
        case _:
            return "snoozed"
