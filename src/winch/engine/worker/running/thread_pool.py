"""Threads for synchronous handlers: started when needed, reused, woken through one queue.

`run_in_executor` costs more than many jobs do. Here a thread takes calls from a SimpleQueue, and results
go back to the event loop in batches: however many handlers end at about the same time, the loop is poked
once. A *row* saves the way there and back for each job as well: its thread asks for the next call itself
and goes on until there is none.
"""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import starmap
from queue import SimpleQueue
from typing import Any

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
        """Tell the loop; False when it has closed: the worker is gone, so is its thread."""
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
    while True:
        try:
            if not call.has_run:
                call.execute()
            _take_breath()
        except BaseException as error:  # an interrupt that came a moment too late
            call.error = call.error or error
        else:
            call.conclude()
            return


def _take_breath() -> None:
    """Calling any function lets an interrupt that is still on its way arrive: here, and not later."""
