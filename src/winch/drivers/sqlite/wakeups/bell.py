"""Wakes idle workers in other processes: a datagram to a Unix socket, sent after the commit.

slots.py records which bells wait. All this is a hint: what the datagrams miss (connections that are not
ours, a full board, no socket at all) is found by a look ten times a second whether the file has changed.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from winch.core.errors import StorageError
from winch.drivers.sqlite.wakeups.slots import BellSlot, BellSlots

POLL_SECONDS = 0.1


class SqliteBell:
    """One waiting place of one event loop. See Bell in storage/protocol.py.

    `look(seen)` returns the version of the file, and whether there is work to wake up for where that
    version is not `seen`. `prepare` opens the database; it may block.
    """

    def __init__(
        self,
        slots: Callable[[], BellSlots],
        look: Callable[[int | None], tuple[int | None, bool]],
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
        self._seen: int | None = None

    async def arm(self) -> None:
        with suppress(OSError, StorageError):
            if self._slot is None:
                await asyncio.get_running_loop().run_in_executor(None, self._prepare)
                self._register()
            self._rang.clear()
            self._drain()
            if self._slot is not None and not self._is_set():
                self._unregister()
                self._register()
                self._is_set()
        self._seen, _ = self._look(None)

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
