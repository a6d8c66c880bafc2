"""Unique jobs: at most one live job for a key.

`Unique` defines the key of a job and what happens to a second one; the store enforces it. A key is
taken when a job is stored, held until the job is final, and taken again when an operator retries it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import timedelta
from enum import StrEnum
from typing import Any

import msgspec

from winch.core.errors import ConfigError, did_you_mean
from winch.core.values.duration import Duration, format_duration, parse_duration

MAX_KEY_CHARS = 256
# For the store "keep_last" is a debounce without a wait, of jobs that take turns at a FIFO key.
KEEP_LAST = "keep_last"


class Duplicate(StrEnum):
    """What a second enqueue with a held unique key does: the modes of `Unique`."""

    RETURN = "return"
    REJECT = "reject"
    REPLACE = "replace"
    DEBOUNCE = "debounce"


class Until(StrEnum):
    """How long a job holds its unique key: until it is final, or until it starts."""

    FINAL = "final"
    STARTED = "started"


class Unique:
    """Allow one live job for each value of these arguments, of all arguments, or of a `key` of your
    own.

        @app.task(unique=winch.Unique("user_id", mode="debounce", wait="30s"))
        def reindex(user_id: int, reason: str) -> None: ...

    `mode` is what a second enqueue does:

    - "return": return the existing job.
    - "reject": raise DuplicateJob.
    - "replace": replace the arguments, priority and time of a waiting job.
    - "debounce": replace it and run `wait` after the last enqueue, at most `max_wait` after the first.
      Beside a running job it adds a new one.
    - "keep_last": replace a waiting job. While a job runs, the last one enqueued waits for its end.

    `until="started"` frees the key when the job starts. `within` holds it for this long after the
    enqueue, even if the job is final.
    """

    __slots__ = ("fields", "is_last_kept", "key", "max_wait", "mode", "until", "wait", "within")

    def __init__(
        self,
        *fields: str,
        key: str | None = None,
        mode: str = "return",
        within: Duration | None = None,
        until: str = "final",
        wait: Duration | None = None,
        max_wait: Duration | None = None,
    ) -> None:
        modes = [*map(str, Duplicate), KEEP_LAST]
        if mode not in modes:
            hint = did_you_mean(mode, modes) if isinstance(mode, str) else ""
            raise ConfigError(f"Unique mode must be one of {', '.join(modes)}, got {mode!r}{hint}")
        if key is not None and fields:
            raise ConfigError("Unique takes argument names or a key, not both")
        for name in fields:
            if not isinstance(name, str) or not name:
                raise ConfigError(f"Unique takes names of arguments, got {name!r}")
        if until not in list(Until):
            raise ConfigError(f"Unique until must be one of {', '.join(Until)}, got {until!r}")
        self.fields: tuple[str, ...] = fields
        self.key: str | None = None if key is None else check_key(key)
        self.is_last_kept: bool = mode == KEEP_LAST
        self.mode: Duplicate = Duplicate.DEBOUNCE if self.is_last_kept else Duplicate(mode)
        self.until: Until = Until(until)
        self.within: timedelta | None = None if within is None else _positive(within, "within")
        self.wait: timedelta | None = None if wait is None else _positive(wait, "wait")
        self.max_wait: timedelta | None = None if max_wait is None else _positive(max_wait, "max_wait")
        is_put_off = self.mode is Duplicate.DEBOUNCE and not self.is_last_kept
        if (wait is not None or max_wait is not None) and not is_put_off:
            raise ConfigError('Unique takes wait and max_wait with mode="debounce"')
        if is_put_off and wait is None:
            raise ConfigError('Unique(mode="debounce") needs wait, such as wait="5s"')
        if within is not None and self.mode not in (Duplicate.RETURN, Duplicate.REJECT):
            raise ConfigError('Unique takes within with mode="return" or "reject"')
        if within is not None and self.until is Until.STARTED:
            raise ConfigError('Unique takes within or until="started", not both')

    def __repr__(self) -> str:
        parts = [repr(name) for name in self.fields]
        if self.key is not None:
            parts.append(f"key={self.key!r}")
        parts.append(f"mode={(KEEP_LAST if self.is_last_kept else str(self.mode))!r}")
        if self.until is Until.STARTED:
            parts.append("until='started'")
        spans = {"within": self.within, "wait": self.wait, "max_wait": self.max_wait}
        parts += [f"{name}={format_duration(s)!r}" for name, s in spans.items() if s is not None]
        return f"Unique({', '.join(parts)})"


def _positive(value: Duration, name: str) -> timedelta:
    parsed = parse_duration(value, name)
    if not parsed:
        raise ConfigError(f"{name} must be longer than zero")
    return parsed


def check_key(key: object) -> str:
    """A key that a person chose. All tasks of a store share them."""
    if not isinstance(key, str) or not key or not key.isprintable():
        raise ConfigError(f"unique must be a non-empty printable text, got {key!r}")
    if len(key) > MAX_KEY_CHARS:
        raise ConfigError(f"unique must have at most {MAX_KEY_CHARS} characters, got {len(key)}")
    return key


def key_of(task: str, values: Mapping[str, Any]) -> str:
    """The key of one task's job with these values: readable where it is short, else a hash."""
    text = msgspec.json.encode(values, order="deterministic").decode()
    if len(text) > MAX_KEY_CHARS or not text.isprintable():
        text = hashlib.sha256(text.encode()).hexdigest()
    return f"{task}:{text}"
