"""Places for started jobs, shown to the supervisor on the board.

A job's place stays taken until the store knows of its end. Should this process stand still between a
handler's end and the answer to its finish, the supervisor must not take the job for one that has not
started, and give it to others.
"""

from __future__ import annotations

from collections.abc import Sequence

from winch.engine.worker.attempt import Attempt
from winch.engine.worker.started_jobs import Board
from winch.storage.params import ClaimRef, Finish

# How many there are where there is no board to show them on.
UNSHOWN = 8192


class Places:
    """`kill_after`: the supervisor kills a child blocked for twice that past a job's last moment."""

    def __init__(self, board: Board | None, kill_after: float) -> None:
        self._board = board
        self._kill_after = kill_after
        self._free = list(range(UNSHOWN if board is None else board.slots))
        self._spare = len(self._free) // 2
        self._unwritten: dict[tuple[str, str], int] = {}

    @property
    def free(self) -> int:
        return len(self._free)

    def take(self) -> int:
        return self._free.pop()

    def pulse(self) -> None:
        if self._board is not None:
            self._board.pulse()

    def show(self, attempt: Attempt) -> None:
        """Show that the job has started, and when it has to end."""
        if self._board is None:
            return
        claim, is_here = attempt.claim, not attempt.is_alone
        end = attempt.must_end_by if is_here else None
        last = None if end is None else end + 2 * self._kill_after
        self._board.start(attempt.place, claim.id, claim.token, last, is_here=is_here)

    def begin(self, job: str, token: str, end: float | None) -> int:
        """A place for a job that starts here and has to end by then: `take` and `show` in one."""
        place = self._free.pop()
        if self._board is not None:
            self._board.start(place, job, token, None if end is None else end + 2 * self._kill_after)
        return place

    def end(self, job: str, token: str, place: int) -> None:
        """The handler has ended; `written` will follow."""
        if self._board is not None and len(self._free) > self._spare:
            self._board.ended(place)
            self._unwritten[job, token] = place
        else:  # nobody watches; or too many wait for a store that does not answer
            self._give_back((place,))

    def over(self, attempt: Attempt) -> None:
        """The handler has ended in its thread; `ended` will follow."""
        if self._board is not None:
            self._board.ended(attempt.place)

    def ended(self, attempt: Attempt) -> None:
        """The handler has ended; `written` will follow."""
        self.end(attempt.claim.id, attempt.claim.token, attempt.place)

    def written(self, claims: Sequence[Finish | ClaimRef]) -> None:
        """The store knows of the end of these claims."""
        if not self._unwritten:
            return
        pop = self._unwritten.pop
        found = [pop((claim.id, claim.token), None) for claim in claims]
        self._give_back([place for place in found if place is not None])

    def _give_back(self, places: Sequence[int]) -> None:
        if self._board is not None:
            self._board.free(places)
        self._free += places
