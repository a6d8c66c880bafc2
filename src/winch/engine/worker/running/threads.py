"""Threads for synchronous handlers: started when needed, reused, woken through one queue.

`run_in_executor` costs more than many jobs do. Here a thread takes calls from a SimpleQueue, and results
go back to the event loop in batches: however many handlers end at about the same time, the loop is poked
once. `Threads` makes single calls, which is the plain way `THREAD_POOL`.

`ThreadRows` is a fast path: functions one after the other in one thread, as long as there are any that
wait. It saves, for each job but the first, the way into a thread and the turn of the event loop that
waits for its end. The thread that has run a job takes the next one itself; the slot stays taken
meanwhile, as if it were one long job. `tests/engine/test_cost.py` counts the calls for each job. It must
equal `THREAD_POOL`, the executor's `run_here`: each job has its own attempt, deadline, context and
finish.

Taking a job and noting it as running is done under a lock, and so is what the event loop does with all
jobs that wait or run: a job is never seen in neither place, nor in both.
"""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import starmap
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from winch.core.errors import JobCancelled, JobTimeout
from winch.core.outcome import Settled
from winch.engine.base.log import log
from winch.engine.worker.attempt import Attempt, Interrupt
from winch.engine.worker.held_jobs import Waiting
from winch.engine.worker.running.choose import JobPlan, Way
from winch.engine.worker.running.django_connections import DJANGO, close_old
from winch.engine.worker.settle import COMPLETED

if TYPE_CHECKING:
    from winch.engine.worker.running.parts import Parts

Arguments = tuple[Sequence[Any], dict[str, Any]]

_ONCE = ((),)


class ThreadCall:
    """One synchronous handler on its way through a thread."""

    __slots__ = (
        "_args",
        "_context",
        "_fn",
        "_kwargs",
        "_lock",
        "_returned",
        "_thread_id",
        "_unwanted",
        "done",
        "error",
        "has_run",
        "row",
        "spent",
        "value",
    )

    def __init__(
        self,
        fn: Callable[..., Any],
        done: asyncio.Future[None] | None = None,
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
        *,
        context: contextvars.Context,
        row: ThreadRow | None = None,
    ) -> None:
        """`context` is this call's own: its handler may change it."""
        self._fn = fn
        self._args = args
        self._kwargs = kwargs
        self._context = context
        self._lock = threading.Lock()
        self._returned: list[Any] = []
        self._thread_id: int | None = None
        self._unwanted: type[BaseException] | None = None
        self.done: asyncio.Future[None] | None = done
        self.row: ThreadRow | None = row
        self.has_run: bool = False
        self.spent: float = 0.0
        self.value: Any = None
        self.error: BaseException | None = None

    def execute(self) -> None:
        self.has_run = True
        began = time.monotonic()
        with self._lock:
            self._thread_id = threading.get_ident()
            unwanted = self._unwanted
        try:
            if unwanted is not None:
                raise unwanted
            # No bytecode lies between the handler's return and its value being kept, so no interrupt
            # can fall there: what has returned was not interrupted.
            made = partial(self._fn, *self._args, **(self._kwargs or {}))
            self._context.run(self._returned.extend, starmap(made, _ONCE))
            if not self._returned:
                raise RuntimeError("the handler raised StopIteration")
        except BaseException as error:  # whatever a handler raises is its outcome
            self.error = error
        finally:
            # An interrupt that is being sent right now is raised here, in this call, not in the next.
            with self._lock:
                self._thread_id = None
            self.spent = time.monotonic() - began
            self.conclude()

    def conclude(self) -> None:
        """A value that was returned counts, whatever came after it."""
        if self._returned:
            [self.value] = self._returned
            self.error = None

    def interrupt(self, error: type[BaseException]) -> None:
        """Raise `error` in the handler at its next bytecode, or when it begins; a call blocked in C does
        not notice."""
        with self._lock:
            if self._thread_id is not None:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(self._thread_id), ctypes.py_object(error)
                )
            elif not self.has_run:
                self._unwanted = error


class ThreadRow:
    """Calls that one thread makes one after the other. `done` is set when there are no more."""

    __slots__ = ("done",)

    def __init__(self, done: asyncio.Future[None]) -> None:
        self.done: asyncio.Future[None] = done

    def following(self, call: ThreadCall) -> ThreadCall | None:
        """In the thread: this call has ended, give the next one. The same one: it was given up, and
        nothing waits for this thread any more."""
        raise NotImplementedError

    def ended(self, call: ThreadCall) -> None:
        """In the event loop: this call has ended."""
        raise NotImplementedError


class Threads:
    """As many threads as jobs run at once, at most `limit` plus those given up as stuck."""

    makes_rows = True

    def __init__(self, limit: int, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._limit = limit
        self._calls: SimpleQueue[ThreadCall | None] = SimpleQueue()
        self._ended: deque[ThreadCall | ThreadRow] = deque()
        self._is_poked = False
        self._threads = 0
        self._busy = 0

    def submit(self, fn: Callable[[], Any]) -> ThreadCall:
        """Run `fn` in a thread; await the call's `done`, then read its value or error."""
        call = ThreadCall(fn, self._loop.create_future(), context=contextvars.copy_context())
        self.start(call)
        return call

    def start(self, call: ThreadCall) -> None:
        """Have a thread make this call, and those that follow in its row."""
        self._busy += 1
        if self._busy > self._threads:
            self._threads += 1
            # Daemon threads: a handler that never returns must not keep the process from ending.
            threading.Thread(target=self._work, name=f"winch-{self._threads}", daemon=True).start()
        self._calls.put(call)

    def give_up(self, call: ThreadCall) -> None:
        """Stop waiting for a stuck handler: its thread no longer counts."""
        self._busy -= 1
        self._threads -= 1
        if call.row is not None:
            if not call.row.done.done():
                call.row.done.set_result(None)
        elif call.done is not None:
            call.done.cancel()

    def close(self) -> None:
        for _ in range(self._threads):
            self._calls.put(None)
        self._threads = 0

    def _work(self) -> None:
        while True:
            call = self._calls.get()
            if call is None:
                return
            while call is not None:
                _make(call)
                row = call.row
                following = None if row is None else row.following(call)
                if following is call:
                    break
                if not self._report(call) or (
                    row is not None and following is None and not self._report(row)
                ):
                    return
                call = following

    def _report(self, ended: ThreadCall | ThreadRow) -> bool:
        """Notify the loop; False when it has closed: the worker is gone, so is its thread."""
        self._ended.append(ended)
        if not self._is_poked:
            self._is_poked = True
            try:
                self._loop.call_soon_threadsafe(self._collect)
            except RuntimeError:
                return False
        return True

    def _collect(self) -> None:
        self._is_poked = False
        while self._ended:
            ended = self._ended.popleft()
            if isinstance(ended, ThreadRow):
                if not ended.done.done():
                    self._busy -= 1
                    ended.done.set_result(None)
            elif ended.row is not None:
                ended.row.ended(ended)
            elif ended.done is not None and not ended.done.done():
                self._busy -= 1
                ended.done.set_result(None)


def _make(call: ThreadCall) -> None:
    if DJANGO in sys.modules:
        close_old()
    while True:
        try:
            if not call.has_run:
                call.execute()
            _take_breath()
        except BaseException as error:  # an interrupt that came a moment too late
            call.error = call.error or error
        else:
            call.conclude()
            if DJANGO in sys.modules:
                close_old()
            return


def _take_breath() -> None:
    """Calling any function lets an interrupt that is still on its way arrive: here, and not later."""


# -- rows of jobs ------------------------------------------------------------------------------------


class ThreadRows:
    """The rows of one worker."""

    def __init__(self, parts: Parts, threads: Threads, on_ended: Callable[[float], None]) -> None:
        """`on_ended` gets the seconds of each job, while its slot continues with the next."""
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
        attempt = Attempt(claim, deadline)
        call = _JobCall(row, attempt, plan, arguments, began)
        attempt.handler = _InRow(row, call)
        if self._jobs.places is not None:
            self._jobs.places.begin(claim.id, claim.token, deadline)
        self._jobs.attempts[claim.id, claim.token] = attempt
        return call

    def take(self, row: _JobRow) -> _JobCall | None:
        """The next job, if it is one for a thread. In a row's thread, with the lock held."""
        waiting = self._jobs.waiting
        if self._jobs.is_draining:
            return None
        try:
            item = waiting[0]
        except IndexError:
            return None
        claim, sent, _, plan = item
        if (
            not isinstance(plan, JobPlan)
            or plan.way is not Way.THREAD_ROWS
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
        if self._jobs.places is not None:
            self._jobs.places.over(*call.attempt.key)

    def record(self, call: _JobCall, settled: Settled | None) -> None:
        """In the event loop: the worker is done with this job."""
        attempt, recorder = call.attempt, self._recorder
        claim = attempt.claim
        del self._jobs.attempts[claim.id, claim.token]
        if self._jobs.places is not None:
            self._jobs.places.end(claim.id, claim.token)
        if settled is COMPLETED and not recorder.events.is_heard:
            recorder.finisher.completed(claim, self._jobs.monotonic() - call.began)
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
    except Exception:  # malformed, or of the application's own types: the plain way finds out why
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
