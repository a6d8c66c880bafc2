"""Jobs of a collecting task, brought together for one call: one slot, one call, many attempts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from winch.core.errors import StorageError
from winch.core.job import Claim
from winch.engine.base.log import log
from winch.engine.tasks.task import Task
from winch.engine.worker.attempt import Attempt
from winch.engine.worker.held_jobs import Waiting, ref_of
from winch.engine.worker.running.choose import JobPlan
from winch.engine.worker.running.parts import Parts

# How often a call that collects looks for more jobs within its waiting time.
LOOK_EVERY = 0.01


@dataclass(slots=True)
class _Collection:
    """The jobs that a collecting call has so far."""

    task: str
    most: int
    found: list[Waiting]

    @property
    def room(self) -> int:
        return self.most - len(self.found)


class Collecting:
    """The collecting calls of one worker, at most one for each slot."""

    def __init__(
        self,
        parts: Parts,
        slots: int,
        claim_more: Callable[[str, int], Awaitable[list[Claim]]],
        deliver: Callable[[Sequence[Claim], float], None],
    ) -> None:
        """`claim_more` claims jobs of one task; `deliver` takes the ones that cannot join."""
        self._jobs = parts.jobs
        self._executor = parts.executor
        self._recorder = parts.recorder
        self._slots = slots
        self._claim_more = claim_more
        self._deliver = deliver
        self._by_slot: dict[int, _Collection] = {}

    def tokens(self) -> set[str]:
        """The claims that wait in a call that has not begun."""
        return {claim.token for claim in self.claims()}

    def claims(self) -> list[Claim]:
        """The same, whole."""
        return [claim for collection in self._by_slot.values() for claim, *_ in collection.found]

    def drop(self) -> None:
        """Forget all that waits: other workers have it by now."""
        for collection in self._by_slot.values():
            collection.found.clear()

    async def run(self, first: Waiting, task: Task[Any, Any], slot: int) -> None:
        """One slot, one call, as many jobs as there are within the task's waiting time."""
        for collection in self._by_slot.values():
            if collection.task == task.name and collection.room > 0:
                collection.found.append(first)  # another slot waits for just this
                return
        most, places = task.options.collect or 1, self._jobs.places
        if places is not None:
            most = min(most, max(places.free - self._slots, 1))
        most = self._jobs.recycling.cap(most)
        collection = self._by_slot[slot] = _Collection(task.name, most, [first])
        try:
            # Un-started claims grow old: within a part of the lease, however long the task would wait.
            await self._collect(
                collection, min(task.options.collect_wait.total_seconds(), self._jobs.too_old / 2)
            )
        finally:
            del self._by_slot[slot]
        began = self._jobs.monotonic()
        attempts: list[Attempt] = []
        plans: list[JobPlan] = []
        for claim, sent, _, plan in collection.found:
            if self._jobs.is_draining or began - sent > self._jobs.too_old:
                self._recorder.finisher.release([ref_of(claim)])
                continue
            if isinstance(plan, JobPlan):
                attempts.append(Attempt(claim, None))
                plans.append(plan)
            else:
                self._recorder.finish(claim, plan, began)
        if attempts:
            await self._call(attempts, plans, began)

    async def _call(self, attempts: Sequence[Attempt], plans: Sequence[JobPlan], began: float) -> None:
        timeouts = [plan.seconds for plan in plans if plan.seconds is not None]
        for attempt in attempts:
            attempt.deadline = began + min(timeouts) if timeouts else None
            attempt.is_together = True
            self._jobs.show(attempt)
            self._jobs.attempts[attempt.key] = attempt
            self._recorder.publish("started", attempt.claim)
        self._jobs.recycling.started(len(attempts))
        try:
            ended = await self._executor.run_together(attempts, plans)
        finally:
            for attempt in attempts:
                self._jobs.end(attempt)
        for attempt, settled in zip(attempts, ended, strict=True):
            self._recorder.record(attempt, settled, began)

    async def _collect(self, collection: _Collection, wait: float) -> None:
        """Add jobs of this task until there are enough, or the waiting time is over."""
        until = self._jobs.monotonic() + wait
        while collection.room > 0 and not self._jobs.is_draining and self._jobs.recycling.why is None:
            if self._take_waiting(collection):
                continue
            sent = self._jobs.monotonic()
            try:
                claims = await self._claim_more(collection.task, collection.room)
            except StorageError as error:
                log.warning(
                    "%s continues with %d jobs: %s", collection.task, len(collection.found), error
                )
                return
            # What cannot join waits for a slot: a suspect, which runs alone, and what came in too late.
            joining = [claim for claim in claims if not claim.is_suspect][: max(collection.room, 0)]
            now, plan = self._jobs.monotonic(), self._executor.chooser.plan
            collection.found += [(claim, sent, now, plan(claim)) for claim in joining]
            self._deliver([claim for claim in claims if claim not in joining], sent)
            if not claims:
                left = until - self._jobs.monotonic()
                if left <= 0:
                    return
                await asyncio.sleep(min(left, LOOK_EVERY))

    def _take_waiting(self, collection: _Collection) -> bool:
        """Take those that this worker has claimed already; whether there were any."""
        here = [
            item
            for item in list(self._jobs.waiting)  # threads take from it too
            if item[0].task == collection.task and not item[0].is_suspect
        ][: collection.room]
        for item in here:
            self._jobs.waiting.remove(item)
        collection.found += here
        return bool(here)
