"""What the store answers about tenants, scopes and unique keys."""

from __future__ import annotations

from datetime import datetime

import msgspec


class TenantInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The ready jobs of one tenant in one queue. The oldest is the oldest among the first in line."""

    queue: str
    tenant: str
    ready: int
    oldest_ready_at: datetime | None = None


class ScopeInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A scope that is held by a brake, or whose breaker has tripped or ramps up again.

    `trips`: how often the breaker tripped in a row. `waiting`: jobs that wait at the scope.
    """

    name: str
    until: datetime
    is_tripped: bool = False
    trips: int = 0
    tripped_at: datetime | None = None
    reason: str = ""
    waiting: int = 0


class KeyHolder(msgspec.Struct, frozen=True):
    """A unique key and the live job that holds it."""

    key: str
    job: str
