"""The audit, events and health."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from winch.web.schemas.base import Limit


class AuditQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
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
