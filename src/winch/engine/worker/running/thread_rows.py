"""Synchronous jobs one after the other in one thread, for as long as there are any that wait.

Handing each job to a thread and waiting in the event loop for its end costs more than many jobs do. So
the thread that has run one takes the next by itself: the slot stays taken meanwhile, as if it were one
long job, and each of them has its own attempt, deadline, context and finish.

Taking a job and noting it as running is done under a lock, and so is what the event loop does with all
that wait or run: a job is never seen in neither place, nor in both.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from winch.core.errors import JobCancelled, JobTimeout
from winch.core.outcome import Settled
from winch.engine.base.log import log
from winch.engine.worker.attempt import Attempt, Interrupt
from winch.engine.worker.executor import Call, Executor, Plan
from winch.engine.worker.outcomes import Recorder
from winch.engine.worker.places import Places
from winch.engine.worker.running.collecting import Waiting
from winch.engine.worker.running.thread_pool import Row, ThreadCall, Threads


class Rows:
    """The rows of one worker. What waits and what runs is shared with it."""

    def __init__(
        self,
        executor: Executor,
        recorder: Recorder,
        places: Places,
        threads: Threads,
        waiting: deque[Waiting],
        attempts: dict[int, Attempt],
        *,
        too_old: float,
        monotonic: Callable[[], float],
        may_go_on: Callable[[], bool],
        measured: Callable[[float], None],
    ) -> None:
        self._executor = executor
        self._recorder = recorder
        self._places = places
        self._threads = threads
        self._waiting = waiting
        self._attempts = attempts
        self._too_old = too_old
        self._monotonic = monotonic
        self._may_go_on = may_go_on
        self._measured = measured
        self.lock: threading.Lock = threading.Lock()

    def can_run(self, plan: Plan) -> bool:
        """Whether nothing but the call itself has to happen for this job before it starts."""
        return (
            plan.is_plain
            and not plan.task.is_async
            and self._threads.makes_rows
            and not self._recorder.is_heard
        )

    async def run(self, item: Waiting, plan: Plan, call: Call) -> None:
        """Run this job in a thread, and those that wait behind it, until there is none for a thread."""
        row = _Row(self, asyncio.get_running_loop().create_future())
        self._threads.start(row.begin(item, plan, call))
        await row.done
        if row.is_given_up:
            row.abandon()

    def start(self, row: _Row, item: Waiting, plan: Plan, call: Call) -> _JobCall:
        began = self._monotonic()
        claim, place = item[0], self._places.take()
        attempt = Attempt(claim, place, None if plan.seconds is None else began + plan.seconds)
        made = _JobCall(row, attempt, plan, call, began)
        attempt.handler = _InRow(row, made)
        self._attempts[place] = attempt
        self._places.show(attempt)
        return made

    def take(self, row: _Row) -> _JobCall | None:
        """The next job, if it is one for a thread. In a row's thread, with the lock held."""
        if not self._may_go_on():
            return None
        try:
            item = self._waiting[0]
        except IndexError:
            return None
        claim, sent, _ = item
        plan = self._executor.plan(claim)
        if (
            not isinstance(plan, Plan)
            or not self.can_run(plan)
            or self._monotonic() - sent > self._too_old
            or (call := self._executor.call_of(claim, plan)) is None
        ):
            return None
        try:
            taken = self._waiting.popleft()
        except IndexError:
            return None
        if taken is not item:  # a slot was quicker
            self._waiting.appendleft(taken)
            return None
        try:
            return self.start(row, item, plan, call)
        except Exception:
            self._waiting.appendleft(item)
            log.exception("job %s: its thread could not start it; a slot will", claim.id)
            return None

    def settle(self, call: _JobCall) -> None:
        """Decide what comes of a call that has ended. In its thread."""
        try:
            call.settled = self._executor.ended_in_thread(call.attempt, call.plan, call)
        except Exception:
            log.exception("job %s: the worker itself failed; it is released", call.attempt.claim.id)
            call.attempt.interrupted = Interrupt.STOP

    def over(self, call: _JobCall) -> None:
        """It runs no more: whatever comes now is not its fault."""
        call.attempt.is_over = True
        self._places.over(call.attempt)

    def record(self, call: _JobCall, settled: Settled | None) -> None:
        """In the event loop: the worker is done with this job."""
        attempt = call.attempt
        del self._attempts[attempt.place]
        self._places.ended(attempt)
        self._recorder.record(attempt, settled, call.began)
        attempt.handler = None  # it knows its call, which knows the attempt: nothing for the collector
        self._measured(call.spent)

    def abandon(self, call: _JobCall) -> None:
        spent = self._monotonic() - call.began
        self.record(call, self._executor.given_up(call.attempt, call.plan, spent))

    def give_up(self, call: ThreadCall) -> None:
        self._threads.give_up(call)


class _JobCall(ThreadCall):
    """One job of a row."""

    __slots__ = ("attempt", "began", "plan", "settled")

    def __init__(self, row: _Row, attempt: Attempt, plan: Plan, call: Call, began: float) -> None:
        super().__init__(plan.task.fn, None, *call, context=row.base.copy(), row=row)
        self.attempt: Attempt = attempt
        self.plan: Plan = plan
        self.began: float = began
        self.settled: Settled | None = None


class _Row(Row):
    """The jobs of one thread. `current` is the one that runs."""

    __slots__ = ("_rows", "base", "current", "is_given_up")

    def __init__(self, rows: Rows, done: asyncio.Future[None]) -> None:
        super().__init__(done)
        self._rows = rows
        self.base: contextvars.Context = contextvars.copy_context()  # each job has a copy of it
        self.current: _JobCall | None = None
        self.is_given_up: bool = False

    def begin(self, item: Waiting, plan: Plan, call: Call) -> _JobCall:
        self.current = self._rows.start(self, item, plan, call)
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

    def __init__(self, row: _Row, call: _JobCall) -> None:
        self._row = row
        self._call = call

    def interrupt(self, why: Interrupt) -> None:
        self._call.interrupt(JobTimeout if why is Interrupt.TIMEOUT else JobCancelled)

    def give_up(self) -> bool:
        return self._row.give_up(self._call)
