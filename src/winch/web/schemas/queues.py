"""Queues, limits, workers, dead letters, and numbers."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import msgspec

from winch.core.lifecycle import JobState
from winch.core.policy.queue_limits import QueueLimit
from winch.engine.observe.task_times import TaskTimes
from winch.web.schemas.base import Body, Duration, Limit, Name, Uuid
from winch.web.schemas.jobs import ErrorOut

Backoff = Annotated[
    str,
    msgspec.Meta(max_length=200, description="One delay like 30s, or a policy: exponential 2s max=5m."),
]


class QueueOut(msgspec.Struct, frozen=True, kw_only=True):
    """`inexact` names the states of `counts` that have more jobs than the server counts for a request:
    their number is some seconds old, or the 10,000 at which it stopped."""

    name: str
    counts: dict[JobState, int]
    paused_at: datetime | None
    pause_reason: str | None
    oldest_ready_at: datetime | None
    sessions: int
    inexact: list[JobState] = []


class QueueSettingsBody(Body, frozen=True, kw_only=True):
    """What to set; null takes a setting back."""

    concurrency: int | msgspec.UnsetType | None = msgspec.UNSET
    retries: int | msgspec.UnsetType | None = msgspec.UNSET
    backoff: Backoff | msgspec.UnsetType | None = msgspec.UNSET
    max_depth: int | msgspec.UnsetType | None = msgspec.UNSET
    max_age: Duration | msgspec.UnsetType | None = msgspec.UNSET
    on_full: Name | msgspec.UnsetType | None = msgspec.UNSET
    block_for: Duration | msgspec.UnsetType | None = msgspec.UNSET
    drain: Name | msgspec.UnsetType | None = msgspec.UNSET
    order: Name | msgspec.UnsetType | None = msgspec.UNSET
    draining: bool | msgspec.UnsetType | None = msgspec.UNSET


class QueueSettingsOut(msgspec.Struct, frozen=True, kw_only=True):
    queue: str
    settings: dict[str, Any]


class QueuesOut(msgspec.Struct, frozen=True, kw_only=True):
    queues: list[QueueOut]


class WorkerOut(msgspec.Struct, frozen=True, kw_only=True):
    """`cpu` is a share of one processor, `memory` is in bytes, `loop_lag` in seconds; null where the
    process has not reported yet."""

    id: str
    worker: str
    host: str
    pid: int
    release: str
    queues: list[str]
    tasks: list[str]
    slots: int
    running: int
    labels: dict[str, str]
    cpu: float | None = None
    memory: int | None = None
    max_memory: int | None = None
    loop_lag: float | None = None
    is_quiet: bool = False
    queue_limits: dict[str, QueueLimit]
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
    state: str = "open"
    """open, ignored, resolved, or back: a job died since it was resolved."""
    assignee: str | None = None


class GroupsOut(msgspec.Struct, frozen=True, kw_only=True):
    groups: list[GroupOut]


class ReplayBody(Body, frozen=True, kw_only=True):
    ids: Annotated[list[Uuid], msgspec.Meta(min_length=1, max_length=10_000)] | None = None
    task: Name | None = None
    queue: Name | None = None
    group: Name | None = None
    all: bool = False
    since: datetime | None = None
    until: datetime | None = None
    rate: Annotated[str, msgspec.Meta(max_length=20, description="Like 100/s.")] | None = None
    args: dict[str, Any] | None = None
    patch: dict[str, Any] | None = None
    limit: Annotated[int, msgspec.Meta(ge=1)] | None = None
    attempts: Annotated[int, msgspec.Meta(ge=1, le=1000)] | None = None
    to_queue: Name | None = None
    force: bool = False
    dry_run: bool = False


class StatsOut(msgspec.Struct, frozen=True, kw_only=True):
    """Counts stop at `jobs_capped_at`. `tasks` are those of the last hour, the busiest first."""

    store: str
    jobs: dict[JobState, int]
    jobs_capped_at: int
    queues: list[QueueOut]
    workers: int
    slots: int
    running: int
    tasks: list[TaskTimes]


class ScaleQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    queue: str | None = None
    label: Annotated[str, msgspec.Meta(max_length=200)] | None = None
    jobs_per_worker: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 10


class ScaleOut(msgspec.Struct, frozen=True, kw_only=True):
    """`value`: jobs that could run now, ready ones and running ones; with `label`, those that need it
    (or "none"). `busy_workers`: workers that run a job. `workers`: how many are wanted, never fewer than
    are busy."""

    value: int
    busy_workers: int
    workers: int


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
