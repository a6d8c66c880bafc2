"""Ids as canonical UUID text: jobs (version 7, sorting by time), claim tokens and sessions (random)."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection

from winch.core.errors import ConfigError
from winch.core.values.bounds import check_length

# The first two bits of the random part are the kind of UUID.
_VARIANT = bytes(byte & 0x3F | 0x80 for byte in range(256))
_VARIANT_TEXT = tuple(f"{byte:02x}" for byte in _VARIANT)
# `urn:uuid:` and braces included.
MAX_CHARS = 64
ALIAS_HEADER = "winch-alias"
"""Where a job that was enqueued under an alias keeps it."""
# An alias is as long as the name of a task may be.
MAX_ALIAS_CHARS = 200
# Changing this would lose every job that was stored under an alias.
_ALIASES = uuid.UUID("0f3c1a5e-9d0b-5d39-8d11-616c69617365")
_LEAST_UUID_LIKE = 24
_HEX = str.maketrans("", "", "0123456789abcdefABCDEF-{}")
_JOB_ID = "%08x-%04x-7%03x-%s%s-%s"
RUN = 100
"""So many ids that are drawn together have the same six bits behind the variant, which is a place out of
64; the next so many have the next. A store that spreads jobs over 64 shards puts such a run into one."""
PLACES = 64
_PLACES = b"".join(bytes([place | 0x80]) * RUN for place in range(PLACES))
# For how many seconds a place that took no job is not drawn.
AVOIDED = 1.0


def job_id(tick: int, random: bytes, place: int | None = None) -> str:
    """A version 7 UUID from a clock tick (1/4096 ms since the epoch) and 8 random bytes.

    The clock only makes ids sort by age: nothing else relies on it being right.
    """
    high, low, rest = tick >> 28 & 0xFFFF_FFFF, tick >> 12 & 0xFFFF, random.hex()
    variant = _VARIANT_TEXT[random[0] if place is None else place & 0x3F]
    # Half of the time that an f-string takes.
    return _JOB_ID % (high, low, tick & 0xFFF, variant, rest[2:4], rest[4:])


def job_ids(tick: int, random: bytes, place: int | None = None) -> list[str]:
    """Ids of this tick and those that follow it, one for each 8 random bytes; in runs from this place
    on, or each in a place of its own."""
    drawn = bytearray(random)
    if place is None:
        drawn[::8] = drawn[::8].translate(_VARIANT)
    elif len(drawn) == 8:
        drawn[0] = place & 0x3F | 0x80
    else:
        start = RUN * (place & 0x3F)
        count = len(drawn) // 8
        rounds = 1 + (start + count) // len(_PLACES)
        drawn[::8] = (_PLACES * rounds)[start : start + count]
    r = drawn.hex()
    ids = []
    head = ""
    for at in range(0, len(r), 16):
        if not head or not tick & 0xFFF:
            h = f"{tick >> 12 & 0xFFFF_FFFF_FFFF:012x}"
            head = f"{h[:8]}-{h[8:]}-7"
        ids.append(f"{head}{tick & 0xFFF:03x}-{r[at : at + 4]}-{r[at + 4 : at + 16]}")
        tick += 1
    return ids


def with_place(job_id: str, place: int) -> str:
    """The id with another place: see `RUN`."""
    return f"{job_id[:19]}{place & 0x3F | 0x80:02x}{job_id[21:]}"


class JobIds:
    """Draws the ids of jobs, each greater than the one before it, so that jobs enqueued together keep
    their order. They take the places in turn, so that all places get the same share."""

    def __init__(self, time: Callable[[], float], random_bytes: Callable[[int], bytes]) -> None:
        self._time = time
        self._random_bytes = random_bytes
        self._last_tick = 0
        self._next_place: int | None = None
        self._unfit: frozenset[int] = frozenset()
        self._unfit_until = 0.0

    def avoid(self, unfit: Collection[int]) -> None:
        """Draw no ids of these places for a moment: the store cannot take their jobs."""
        self._unfit = frozenset(unfit)
        self._unfit_until = self._time() + AVOIDED

    def _fit(self, place: int) -> int:
        """This place or the next one after it that is not avoided; this one if all are."""
        if self._time() > self._unfit_until:
            self._unfit = frozenset()
        turns = (place + turn for turn in range(PLACES))
        return next((one for one in turns if one % PLACES not in self._unfit), place)

    def draw(self) -> str:
        tick = int(self._time() * 4_096_000)
        if tick <= self._last_tick:
            tick = self._last_tick + 1
        self._last_tick = tick
        random = self._random_bytes(8)
        place = random[0] if self._next_place is None else self._next_place
        if self._unfit:
            place = self._fit(place)
        self._next_place = place + 1
        return job_id(tick, random, place)

    def draw_many(self, count: int) -> list[str]:
        tick = max(int(self._time() * 4_096_000), self._last_tick + 1)
        self._last_tick = tick + count - 1
        random = self._random_bytes(8 * count)
        place = self._next_place
        if place is None:
            place = random[0] if random else 0
        if self._unfit:
            return self._draw_around(tick, random, place)
        self._next_place = place + -(-count // RUN)
        return job_ids(tick, random, place)

    def _draw_around(self, tick: int, random: bytes, place: int) -> list[str]:
        """As `draw_many`, each run in the next place that is not avoided."""
        ids: list[str] = []
        for start in range(0, len(random), 8 * RUN):
            place = self._fit(place)
            some = random[start : start + 8 * RUN]
            ids += job_ids(tick + start // 8, some, place)
            place += 1
        self._next_place = place
        return ids


def random_id(random: bytes) -> str:
    """A version 4 UUID from 16 random bytes: a claim's token or a session's id."""
    h = random.hex()
    variant = "89ab"[int(h[16], 16) & 3]
    return f"{h[:8]}-{h[8:12]}-4{h[13:16]}-{variant}{h[17:20]}-{h[20:32]}"


def known_as(value: str | uuid.UUID, name: str = "id") -> str:
    """The id of the job that a caller gives this id or alias: a UUID itself, or the one that any other
    text stands for. The same text gives the same id in every process and release.

    Raises ConfigError for a text that looks like a UUID and is none: it is mistyped, not an alias.
    """
    if not isinstance(value, str) or not is_alias(value):
        return parse_id(value, name)
    check_length(value, MAX_ALIAS_CHARS, name)
    return str(uuid.uuid5(_ALIASES, value))


def is_alias(value: str) -> bool:
    """Whether this is a name for a job of the caller's own, and no UUID."""
    bare = value.strip().removeprefix("urn:uuid:")
    is_hex = len(bare) >= _LEAST_UUID_LIKE and not bare.translate(_HEX)
    return bool(value.strip()) and value.isprintable() and not is_hex


def is_id(value: str) -> bool:
    """Whether a text is an id as Winch writes it."""
    try:
        return str(uuid.UUID(value)) == value
    except ValueError:
        return False


def parse_id(value: str | uuid.UUID, name: str = "id") -> str:
    """The canonical text of an id given by a caller; raises ConfigError when it is not a UUID."""
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, str):
        check_length(value, MAX_CHARS, name)
    try:
        return str(uuid.UUID(value))
    except (ValueError, TypeError, AttributeError):
        raise ConfigError(f"{name} must be a UUID, got {value!r}") from None
