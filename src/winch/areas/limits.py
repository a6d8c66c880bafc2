"""`app.limits`: limits, rates and the weights of tenants, set while workers run."""

from __future__ import annotations

import builtins

from winch.core.errors import ConfigError
from winch.core.gates.uses import GateSpec
from winch.core.values.duration import Duration, format_duration, parse_duration
from winch.core.values.redact import mask_text
from winch.engine.base.operation import Operation
from winch.engine.client.audit import actor, noted
from winch.engine.client.client import Client
from winch.engine.client.twins import blocking, twin
from winch.engine.tasks.gates import parse_limit
from winch.storage.gate_records import LimitInfo, ScopeInfo, TenantInfo

MOST_NAME = 500


class Limits:
    """`app.limits`: limits, rates and the weights of tenants, for the whole fleet."""

    def __init__(self, client: Client) -> None:
        self._client = client

    @blocking
    def list(self) -> Operation[builtins.list[LimitInfo]]:
        """Every limit that is set, used or waited for, by name."""
        found: builtins.list[LimitInfo] = yield self._client.driver().limits()
        return found

    @twin(list)
    def alist(self) -> None:
        """`list` without blocking the event loop."""

    @blocking
    def set(self, name: str, value: int | str) -> Operation[None]:
        """Set a limit, a rate or the weight of a tenant for the whole fleet, whatever the code has.

            app.limits.set("limit:shop.charge", 5)
            app.limits.set("rate:shop.charge", "100/m")
            app.limits.set("tenant:acme", 3)

        It applies from now on, until `reset`.
        """
        spec = parse_limit(value)
        kind, _, rest = name.partition(":")
        if kind not in ("limit", "rate", "budget", "tenant", "queue") or not rest or "=" in name:
            raise ConfigError(
                "a limit's name begins with limit:, rate:, budget: or tenant: and ends with its owner, "
                f"such as limit:shop.charge:merchant; got {name!r}. `winch limits list` shows them"
            )
        if (kind in ("rate", "budget")) != bool(spec.per):
            wanted = "a rate such as 100/m" if kind in ("rate", "budget") else "a number such as 5"
            raise ConfigError(f"{name} takes {wanted}, got {value!r}")
        driver = self._client.driver()
        known = {info.name: info.spec for info in (yield driver.limits())}
        if (before := known.get(name)) is not None and spec.per:
            spec = GateSpec(spec.n, spec.per, before.how)
        yield driver.set_limits({name: spec}, by=actor())
        yield from noted(driver, "set limit", name, value=value)

    @twin(set)
    def aset(self) -> None:
        """`set` without blocking the event loop."""

    @blocking
    def reset(self, name: str) -> Operation[None]:
        """Remove a value that an operator has set; the value in the code applies again."""
        driver = self._client.driver()
        yield driver.set_limits({name: None}, by=actor())
        yield from noted(driver, "reset limit", name)

    @twin(reset)
    def areset(self) -> None:
        """`reset` without blocking the event loop."""

    @blocking
    def tenants(self, *, limit: int = 200) -> Operation[builtins.list[TenantInfo]]:
        """The tenants that have ready jobs, by queue: the longest line first."""
        found: builtins.list[TenantInfo] = yield self._client.driver().tenants(limit=limit)
        return found

    @twin(tenants)
    def atenants(self) -> None:
        """`tenants` without blocking the event loop."""

    @blocking
    def breakers(self) -> Operation[builtins.list[ScopeInfo]]:
        """The scopes that are held, tripped or ramping up, by name."""
        found: builtins.list[ScopeInfo] = yield self._client.driver().scopes()
        return found

    @twin(breakers)
    def abreakers(self) -> None:
        """`breakers` without blocking the event loop."""

    @blocking
    def trip(self, name: str, hold: Duration, *, reason: str | None = None) -> Operation[None]:
        """Hold the jobs of a scope for a time, such as while its provider is down.

        A scope that is held for longer stays so. Running jobs continue.
        """
        span = parse_duration(hold, "hold")
        if not span:
            raise ConfigError("hold must be longer than zero")
        driver, who = self._client.driver(), actor()
        why = f"held by {who}" if reason is None else mask_text(reason)
        yield driver.hold_scope(_scope(name), span, reason=why)
        yield from noted(driver, "trip breaker", name, hold=format_duration(span), reason=reason)

    @twin(trip)
    def atrip(self) -> None:
        """`trip` without blocking the event loop."""

    @blocking
    def untrip(self, name: str) -> Operation[bool]:
        """Open a scope that is held or tripped. Its jobs start slowly: one, then two, four and so on,
        a second apart. Returns False when there was nothing to open.
        """
        driver = self._client.driver()
        took: bool = yield driver.hold_scope(_scope(name), None)
        if took:
            yield from noted(driver, "reset breaker", name)
        return took

    @twin(untrip)
    def auntrip(self) -> None:
        """`untrip` without blocking the event loop."""


def _scope(name: str) -> str:
    if not name or len(name) > MOST_NAME:
        raise ConfigError(f"a scope's name has from 1 to {MOST_NAME} characters")
    return name
