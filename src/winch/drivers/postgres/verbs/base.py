"""What the families of verbs share: making steps and verbs, and taking repeated ids in turn."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from datetime import datetime
from typing import Any, TypeVar

from winch.drivers.postgres.binary import Tids
from winch.drivers.postgres.statements import Body, Rows, SchemaStatements, Statement
from winch.storage.verbs import Verb

T = TypeVar("T")

# Below every sort key.
BEGINNING = -(1 << 63)
# A claim for fewer jobs comes from a worker that is not in a hurry.
MANY = 64
# A job due sooner than the promoter's own poll rings the bell; a later one is met by the poll.
SOON_SECONDS = 2.0

Tasks = tuple[str, ...] | None


class ClaimStarts:
    """Where claims begin in the index of ready jobs: at its start. `fast/low_water.py` begins later."""

    def starts(self, queues: Sequence[str], tasks: Tasks) -> list[int]:
        """The sort key at which to begin in each queue."""
        return [BEGINNING] * len(queues)

    def reached(self, queue: str, tasks: Tasks, start: int, last: int, seconds: float) -> None:
        """A claim that began at `start` and took so long got the whole number, up to the key `last`."""

    def emptied(self, queues: Sequence[str], tasks: Tasks) -> None:
        """A claim of these queues got fewer jobs than it wanted."""


class RowHints:
    """Where the rows of claimed jobs lie: unknown, so that a finish looks them up by id.
    `fast/row_hints.py` remembers."""

    def learn(self, rows: Rows) -> None:
        """The rows of a claim: the id is the second column, the row's ctid the last."""

    def forget(self, job: str) -> None:
        """The job's row was written again, so its ctid has changed."""

    def take(self, ids: Sequence[str]) -> Tids:
        """The ctids of these jobs, which are about to end; None where unknown."""
        return Tids([None] * len(ids))


class Base:
    """What every family of verbs receives from the driver."""

    def __init__(
        self,
        sql: SchemaStatements,
        *,
        keeps_events: bool,
        claim_starts: ClaimStarts,
        row_hints: RowHints,
    ) -> None:
        self.sql = sql
        self.keeps_events = keeps_events
        self.claim_starts = claim_starts
        self.row_hints = row_hints
        # A claim of at least this many jobs writes one row for all of them: see claim.sql.
        self.batch_from: int = MANY

    def statement(
        self, name: str, /, *, is_alone: bool = False, is_fixed: bool = False, **values: Any
    ) -> Statement:
        return Statement(self.sql[name], values, is_alone, is_fixed)

    def read(self, name: str, body: Callable[[], Body[T]]) -> Verb[T]:
        return Verb(name, body, is_read=True)

    def write(self, name: str, body: Callable[[], Body[T]], now: datetime | None = None) -> Verb[T]:
        if not self.keeps_events:
            return Verb(name, body)

        def witnessed() -> Body[T]:
            at = None if now is None else now.isoformat()
            yield self.statement("events.hint", verb=name, at=at)
            return (yield from body())

        return Verb(name, witnessed)


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
