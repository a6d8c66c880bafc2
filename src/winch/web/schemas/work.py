"""The bodies that workers in other languages send, and the replies that they get."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import msgspec

from winch.core.lifecycle import JobState
from winch.web.schemas.base import Body, Duration, Name
from winch.web.schemas.jobs import ErrorOut


class ClaimBody(Body, frozen=True, kw_only=True):
    max: Annotated[int, msgspec.Meta(ge=1, le=100)] = 1
    lease: Duration = "30s"
    wait: Duration = "0s"
    worker: Annotated[str, msgspec.Meta(min_length=1, max_length=100)] = "http"
    tasks: list[Name] | None = None


class JobToRun(msgspec.Struct, frozen=True, kw_only=True):
    """A job that was claimed. `input`: for a member of a flow whose task this server does not know, the
    result of the job before it, or the list of results of several. `timeout_seconds`: the worker stops
    the handler after that time, and the attempt fails."""

    id: str
    task: str
    version: int
    args: Any
    queue: str
    attempt: int
    token: str
    fence: int
    created_at: datetime
    expires_at: datetime | None
    headers: dict[str, str]
    checkpoint: Any
    input: Any = None
    timeout_seconds: float | None = None


class ClaimedJob(JobToRun, frozen=True, kw_only=True):
    lease_until: datetime


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
