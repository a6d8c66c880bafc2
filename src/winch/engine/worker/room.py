"""How much a worker's slots can take: what to claim ahead, and the slots that a heavy job needs.

A task with `slots=4` takes four slots of its worker while it runs. Jobs start in the order in which they
were claimed, so a heavy job that waits for slots lets no lighter one pass. A job that waits here for too
long goes back to the store, where another worker may take it; of a heavy one its slots stay reserved, or
lighter jobs would take each slot that becomes free, for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from winch.core.job import Claim
from winch.core.lifecycle import JobState
from winch.engine.base.service import Service
from winch.engine.worker.held_jobs import Waiting
from winch.engine.worker.running.choose import JobPlan
from winch.storage.protocol import Driver

MOST = 1000
# Never more than the slots will start within this many seconds.
HORIZON = 0.05
# More jobs a second than this are claimed ahead for so many seconds, however quick the store is: a claim
# of a few jobs costs nearly as much as one of hundreds.
MANY, MANY_HORIZON = 2000, 0.005
# What waits here takes about this many bytes at most, beyond the jobs of free slots.
MOST_BYTES = 16 * 1024 * 1024
_WEIGHT = 0.1


class Prefetch:
    """How many jobs to claim beyond the free slots.

    Short jobs are over before the next claim is answered, so a worker that claims only for free slots
    mostly waits for the store. Long jobs need nothing ahead: a job that is claimed early waits here
    instead of running elsewhere. So the number follows what is measured: running averages of a job's
    time in its slot and of a claim's round trip, in seconds."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._job_time: float | None = None
        self._job_bytes = 0.0
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

    def brought(self, claims: Sequence[Claim]) -> None:
        """A claim brought these jobs. Large ones are believed at once, small ones bit by bit."""
        size = sum(len(claim.args) for claim in claims) / len(claims)
        self._job_bytes = max(size, self._job_bytes + _WEIGHT * (size - self._job_bytes))

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
        # One more for each slot, where that one waits less than HORIZON: a slot that ends a job has the
        # next one here, and claims come by as many as there are slots and not by twos and threes.
        least = self._slots if self._job_time < HORIZON else 0
        return int(min(max(rate * horizon, least), MOST, self.most()))

    def most(self) -> int:
        """How many jobs of the size that is known may wait here at all."""
        return int(MOST_BYTES / max(self._job_bytes, 1.0))


def weight_of(item: Waiting) -> int:
    """How many slots a job takes while it runs."""
    plan = item[3]
    return plan.task.options.slots if isinstance(plan, JobPlan) else 1


class Weights:
    """The slots that heavy jobs take beyond the first of each, and those that are reserved for one."""

    def __init__(self, slots: int, weights: Iterable[int]) -> None:
        """`weights`: those of the worker's tasks."""
        self._slots = slots
        self.differ: bool = any(weight > 1 for weight in weights)
        """Whether there are heavy jobs at all. Without any, nothing else here is used."""
        self.extra: int = 0
        """What running jobs take beyond one slot each."""
        self.reserved: tuple[str, int] | None = None
        """The heavy job that went back, by its id, and the slots that it needs."""

    def waiting(self, items: Iterable[Waiting]) -> int:
        """How many slots these jobs take beyond one each."""
        return sum(weight_of(item) - 1 for item in items)

    def fits(self, item: Waiting, busy: int) -> bool:
        """Whether a job can start beside so many that run."""
        return busy + self.extra + weight_of(item) <= self._slots

    def reserve(self, item: Waiting) -> None:
        """A job goes back that waited for its slots: claim nothing until there are as many."""
        weight = weight_of(item)
        if weight > 1:
            self.reserved = item[0].id, weight

    def may_claim(self, free: int) -> bool:
        """Whether a claim may be made with so many slots free. The first one with as many as are
        reserved finds the heavy job first in its queue, and ends the reservation."""
        if self.reserved is None:
            return True
        if free < self.reserved[1]:
            return False
        self.reserved = None
        return True


class Reserved(Service):
    """Ends a reservation when another worker has taken the job."""

    name = "reserved slots"

    def __init__(
        self,
        driver: Driver,
        weights: Weights,
        every: float,
        *,
        session: Callable[[], str],
        on_free: Callable[[], None],
    ) -> None:
        super().__init__()
        self._session = session
        self._driver = driver
        self._weights = weights
        self._every = every
        self._on_free = on_free

    async def run_once(self) -> float:
        reserved = self._weights.reserved
        if reserved is None:
            return self.unasked(self._every)
        [job] = await self._driver.arun(self._driver.get([reserved[0]]))
        # Under this session the job is on its way back.
        is_here = job is not None and (job.state is JobState.READY or job.session == self._session())
        if not is_here and self._weights.reserved == reserved:
            self._weights.reserved = None
            self._on_free()
        return self._every
