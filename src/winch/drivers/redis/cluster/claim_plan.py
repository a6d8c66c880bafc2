"""From which parts of a store in a cluster a claim takes how many jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from winch.drivers.redis.cluster.shards import HOME

ClaimPlan = dict[tuple[int, str], int]
# A large claim takes so many of one part before it goes to the next; where that would be many visits, an
# eighth of what it wants.
AT_ONE_PART = 125
MOST_PARTS = 8


class Heads:
    """The ready jobs of each part, by queue: how many, and the first of them."""

    def __init__(self, queues: Sequence[str]) -> None:
        self._queues = queues
        self._counts: dict[tuple[int, str], int] = {}
        self._first: dict[tuple[int, str], list[tuple[int, bytes]]] = {}
        self.gated: set[str] = set()
        """Queues with ready jobs that have gates or a tenant."""
        self.rooms: dict[str, int] = {}
        """Queues with a concurrency, and how many more of their jobs may run: as home knows it."""
        self.strict: set[str] = set()
        """Queues of strict order."""
        self.spread: set[str] = set()
        """Queues with ready jobs under gates that live in the shards of their keys."""
        self.later: Sequence[int] = ()
        """Parts that were not looked at."""

    def add(self, number: int, reply: Sequence[Any] | None) -> None:
        """What a part has answered; None where it could not."""
        for queue, one in zip(self._queues, reply or (), strict=reply is not None):
            count, first, others, room, is_strict, gated = one
            self._counts[number, queue] = count
            if gated:
                self.spread.add(queue)
            if number == HOME and room >= 0:
                self.rooms[queue] = room
            if is_strict:
                self.strict.add(queue)
            if others:
                self.gated.add(queue)
            self._first[number, queue] = [
                (int(float(first[index + 1])), first[index]) for index in range(0, len(first), 2)
            ]

    def count(self, number: int, queue: str) -> int:
        return self._counts.get((number, queue), 0)

    def numbers(self, queue: str) -> list[int]:
        """The parts that have ready jobs of this queue."""
        return [number for (number, of), count in self._counts.items() if of == queue and count]

    def total(self, queue: str) -> int:
        return sum(count for (_, of), count in self._counts.items() if of == queue)

    def shares(self, queue: str, limit: int) -> dict[int, int]:
        """How many of the first `limit` ready jobs each part has, as far as they were read."""
        merged = sorted(
            (key, job_id, number)
            for (number, of), first in self._first.items()
            if of == queue
            for key, job_id in first
        )
        found: dict[int, int] = {}
        for _, _, number in merged[:limit]:
            found[number] = found.get(number, 0) + 1
        return found

    def first_away(self, queue: str, limit: int, home: int) -> list[tuple[int, bytes, int]]:
        """The first plain jobs that are not at home, as far as they were read: key, id and part."""
        return sorted(
            (key, job_id, number)
            for (number, of), first in self._first.items()
            if of == queue and number != home
            for key, job_id in first
        )[:limit]

    def first_of_all(self, queue: str) -> list[tuple[int, bytes, int]]:
        """The first plain jobs of all parts, as far as they were read: key, id and part."""
        return sorted(
            (key, job_id, number)
            for (number, of), first in self._first.items()
            if of == queue
            for key, job_id in first
        )

    def unread(self, limit: int) -> list[int]:
        """The parts of which all that was read is among the first, though they have more."""
        found = set()
        for queue in self._queues:
            if limit <= 0:
                break
            if self.total(queue) > limit:
                for number, share in self.shares(queue, limit).items():
                    first = self._first[number, queue]
                    if share == len(first) and len(first) < min(limit, self.count(number, queue)):
                        found.add(number)
            limit -= self.total(queue)
        return sorted(found)


def planned(heads: Heads, limit: int, queues: Sequence[str], *, is_exact: bool) -> ClaimPlan:
    """The first queue that has some, then the next; the first jobs of all parts, or, where that would be
    few of each, as many as fit of some parts in turn."""
    plan: ClaimPlan = {}
    for queue in queues:
        if limit <= 0:
            break
        total = heads.total(queue)
        if total <= limit:
            chosen = {number: heads.count(number, queue) for number in heads.numbers(queue)}
        elif is_exact:
            chosen = heads.shares(queue, limit)
        else:
            chosen = _in_turn(heads, queue, limit)
        plan.update({(number, queue): count for number, count in chosen.items() if count})
        limit -= min(total, limit)
    return plan


def _in_turn(heads: Heads, queue: str, limit: int) -> dict[int, int]:
    """Every visit to a part has its cost, which the jobs that are taken there share. Of jobs under gates
    a part can mostly give few, however many it has: they are taken from all parts alike."""
    chosen: dict[int, int] = {}
    most = max(AT_ONE_PART, -(-limit // MOST_PARTS))
    if queue in heads.spread:
        most = -(-limit // len(heads.numbers(queue)))
    while limit > 0:
        for number in heads.numbers(queue):
            count = min(heads.count(number, queue) - chosen.get(number, 0), most, limit)
            if count > 0:
                chosen[number] = chosen.get(number, 0) + count
                limit -= count
    return chosen
