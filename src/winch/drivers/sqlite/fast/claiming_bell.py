"""The bell of a worker that waits to claim: a thread of its own waits at the socket and claims.

With the plain bell a ring wakes the event loop, the loop wakes the thread that writes, and that one
wakes the loop again. Here the thread that hears the ring carries the claim out itself: two wake-ups
instead of three, and none of the loop's own steps before the claim is on its way.

The loop still looks ten times a second whether the file has changed, as for every bell, and orders the
thread to claim when it has. The order is kept with its wait: one that comes too late belongs to a wait
that is over, and the next wait does not see it.

A loop that a handler blocks does not look. Its thread claims nothing then: the jobs would lie here while
other workers are free, which find them by their own look.

Equals `SqliteBell` followed by the plain claim.
"""

from __future__ import annotations

import asyncio
import queue
import select
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from winch.core.job import Claim
from winch.drivers.sqlite.wakeups import bell as wake
from winch.drivers.sqlite.wakeups.bell import SqliteBell
from winch.drivers.sqlite.wakeups.slots import BellSlots
from winch.storage.verbs import Verb

# So many looks that did not come are a loop that stands still.
_MISSED = 5


class BellWait:
    """One wait. `is_claiming`: whether to claim at its end; None until the order. `looked_at`: when the
    loop last turned."""

    def __init__(
        self,
        verb: Verb[list[Claim]],
        bell: socket.socket | None,
        on_claims: Callable[[list[Claim]], None] | None = None,
    ) -> None:
        self.verb = verb
        self._on_claims = on_claims
        self.bell = bell
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self.answer: asyncio.Future[list[Claim]] = self.loop.create_future()
        self.is_claiming: bool | None = None
        self.looked_at: float = time.monotonic()

    def is_left_alone(self) -> bool:
        return time.monotonic() - self.looked_at > _MISSED * wake.POLL_SECONDS

    def settle(self, claims: list[Claim], error: BaseException | None) -> None:
        if self.answer.done():  # cancelled
            return
        if error is None:
            try:
                if self._on_claims is not None:
                    self._on_claims(claims)
            finally:
                self.answer.set_result(claims)
        else:
            self.answer.set_exception(error)


class ClaimingSqliteBell(SqliteBell):
    """See ClaimingBell in storage/protocol.py. `run` carries a verb out; it may block."""

    # The sender clears the slot.
    stays_armed = False

    def __init__(
        self,
        slots: Callable[[], BellSlots],
        look: Callable[[int | None], tuple[int | None, bool]],
        prepare: Callable[[], None],
        queues: Sequence[str],
        run: Callable[[Verb[list[Claim]]], list[Claim]],
    ) -> None:
        super().__init__(slots, look, prepare, queues, due=False)
        self.on_claims: Callable[[list[Claim]], None] | None = None
        self._run = run
        self._now: BellWait | None = None
        self._waits: queue.SimpleQueue[BellWait | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._here: socket.socket | None = None

    async def claim_when_rung(
        self, verb: Verb[list[Claim]], timeout: float, *, is_idle: bool = False
    ) -> list[Claim]:
        wait = self._now = BellWait(verb, self._socket, self.on_claims)
        deadline = time.monotonic() + timeout
        timer: asyncio.TimerHandle | None = None

        def look() -> None:
            nonlocal timer
            wait.looked_at = time.monotonic()
            self._seen, is_wanted = self._look(self._seen)
            left = deadline - time.monotonic()
            if is_wanted or left <= 0:
                self._order(wait, is_claiming=True)
            else:
                timer = wait.loop.call_later(min(left, wake.POLL_SECONDS), look)

        self._start()
        self._waits.put(wait)
        timer = wait.loop.call_later(min(timeout, wake.POLL_SECONDS), look)
        try:
            return await wait.answer
        finally:
            timer.cancel()
            self._now = None
            if wait.answer.cancelled():
                self._order(wait, is_claiming=False)

    def rouse(self) -> None:
        if self._now is not None:
            self._order(self._now, is_claiming=False)

    async def wait(self, timeout: float) -> bool:
        """Nothing is claimed: the event loop itself listens for so long."""
        self._listen()
        try:
            return await super().wait(timeout)
        finally:
            self._unlisten()

    async def aclose(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            self._waits.put(None)
            # It may be in a claim that was on its way when its worker stopped.
            await asyncio.get_running_loop().run_in_executor(None, thread.join)
        if self._here is not None:
            self._here.close()
            self._here = None
        await super().aclose()

    def _register(self) -> None:
        self._take_slot()

    def _start(self) -> None:
        if self._thread is None:
            self._here, there = socket.socketpair()
            self._here.setblocking(False)
            there.setblocking(False)
            self._thread = threading.Thread(
                target=self._serve, args=(there,), name="winch-sqlite-bell", daemon=True
            )
            self._thread.start()

    def _order(self, wait: BellWait, *, is_claiming: bool) -> None:
        if wait.is_claiming is None:
            wait.is_claiming = is_claiming
            if self._here is not None:
                with suppress(BlockingIOError):  # it is full of such bytes
                    self._here.send(b"!")

    # -- the thread --------------------------------------------------------------------------------

    def _serve(self, orders: socket.socket) -> None:
        with orders:
            while (wait := self._waits.get()) is not None:
                claims: list[Claim] = []
                error: BaseException | None = None
                try:
                    if _rings(wait, orders):
                        claims = self._run(wait.verb)
                except BaseException as caught:  # the caller is to see it, whatever it is
                    error = caught
                with suppress(RuntimeError):  # the loop has closed
                    wait.loop.call_soon_threadsafe(wait.settle, claims, error)


def _rings(wait: BellWait, orders: socket.socket) -> bool:
    """Wait until it rings, or until the order; whether to claim."""
    _empty(orders)  # orders for the wait before this one; an order for this one is in it already
    both = select.poll()
    both.register(orders, select.POLLIN)
    if wait.bell is not None:
        both.register(wait.bell, select.POLLIN)
    while wait.is_claiming is None:
        found = dict(both.poll())
        if wait.bell is not None and wait.bell.fileno() in found:
            is_wanted = not wait.is_left_alone()
            with suppress(BlockingIOError):
                wait.bell.recv(64)  # the sender clears the slot first, so there is mostly one
            return is_wanted and wait.is_claiming is not False
        _empty(orders)
    return wait.is_claiming


def _empty(end: socket.socket) -> None:
    with suppress(BlockingIOError):
        while True:
            end.recv(64)
