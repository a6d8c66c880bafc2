"""What operators change: queues, groups of dead jobs, limits, breakers and unique keys."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

import msgspec

from winch.web.schemas.base import Body, Duration, Limit, Name, Uuid

Text = Annotated[str, msgspec.Meta(max_length=4000)]
LongName = Annotated[str, msgspec.Meta(min_length=1, max_length=500)]


class PurgeBody(Body, frozen=True, kw_only=True):
    """With `dry_run` nothing is removed, and `matched` says how many jobs would be."""

    dry_run: bool = False


class PurgedOut(msgspec.Struct, frozen=True, kw_only=True):
    queue: str
    matched: int
    deleted: int
    cancelled: int
    is_dry_run: bool


class MoveBody(Body, frozen=True, kw_only=True):
    """`task` and `limit` choose some of the waiting jobs."""

    to: Name
    task: Name | None = None
    limit: Annotated[int, msgspec.Meta(ge=1)] | None = None
    dry_run: bool = False


class MovedOut(msgspec.Struct, frozen=True, kw_only=True):
    queue: str
    to: str
    matched: int
    moved: int
    is_dry_run: bool


class MarkBody(Body, frozen=True, kw_only=True):
    """What to note about a group; null removes the assignee or the note."""

    state: Literal["open", "ignored", "resolved"] | msgspec.UnsetType = msgspec.UNSET
    assignee: Name | msgspec.UnsetType | None = msgspec.UNSET
    note: Text | msgspec.UnsetType | None = msgspec.UNSET


class MarkOut(msgspec.Struct, frozen=True, kw_only=True):
    group: str
    state: str
    assignee: str | None
    note: str | None
    by: str
    at: datetime | None


class DiscardBody(Body, frozen=True, kw_only=True):
    ids: Annotated[list[Uuid], msgspec.Meta(min_length=1, max_length=10_000)] | None = None
    task: Name | None = None
    queue: Name | None = None
    group: Name | None = None
    dry_run: bool = False


class LimitBody(Body, frozen=True, kw_only=True):
    """A number such as 5, or a rate such as 100/m. With `dry_run` nothing is set."""

    value: Annotated[str, msgspec.Meta(max_length=40)] | int
    dry_run: bool = False


class LimitChangeOut(msgspec.Struct, frozen=True, kw_only=True):
    """What a change of a limit does. `starts`: how many waiting jobs fit in at once. `over`: how many
    running ones are more than it allows; they go on."""

    name: str
    before: str
    after: str
    used: int
    waiting: int
    starts: int
    over: int
    is_dry_run: bool


class BreakerOut(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    state: Literal["tripped", "held", "probing", "ramping"]
    until: datetime
    trips: int
    tripped_at: datetime | None
    reason: str
    waiting: int


class BreakersOut(msgspec.Struct, frozen=True, kw_only=True):
    breakers: list[BreakerOut]


class TripBody(Body, frozen=True, kw_only=True):
    hold: Duration
    reason: Annotated[str, msgspec.Meta(max_length=500)] | None = None


class TenantOut(msgspec.Struct, frozen=True, kw_only=True):
    """`started`: attempts in the last hour. `wait_seconds`: how long they waited on average.
    `spent_seconds`: how long they ran together."""

    tenant: str
    ready: int
    oldest_ready_at: datetime | None
    queues: dict[str, int]
    weight: int
    running: int
    dead: int
    started: int
    wait_seconds: float | None
    spent_seconds: float = 0.0


class TenantsOut(msgspec.Struct, frozen=True, kw_only=True):
    """`running` and `dead` are counted among the latest `counted_up_to` jobs of these states."""

    tenants: list[TenantOut]
    counted_up_to: int


class KeyQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    prefix: Annotated[str, msgspec.Meta(max_length=500)] = ""
    limit: Limit = 50


class KeyOut(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    job: str


class KeysOut(msgspec.Struct, frozen=True, kw_only=True):
    keys: list[KeyOut]


class RerunBody(Body, frozen=True, kw_only=True):
    node: LongName
