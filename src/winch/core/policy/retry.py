"""Retry policies: how long to wait after attempt n, and when to give up.

A policy is a value; the random source comes in as an argument, so tests decide the dice.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import msgspec

from winch.core.errors import ConfigError, did_you_mean
from winch.core.values.bounds import check_length
from winch.core.values.duration import Duration, format_duration, parse_duration

JITTERS = ("none", "full", "decorrelated")
# What every store can count.
MAX_ATTEMPTS = 2**31 - 1
KINDS = ("fixed", "linear", "exponential", "polynomial", "sidekiq", "custom", "on_request")


class Retry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """When to retry a failed job. Build one with the class methods.

        Retry.exponential("1s", attempts=5, on={ValueError: None})

    - `attempts` counts the first try. `total` stops retries that long after the job was created.
    - `jitter` is "none", "full" (from zero to the delay), "decorrelated" (drawn from the previous
      delay) or a percentage such as "15%".
    - `on` maps exception types to policies of their own. None means no retry.
    """

    kind: str = "exponential"
    base: timedelta = timedelta(seconds=2)
    factor: float = 2.0
    max: timedelta = timedelta(hours=1)
    attempts: int = 12
    jitter: str = "15%"
    total: timedelta | None = None
    on: Mapping[type[BaseException], Retry | None] | None = None
    fn: Callable[[int], timedelta] | None = None

    @classmethod
    def fixed(
        cls,
        delay: Duration,
        *,
        attempts: int = 12,
        jitter: str = "none",
        total: Duration | None = None,
        on: Mapping[type[BaseException], Retry | None] | None = None,
    ) -> Retry:
        """The same delay after each attempt."""
        return _build("fixed", delay, 1.0, None, attempts, jitter, total, on)

    @classmethod
    def linear(
        cls,
        base: Duration,
        *,
        max: Duration | None = "1h",
        attempts: int = 12,
        jitter: str = "15%",
        total: Duration | None = None,
        on: Mapping[type[BaseException], Retry | None] | None = None,
    ) -> Retry:
        """base × attempt: the delay grows by `base` each time."""
        return _build("linear", base, 1.0, max, attempts, jitter, total, on)

    @classmethod
    def exponential(
        cls,
        base: Duration = "2s",
        *,
        factor: float = 2.0,
        max: Duration | None = "1h",
        attempts: int = 12,
        jitter: str = "15%",
        total: Duration | None = None,
        on: Mapping[type[BaseException], Retry | None] | None = None,
    ) -> Retry:
        """base × factor ^ (attempt - 1), up to `max`. This is the default policy."""
        return _build("exponential", base, factor, max, attempts, jitter, total, on)

    @classmethod
    def polynomial(
        cls,
        base: Duration,
        *,
        power: float = 2.0,
        max: Duration | None = "1h",
        attempts: int = 12,
        jitter: str = "15%",
        total: Duration | None = None,
        on: Mapping[type[BaseException], Retry | None] | None = None,
    ) -> Retry:
        """base × attempt ^ power, up to `max`."""
        return _build("polynomial", base, power, max, attempts, jitter, total, on)

    @classmethod
    def sidekiq(
        cls,
        *,
        attempts: int = 26,
        total: Duration | None = None,
        on: Mapping[type[BaseException], Retry | None] | None = None,
    ) -> Retry:
        """The delays of Sidekiq: n⁴ + 15 s plus up to 10 s × (n + 1) after n earlier failures, about
        three weeks.
        """
        return _build("sidekiq", "15s", 4.0, None, attempts, "none", total, on)

    @classmethod
    def custom(
        cls,
        fn: Callable[[int], timedelta],
        *,
        attempts: int = 12,
        jitter: str = "none",
        total: Duration | None = None,
        on: Mapping[type[BaseException], Retry | None] | None = None,
    ) -> Retry:
        """The delay that `fn(attempt)` returns."""
        policy = _build("custom", "0s", 1.0, None, attempts, jitter, total, on)
        return msgspec.structs.replace(policy, fn=fn)

    @classmethod
    def never(cls) -> Retry:
        """One attempt, without a retry."""
        return _build("fixed", "0s", 1.0, None, 1, "none", None, None)

    @classmethod
    def on_request(cls, *, attempts: int = 12, total: Duration | None = None) -> Retry:
        """Only where the handler raises or returns RetryAfter; any other error is the job's last."""
        return _build("on_request", "0s", 1.0, None, attempts, "none", total, None)

    def for_error(self, error: BaseException) -> Retry | None:
        """The policy for this error: the most specific entry of `on`, or this policy."""
        for kind in type(error).__mro__:
            if self.on is not None and kind in self.on:
                return self.on[kind]
        return None if self.kind == "on_request" else self

    def delay(self, attempt: int, rng: random.Random) -> timedelta:
        """The delay after failed attempt number `attempt` (from 1), with its jitter."""
        try:
            return min(self._drawn(attempt, rng), self.max)
        except OverflowError:  # longer than a timedelta can be
            return self.max

    def gives_up(self, attempt: int, age: timedelta) -> bool:
        """Whether attempt number `attempt` of a job of this age is the last one."""
        return attempt >= self.attempts or (self.total is not None and age >= self.total)

    def _drawn(self, attempt: int, rng: random.Random) -> timedelta:
        if self.jitter == "decorrelated":
            return self._decorrelated(attempt, rng)
        plain = self._plain(attempt, rng)
        if self.jitter == "full":
            plain *= rng.random()
        elif self.jitter != "none":
            spread = _percent(self.jitter)
            plain *= 1 + spread * (2 * rng.random() - 1)
        return plain

    def _plain(self, attempt: int, rng: random.Random) -> timedelta:
        if self.kind == "custom" and self.fn is not None:
            return min(parse_duration(self.fn(attempt), "custom retry delay"), self.max)
        if self.kind == "sidekiq":
            n = attempt - 1
            return timedelta(seconds=n**4 + 15 + 10 * rng.random() * (n + 1))
        try:
            return min(self.base * self._times(attempt), self.max)
        except OverflowError:
            return self.max

    def _times(self, attempt: int) -> float:
        match self.kind:
            case "linear":
                return float(attempt)
            case "exponential":
                return float(self.factor ** (attempt - 1))
            case "polynomial":
                return float(attempt**self.factor)
            case _:
                return 1.0

    def _decorrelated(self, attempt: int, rng: random.Random) -> timedelta:
        # Each delay is drawn between the base and three times the one before. The draws before this
        # one are made again instead of stored: same distribution, nothing to keep with the job.
        delay = self.base
        for _ in range(min(attempt, 64)):
            top = max(delay * 3, self.base)
            delay = min(self.base + (top - self.base) * rng.random(), self.max)
        return delay


def _build(
    kind: str,
    base: Duration,
    factor: float,
    max_: Duration | None,
    attempts: int,
    jitter: str,
    total: Duration | None,
    on: Mapping[type[BaseException], Retry | None] | None,
) -> Retry:
    check_attempts(attempts, "retry attempts")
    if factor < 1:
        raise ConfigError(f"retry factor must be at least 1, got {factor!r}")
    if jitter not in JITTERS:
        _percent(jitter)
    _check_on(on)
    return Retry(
        kind=kind,
        base=parse_duration(base, "retry base"),
        factor=float(factor),
        max=timedelta(days=365) if max_ is None else parse_duration(max_, "retry max"),
        attempts=attempts,
        jitter=jitter,
        total=None if total is None else parse_duration(total, "retry total"),
        on=on,
    )


def _check_on(on: object) -> None:
    if on is None:
        return
    if not isinstance(on, Mapping) or not all(
        isinstance(kind, type)
        and issubclass(kind, BaseException)
        and (policy is None or isinstance(policy, Retry))
        for kind, policy in on.items()
    ):
        raise ConfigError(f"retry on must map types of exceptions to a policy or None, got {on!r}")


def check_attempts(value: object, what: str) -> None:
    """Raise ConfigError for a number of attempts that no policy can have."""
    if not isinstance(value, int) or not 1 <= value <= MAX_ATTEMPTS:
        raise ConfigError(f"{what} must be a whole number from 1 to {MAX_ATTEMPTS}, got {value!r}")


def _percent(jitter: str) -> float:
    try:
        value = float(jitter.removesuffix("%")) / 100
    except (ValueError, AttributeError):
        value = -1.0
    if not (isinstance(jitter, str) and jitter.endswith("%") and 0 <= value <= 1):
        raise ConfigError(
            f"retry jitter must be 'none', 'full', 'decorrelated' or a percentage like '15%', "
            f"got {jitter!r}"
        )
    return value


DEFAULT_RETRY = Retry.exponential()


class StoredRetry(msgspec.Struct, frozen=True, omit_defaults=True):
    """A retry policy as data that travels with a job (`using(retry=…)`)."""

    kind: str
    base: timedelta
    factor: float
    max: timedelta
    attempts: int
    jitter: str
    total: timedelta | None = None


def to_stored(policy: Retry) -> StoredRetry:
    """The storable form; raises ConfigError for a policy that holds code."""
    if policy.fn is not None or policy.on is not None:
        raise ConfigError(
            "using(retry=…) takes a policy without `on` and without a custom function: "
            "those live in code, so declare them on the task"
        )
    return StoredRetry(
        policy.kind,
        policy.base,
        policy.factor,
        policy.max,
        policy.attempts,
        policy.jitter,
        policy.total,
    )


def from_stored(stored: StoredRetry) -> Retry:
    return Retry(**msgspec.structs.asdict(stored))


MAX_BACKOFF_CHARS = 200
_IN_WORDS: dict[str, tuple[Callable[..., Retry], tuple[str, ...]]] = {
    "linear": (Retry.linear, ("max", "jitter")),
    "exponential": (Retry.exponential, ("factor", "max", "jitter")),
    "polynomial": (Retry.polynomial, ("power", "max", "jitter")),
    "fixed": (Retry.fixed, ("jitter",)),
}


def parse_backoff(text: str, what: str) -> Retry:
    """The delays of a policy in words: "exponential 2s factor=2 max=5m jitter=full"."""
    check_length(text, MAX_BACKOFF_CHARS, what)
    kind, *words = text.split() or [""]
    if kind == "sidekiq" and not words:
        return Retry.sidekiq()
    if kind not in _IN_WORDS or not words:
        known = ", ".join(_IN_WORDS)
        raise ConfigError(
            f"{what} must be a time such as '30s', a Retry, or one in words such as "
            f"'exponential 2s max=5m' (there are {known}, sidekiq), got {text!r}"
        )
    make, options = _IN_WORDS[kind]
    given: dict[str, Any] = {}
    for word in words[1:]:
        name, equals, value = word.partition("=")
        if not equals or name not in options:
            raise ConfigError(
                f"{what}: {kind} takes {', '.join(options)} as name=value, got {word!r}"
                f"{did_you_mean(name, options)}"
            )
        try:
            given[name] = float(value) if name in ("factor", "power") else value
        except ValueError:
            raise ConfigError(f"{what}: {name} must be a number, got {value!r}") from None
    return make(words[0], **given)


def backoff_text(stored: StoredRetry) -> str:
    """The same in words, as `parse_backoff` reads it."""
    if stored.kind == "sidekiq":
        return stored.kind
    words = [stored.kind, _typed(stored.base)]
    if stored.kind in ("exponential", "polynomial"):
        words.append(f"{'factor' if stored.kind == 'exponential' else 'power'}={stored.factor:g}")
    if stored.kind != "fixed":
        words.append(f"max={_typed(stored.max)}")
    return " ".join([*words, f"jitter={stored.jitter}"])


def _typed(span: timedelta) -> str:
    return format_duration(span).replace(" ", "")
