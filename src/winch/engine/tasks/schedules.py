"""A schedule and its runs, as `app.schedules` returns them."""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from winch.core.lifecycle import JobState
from winch.core.policy.schedule import MISSED_AFTER, Misfire, Overlap, Timing, next_windows
from winch.storage.decide.schedules import Definition, RunKind, ScheduleRow, read_definition


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """One schedule as the store keeps it. `is_active` is True while a worker runs it."""

    name: str
    task: str
    timing: Timing
    misfire: Misfire
    catch_up: int
    overlap: Overlap
    jitter: timedelta
    misfire_deadline: timedelta | None = None
    args: str
    queue: str
    is_code: bool
    is_active: bool
    created_at: datetime
    last_window: datetime
    next_at: datetime | None
    now: datetime
    waiting: datetime | None = None
    paused_at: datetime | None = None
    pause_reason: str | None = None
    definition: Definition

    @property
    def late_by(self) -> timedelta | None:
        """How long its window has been overdue without a job; None up to ten seconds."""
        if self.next_at is None or not self.is_active or self.paused_at is not None:
            return None
        late = self.now - self.next_at
        return late if late > MISSED_AFTER else None

    def next(self, count: int = 5) -> list[datetime]:
        """The next windows after the time at which the schedule was read."""
        return next_windows(self.timing, max(self.now, self.last_window), count)


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One window of a schedule. `state` is the state of its job; None when there is no job."""

    window: datetime
    kind: RunKind
    at: datetime
    job: str | None = None
    state: JobState | None = None
    finished_at: datetime | None = None
    note: str | None = None


def schedule_of(row: ScheduleRow, now: datetime) -> Schedule:
    definition = read_definition(row.definition)
    return Schedule(
        name=row.name,
        task=definition.job.task,
        timing=definition.timing,
        misfire=definition.misfire,
        catch_up=definition.catch_up,
        overlap=definition.overlap,
        jitter=definition.jitter,
        misfire_deadline=definition.misfire_deadline,
        args=definition.job.args,
        queue=definition.job.queue,
        is_code=row.is_code,
        is_active=row.is_active,
        created_at=row.created_at,
        last_window=row.last_window,
        next_at=row.next_at or definition.timing.next_after(row.last_window),
        now=now,
        waiting=row.pending,
        paused_at=row.paused_at,
        pause_reason=row.pause_reason,
        definition=definition,
    )
