"""Concurrent `aenqueue` calls of one event loop share one durable insert.

While a call is on its way to the store, those that come meanwhile wait and go together in the next one:
the store commits once for all of them. A lone call goes at once, and so does one that finds the call
before it slow, for then it is better to stand beside it than behind it.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable, Sequence

from winch.core.errors import EnqueueUncertain, StorageUnavailable
from winch.storage.params import Enqueued, NewJob

_Calls = list[tuple[NewJob, "asyncio.Future[Enqueued]"]]
Send = Callable[[Sequence[NewJob]], Awaitable[list[Enqueued]]]

# More in one call would keep the first of them waiting for the last.
MOST = 500
# How many seconds one waits for the call before one's own.
PATIENCE = 0.02


class Coalescer:
    """The calls of one client, apart for each event loop. `send` stores jobs, with all its retries."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._lines: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopCalls] = (
            weakref.WeakKeyDictionary()
        )

    async def store(self, job: NewJob) -> Enqueued:
        """Store this job, together with those that others of this event loop bring meanwhile."""
        loop = asyncio.get_running_loop()
        line = self._lines.get(loop)
        if line is None:
            line = self._lines[loop] = _LoopCalls(loop, self._send)
        return await line.store(job)


class _LoopCalls:
    """The calls of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, send: Send) -> None:
        # Weak, because the dictionary that holds this line by its loop is.
        self._loop = weakref.proxy(loop)
        self._send = send
        self._on_the_way = 0
        self._sent_at = 0.0
        self._waiting: _Calls = []
        self._senders: set[asyncio.Task[None]] = set()

    async def store(self, job: NewJob) -> Enqueued:
        if self._on_the_way and self._loop.time() - self._sent_at < PATIENCE:
            future: asyncio.Future[Enqueued] = self._loop.create_future()
            self._waiting.append((job, future))
            return await future
        self._leave()
        try:
            [answer] = await self._send([job])
        finally:
            self._arrive()
        return answer

    def _leave(self) -> None:
        self._on_the_way += 1
        self._sent_at = self._loop.time()

    def _arrive(self) -> None:
        self._on_the_way -= 1
        while self._waiting:
            calls = [call for call in self._waiting[:MOST] if not call[1].done()]
            del self._waiting[:MOST]
            if calls:
                self._leave()
                sender = asyncio.ensure_future(self._send_apart_from_callers(calls))
                self._senders.add(sender)
                sender.add_done_callback(self._senders.discard)

    async def _send_apart_from_callers(self, calls: _Calls) -> None:
        try:
            await self._send_together(calls)
        finally:
            for _, future in calls:
                future.cancel()  # the event loop is ending: no caller may wait for ever
            self._arrive()

    async def _send_together(self, calls: _Calls) -> None:
        try:
            answers = await self._send([job for job, _ in calls])
        except EnqueueUncertain as error:
            for job, future in calls:
                _raise(future, EnqueueUncertain(str(error), [job.id]), error.__cause__)
        except StorageUnavailable as error:
            for _, future in calls:
                _raise(future, StorageUnavailable(str(error), maybe_applied=error.maybe_applied), error)
        except Exception as error:
            # What the store refuses in one of them must not keep the others from being stored.
            if len(calls) == 1:
                _raise(calls[0][1], error, error.__cause__)
            else:
                for call in calls:
                    await self._send_together([call])
        else:
            for (_, future), answer in zip(calls, answers, strict=True):
                if not future.done():
                    future.set_result(answer)


def _raise(future: asyncio.Future[Enqueued], error: Exception, cause: BaseException | None) -> None:
    if not future.done():
        error.__cause__ = cause
        future.set_exception(error)
