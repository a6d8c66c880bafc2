"""Jobs of a collecting task, brought together for one call: one slot, one call, many attempts."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from winch.core.errors import StorageError
from winch.core.job import Claim
from winch.engine.base.log import log
from winch.engine.tasks.registry import Registry
from winch.engine.tasks.task import Task
from winch.engine.worker.attempt import Attempt
from winch.engine.worker.executor import Executor, Plan
from winch.engine.worker.finisher import Finisher
from winch.engine.worker.outcomes import Recorder, ref_of
from winch.engine.worker.places import Places
from winch.engine.worker.recycling import Limits

# How often a call that collects looks for more jobs within its waiting time.
GATHER_EVERY = 0.01

# A claimed job that has not started: the claim, when it was sent for, and when it came.
Waiting = tuple[Claim, float, float]


@dataclass(slots=True)
class _Gathering:
    """The jobs that a collecting call has so far."""

    task: str
    most: int
    found: list[Waiting]

    @property
    def room(self) -> int:
        return self.most - len(self.found)


@dataclass(slots=True)
class Gatherings:
    """The collecting calls of one worker, at most one for each slot."""

    tasks: Registry
    executor: Executor
    recorder: Recorder
    finisher: Finisher
    places: Places
    limits: Limits
    waiting: deque[Waiting]
    attempts: dict[int, Attempt]
    slots: int
    too_old: float
    """Un-started claims older than this, in seconds, go back: others may have them."""
    monotonic: Callable[[], float]
    more: Callable[[str, int], Awaitable[list[Claim]]]
    deliver: Callable[[Sequence[Claim], float], None]
    is_draining: Callable[[], bool]
    is_retiring: Callable[[], bool]
    retire_if: Callable[[str | None], None]
    now: dict[int, _Gathering] = field(default_factory=dict)

    def tokens(self) -> set[str]:
        """The claims that wait in a call that has not begun."""
        return {claim.token for gathering in self.now.values() for claim, _, _ in gathering.found}

    def drop(self) -> None:
        """Forget all that waits: it is somebody else's by now."""
        for gathering in self.now.values():
            gathering.found.clear()

    def task_of(self, claim: Claim) -> Task[Any, Any] | None:
        """The task, if its jobs are run many in one call. A suspect runs alone, as any does."""
        if claim.is_suspect or claim.task not in self.tasks:
            return None
        task = self.tasks.get(claim.task)
        return None if task.options.collect is None else task

    async def run(self, first: Waiting, task: Task[Any, Any], slot: int) -> None:
        """One slot, one call, as many jobs as there are within the task's waiting time."""
        for gathering in self.now.values():
            if gathering.task == task.name and gathering.room > 0:
                gathering.found.append(first)  # another slot waits for just this
                return
        most = min(task.options.collect or 1, max(self.places.free - self.slots, 1))
        most = self.limits.cap(most)
        gathering = self.now[slot] = _Gathering(task.name, most, [first])
        try:
            # Un-started claims grow old: within a part of the lease, however long the task would wait.
            await self._gather(
                gathering, min(task.options.collect_wait.total_seconds(), self.too_old / 2)
            )
        finally:
            del self.now[slot]
        began = self.monotonic()
        attempts: list[Attempt] = []
        plans: list[Plan] = []
        for claim, sent, _ in gathering.found:
            if self.is_draining() or began - sent > self.too_old:
                self.finisher.release([ref_of(claim)])
                continue
            plan = self.executor.plan(claim)
            if isinstance(plan, Plan):
                attempts.append(Attempt(claim, self.places.take(), None))
                plans.append(plan)
            else:
                self.recorder.finish(claim, plan, began)
        if attempts:
            await self._call(attempts, plans, began)

    async def _call(self, attempts: Sequence[Attempt], plans: Sequence[Plan], began: float) -> None:
        timeouts = [plan.seconds for plan in plans if plan.seconds is not None]
        for attempt in attempts:
            attempt.deadline = began + min(timeouts) if timeouts else None
            attempt.is_together = True
            self.attempts[attempt.place] = attempt
            self.places.show(attempt)
            self.recorder.tell("started", attempt.claim)
        self.retire_if(self.limits.started(len(attempts)))
        try:
            ended = await self.executor.run_together(attempts, plans)
        finally:
            for attempt in attempts:
                del self.attempts[attempt.place]
                self.places.ended(attempt)
        for attempt, settled in zip(attempts, ended, strict=True):
            self.recorder.record(attempt, settled, began)

    async def _gather(self, gathering: _Gathering, wait: float) -> None:
        """Add jobs of this task until there are enough, or the waiting time is over."""
        until = self.monotonic() + wait
        while gathering.room > 0 and not self.is_draining() and not self.is_retiring():
            if self._take_waiting(gathering):
                continue
            sent = self.monotonic()
            try:
                claims = await self.more(gathering.task, gathering.room)
            except StorageError as error:
                log.warning("%s goes on with %d jobs: %s", gathering.task, len(gathering.found), error)
                return
            # What cannot join waits for a slot: a suspect, which runs alone, and what came in too late.
            joining = [claim for claim in claims if not claim.is_suspect][: max(gathering.room, 0)]
            now = self.monotonic()
            gathering.found += [(claim, sent, now) for claim in joining]
            self.deliver([claim for claim in claims if claim not in joining], sent)
            if not claims:
                left = until - self.monotonic()
                if left <= 0:
                    return
                await asyncio.sleep(min(left, GATHER_EVERY))

    def _take_waiting(self, gathering: _Gathering) -> bool:
        """Take those that this worker has claimed already; whether there were any."""
        here = [
            item
            for item in list(self.waiting)  # threads take from it too
            if item[0].task == gathering.task and not item[0].is_suspect
        ][: gathering.room]
        for item in here:
            self.waiting.remove(item)
        gathering.found += here
        return bool(here)
