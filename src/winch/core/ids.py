"""Ids as canonical UUID text: jobs (version 7, sorting by time), claim tokens and sessions (random)."""

from __future__ import annotations

import uuid

from winch.core.errors import ConfigError


def job_id(tick: int, random: bytes) -> str:
    """A version 7 UUID from a clock tick (1/4096 ms since the epoch) and 8 random bytes.

    The clock only makes ids sort by age: nothing else relies on it being right.
    """
    h = f"{tick & 0xFFF_FFFF_FFFF_FFFF:015x}"
    r = random.hex()
    variant = "89ab"[int(r[0], 16) & 3]
    return f"{h[:8]}-{h[8:12]}-7{h[12:]}-{variant}{r[1:4]}-{r[4:]}"


def random_id(random: bytes) -> str:
    """A version 4 UUID from 16 random bytes: a claim's token or a session's id."""
    h = random.hex()
    variant = "89ab"[int(h[16], 16) & 3]
    return f"{h[:8]}-{h[8:12]}-4{h[13:16]}-{variant}{h[17:20]}-{h[20:32]}"


def parse_id(value: str | uuid.UUID, name: str = "id") -> str:
    """The canonical text of an id given by a caller; raises ConfigError when it is not a UUID."""
    if isinstance(value, uuid.UUID):
        return str(value)
    try:
        return str(uuid.UUID(value))
    except (ValueError, TypeError, AttributeError):
        raise ConfigError(f"{name} must be a UUID, got {value!r}") from None
