"""Gates as tasks declare them and people set them: what a job carries."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from winch.core.errors import ConfigError
from winch.core.gates.uses import GateSpec, GateUse
from winch.core.policy.limits import MAX_RATE_CHARS, Limit, Rate, name_of, parse_rate, scopes_of, uses
from winch.core.values.bounds import check_length, is_int

if TYPE_CHECKING:
    from winch.engine.tasks.options import EnqueueOptions, TaskOptions
    from winch.engine.tasks.task import Task

_MICROSECOND = timedelta(microseconds=1)


def limits_of(options: TaskOptions) -> tuple[Limit | Rate, ...]:
    """All that a task counts by, its retry budget among them."""
    return options.limit + (() if options.retry_budget is None else (options.retry_budget,))


def has_gates(options: TaskOptions) -> bool:
    return bool(options.limit or options.breaker or options.retry_budget or options.scope)


def job_gates(task: Task[Any, Any], given: EnqueueOptions, args: str) -> tuple[GateUse, ...] | None:
    """The gates of one job, None for a plain one. A tenant alone is a turn to wait for."""
    own = task.options
    if given.fifo is None and given.tenant is None and not has_gates(own):
        return None
    limits = limits_of(own)
    keys = [one.key for one in limits if one.key is not None]
    values = task.arguments.values(args, keys) if keys else {}
    scopes = scopes_of(limits, own.breaker, own.scope)
    return uses(task.name, limits, own.breaker, scopes, given.fifo, values.__getitem__)


def declared(tasks: Iterable[Task[Any, Any]]) -> dict[str, GateSpec]:
    """The numbers of these tasks' limits by name: what a worker publishes when it starts."""
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


def limit_text(spec: GateSpec | None) -> str:
    """The numbers in words: "5", "100 per 1m sliding"."""
    from winch.core.values.duration import format_duration

    if spec is None:
        return "by the job"
    if not spec.per:
        return f"{spec.n:,}"
    burst = f", burst {spec.burst:,}" if spec.burst else ""
    return f"{spec.n:,} per {format_duration(spec.per * _MICROSECOND)} {spec.how}{burst}"
