"""What may be set for a queue while everything runs: kept in the store, read about once a second."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from enum import StrEnum
from typing import Any

import msgspec

from winch.core.errors import ConfigError, did_you_mean
from winch.core.policy.retry import Retry, StoredRetry, from_stored, parse_backoff, to_stored
from winch.core.values.duration import parse_duration, parse_rate


class OnFull(StrEnum):
    """What an enqueue into a full queue does.

    - reject: raise QueueFull.
    - block: wait up to `block_for`, then raise QueueFull.
    - shed: drop jobs with a priority below 0, and store the others.
    - delay: postpone the job so that the queue receives `drain` jobs a second.
    """

    REJECT = "reject"
    BLOCK = "block"
    SHED = "shed"
    DELAY = "delay"


class Order(StrEnum):
    """The order of a queue: by age, with a head start for each level of priority, or by priority."""

    AGED = "aged"
    STRICT = "strict"


class QueueRule(msgspec.Struct, frozen=True, kw_only=True):
    """What the claims of a queue read: how many of its jobs run at once (None: any number), and whether
    they run by priority alone."""

    concurrency: int | None = None
    is_strict: bool = False


NO_RULE = QueueRule()


class QueueSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The settings of one queue; None leaves the choice to the task."""

    concurrency: int | None = None
    retries: int | None = None
    backoff: timedelta | StoredRetry | None = None
    max_depth: int | None = None
    max_age: timedelta | None = None
    on_full: OnFull = OnFull.REJECT
    block_for: timedelta = timedelta(seconds=10)
    drain: str | None = None
    order: Order = Order.AGED
    draining: bool = False

    @property
    def is_limited(self) -> bool:
        """Whether producers read more before they enqueue: the queue drains, or has a limit of depth or
        age."""
        return self.draining or self.max_depth is not None or self.max_age is not None

    def policy(self, retry: Retry) -> Retry:
        """The retry policy of the task, changed by these settings. A policy of the job itself comes
        first.
        """
        if isinstance(self.backoff, StoredRetry):
            # Its delays alone: how often a job is tried is another setting, and the task's.
            retry = msgspec.structs.replace(from_stored(self.backoff), attempts=retry.attempts)
        elif self.backoff is not None:
            retry = Retry.fixed(self.backoff, attempts=retry.attempts)
        if self.retries is not None:
            retry = msgspec.structs.replace(retry, attempts=self.retries + 1)
        return retry

    @property
    def drain_per_second(self) -> float:
        """The jobs a second that a full queue receives: `drain`, or its depth within a minute."""
        if self.drain is not None:
            return parse_rate(self.drain, "drain")
        return max((self.max_depth or 60) / 60, 1.0)


NO_SETTINGS = QueueSettings()


def changed(settings: QueueSettings, given: Mapping[str, Any]) -> QueueSettings:
    """The settings with the given changes, checked; None resets a setting. Raises ConfigError."""
    checked: dict[str, Any] = {}
    defaults = msgspec.structs.asdict(NO_SETTINGS)
    for name, value in given.items():
        if name not in defaults:
            raise ConfigError(f"a queue has no setting {name!r}{did_you_mean(name, defaults)}")
        checked[name] = defaults[name] if value is None else _CHECKS[name](name, value)
    after = msgspec.structs.replace(settings, **checked)
    if after.on_full is OnFull.DELAY and after.max_depth is None:
        raise ConfigError('on_full="delay" needs max_depth')
    return after


def _count(name: str, value: object) -> int:
    least = 0 if name == "retries" else 1
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 2**31:
        raise ConfigError(f"{name} must be a whole number from {least}, got {value!r}")
    return value


def _span(name: str, value: Any) -> timedelta:
    parsed = parse_duration(value, name)
    if not parsed:
        raise ConfigError(f"{name} must be longer than zero")
    return parsed


def _backoff(name: str, value: Any) -> timedelta | StoredRetry:
    if isinstance(value, str) and value.strip()[:1].isalpha():
        value = parse_backoff(value, name)
    if not isinstance(value, Retry):
        return _span(name, value)
    if value.fn is not None or value.on is not None:
        raise ConfigError(
            f"{name} takes a policy without `on` and without a custom function: those live in code, "
            "so declare them on the task"
        )
    return to_stored(value)


def _word(kind: type[StrEnum]) -> Any:
    def check(name: str, value: object) -> StrEnum:
        words = [str(one) for one in kind]
        if value not in words:
            hint = did_you_mean(value, words) if isinstance(value, str) else ""
            raise ConfigError(f"{name} must be one of {', '.join(words)}, got {value!r}{hint}")
        return kind(str(value))

    return check


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{name} must be true or false, got {value!r}")
    return value


def _rate(name: str, value: Any) -> str:
    parse_rate(value, name)
    return str(value)


_CHECKS: dict[str, Any] = {
    "concurrency": _count,
    "retries": _count,
    "backoff": _backoff,
    "max_depth": _count,
    "max_age": _span,
    "on_full": _word(OnFull),
    "block_for": _span,
    "drain": _rate,
    "order": _word(Order),
    "draining": _flag,
}
