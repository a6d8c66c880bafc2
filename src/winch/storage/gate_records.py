"""What the store answers about gates, limits, tenants, scopes and unique keys."""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from winch.core.gates.uses import GateSpec


class GateInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The gate a blocked job waits at. `holders` are some of those that have its permits or its turn.
    `trips`: how often its breaker has tripped since the scope was last open."""

    key: str
    kind: str
    n: int
    used: int
    holders: tuple[str, ...]
    ahead: int
    open_at: datetime | None = None
    per: timedelta | None = None
    reason: str | None = None
    trips: int = 0


class LimitInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A limit, rate or weight by its name.

    `spec` is None when the store has no numbers and those of each job apply. `is_live`: an operator
    set it; otherwise it comes from the worker that started last.
    """

    name: str
    spec: GateSpec | None
    is_live: bool = False
    by: str | None = None
    set_at: datetime | None = None
    used: int = 0
    waiting: int = 0


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
