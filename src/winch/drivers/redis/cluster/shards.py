"""The parts of a store in a cluster: 64 shards for jobs that stand alone, and home for all others.

A shard is a hash tag, `{winch.17}`, and so a slot; home is the tag that a store on one server has,
`{winch}`. The tags are chosen so that the slots of the 64 lie evenly over all 16384: a node with a
third of the slots has a third of the shards. There are 64 whatever the number of nodes: a cluster that
grows moves slots, and no job changes its shard. Which shard a job is in follows from its id.
"""

from __future__ import annotations

import binascii
import random
import time
import zlib
from collections.abc import Sequence
from functools import cache
from typing import Any

from winch.drivers.redis.address import Address, HostPort
from winch.drivers.redis.connections.routing import ServerRoute

SHARDS = 64
SLOTS = 16384
HOME = 0
"""Home's number; the shards are 1 to 64."""
EVERYWHERE = range(SHARDS + 1)
# How many seconds a node that did not answer is passed over by calls that can do without it.
AVOIDED = 1.0


def slot_of(tag: str) -> int:
    return binascii.crc_hqx(tag.encode(), 0) % SLOTS


@cache
def tags(schema: str) -> tuple[str, ...]:
    """The hash tags by number: home's first."""
    width = SLOTS // SHARDS
    found: dict[int, str] = {}
    number = 0
    while len(found) < SHARDS:
        tag = f"{schema}.{number}"
        found.setdefault(slot_of(tag) // width, tag)
        number += 1
    return (schema, *(found[index] for index in range(SHARDS)))


@cache
def meta_keys(schema: str) -> tuple[str, ...]:
    """The key `meta` of each part, which gives the prefix of its other keys."""
    return tuple(f"{{{tag}}}:meta" for tag in tags(schema))


# The six bits that ids drawn together share: see core/values/ids.py.
_SHARDS_BY_BITS = {f"{0x80 | bits:02x}": 1 + bits for bits in range(SHARDS)}


def shard_of(job_id: str) -> int:
    """By the six bits that the id was drawn with: jobs that are enqueued by the hundred come to few
    shards, and each visit to a shard has its cost. Ids of other kinds, which callers give, by a hash."""
    if job_id[14] == "7" and (found := _SHARDS_BY_BITS.get(job_id[19:21])) is not None:
        return found
    return 1 + zlib.crc32(job_id.encode()) % SHARDS


class ClusterRoute(ServerRoute):
    """Which node has which part of the store. Any node answers MOVED for a part that is elsewhere."""

    def __init__(self, address: Address) -> None:
        super().__init__(address)
        self._slots = [slot_of(tag) for tag in tags(address.schema)]
        self._routes = [_PartRoute(self, number) for number in EVERYWHERE]
        self.owners: dict[int, HostPort] = {}
        self._avoided: dict[HostPort, float] = {}
        self._unreplicated: dict[HostPort, float] = {}
        self.is_stale: bool = True
        """Whether a reply has contradicted this map."""

    def of(self, where: int) -> ServerRoute:
        return self._routes[where]

    def learn(self, slots: Sequence[Any]) -> None:
        """Take over what CLUSTER SLOTS has answered."""
        owners = {}
        for first, last, (host, port, *_), *_ in slots:
            server = (host.decode() if host else self.address.servers[0][0], int(port))
            owners.update(
                {number: server for number, slot in enumerate(self._slots) if first <= slot <= last}
            )
        self.owners = owners
        self.is_stale = False

    def avoid(self, owner: HostPort | None) -> None:
        """This node has not answered: calls that can do without it do so for a moment."""
        if owner is not None:
            self._avoided[owner] = time.monotonic() + AVOIDED

    def is_avoided(self, number: int) -> bool:
        owner = self.owners.get(number)
        return owner is not None and self._avoided.get(owner, 0.0) > time.monotonic()

    def note_unreplicated(self, owner: HostPort | None) -> None:
        """This node has too few replicas: jobs that may be elsewhere are stored there for a moment."""
        if owner is not None:
            self._unreplicated[owner] = time.monotonic() + AVOIDED

    def is_unfit(self, number: int) -> bool:
        """Whether a job that may be stored in any part is better not stored in this one."""
        owner = self.owners.get(number)
        if owner is None:
            return False
        until = max(self._avoided.get(owner, 0.0), self._unreplicated.get(owner, 0.0))
        return until > 0.0 and until > time.monotonic()

    def unfit_places(self) -> frozenset[int]:
        """The places of ids (core/values/ids.py) whose shards are unfit."""
        return frozenset(number - 1 for number in EVERYWHERE if number != HOME and self.is_unfit(number))

    def bell_of(self, number: int) -> int:
        """Where waiters of this part's node leave their names: at the first part that the node has."""
        owner = self.owners.get(number)
        if owner is None:
            return number
        return min(other for other, server in self.owners.items() if server == owner)

    def bells(self) -> list[int]:
        return sorted({self.bell_of(number) for number in EVERYWHERE})


class _PartRoute(ServerRoute):
    """The way to one part."""

    def __init__(self, whole: ClusterRoute, number: int) -> None:
        super().__init__(whole.address)
        self._whole = whole
        self._number = number

    def known(self) -> HostPort:
        found = self._whole.owners.get(self._number)
        if found is None:
            seeds = [*self.address.servers, *set(self._whole.owners.values())]
            found = random.choice(seeds)  # noqa: S311  # not a secret
        return found

    def found(self, server: HostPort) -> None:
        self._whole.is_stale = True
        self._whole.owners[self._number] = server

    def lost(self) -> None:
        self._whole.is_stale = True
        self._whole.owners.pop(self._number, None)
