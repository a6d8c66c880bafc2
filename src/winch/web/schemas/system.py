"""The audit, events and health."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import msgspec

from winch.web.schemas.base import Limit


class AuditQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    actor: Annotated[str, msgspec.Meta(max_length=256)] | None = None
    action: Annotated[str, msgspec.Meta(max_length=100)] | None = None
    target: Annotated[str, msgspec.Meta(max_length=500)] | None = None
    since: (
        Annotated[str, msgspec.Meta(max_length=40, description="A duration like 2h or 7d.")] | None
    ) = None
    cursor: str | None = None
    limit: Limit = 50


class AuditLineOut(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    at: datetime
    who: str
    via: str
    origin: str
    action: str
    target: str
    detail: dict[str, Any]


class AuditOut(msgspec.Struct, frozen=True, kw_only=True):
    lines: list[AuditLineOut]
    next: str | None


class EventsQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    queues: str | None = None


class HealthOut(msgspec.Struct, frozen=True, kw_only=True):
    status: str
    checks: dict[str, str] = {}
