"""Bells: how a process that has stored a job wakes an idle worker in another.

After its commit the producer sends a datagram to the Unix socket of a worker that waits. `BellSlots`
records which bells wait: a folder beside the database (folder.py makes and removes it) holds one socket
per bell and the *board*, a small file with a slot for each bell, which every process of the database
reads and writes. A slot records whether its bell waits, and for which queues. A sender reads the
beginning of the board; where no bell waits, it does nothing more. Else it clears the slot and sends one
byte. The order makes lost races harmless: the sender clears, then sends; the waiter empties its socket,
then sets the slot, then looks at the store once more. A sender rings one bell for each job that became
ready.

A process that dies leaves its slot behind; the next sender that finds its socket dead frees the slot.

All this is a hint: what the datagrams miss (connections that are not ours, a full board, no socket at
all) is found by a look ten times a second whether the file has changed.
"""

from __future__ import annotations

import asyncio
import os
import queue
import secrets
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from winch.core.errors import StorageError
from winch.core.job import Claim
from winch.drivers.sqlite.statements import Ring
from winch.drivers.sqlite.wakeups.board import (
    FILTER,
    FREE,
    NONCE,
    RECORD,
    SLOTS,
    TAKEN,
    WAITING,
    BellSlot,
    Board,
    bit_of,
)
from winch.storage.verbs import Verb

POLL_SECONDS = 0.1
Version = tuple[object, int]
"""Of the file, as one connection counts it; another begins anew."""
Look = Callable[[Version | None], tuple[Version | None, bool]]
# What a sender reads at once: mostly one or a few wait, in the first slots.
_NEAR = SLOTS + 8 * RECORD
# So many looks that did not come are a loop that stands still.
_MISSED = 5


class BellSlots(Board):
    """The board, and the socket through which this process rings."""

    def __init__(self, database: Path) -> None:
        super().__init__(database)
        self._prefix = f"{self.folder}{os.sep}"
        self._socket: socket.socket | None = None
        # Behind the one that was rung last, so that the work is spread.
        self._turn = secrets.randbelow(SLOTS)
        self.rings: int = 0

    def ring(self, ring: Ring) -> None:
        """Wake as many bells as there is work for. Never raises: the poll is there."""
        try:
            fd = self._fd
            if fd is None:
                fd = self.open()
            states = self._states
            if fd is not None and states is not None and states.find(WAITING) >= 0:
                self._ring_some(fd, os.pread(fd, _NEAR, 0), ring)
        except OSError:
            return

    def _ring_some(self, fd: int, near: bytes, ring: Ring) -> None:
        wanted = {bit_of(queue): count for queue, count in ring.ready.items()}
        for number in _waiting(near, self._turn):
            at = SLOTS + number * RECORD
            record = near[at : at + RECORD] or os.pread(fd, RECORD, at)
            listens = int.from_bytes(record[NONCE : NONCE + FILTER], "big")
            matches = [bit for bit, left in wanted.items() if left > 0 and bit & listens]
            if matches or (ring.due and record[NONCE + FILTER]):
                os.pwrite(fd, TAKEN, number)
                if self._send(number, record[:NONCE]) and matches:
                    wanted[matches[0]] -= 1
                    self._turn = (number + 1) % SLOTS

    def _send(self, number: int, nonce: bytes) -> bool:
        if self._socket is None:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.setblocking(False)
        self.rings += 1
        try:
            self._socket.sendto(b"!", self._prefix + nonce.hex())
        except BlockingIOError:
            return True  # its socket is full of rings
        except (ConnectionRefusedError, FileNotFoundError):
            self.bury(BellSlot(number, nonce))  # the process that waited there is dead
            return False
        return True

    def set_waiting(self, slot: BellSlot) -> bool:
        """Mark the bell as waiting; False when another process took the slot for dead and gave it away,
        or when the board was removed with other temporary files."""
        fd, at = self._fd, SLOTS + slot.number * RECORD
        if fd is None or os.pread(fd, 1, slot.number) == FREE or os.pread(fd, NONCE, at) != slot.nonce:
            return False
        if not os.fstat(fd).st_nlink:
            self.close()
            return False
        os.pwrite(fd, WAITING, slot.number)
        return True

    def _forget(self) -> None:
        super()._forget()
        if self._socket is not None:
            self._socket.close()
        self._socket = None


def _waiting(board: bytes, turn: int) -> Iterator[int]:
    """The slots of waiting bells, from this one on, and then those before it."""
    for start, end in ((turn, SLOTS), (0, turn)):
        number = board.find(WAITING, start, end)
        while number >= 0:
            yield number
            number = board.find(WAITING, number + 1, end)


class SqliteBell:
    """One waiting place of one event loop. See Bell in storage/protocol.py.

    `look(seen)` returns the version of the file, and whether there is work to wake up for where that
    version is not `seen`: the version at the last look, in whatever wait that was. `prepare` opens the
    database; it may block.
    """

    def __init__(
        self,
        slots: Callable[[], BellSlots],
        look: Look,
        prepare: Callable[[], None],
        queues: Sequence[str],
        *,
        due: bool,
    ) -> None:
        self._open_slots = slots
        self._look = look
        self._queues = tuple(queues)
        self._due = due
        self._prepare = prepare
        self._slots: BellSlots | None = None
        self._slot: BellSlot | None = None
        self._socket: socket.socket | None = None
        self._rang = asyncio.Event()
        self._seen: Version | None = None

    async def arm(self) -> None:
        with suppress(OSError, StorageError):
            if self._slot is None:
                await asyncio.get_running_loop().run_in_executor(None, self._prepare)
                self._register()
                self._seen, _ = self._look(None)
            self._rang.clear()
            self._drain()
            if self._slot is not None and not self._is_set():
                self._unregister()
                self._register()
                self._is_set()

    async def wait(self, timeout: float) -> bool:
        deadline = time.monotonic() + timeout
        while True:
            left = deadline - time.monotonic()
            try:
                async with asyncio.timeout(max(0.0, min(left, POLL_SECONDS))):
                    await self._rang.wait()
            except TimeoutError:
                pass
            else:
                return True
            self._seen, is_wanted = self._look(self._seen)
            if is_wanted:
                return True
            if left <= POLL_SECONDS:
                return False

    async def aclose(self) -> None:
        self._unregister()

    def _is_set(self) -> bool:
        return self._slots is not None and self._slot is not None and self._slots.set_waiting(self._slot)

    def _register(self) -> None:
        self._take_slot()
        self._listen()

    def _take_slot(self) -> None:
        self._slots = self._open_slots()
        taken = self._slots.take(self._queues, due=self._due)
        if taken is not None:
            self._slot, self._socket = taken

    def _listen(self) -> None:
        if self._socket is not None:
            asyncio.get_running_loop().add_reader(self._socket.fileno(), self._ring)

    def _unlisten(self) -> None:
        if self._socket is not None:
            with suppress(RuntimeError):  # the loop is gone
                asyncio.get_running_loop().remove_reader(self._socket.fileno())

    def _unregister(self) -> None:
        self._unlisten()
        if self._socket is not None:
            self._socket.close()
        if self._slot is not None and self._slots is not None:
            self._slots.give_back(self._slot)
        self._slot = self._socket = None

    def _ring(self) -> None:
        self._drain()
        self._rang.set()

    def _drain(self) -> None:
        if self._socket is not None:
            with suppress(BlockingIOError):
                while True:
                    self._socket.recv(16)


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
        return time.monotonic() - self.looked_at > _MISSED * POLL_SECONDS

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
    """The bell of a worker that waits to claim: a thread of its own waits at the socket, and claims.
    See ClaimingBell in storage/protocol.py. `run` carries a verb out; it may block.

    A ring that woke the event loop would need three wake-ups: the loop, the thread that writes, and the
    loop again. The thread that hears the ring carries the claim out itself, so there are two.

    The loop still looks ten times a second whether the file has changed, as for every bell, and orders
    the thread to claim when it has. The order is kept with its wait: one that comes too late belongs to
    a wait that is over, and the next wait does not see it.

    A loop that a handler blocks does not look. Its thread claims nothing then: the jobs would lie here
    while other workers are free, which find them by their own look.
    """

    # The sender clears the slot.
    stays_armed = False

    def __init__(
        self,
        slots: Callable[[], BellSlots],
        look: Look,
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
                timer = wait.loop.call_later(min(left, POLL_SECONDS), look)

        self._start()
        self._waits.put(wait)
        timer = wait.loop.call_later(min(timeout, POLL_SECONDS), look)
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
