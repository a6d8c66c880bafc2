"""What the bodies of all verbs share: making steps and verbs, and asking for repeated ids in turn."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

from winch.core.errors import StorageUnavailable
from winch.core.lifecycle import JobState
from winch.drivers.postgres.binary import Tids
from winch.drivers.postgres.statements import Body, Rows, Statements, Step
from winch.storage.decide.unique import Holder
from winch.storage.verbs import Verb

T = TypeVar("T")

# How often a unique key is tried for whose holder ends whenever it is looked for.
KEY_LOOKS = 20


# Below every sort key.
BEGINNING = -(1 << 63)
# A claim for fewer jobs comes from a worker that is not in a hurry.
MANY = 64

Tasks = tuple[str, ...] | None


class ClaimStarts:
    """Where claims begin in the index of ready jobs: at its beginning; fast/low_water.py skips more."""

    def starts(self, queues: Sequence[str], tasks: Tasks) -> list[int]:
        """The sort key at which to begin in each queue."""
        return [BEGINNING] * len(queues)

    def reached(self, queue: str, tasks: Tasks, start: int, last: int, seconds: float) -> None:
        """A claim that began at `start` and took so long got all it asked for, up to the key `last`."""

    def emptied(self, queues: Sequence[str], tasks: Tasks) -> None:
        """These queues had less than was asked for."""


class RowHints:
    """Where the rows of claimed jobs lie: not known, so that a finish looks them up by id.
    `fast/row_hints.py` knows."""

    def learn(self, rows: Rows) -> None:
        """What a claim answered: the ids stand second, the places last."""

    def forget(self, job: str) -> None:
        """The job's row was written anew, and lies elsewhere."""

    def take(self, ids: Sequence[str]) -> Tids:
        """The places of these jobs, which are about to end; None for those that are not known."""
        return Tids([None] * len(ids))


class Verbs:
    """The base of the families of verbs; the driver is all of them together."""

    _sql: Statements
    _keeps_events: bool
    _claim_starts: ClaimStarts
    _row_hints: RowHints
    # Queues, as claims name them, that had ready jobs with gates when last looked at: a hint.
    _with_gates: set[tuple[str, ...]]
    # Claims for so many jobs are told by one row for all: see claim.sql.
    _batch_from: int = MANY

    def _step(
        self, name: str, /, *, is_alone: bool = False, is_fixed: bool = False, **values: Any
    ) -> Step:
        return Step(self._sql[name], values, is_alone, is_fixed)

    def _read(self, name: str, body: Callable[[], Body[T]]) -> Verb[T]:
        return Verb(name, body, is_read=True)

    def _write(self, name: str, body: Callable[[], Body[T]], now: datetime | None = None) -> Verb[T]:
        if not self._keeps_events:
            return Verb(name, body)

        def witnessed() -> Body[T]:
            at = None if now is None else now.isoformat()
            yield self._step("events.hint", verb=name, at=at)
            return (yield from body())

        return Verb(name, witnessed)

    def _take_keys(
        self, wanted: Mapping[str, str], replacing: Collection[str] = ()
    ) -> Body[dict[str, Holder]]:
        """Take the unique keys for these jobs; returns who has those that were not to be had.

        All keys are taken before any job row is locked: those who free a key have its job's row, and
        wait for no key. The holders of keys that are `replacing` are locked as they are.
        """
        held: dict[str, Holder] = {}
        left = dict(wanted)
        for _ in range(KEY_LOOKS):
            if not left:
                return held
            order = list(left)
            rows = yield self._step("enqueue.keys", keys=order, jobs=[left[key] for key in order])
            for row in rows:
                del left[row[0]]
            if not left:
                return held
            stale = []
            for key, job_id, state in (yield self._step("enqueue.holders", keys=list(left))):
                if state is None:
                    stale.append(key)
                else:
                    held[key] = Holder(job_id, JobState(state))
                    del left[key]
            if stale:
                yield self._step("enqueue.unkey", keys=stale)
            locking = {held[key].id: key for key in replacing if key in held and key not in left}
            if locking:
                rows = yield self._step("enqueue.lock", ids=list(locking))
                states = {(row[0], row[2]): JobState(row[1]) for row in rows}
                for job_id, key in locking.items():
                    if (job_id, key) in states:
                        held[key] = Holder(job_id, states[job_id, key])
                    else:  # it ended while we waited for it, or lost its key to another
                        del held[key]
                        left[key] = wanted[key]
        raise StorageUnavailable(
            f"unique keys change hands faster than they can be looked at: {', '.join(sorted(left))}"
        )


def rounds(keys: Sequence[Hashable]) -> list[list[int]]:
    """The places of the keys, split so that no round has a key twice: first ones first.

    A statement sees a job once. Whoever names it twice in one call is answered as if the calls came one
    after the other.
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
