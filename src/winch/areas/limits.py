"""`app.limits`: limits, rates and the weights of tenants, set while workers run."""

from __future__ import annotations

import builtins

from winch.core.errors import ConfigError
from winch.core.gates.uses import GateSpec
from winch.engine.base.operation import Operation
from winch.engine.client.audit import actor, noted
from winch.engine.client.client import Client
from winch.engine.client.twins import blocking, twin
from winch.engine.tasks.gates import parse_limit
from winch.storage.params import LimitInfo


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
