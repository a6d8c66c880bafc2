"""The history writes of one worker: those that wait at the same time go to the store in one call.

Each handler waits for its own answer, so a step's result is stored before the handler gets it, as
before. While a call is on its way, the writes that come meanwhile gather and go together in the next
one. A call that takes longer than PATIENCE holds up no other: the next one goes beside it.

A job has at most one write here at a time: its history is one document, and a later one must not be
overtaken by an earlier one. The steps of an attempt take turns for that (`StepRunner`).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from winch.core.errors import StorageFull, StorageUnavailable
from winch.storage.params import Answer, ClaimRef

if TYPE_CHECKING:
    from winch.core.job import Note
    from winch.storage.protocol import Driver

# More in one call would keep the first of them waiting for the last.
MOST = 200
# How many seconds a write waits for the call before its own.
PATIENCE = 0.05


class _Write:
    """One write that waits for its answer: by a future on the loop, by a lock in a thread."""

    __slots__ = ("answer", "done", "error", "future", "is_leader", "note", "ref")

    def __init__(self, ref: ClaimRef, note: Note) -> None:
        self.ref = ref
        self.note = note
        self.answer: Answer | None = None
        self.error: Exception | None = None
        self.future: asyncio.Future[Answer] | None = None
        self.done: threading.Lock | None = None
        self.is_leader = False


class NoteWriter:
    """Notes of durable jobs. `store` is the driver, which may be another one after a reload."""

    def __init__(self, store: Callable[[], Driver]) -> None:
        self._store = store
        self._waiting: list[_Write] = []
        self._on_the_way = 0
        self._sent_at = 0.0
        self._senders: set[asyncio.Task[None]] = set()
        self._guard = threading.Lock()
        self._in_threads: list[_Write] = []
        self._is_led = False

    # -- on the event loop -------------------------------------------------------------------------

    async def anote(self, ref: ClaimRef, note: Note) -> Answer:
        """Keep the note; returns the store's answer or raises its error."""
        loop = asyncio.get_running_loop()
        write = _Write(ref, note)
        write.future = loop.create_future()
        self._waiting.append(write)
        if not self._on_the_way:
            self._depart(loop)
        elif len(self._waiting) == 1:
            loop.call_later(max(self._sent_at + PATIENCE - loop.time(), 0.0), self._depart, loop)
        return await write.future

    def _depart(self, loop: asyncio.AbstractEventLoop) -> None:
        """Send those that wait. They leave the list when the sender runs, after the handlers that are
        ready now have brought theirs."""
        if not self._waiting:
            return
        self._on_the_way += 1
        self._sent_at = loop.time()
        sender = loop.create_task(self._send_waiting(loop))
        self._senders.add(sender)
        sender.add_done_callback(self._senders.discard)

    async def _send_waiting(self, loop: asyncio.AbstractEventLoop) -> None:
        # A handler that was cancelled may have left one and brought another: no claim is named twice.
        waiting = [one for one in self._waiting if one.future is not None and not one.future.done()]
        writes, self._waiting = waiting[:MOST], waiting[MOST:]
        try:
            if writes:
                await self._asend(writes)
        except Exception as error:  # a defect: each handler gets it, and none waits for ever
            _refuse([one for one in writes if one.answer is None], error)
        finally:
            for write in writes:
                _settle(write)
            self._on_the_way -= 1
            self._depart(loop)

    async def _asend(self, writes: list[_Write]) -> None:
        driver = self._store()
        try:
            answers = await driver.arun(driver.notes([(one.ref, one.note) for one in writes]))
        except Exception as error:
            if len(writes) == 1 or _concerns_all(error):
                _refuse(writes, error)
                return
            for one in writes:  # one of them cannot be stored: the others must not fail with it
                await self._asend([one])
            return
        _answer(writes, answers)

    # -- in threads --------------------------------------------------------------------------------

    def note(self, ref: ClaimRef, note: Note) -> Answer:
        """The same in the thread of a plain handler. The first thread sends for those that wait."""
        write = _Write(ref, note)
        with self._guard:
            if self._is_led:
                write.done = threading.Lock()
                write.done.acquire()
                self._in_threads.append(write)
            else:
                self._is_led = write.is_leader = True
        if write.done is not None and not self._is_answered(write):
            self._send([write])  # the call before is slow: beside it
        elif write.is_leader:
            self._lead(write)
        if write.error is not None:
            raise write.error
        assert write.answer is not None  # noqa: S101  # there is an error, or an answer
        return write.answer

    def _is_answered(self, write: _Write) -> bool:
        """Wait until it is answered or its thread is to send for others; False: it waits in vain."""
        assert write.done is not None  # noqa: S101  # looked at before
        try:
            if write.done.acquire(timeout=PATIENCE):
                return True
            with self._guard:
                if write in self._in_threads:
                    self._in_threads.remove(write)
                    return False
            write.done.acquire()  # it is on its way
        except BaseException:  # an interrupt of the handler
            with self._guard:
                if write in self._in_threads:
                    self._in_threads.remove(write)
            if write.is_leader:
                self._hand_on()
            raise
        return True

    def _lead(self, own: _Write) -> None:
        with self._guard:
            writes = [own, *self._in_threads[: MOST - 1]]
            del self._in_threads[: MOST - 1]
        try:
            self._send(writes)
        finally:
            self._hand_on()
            for one in writes:
                if one is not own and one.done is not None:
                    if one.answer is None and one.error is None:
                        one.error = StorageUnavailable("its writer was interrupted", maybe_applied=True)
                    one.done.release()

    def _hand_on(self) -> None:
        with self._guard:
            if not self._in_threads:
                self._is_led = False
                return
            first = self._in_threads.pop(0)
            first.is_leader = True
        assert first.done is not None  # noqa: S101  # it waits
        first.done.release()

    def _send(self, writes: list[_Write]) -> None:
        driver = self._store()
        try:
            answers = driver.run(driver.notes([(one.ref, one.note) for one in writes]))
        except Exception as error:
            if len(writes) == 1 or _concerns_all(error):
                _refuse(writes, error)
                return
            for one in writes:
                self._send([one])
            return
        _answer(writes, answers)


def _concerns_all(error: Exception) -> bool:
    """Whether the store is out of reach or full; each caller repeats that for itself."""
    return isinstance(error, StorageUnavailable | StorageFull)


def _refuse(writes: list[_Write], error: Exception) -> None:
    for one in writes:
        one.error = error


def _settle(write: _Write) -> None:
    """Give the handler on the loop its answer or its error. Without either, its sender was cancelled."""
    assert write.future is not None  # noqa: S101  # it came by `anote`
    if write.future.done():
        return
    if write.error is not None:
        write.future.set_exception(write.error)
    elif write.answer is not None:
        write.future.set_result(write.answer)
    else:
        write.future.cancel()


def _answer(writes: list[_Write], answers: list[Answer]) -> None:
    for one, answer in zip(writes, answers, strict=True):
        one.answer = answer
