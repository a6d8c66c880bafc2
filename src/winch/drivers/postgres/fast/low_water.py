"""Where the claims of a busy worker begin.

While a transaction holds an old snapshot, vacuum cannot remove what claims leave behind: the entries of
jobs long gone pile up at the low end of the index of ready jobs, and each claim walks over them. So a
worker that gets as much as it asks for begins its next claim at the last job it was given: at its sort
key and id, because the jobs of one call share a sort key.

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

from winch.drivers.postgres.verbs.base import BEGINNING, Claimant, ClaimStarts, Place

LOOK_AGAIN = 0.25
# A look from the beginning may take up one part in so many of the time.
SHARE = 20


class LowWater(ClaimStarts):
    """The marks of one process: by queue, session, and the tasks that were asked for."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        # With each the moment until which it holds.
        self._marks: dict[tuple[str, Claimant], tuple[Place, float]] = {}

    def starts(self, queues: Sequence[str], claimant: Claimant) -> list[Place]:
        """The place at which to begin in each queue."""
        now = self._monotonic()
        starts = []
        for queue in queues:
            place, until = self._marks.get((queue, claimant), (BEGINNING, 0.0))
            starts.append(place if now < until else BEGINNING)
        return starts

    def reached(self, queue: str, claimant: Claimant, start: Place, last: Place, seconds: float) -> None:
        """A claim that began at `start` and took so long got all it asked for, up to `last`."""
        mark = self._marks.get((queue, claimant))
        if start == BEGINNING:
            now = self._monotonic()
            # Sessions come and go: those that have ended leave no marks behind.
            self._marks = {key: held for key, held in self._marks.items() if now < held[1]}
            self._marks[queue, claimant] = last, now + max(LOOK_AGAIN, SHARE * seconds)
        elif mark is not None:
            self._marks[queue, claimant] = last, mark[1]

    def emptied(self, queues: Sequence[str], claimant: Claimant) -> None:
        """These queues had less than was asked for."""
        for queue in queues:
            self._marks.pop((queue, claimant), None)
