"""What the executor needs for jobs with durable steps: to make them, to undo them, and to end with
them."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import msgspec

from winch.core.errors import LostClaim
from winch.core.outcome import Settled
from winch.engine.base.log import log
from winch.engine.durable.compensation import compensate, compensate_instead, ended, wanted_end
from winch.engine.durable.note_writer import NoteWriter
from winch.engine.durable.runner import StepTools, Unwound
from winch.engine.durable.steps import Steps
from winch.engine.tasks.options import StoredOptions
from winch.engine.worker.interrupts import OnLoop

if TYPE_CHECKING:
    from winch.core.job import Claim
    from winch.core.policy.retry import Retry
    from winch.engine.tasks.context import RunningAttempt
    from winch.engine.tasks.runtime import Runtime
    from winch.engine.tasks.task import Task
    from winch.engine.worker.attempt import Attempt
    from winch.engine.worker.running.threads import Threads
    from winch.storage.protocol import Driver


class DurableJobs:
    """One for an executor; jobs without steps never come here."""

    def __init__(
        self,
        runtime: Runtime,
        threads: Threads,
        monotonic: Callable[[], float],
        rng: random.Random,
        store: Callable[[], Driver],
    ) -> None:
        self._runtime = runtime
        self._threads = threads
        self._store = store
        self._tools = StepTools(runtime, store, monotonic, rng, NoteWriter(store), self._in_thread)

    def steps(self, attempt: RunningAttempt, claim: Claim, task: Task[Any, Any]) -> Steps:
        """The attempt's steps; made when the first is needed. `claim` is in plain text."""
        if attempt.steps is None:
            attempt.steps = Steps(claim, task, attempt.reports, self._tools)
        return attempt.steps

    async def _in_thread(self, fn: Callable[[], Any]) -> Any:
        call = self._threads.submit(fn)
        assert call.done is not None  # noqa: S101  # a submitted call has one
        await call.done
        if call.error is not None:
            raise call.error
        return call.value

    async def undone(
        self,
        attempt: Attempt,
        claim: Claim,
        task: Task[Any, Any],
        retry: Retry,
        call: Callable[[], Coroutine[Any, Any, Any]],
    ) -> Settled | None:
        """Where the job is to end and has steps to undo: undo them. None: it continues as any other."""
        made = self.steps(attempt, claim, task)
        await made.load()
        if claim.options is not None and '"from_step":' in claim.options:
            order = msgspec.json.decode(claim.options, type=StoredOptions).from_step
            if order is not None:
                made.history.cut_from(*order)
        if made.must_compensate:
            driver = self._store()
            [record] = await driver.arun(driver.get([claim.id]))
            cause = None if record is None else wanted_end(record, self._runtime.crash_rule())
            if cause is not None:
                made.begin_compensation(cause)
                await made.asave(forgets_cancel=True)
        if made.compensation is None:
            return None
        with contextlib.suppress(Exception, Unwound):
            # Only to meet the undo functions again. What else it runs into is how it failed before.
            await call()
        attempt.handler = OnLoop(asyncio.current_task())
        return await compensate(made, retry)

    async def ended(self, attempt: Attempt, settled: Settled, retry: Retry) -> Settled:
        """The attempt has come to this; what was done is undone before the job ends for good."""
        assert attempt.steps is not None  # noqa: S101  # looked at before
        attempt.handler = None  # it has ended; what comes now is not to be interrupted
        try:
            return await ended(attempt.steps, settled, retry)
        except LostClaim as lost:
            log.warning("%s", lost)
            return settled  # the store will refuse it

    async def ended_alone(self, claim: Claim, settled: Settled) -> Settled:
        """`ended` for an attempt whose process is no more."""
        return await compensate_instead(self._store(), claim, self._runtime.keys(), settled)
