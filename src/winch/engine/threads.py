"""Threads for synchronous handlers: started when needed, reused, woken through one queue.

`run_in_executor` costs more than many jobs do. Here a thread takes (call, done) pairs from a
SimpleQueue, and results go back to the event loop in batches: however many handlers end at about
the same time, the loop is poked once.
"""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any


class ThreadCall:
    """One synchronous handler on its way through a thread."""

    __slots__ = (
        "_context",
        "_fn",
        "_lock",
        "_thread_id",
        "done",
        "error",
        "has_run",
        "is_reported",
        "value",
    )

    def __init__(self, fn: Callable[[], Any], done: asyncio.Future[None]) -> None:
        self._fn = fn
        self._context = contextvars.copy_context()
        self._lock = threading.Lock()
        self._thread_id: int | None = None
        self.done: asyncio.Future[None] = done
        self.has_run: bool = False
        self.is_reported: bool = False
        self.value: Any = None
        self.error: BaseException | None = None

    def execute(self) -> None:
        self.has_run = True
        self._thread_id = threading.get_ident()
        try:
            self.value = self._context.run(self._fn)
        except BaseException as error:  # whatever a handler raises is its outcome
            self.error = error
        finally:
            # An interrupt that is being sent right now is raised here, in this call, not in the next.
            with self._lock:
                self._thread_id = None

    def interrupt(self, error: type[BaseException]) -> None:
        """Raise `error` in the handler at its next bytecode; a call blocked in C does not notice."""
        with self._lock:
            if self._thread_id is not None:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(self._thread_id), ctypes.py_object(error)
                )


class Threads:
    """As many threads as jobs run at once, at most `limit` plus those given up as stuck."""

    def __init__(self, limit: int, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._limit = limit
        self._calls: SimpleQueue[ThreadCall | None] = SimpleQueue()
        self._ended: deque[ThreadCall] = deque()
        self._is_poked = False
        self._threads = 0
        self._busy = 0

    def submit(self, fn: Callable[[], Any]) -> ThreadCall:
        """Run `fn` in a thread; await the call's `done`, then read its value or error."""
        call = ThreadCall(fn, self._loop.create_future())
        self._busy += 1
        if self._busy > self._threads:
            self._threads += 1
            # Daemon threads: a handler that never returns must not keep the process from ending.
            threading.Thread(target=self._work, name=f"winch-{self._threads}", daemon=True).start()
        self._calls.put(call)
        return call

    def give_up(self, call: ThreadCall) -> None:
        """Stop waiting for a stuck handler: its thread no longer counts."""
        self._busy -= 1
        self._threads -= 1
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
            while not call.is_reported:
                try:
                    if not call.has_run:
                        call.execute()
                    self._report(call)
                except RuntimeError:  # the loop has closed: the worker is gone, so is this thread
                    return
                except BaseException as error:  # an interrupt that came a moment too late
                    call.error = call.error or error

    def _report(self, call: ThreadCall) -> None:
        self._ended.append(call)
        call.is_reported = True
        if not self._is_poked:
            self._is_poked = True
            self._loop.call_soon_threadsafe(self._collect)

    def _collect(self) -> None:
        self._is_poked = False
        while self._ended:
            call = self._ended.popleft()
            if not call.done.done():
                self._busy -= 1
                call.done.set_result(None)
