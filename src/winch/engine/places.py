"""Places for started jobs, shown to the supervisor on the board.

A job's place stays taken until the store knows of its end. Should this process stand still between a
handler's end and the answer to its finish, the supervisor must not take the job for one that has not
started, and give it to others.
"""

from __future__ import annotations

from collections.abc import Sequence

from winch.engine.attempt import Attempt
from winch.engine.board import Board
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

    def over(self, attempt: Attempt) -> None:
        """The handler has ended in its thread; `ended` will follow."""
        if self._board is not None:
            self._board.ended(attempt.place)

    def ended(self, attempt: Attempt) -> None:
        """The handler has ended; `written` will follow."""
        if self._board is not None and len(self._free) > self._spare:
            self._board.ended(attempt.place)
            self._unwritten[attempt.claim.id, attempt.claim.token] = attempt.place
        else:  # nobody watches; or too many wait for a store that does not answer
            self._give_back(attempt.place)

    def written(self, claims: Sequence[Finish | ClaimRef]) -> None:
        """The store knows of the end of these claims."""
        for claim in claims if self._unwritten else ():
            place = self._unwritten.pop((claim.id, claim.token), None)
            if place is not None:
                self._give_back(place)

    def _give_back(self, place: int) -> None:
        if self._board is not None:
            self._board.free(place)
        self._free.append(place)
