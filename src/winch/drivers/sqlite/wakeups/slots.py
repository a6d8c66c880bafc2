"""The slots of waiting bells: a small file that every process of the database reads and writes.

A folder beside the database (folder.py makes and removes it) holds one socket per bell and the *board*,
a file with a slot for each bell. A slot records whether its bell waits, and for which queues. A sender
reads the beginning of the board; where no bell waits, it does nothing more. Else it clears the slot and
sends one byte. The order makes lost races harmless: the sender clears, then sends; the waiter empties
its socket, then sets the slot, then looks at the store once more. A sender rings one bell for each job
that became ready.

A process that dies leaves its slot behind; the next sender that finds its socket dead frees the slot.
"""

from __future__ import annotations

import fcntl
import functools
import os
import secrets
import socket
import threading
import weakref
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from winch.drivers.sqlite.statements import Ring
from winch.drivers.sqlite.wakeups import folder as bell_folder
from winch.storage.forks import forget_in_children

SLOTS = 256
_FREE, _TAKEN, _WAITING = b"\0", b"\1", b"\2"
_NONCE, _FILTER = bell_folder.NONCE_BYTES, 32
_RECORD = 48  # nonce, filter of queues, one byte for due, padding
# What a sender reads at once: mostly one or a few wait, in the first slots.
_NEAR = SLOTS + 8 * _RECORD


@functools.lru_cache(1024)
def _bit_of(queue: str) -> int:
    return 1 << (zlib.crc32(queue.encode()) % (8 * _FILTER))


def _filter_of(queues: Iterable[str]) -> int:
    bits = 0
    for queue in queues:
        bits |= _bit_of(queue)
    return bits


def _waiting(board: bytes, turn: int) -> Iterator[int]:
    """The slots of waiting bells, from this one on, and then those before it."""
    for start, end in ((turn, SLOTS), (0, turn)):
        number = board.find(_WAITING, start, end)
        while number >= 0:
            yield number
            number = board.find(_WAITING, number + 1, end)


@dataclass(frozen=True, slots=True)
class BellSlot:
    """The slot of one bell; its nonce names the bell's socket."""

    number: int
    nonce: bytes


class BellSlots:
    """The board of one database, and the socket through which this process rings."""

    def __init__(self, database: Path) -> None:
        self.folder: Path = bell_folder.folder_for(database)
        self._prefix = f"{self.folder}{os.sep}"
        self._database = database
        self._is_barred = False
        self._fd: int | None = None
        self._leaving: weakref.finalize[Any, Any] | None = None
        self._socket: socket.socket | None = None
        self._own: set[bytes] = set()
        # Behind the one that was rung last, so that the work is spread.
        self._turn = secrets.randbelow(SLOTS)
        self._guard = threading.RLock()
        self.rings: int = 0
        forget_in_children(self)

    def prepare(self) -> None:
        """Open the board for a bell that will wait. Removes what killed processes have left."""
        with suppress(OSError):
            if self._fd is None:
                self._open()
            if bell_folder.is_temporary(self.folder):
                bell_folder.sweep()

    def close(self) -> None:
        if self._leaving is not None:
            self._leaving()
        self._forget()

    def after_fork_in_child(self) -> None:
        """The parent's entry in the folder is not the child's."""
        self._guard = threading.RLock()
        self._is_barred = False
        self._own.clear()
        if self._leaving is not None and (found := self._leaving.detach()) is not None:
            fd, users, *_ = found[2]
            os.close(fd)
            os.close(users)
        self._forget()

    def _forget(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._fd = self._socket = self._leaving = None

    # -- ringing -----------------------------------------------------------------------------------

    def ring(self, ring: Ring) -> None:
        """Wake as many bells as there is work for. Never raises: the poll is there."""
        try:
            fd = self._fd
            if fd is None:
                fd = self._open()
            if fd is not None and (near := os.pread(fd, _NEAR, 0)).find(_WAITING, 0, SLOTS) >= 0:
                self._ring_some(fd, near, ring)
        except OSError:
            return

    def _ring_some(self, fd: int, near: bytes, ring: Ring) -> None:
        wanted = {_bit_of(queue): count for queue, count in ring.ready.items()}
        for number in _waiting(near, self._turn):
            at = SLOTS + number * _RECORD
            record = near[at : at + _RECORD] or os.pread(fd, _RECORD, at)
            listens = int.from_bytes(record[_NONCE : _NONCE + _FILTER], "big")
            matches = [bit for bit, left in wanted.items() if left > 0 and bit & listens]
            if matches or (ring.due and record[_NONCE + _FILTER]):
                os.pwrite(fd, _TAKEN, number)
                if self._send(number, record[:_NONCE]) and matches:
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
            self._bury(BellSlot(number, nonce))  # the process that waited there is dead
            return False
        return True

    # -- waiting -----------------------------------------------------------------------------------

    def take(self, queues: Sequence[str], *, due: bool) -> tuple[BellSlot, socket.socket] | None:
        """A slot and the socket that is rung for it; None when the board is full."""
        with self._guard:
            return self._take(queues, due)

    def _take(self, queues: Sequence[str], due: bool) -> tuple[BellSlot, socket.socket] | None:
        fd = self._open() if self._fd is None else self._fd
        if fd is None:
            return None
        nonce = secrets.token_bytes(_NONCE)
        path = self.folder / nonce.hex()
        bell = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        bell.setblocking(False)
        try:
            bell.bind(os.fspath(path))
            path.chmod(0o600)
            fcntl.flock(fd, fcntl.LOCK_EX)
            try:
                number = self._free_slot(fd)
                if number is not None:
                    bits = _filter_of(queues).to_bytes(_FILTER, "big")
                    record = (nonce + bits + bytes([due])).ljust(_RECORD, b"\0")
                    os.pwrite(fd, record, SLOTS + number * _RECORD)
                    os.pwrite(fd, _TAKEN, number)
            finally:
                fcntl.flock(fd, fcntl.LOCK_UN)
        except OSError:
            number = None
        if number is None:
            bell.close()
            with suppress(OSError):
                path.unlink()
            return None
        self._own.add(nonce)
        return BellSlot(number, nonce), bell

    def set_waiting(self, slot: BellSlot) -> bool:
        """Mark the bell as waiting; False when another process took the slot for dead and gave it away,
        or when the board was removed with other temporary files."""
        if self._fd is None or not self._is_mine(self._fd, slot):
            return False
        if not os.fstat(self._fd).st_nlink:
            self.close()
            return False
        os.pwrite(self._fd, _WAITING, slot.number)
        return True

    def give_back(self, slot: BellSlot) -> None:
        if slot.nonce in self._own:  # a forked child must not take its parent's away
            self._own.discard(slot.nonce)
            self._bury(slot)

    def _free(self, slot: BellSlot) -> None:
        with suppress(OSError):
            if self._fd is not None and self._is_mine(self._fd, slot):
                os.pwrite(self._fd, _FREE, slot.number)

    def _is_mine(self, fd: int, slot: BellSlot) -> bool:
        if os.pread(fd, 1, slot.number) == _FREE:
            return False
        return os.pread(fd, _NONCE, SLOTS + slot.number * _RECORD) == slot.nonce

    def _free_slot(self, fd: int) -> int | None:
        states = os.pread(fd, SLOTS, 0)
        number = states.find(_FREE)
        if number >= 0:
            return number
        for taken in range(SLOTS):
            slot = BellSlot(taken, os.pread(fd, _NONCE, SLOTS + taken * _RECORD))
            if not self._is_alive(slot):
                self._bury(slot)
                return taken
        return None

    def _is_alive(self, slot: BellSlot) -> bool:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect(os.fspath(self.folder / slot.nonce.hex()))
            except (ConnectionRefusedError, FileNotFoundError):
                return False
        return True

    def _bury(self, slot: BellSlot) -> None:
        self._free(slot)
        with suppress(OSError):
            (self.folder / slot.nonce.hex()).unlink()

    def _open(self) -> int | None:
        """The board's file; None where it cannot be had, and then it is not tried again."""
        with self._guard:
            return self._fd if self._fd is not None or self._is_barred else self._open_now()

    def _open_now(self) -> int | None:
        self._is_barred = True
        users = bell_folder.enter(self.folder, self._database)
        if users is None:
            return None
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            self._fd = os.open(self.folder / "board", flags, 0o600)
            if os.fstat(self._fd).st_size < SLOTS * (1 + _RECORD):
                os.ftruncate(self._fd, SLOTS * (1 + _RECORD))
        except OSError:
            bell_folder.leave(users, self.folder)
            raise
        # Also for a driver that is never closed: at the latest when the process ends.
        self._leaving = weakref.finalize(self, _leave, self._fd, users, self.folder, os.getpid())
        self._is_barred = False
        return self._fd


def _leave(fd: int, users: int, folder: Path, pid: int) -> None:
    if os.getpid() == pid:
        os.close(fd)
        bell_folder.leave(users, folder)
