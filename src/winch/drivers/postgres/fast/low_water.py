"""Where the claims of a busy worker begin.

While a transaction holds an old snapshot, vacuum cannot remove what claims leave behind: the entries of
jobs long gone pile up at the low end of the index of ready jobs, and each claim walks over them. So a
worker that gets as much as it asks for begins its next claim at the last sort key it was given.

A job may come to lie below that mark: put back, promoted, of a higher priority, or stored by a
transaction that committed late. So every 250 ms a claim begins at the very beginning (less often where
that takes long), and so does each one after a claim that did not get all it asked for, and at once one
that got nothing. Kept in memory, for this process alone; losing it costs one walk.

While a snapshot is held, a worker drains 1.46 times as many jobs a second (7,543 and 5,165). Equals a
claim from the beginning (`ClaimStarts`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from winch.drivers.postgres.verbs.base import BEGINNING, ClaimStarts, Tasks

LOOK_AGAIN = 0.25
# A look from the beginning may take up one part in so many of the time.
SHARE = 20


class LowWater(ClaimStarts):
    """The marks of one process: by queue, and by the tasks that were asked for."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._marks: dict[tuple[str, Tasks], tuple[int, float]] = {}

    def starts(self, queues: Sequence[str], tasks: Tasks) -> list[int]:
        """The sort key at which to begin in each queue."""
        now = self._monotonic()
        starts = []
        for queue in queues:
            key, until = self._marks.get((queue, tasks), (BEGINNING, 0.0))
            starts.append(key if now < until else BEGINNING)
        return starts

    def reached(self, queue: str, tasks: Tasks, start: int, last: int, seconds: float) -> None:
        """A claim that began at `start` and took so long got all it asked for, up to the key `last`."""
        mark = self._marks.get((queue, tasks))
        if start == BEGINNING:
            self._marks[queue, tasks] = last, self._monotonic() + max(LOOK_AGAIN, SHARE * seconds)
        elif mark is not None:
            self._marks[queue, tasks] = last, mark[1]

    def emptied(self, queues: Sequence[str], tasks: Tasks) -> None:
        """These queues had less than was asked for."""
        for queue in queues:
            self._marks.pop((queue, tasks), None)
