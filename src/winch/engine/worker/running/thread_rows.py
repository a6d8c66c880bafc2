"""A fast path: functions one after the other in one thread, for as long as there are any that wait.

Saves: for each job but the first, the way into a thread and the turn of the event loop that waits for
its end. The thread that has run a job takes the next one itself; the slot stays taken meanwhile, as if
it were one long job. `tests/engine/test_cost.py` counts the calls for each job.

Must equal: `THREAD_POOL`, the executor's `run_here`. Each job has its own attempt, deadline, context
and finish.

Taking a job and noting it as running is done under a lock, and so is what the event loop does with all
jobs that wait or run: a job is never seen in neither place, nor in both.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Sequence
from typing import Any

from winch.core.errors import InvalidPayload, JobCancelled, JobTimeout
from winch.core.outcome import Settled
from winch.engine.base.log import log
from winch.engine.worker.attempt import Attempt, Interrupt
from winch.engine.worker.held_jobs import Waiting
from winch.engine.worker.running.choose import JobPlan, Way
from winch.engine.worker.running.parts import Parts
from winch.engine.worker.running.thread_pool import ThreadCall, ThreadRow, Threads
from winch.engine.worker.settle import COMPLETED

Arguments = tuple[Sequence[Any], dict[str, Any]]


class ThreadRows:
    """The rows of one worker."""

    def __init__(self, parts: Parts, threads: Threads, on_ended: Callable[[float], None]) -> None:
        """`on_ended` gets the seconds of each job, while its slot goes on with the next."""
        self._jobs = parts.jobs
        self._executor = parts.executor
        self._recorder = parts.recorder
        self._threads = threads
        self._on_ended = on_ended
        self.lock: threading.Lock = parts.jobs.lock

    async def run(self, item: Waiting, plan: JobPlan) -> bool:
        """Run this job in a thread, and those that wait behind it, until there is none for a thread.
        False where its arguments cannot be read: the plain way finds out why."""
        arguments = _arguments(item, plan)
        if arguments is None:
            return False
        row = _JobRow(self, asyncio.get_running_loop().create_future())
        self._threads.start(row.begin(item, plan, arguments))
        await row.done
        if row.is_given_up:
            row.abandon()
        return True

    def start(self, row: _JobRow, item: Waiting, plan: JobPlan, arguments: Arguments) -> _JobCall:
        began = self._jobs.monotonic()
        claim, seconds = item[0], plan.seconds
        deadline = None if seconds is None else began + seconds
        place = self._jobs.places.begin(claim.id, claim.token, deadline)
        attempt = Attempt(claim, place, deadline)
        call = _JobCall(row, attempt, plan, arguments, began)
        attempt.handler = _InRow(row, call)
        self._jobs.attempts[place] = attempt
        return call

    def take(self, row: _JobRow) -> _JobCall | None:
        """The next job, if it is one for a thread. In a row's thread, with the lock held."""
        waiting, chooser = self._jobs.waiting, self._executor.chooser
        if self._jobs.is_draining:
            return None
        try:
            item = waiting[0]
        except IndexError:
            return None
        claim, sent, _ = item
        plan = chooser.plan(claim)
        if (
            not isinstance(plan, JobPlan)
            or chooser.way(claim, plan) is not Way.THREAD_ROWS
            or self._jobs.monotonic() - sent > self._jobs.too_old
            or (arguments := _arguments(item, plan)) is None
        ):
            return None
        try:
            taken = waiting.popleft()
        except IndexError:
            return None
        if taken is not item:  # a slot was quicker
            waiting.appendleft(taken)
            return None
        try:
            return self.start(row, item, plan, arguments)
        except Exception:
            waiting.appendleft(item)
            log.exception("job %s: its thread could not start it; a slot will", claim.id)
            return None

    def settle(self, call: _JobCall) -> None:
        """Decide what comes of a call that has ended. In its thread."""
        if call.error is None and call.value is None:
            call.settled = COMPLETED
            return
        settler = self._executor.settler
        try:
            if call.error is not None:
                call.settled = settler.raised(call.attempt, call.plan, call.error, call.spent)
            else:
                call.settled = settler.returned(call.attempt, call.plan, call.value, call.spent)
        except Exception:
            log.exception("job %s: the worker itself failed; it is released", call.attempt.claim.id)
            call.attempt.interrupted = Interrupt.STOP

    def over(self, call: _JobCall) -> None:
        """It runs no more: whatever comes now is not its fault."""
        call.attempt.is_over = True
        self._jobs.places.over(call.attempt)

    def record(self, call: _JobCall, settled: Settled | None) -> None:
        """In the event loop: the worker is done with this job."""
        attempt, recorder = call.attempt, self._recorder
        claim = attempt.claim
        del self._jobs.attempts[attempt.place]
        self._jobs.places.ended(attempt)
        if settled is COMPLETED and claim.options is None and self._executor.chooser.is_fast_open:
            recorder.tally.ended(claim, "completed", self._jobs.monotonic() - call.began)
            recorder.finisher.completed(claim)
        else:
            recorder.record(attempt, settled, call.began)
        attempt.handler = None  # it knows its call, which knows the attempt: nothing for the collector
        self._on_ended(call.spent)

    def abandon(self, call: _JobCall) -> None:
        spent = self._jobs.monotonic() - call.began
        self.record(call, self._executor.settler.given_up(call.attempt, call.plan, spent))

    def give_up(self, call: ThreadCall) -> None:
        self._threads.give_up(call)


def _arguments(item: Waiting, plan: JobPlan) -> Arguments | None:
    try:
        return plan.task.arguments.unpack(item[0].args)
    except InvalidPayload:
        return None


class _JobCall(ThreadCall):
    """One job of a row."""

    __slots__ = ("attempt", "began", "plan", "settled")

    def __init__(
        self, row: _JobRow, attempt: Attempt, plan: JobPlan, arguments: Arguments, began: float
    ) -> None:
        super().__init__(plan.task.fn, None, *arguments, context=row.base.copy(), row=row)
        self.attempt: Attempt = attempt
        self.plan: JobPlan = plan
        self.began: float = began
        self.settled: Settled | None = None


class _JobRow(ThreadRow):
    """The jobs of one thread. `current` is the one that runs."""

    __slots__ = ("_rows", "base", "current", "is_given_up")

    def __init__(self, rows: ThreadRows, done: asyncio.Future[None]) -> None:
        super().__init__(done)
        self._rows = rows
        self.base: contextvars.Context = contextvars.copy_context()  # each job has a copy of it
        self.current: _JobCall | None = None
        self.is_given_up: bool = False

    def begin(self, item: Waiting, plan: JobPlan, arguments: Arguments) -> _JobCall:
        self.current = self._rows.start(self, item, plan, arguments)
        return self.current

    def following(self, call: Any) -> ThreadCall | None:
        rows = self._rows
        rows.settle(call)
        with rows.lock:
            if self.is_given_up:
                return self.current
            rows.over(call)
            self.current = rows.take(self)
            return self.current

    def ended(self, call: Any) -> None:
        self._rows.record(call, call.settled)

    def give_up(self, call: _JobCall) -> bool:
        """In the event loop: stop waiting for the job that runs; False when it is this one no more."""
        with self._rows.lock:
            if self.current is not call:
                return False
            self.is_given_up = True
        self._rows.give_up(call)
        return True

    def abandon(self) -> None:
        if self.current is not None:
            self._rows.abandon(self.current)


class _InRow:
    """A job of a row, as its attempt's handler."""

    __slots__ = ("_call", "_row")

    leaves_a_thread = True

    def __init__(self, row: _JobRow, call: _JobCall) -> None:
        self._row = row
        self._call = call

    def interrupt(self, why: Interrupt) -> None:
        self._call.interrupt(JobTimeout if why is Interrupt.TIMEOUT else JobCancelled)

    def give_up(self) -> bool:
        return self._row.give_up(self._call)
