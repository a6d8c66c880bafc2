"""Unique jobs: at most one live job for a key.

`Unique` says which key a job has and what becomes of a second one; the store holds keys to it. A key is
taken when a job is stored, held until the job is final, and taken again when an operator retries it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec

from winch.core.errors import ConfigError, did_you_mean

MAX_KEY_CHARS = 256
# Named in the specification, built by a later release: refused, never silently ignored.
LATER_MODES = ("debounce", "keep_last")


class Duplicate(StrEnum):
    """What becomes of a job whose key is held: answered with the holder, refused, or its successor."""

    RETURN = "return"
    REJECT = "reject"
    REPLACE = "replace"


class Unique:
    """One live job for each value of these arguments, or of all of them; or for a `key` of your own.

    `mode` says what a second enqueue does: "return" the job that is there, "reject" it with
    DuplicateJob, or "replace" the arguments, priority and time of the one that waits.
    """

    __slots__ = ("fields", "key", "mode")

    def __init__(
        self,
        *fields: str,
        key: str | None = None,
        mode: str = "return",
        within: object = None,
    ) -> None:
        if within is not None:
            raise ConfigError(
                "Unique(within=…) is not available in this release; a key is held until its job is final"
            )
        if mode in LATER_MODES:
            raise ConfigError(
                f"Unique(mode={mode!r}) is not available in this release; there are: "
                f"{', '.join(Duplicate)}"
            )
        if mode not in list(Duplicate):
            hint = did_you_mean(mode, [str(one) for one in Duplicate]) if isinstance(mode, str) else ""
            raise ConfigError(f"Unique mode must be one of {', '.join(Duplicate)}, got {mode!r}{hint}")
        if key is not None and fields:
            raise ConfigError("Unique takes argument names or a key, not both")
        for name in fields:
            if not isinstance(name, str) or not name:
                raise ConfigError(f"Unique takes names of arguments, got {name!r}")
        self.fields = fields
        self.key = None if key is None else check_key(key)
        self.mode = Duplicate(mode)

    def __repr__(self) -> str:
        said = [repr(name) for name in self.fields]
        if self.key is not None:
            said.append(f"key={self.key!r}")
        return f"Unique({', '.join([*said, f'mode={str(self.mode)!r}'])})"


def check_key(key: object) -> str:
    """A key that a person chose. All tasks of a store share them."""
    if not isinstance(key, str) or not key or not key.isprintable():
        raise ConfigError(f"unique must be a non-empty printable text, got {key!r}")
    if len(key) > MAX_KEY_CHARS:
        raise ConfigError(f"unique must have at most {MAX_KEY_CHARS} characters, got {len(key)}")
    return key


def key_of(task: str, values: Mapping[str, Any]) -> str:
    """The key of one task's job with these values: readable where it is short, else a hash."""
    told = msgspec.json.encode(values, order="deterministic").decode()
    if len(told) > MAX_KEY_CHARS or not told.isprintable():
        told = hashlib.sha256(told.encode()).hexdigest()
    return f"{task}:{told}"
