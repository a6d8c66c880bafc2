"""Where the keys of gates belong in a store that is spread over 64 places: see docs/adr/0017.

The value of a key decides, not the name of its gate: a job whose gates are all keyed by one customer has
one place. A *family* is the gates of one name whose keys belong to one place.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

from winch.core.gates.uses import FIFO, LIMIT, MARK, RATE, GateUse, gates_of
from winch.core.values.ids import PLACES

_UNIQUE = "fifo:unique:"


@lru_cache(maxsize=4096)
def place_of(value: str) -> int:
    """The place of a key's value. The same as in drivers/redis/lua/parts/homes.lua."""
    return hashlib.sha1(value.encode(), usedforsecurity=False).digest()[0] % PLACES


def _named(use: GateUse) -> tuple[str, str] | None:
    """The name of a keyed gate and the value of its key. None for a gate without a key, and for the
    order of a unique key, whose jobs have to do with the unique key too."""
    if use.kind == FIFO:
        return None if use.key.startswith(_UNIQUE) else (FIFO, use.key[5:])
    if use.kind in (LIMIT, RATE) and use.name and len(use.key) > len(use.name):
        return use.name, use.key[len(use.name) + 1 :]
    return None


def family_of(use: GateUse) -> str | None:
    """The family of a keyed gate: its name and the number of its shard, which counts from 1."""
    named = _named(use)
    return None if named is None else f"{named[0]}@{1 + place_of(named[1])}"


def families_of(options: str | None) -> tuple[str, ...]:
    """The families of the keyed gates of a job with these options."""
    if options is None or not options.startswith(MARK):
        return ()
    found = (family_of(use) for use in gates_of(options))
    return tuple(family for family in found if family is not None)


def lone_place(options: str | None) -> int | None:
    """The place of a job's only gate; None where it has none, several, or one without a key."""
    if options is None or not options.startswith(MARK):
        return None
    uses = gates_of(options)
    named = _named(uses[0]) if len(uses) == 1 else None
    return None if named is None else place_of(named[1])
