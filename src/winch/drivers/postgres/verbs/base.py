"""What the families of verbs share: making steps and verbs, and taking repeated ids in turn."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from datetime import datetime
from functools import wraps
from inspect import getmembers, ismethod, signature
from typing import Any, ParamSpec, TypeVar

from winch.drivers.postgres.statements import Body, Sql, Statement
from winch.storage.verbs import Verb

T = TypeVar("T")
P = ParamSpec("P")

Place = tuple[int, str]
"""Where a job stands in the index of ready jobs: its sort key and its id."""
# Before every job.
BEGINNING: Place = (-(1 << 63), "00000000-0000-0000-0000-000000000000")
# A claim for fewer jobs comes from a worker that is not in a hurry.
MANY = 64
# A job due sooner than the promoter's own poll rings the bell; a later one is met by the poll.
SOON_SECONDS = 2.0

Claimant = tuple[str, tuple[str, ...] | None]
"""The session that claims, and the tasks that it claims jobs of."""


class ClaimStarts:
    """Where claims begin in the index of ready jobs: at its start. `fast/low_water.py` begins later."""

    def starts(self, queues: Sequence[str], claimant: Claimant) -> list[Place]:
        """The place at which to begin in each queue."""
        return [BEGINNING] * len(queues)

    def reached(self, queue: str, claimant: Claimant, start: Place, last: Place, seconds: float) -> None:
        """A claim that began at `start` and took so long got the whole number, up to `last`."""

    def emptied(self, queues: Sequence[str], claimant: Claimant) -> None:
        """A claim of these queues got fewer jobs than it wanted."""


class Base:
    """What every family of verbs receives from the driver."""

    def __init__(
        self,
        sql: Mapping[str, Sql],
        *,
        keeps_events: bool,
        claim_starts: ClaimStarts,
    ) -> None:
        self.sql = sql
        self.keeps_events = keeps_events
        self.claim_starts = claim_starts
        # A claim of at least this many jobs writes one row for all of them: see claim.sql.
        self.batch_from: int = MANY

    def statement(
        self, name: str, /, *, is_alone: bool = False, is_fixed: bool = False, **values: Any
    ) -> Statement:
        return Statement(self.sql[name], values, is_alone, is_fixed)

    def read(self, name: str, body: Callable[[], Body[T]]) -> Verb[T]:
        return Verb(name, body, is_read=True)


def witness(family: object, hint: Sql) -> None:
    """Make each verb of a family that can change a job send the hint for the triggers of events."""
    for name, make in getmembers(family, ismethod):
        if not name.startswith("_") and "now" in signature(make).parameters:
            setattr(family, name, _witnessed(make, hint))


def _witnessed(make: Callable[P, Verb[T]], hint: Sql) -> Callable[P, Verb[T]]:
    """The verbs that `make` returns, with the hint before what they write."""

    @wraps(make)
    def with_hint(*args: P.args, **kwargs: P.kwargs) -> Verb[T]:
        verb = make(*args, **kwargs)
        if verb.is_read:
            return verb
        now = kwargs.get("now")
        at = now.isoformat() if isinstance(now, datetime) else None

        def steps() -> Body[T]:
            yield Statement(hint, {"verb": verb.name, "at": at})
            return (yield from verb.steps())

        return Verb(verb.name, steps, lone=verb.lone)

    return with_hint


def rounds(keys: Sequence[Hashable]) -> list[list[int]]:
    """The positions of the keys, split so that no round has a key twice: first ones first.

    A statement sees a job once. A call that names a job twice gets the answers of two calls, one after
    the other.
    """
    seen: dict[Hashable, int] = {}
    found: list[list[int]] = []
    for place, key in enumerate(keys):
        turn = seen.get(key, 0)
        seen[key] = turn + 1
        if turn == len(found):
            found.append([])
        found[turn].append(place)
    return found
