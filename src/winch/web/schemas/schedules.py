"""Schedules and their windows."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from winch.core.lifecycle import JobState
from winch.web.schemas.base import Body, Duration, Name


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
    calendar: str | None
    on_holiday: str | None
    misfire_deadline_seconds: float | None
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


class BackfillBody(Body, frozen=True, kw_only=True):
    """The past times from `start` up to, not including, `end`."""

    start: datetime
    end: datetime
    dry_run: bool = False
    rate: Name | None = None
    priority: int | str | None = None


class BackfillOut(msgspec.Struct, frozen=True, kw_only=True):
    """`windows` got a job, or would in a dry run; `existing` ones had one before."""

    matched: int
    enqueued: int
    existing: int
    held: int
    is_dry_run: bool
    windows: list[datetime]


class ChangedScheduleBody(Body, frozen=True, kw_only=True):
    """What a schedule is; for a change only what is to be another, and null for what is to be gone."""

    cron: Name | None = None
    every: Duration | None = None
    tz: Name | None = None
    dst: Name | None = None
    misfire: Name | None = None
    overlap: Name | None = None
    jitter: Duration | None = None
    catch_up: int | None = None
    calendar: str | None = None
    on_holiday: Name | None = None
    misfire_deadline: Duration | None = None
    args: dict[str, Any] | None = None
    queue: Name | None = None
    priority: int | str | None = None
    expires: Duration | None = None
    tags: list[str] | None = None


class NewScheduleBody(ChangedScheduleBody, frozen=True, kw_only=True):
    name: Name
    task: Name
