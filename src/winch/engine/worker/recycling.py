"""When a worker process has had enough: of jobs, of memory, of time."""

from __future__ import annotations

import random

from winch.core.values.size import format_size
from winch.engine.worker.memory import resident_memory

# Reading how much memory is in use costs more than a look at the deadlines.
WEIGH_EVERY = 1.0
# A lifetime is drawn this far around what was asked for, so that children do not all end at once.
LIFETIME_JITTER = 0.1


class Limits:
    """What was asked for, and what has been used up. Seconds on the monotonic clock."""

    def __init__(
        self,
        max_jobs: int | None,
        max_memory: int | None,
        max_lifetime: float | None,
        *,
        rng: random.Random,
        now: float,
    ) -> None:
        self._max_jobs = max_jobs
        self._max_memory = max_memory
        jitter = rng.uniform(1 - LIFETIME_JITTER, 1 + LIFETIME_JITTER)
        self._retire_at = float("inf") if max_lifetime is None else now + max_lifetime * jitter
        self._started = 0
        self._weigh_at = 0.0

    @property
    def has_most(self) -> bool:
        """Whether started jobs have to be counted."""
        return self._max_jobs is not None

    def cap(self, jobs: int) -> int:
        """So many jobs, or those that may still be started."""
        return jobs if self._max_jobs is None else min(jobs, self._max_jobs - self._started)

    def started(self, jobs: int) -> str | None:
        """Count started jobs; why it is enough, if it is."""
        self._started += jobs
        if self._max_jobs is None or self._started < self._max_jobs:
            return None
        return f"it has started {self._started} jobs (max_jobs)"

    def look(self, now: float) -> str | None:
        """Why it is enough by now, if it is."""
        if now >= self._retire_at:
            return "its lifetime is over (max_lifetime)"
        if self._max_memory is None or now < self._weigh_at:
            return None
        self._weigh_at = now + WEIGH_EVERY
        used = resident_memory()
        if used <= self._max_memory:
            return None
        return f"it uses {format_size(used)} of memory (max_memory {format_size(self._max_memory)})"
