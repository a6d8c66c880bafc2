"""Jobs: enqueued, listed, looked at, acted on; one and many."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import msgspec

from winch.core.job import Failure
from winch.core.lifecycle import JobState
from winch.web.schemas.base import Body, Duration, Limit, Name, Uuid


class NewJobBody(Body, frozen=True, kw_only=True):
    task: Name
    args: dict[str, Any] = msgspec.field(default_factory=dict)
    queue: Name | None = None
    priority: int | str | None = None
    delay: Duration | None = None
    run_at: datetime | None = None
    expires: Duration | None = None
    timeout: Duration | None = None
    unique: Name | None = None
    fifo: Name | None = None
    tenant: Name | None = None
    tags: list[str] = msgspec.field(default_factory=list)
    headers: dict[str, str] = msgspec.field(default_factory=dict)
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


class RetryBody(Body, frozen=True, kw_only=True):
    from_step: str | None = None


class ErrorOut(msgspec.Struct, frozen=True, kw_only=True):
    type: str
    message: str
    traceback: str | None = None

    @property
    def name(self) -> str:
        return Failure(self.type, self.message).name


class JobOut(msgspec.Struct, frozen=True, kw_only=True):
    """A job in a list. Values of sensitive names (password, token, …) are masked."""

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
    crashes: int
    rescues: int
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
    session: str | None
    unique: str | None
    fifo: str | None
    result: Any
    log: str | None
    history: list[EntryOut]
    actions: list[str]


class JobPage(msgspec.Struct, frozen=True, kw_only=True):
    """`is_partial`: the search stopped after `scanned` jobs; `next` continues from there."""

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
