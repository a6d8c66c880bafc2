"""How many jobs to claim beyond the free slots: enough to keep the slots busy over a round trip.

Short jobs are over before the next claim is answered, so a worker that claims only for free slots
mostly waits for the store. Long jobs need nothing ahead: whatever is claimed early waits here instead
of running elsewhere. So the number follows what is measured, job time and round trip, and what has
waited here too long goes back to the store (Worker._watch).
"""

from __future__ import annotations

MOST = 1000
# A claim takes at most this many: with as many again waiting, the slots work while the store does.
MOST_AT_ONCE = 500
# Never more than the slots will start within this many seconds.
HORIZON = 0.05
# More jobs a second than this are claimed ahead for so many seconds, however quick the store is: a claim
# of a few jobs costs nearly as much as one of hundreds.
MANY, MANY_HORIZON = 2000, 0.005
# A claimed job that has not started within this many seconds is given back.
HOARD_LIMIT = 0.1
_WEIGHT = 0.1


class Prefetch:
    """Running averages of a job's time in its slot and of a claim's round trip, in seconds."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._job_time: float | None = None
        self._round_trip = 0.001

    def ended(self, seconds: float, jobs: int = 1) -> None:
        """So many jobs took this long each, and each counts: a worker that begins on a full queue runs
        hundreds at a time, and knows after the first of these how many to claim."""
        if self._job_time is None:
            self._job_time = seconds
        else:
            weight = _WEIGHT if jobs == 1 else 1 - (1 - _WEIGHT) ** jobs
            self._job_time += weight * (seconds - self._job_time)

    def ended_in_place(self, seconds: float, jobs: int = 1) -> None:
        """So many jobs kept all slots from running for this long each: they never waited."""
        self.ended(seconds * self._slots, jobs)

    def claimed(self, seconds: float) -> None:
        """A claim took this long to be answered."""
        self._round_trip += _WEIGHT * (seconds - self._round_trip)

    def hoarded(self) -> None:
        """Jobs waited too long: forget what made them look short."""
        self._job_time = None

    def ahead(self) -> int:
        """How many to claim beyond the free slots; none until a job's time is known."""
        if self._job_time is None:
            return 0
        rate = self._slots / max(self._job_time, 1e-6)
        horizon = min(2 * self._round_trip, HORIZON)
        if rate > MANY:
            horizon = max(horizon, MANY_HORIZON)
        return int(min(rate * horizon, MOST))
