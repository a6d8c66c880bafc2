"""How much of a task's final jobs is kept: `Retention`, and what of it travels with a job."""

from __future__ import annotations

from datetime import timedelta

import msgspec

from winch.core.errors import ConfigError
from winch.core.job import JobRecord
from winch.core.values.duration import Duration, parse_duration

# How many dead jobs of one task are kept unless the task sets another value: the newest.
DEAD_COUNT = 10_000


class Retention:
    """How long final jobs are kept, and how many dead ones.

        @app.task(retention=winch.Retention(age="7d", count=1_000))
        def export() -> None: ...

    `age` is for every final job. `count` and `bytes` limit the dead jobs of the task; completed jobs
    are pruned by age alone.
    """

    __slots__ = ("age", "bytes", "count")

    def __init__(
        self, age: Duration | None = None, *, count: int | None = None, bytes: int | None = None
    ) -> None:
        if age is None and count is None and bytes is None:
            raise ConfigError("Retention needs at least one of age, count and bytes")
        self.age: timedelta | None = None if age is None else parse_duration(age, "Retention age")
        self.count: int | None = _whole(count, "count")
        self.bytes: int | None = _whole(bytes, "bytes")

    def __repr__(self) -> str:
        return f"Retention({self.age!r}, count={self.count}, bytes={self.bytes})"


class DeadLimits(msgspec.Struct, frozen=True, omit_defaults=True):
    """How many of its task's dead jobs, or bytes of them, are kept; None is not limited by this job."""

    dead_count: int | None = None
    dead_bytes: int | None = None


def dead_limits(options: str | None) -> DeadLimits:
    """The retention in a job's stored options; damaged options have none."""
    if options is None:
        return DeadLimits()
    try:
        return msgspec.json.decode(options, type=DeadLimits)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return DeadLimits()


def dead_bytes(job: JobRecord) -> int:
    """How much room a dead job takes: its texts, as all stores measure them, give or take spaces."""
    texts = (job.args, job.log or "", job.checkpoint or "")
    return len(msgspec.json.encode(job.history)) + sum(len(text.encode()) for text in texts)


def _whole(value: int | None, name: str) -> int | None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
        raise ConfigError(f"Retention {name} must be a whole number from 0, got {value!r}")
    return value
