"""Gates as tasks declare them and people set them: what a job carries, and `app.limits`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from winch.core.bounds import check_length, is_int
from winch.core.errors import ConfigError
from winch.core.gates import GateSpec, GateUse
from winch.core.limits import MAX_RATE_CHARS, Limit, Rate, name_of, parse_rate, scopes_of, uses

if TYPE_CHECKING:
    from winch.engine.options import EnqueueOptions, TaskOptions
    from winch.engine.task import Task
    from winch.storage.params import LimitInfo
    from winch.storage.protocol import Driver

_MICROSECOND = timedelta(microseconds=1)


def limits_of(options: TaskOptions) -> tuple[Limit | Rate, ...]:
    """All that a task counts by, its retry budget among them."""
    return options.limit + (() if options.retry_budget is None else (options.retry_budget,))


def has_gates(options: TaskOptions) -> bool:
    return bool(options.limit or options.breaker or options.retry_budget or options.scope)


def job_gates(task: Task[Any, Any], said: EnqueueOptions, args: str) -> tuple[GateUse, ...] | None:
    """The gates of one job, None for a plain one. A tenant alone is a turn to wait for."""
    own = task.options
    if said.fifo is None and said.tenant is None and not has_gates(own):
        return None
    limits = limits_of(own)
    keys = [one.key for one in limits if one.key is not None]
    values = task.arguments.values(args, keys) if keys else {}
    scopes = scopes_of(limits, own.breaker, own.scope)
    return uses(task.name, limits, own.breaker, scopes, said.fifo, values.__getitem__)


def declared(tasks: Iterable[Task[Any, Any]]) -> dict[str, GateSpec]:
    """The numbers of these tasks' limits by name: what a worker tells the store when it starts."""
    return {name_of(one, task.name): one.spec for task in tasks for one in limits_of(task.options)}


def parse_limit(text: object) -> GateSpec:
    """ "5" jobs at once, or "100/m", "20/10s" starts in a time."""
    if isinstance(text, int) and not isinstance(text, bool):
        return Limit(text).spec
    if isinstance(text, str):
        check_length(text, MAX_RATE_CHARS, "a limit")
    if isinstance(text, str) and is_int(text.strip()):
        return Limit(int(text)).spec
    if isinstance(text, str) and "/" in text:
        n, per = parse_rate(text, "a limit")
        return Rate(n, per=per).spec
    raise ConfigError(f"a limit must be a number such as 5, or a rate such as 100/m, got {text!r}")


class LimitDesk:
    """`app.limits`: look at limits, rates and tenants' weights, and set them while workers run."""

    def __init__(self, ready: Callable[[], Driver], actor: Callable[[], str]) -> None:
        self._ready = ready
        self._actor = actor

    def list(self) -> list[LimitInfo]:
        """Every limit that is set, in use, or waited at; by name."""
        driver = self._ready()
        return driver.run(driver.limits())

    def set(self, name: str, value: int | str) -> None:
        """Set a limit ("limit:shop.charge" to 5), a rate ("rate:shop.charge" to "100/m") or the weight
        of a tenant ("tenant:acme" to 3) for the whole fleet, from now on, whatever the code says."""
        spec = parse_limit(value)
        kind, _, rest = name.partition(":")
        if kind not in ("limit", "rate", "budget", "tenant", "queue") or not rest or "=" in name:
            raise ConfigError(
                "a limit's name begins with limit:, rate:, budget: or tenant: and says whose it is, "
                f"such as limit:shop.charge:merchant; got {name!r}. `winch limits list` shows them"
            )
        if (kind in ("rate", "budget")) != bool(spec.per):
            wanted = "a rate such as 100/m" if kind in ("rate", "budget") else "a number such as 5"
            raise ConfigError(f"{name} takes {wanted}, got {value!r}")
        driver = self._ready()
        known = {info.name: info.spec for info in driver.run(driver.limits())}
        if (before := known.get(name)) is not None and spec.per:
            spec = GateSpec(spec.n, spec.per, before.how)
        driver.run(driver.set_limits({name: spec}, by=self._actor()))

    def reset(self, name: str) -> None:
        """Forget what a person has set; what the code says counts again."""
        driver = self._ready()
        driver.run(driver.set_limits({name: None}, by=self._actor()))


def told(spec: GateSpec | None) -> str:
    """The numbers in words: "5", "100 per 1m sliding"."""
    from winch.core.duration import format_duration

    if spec is None:
        return "by the job"
    if not spec.per:
        return f"{spec.n:,}"
    burst = f", burst {spec.burst:,}" if spec.burst else ""
    return f"{spec.n:,} per {format_duration(spec.per * _MICROSECOND)} {spec.how}{burst}"
