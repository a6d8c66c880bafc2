"""When a worker process has had enough: of jobs, of memory, of time. Then it retires."""

from __future__ import annotations

import random
from collections.abc import Callable

from winch.core.values.size import format_size
from winch.engine.base.log import log
from winch.engine.observe.usage import resident_memory

# Reading how much memory is in use costs more than a look at the deadlines.
WEIGH_EVERY = 1.0
# A lifetime is drawn this far around the one that is set, so that children do not all end at once.
LIFETIME_JITTER = 0.1


class Recycling:
    """The limits of one worker process, and what it has used up. Seconds on the monotonic clock."""

    def __init__(
        self,
        max_jobs: int | None = None,
        max_memory: int | None = None,
        max_lifetime: float | None = None,
        *,
        rng: random.Random,
        now: float,
        on_retire: Callable[[], None],
    ) -> None:
        self._max_jobs = max_jobs
        self._max_memory = max_memory
        jitter = rng.uniform(1 - LIFETIME_JITTER, 1 + LIFETIME_JITTER)
        self._retire_at = float("inf") if max_lifetime is None else now + max_lifetime * jitter
        self._on_retire = on_retire
        self._started = 0
        self._weigh_at = 0.0
        self.counts_jobs: bool = max_jobs is not None
        """Whether started jobs have to be counted."""
        self.why: str | None = None
        """Why the worker retires, once it does."""

    def retire(self, why: str) -> None:
        """Claim nothing more and have this worker replaced; running jobs may end."""
        if self.why is None:
            self.why = why
            log.info("retiring: %s", why)
            self._on_retire()

    def cap(self, jobs: int) -> int:
        """So many jobs, or those that may still be started."""
        return jobs if self._max_jobs is None else min(jobs, self._max_jobs - self._started)

    def started(self, jobs: int) -> None:
        """Count started jobs; retire when that is enough."""
        self._started += jobs
        if self._max_jobs is not None and self._started >= self._max_jobs:
            self.retire(f"it has started {self._started} jobs (max_jobs)")

    def look(self, now: float) -> None:
        """Retire when the process is too old or too large."""
        if now >= self._retire_at:
            self.retire("its lifetime is over (max_lifetime)")
            return
        if self._max_memory is None or now < self._weigh_at:
            return
        self._weigh_at = now + WEIGH_EVERY
        used = resident_memory()
        if used > self._max_memory:
            most = format_size(self._max_memory)
            self.retire(f"it uses {format_size(used)} of memory (max_memory {most})")
