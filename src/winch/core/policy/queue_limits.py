"""What one worker process bounds for a queue: `--queue-limits mail=2` and `--queue-rates mail=10/s`."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from winch.core.errors import ConfigError
from winch.core.policy.limits import parse_rate
from winch.core.values.bounds import check_length, parse_int

MOST_QUEUES = 256
MOST_AT_ONCE = 1024
MOST_PER_RATE = 100_000
MAX_CHARS = 20_000


class QueueLimit(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a worker process bounds for one queue: how many of its jobs run at once (`limit`), and how
    many it claims in a time (`rate`, like "10/s"). None: no bound."""

    limit: int | None = None
    rate: str | None = None


def parse_limits(value: object, what: str) -> dict[str, int]:
    """`mail=2,sms=1`, or a mapping; raises ConfigError."""
    found: dict[str, int] = {}
    for queue, given in _pairs(value, what, "mail=2").items():
        if isinstance(given, bool):
            raise ConfigError(f"{what}: queue {queue!r} needs a whole number, got {given!r}")
        found[queue] = parse_int(str(given), f"{what}: queue {queue!r}", least=1)
        if found[queue] > MOST_AT_ONCE:
            raise ConfigError(f"{what}: queue {queue!r} must have at most {MOST_AT_ONCE}, got {given}")
    return found


def parse_rates(value: object, what: str) -> dict[str, str]:
    """`mail=10/s,sms=100/m`, or a mapping; raises ConfigError."""
    found: dict[str, str] = {}
    for queue, given in _pairs(value, what, "mail=10/s").items():
        n, _ = parse_rate(given, f"{what}: queue {queue!r}")
        if n > MOST_PER_RATE:
            raise ConfigError(f"{what}: queue {queue!r} must have at most {MOST_PER_RATE}, got {given}")
        found[queue] = str(given)
    return found


def _pairs(value: object, what: str, example: str) -> dict[str, object]:
    if isinstance(value, Mapping):
        pairs = dict(value)
    elif isinstance(value, str):
        parts = [part.strip() for part in check_length(value, MAX_CHARS, what).split(",")]
        split = [part.partition("=") for part in parts if part]
        if not all(equals for _, equals, _ in split):
            raise ConfigError(f"{what} must be like {example}, got {value!r}")
        pairs = {queue.strip(): given.strip() for queue, _, given in split}
        if len(pairs) < len(split):
            raise ConfigError(f"{what} names a queue twice, got {value!r}")
    else:
        raise ConfigError(f"{what} must be a mapping, or text like {example}, got {value!r}")
    if len(pairs) > MOST_QUEUES:
        raise ConfigError(f"{what} takes up to {MOST_QUEUES} queues, got {len(pairs)}")
    for queue in pairs:
        if not isinstance(queue, str) or not queue:
            raise ConfigError(f"{what}: a queue is a non-empty text, got {queue!r}")
    return pairs


def queue_limits(limits: Mapping[str, int], rates: Mapping[str, str]) -> dict[str, QueueLimit]:
    """Both together, by queue."""
    return {
        queue: QueueLimit(limits.get(queue), rates.get(queue)) for queue in sorted({*limits, *rates})
    }


def pairs_text(pairs: Mapping[str, object]) -> str:
    """A mapping as the command line has it."""
    return ",".join(f"{queue}={given}" for queue, given in pairs.items())
