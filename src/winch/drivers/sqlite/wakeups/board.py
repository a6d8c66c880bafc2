"""The board of the bells of one database: a small file that every process reads and writes.

It lies in a folder beside the database (folder.py makes and removes that) and has a slot for each bell.
A slot has one byte, whether it is free, taken or waiting, and a record: the nonce that names the bell's
socket in the same folder, a filter of the queues that it listens to, and whether it rings for due jobs.

A process that dies leaves its slot behind; the next sender that finds its socket dead frees the slot.
"""

from __future__ import annotations

import fcntl
import functools
import mmap
import os
import secrets
import socket
import threading
import weakref
import zlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from winch.drivers.sqlite.wakeups import folder as bell_folder
from winch.storage.forks import forget_in_children

SLOTS = 256
FREE, TAKEN, WAITING = b"\0", b"\1", b"\2"
NONCE, FILTER = bell_folder.NONCE_BYTES, 32
RECORD = 48  # nonce, filter of queues, one byte for due, padding


@functools.lru_cache(1024)
def bit_of(queue: str) -> int:
    return 1 << (zlib.crc32(queue.encode()) % (8 * FILTER))


def _filter_of(queues: Iterable[str]) -> int:
    bits = 0
    for queue in queues:
        bits |= bit_of(queue)
    return bits


@dataclass(frozen=True, slots=True)
class BellSlot:
    """The slot of one bell; its nonce names the bell's socket."""

    number: int
    nonce: bytes


class Board:
    """The board of one database, opened when it is first needed: slots are taken and given back."""

    def __init__(self, database: Path) -> None:
        self.folder: Path = bell_folder.folder_for(database)
        self._database = database
        self._is_barred = False
        self._fd: int | None = None
        # The slots' bytes, mapped: a sender looks at them after each commit without a system call.
        self._states: mmap.mmap | None = None
        self._leaving: weakref.finalize[Any, Any] | None = None
        self._own: set[bytes] = set()
        self._guard = threading.RLock()
        forget_in_children(self)

    def prepare(self) -> None:
        """Open the board for a bell that will wait. Removes what killed processes have left."""
        with suppress(OSError):
            if self._fd is None:
                self.open()
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
        self._fd = self._leaving = self._states = None

    def take(self, queues: Sequence[str], *, due: bool) -> tuple[BellSlot, socket.socket] | None:
        """A slot and the socket that is rung for it; None when the board is full."""
        with self._guard:
            return self._take(queues, due)

    def _take(self, queues: Sequence[str], due: bool) -> tuple[BellSlot, socket.socket] | None:
        fd = self.open() if self._fd is None else self._fd
        if fd is None:
            return None
        nonce = secrets.token_bytes(NONCE)
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
                    bits = _filter_of(queues).to_bytes(FILTER, "big")
                    record = (nonce + bits + bytes([due])).ljust(RECORD, b"\0")
                    os.pwrite(fd, record, SLOTS + number * RECORD)
                    os.pwrite(fd, TAKEN, number)
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

    def give_back(self, slot: BellSlot) -> None:
        if slot.nonce in self._own:  # a forked child must not take its parent's away
            self._own.discard(slot.nonce)
            self.bury(slot)

    def _free(self, slot: BellSlot) -> None:
        with suppress(OSError):
            if self._fd is not None and self._is_mine(self._fd, slot):
                os.pwrite(self._fd, FREE, slot.number)

    def _is_mine(self, fd: int, slot: BellSlot) -> bool:
        if os.pread(fd, 1, slot.number) == FREE:
            return False
        return os.pread(fd, NONCE, SLOTS + slot.number * RECORD) == slot.nonce

    def _free_slot(self, fd: int) -> int | None:
        states = os.pread(fd, SLOTS, 0)
        number = states.find(FREE)
        if number >= 0:
            return number
        for taken in range(SLOTS):
            slot = BellSlot(taken, os.pread(fd, NONCE, SLOTS + taken * RECORD))
            if not self._is_alive(slot):
                self.bury(slot)
                return taken
        return None

    def _is_alive(self, slot: BellSlot) -> bool:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect(os.fspath(self.folder / slot.nonce.hex()))
            except (ConnectionRefusedError, FileNotFoundError):
                return False
        return True

    def bury(self, slot: BellSlot) -> None:
        """Free the slot of a bell that is no more, and remove its socket."""
        self._free(slot)
        with suppress(OSError):
            (self.folder / slot.nonce.hex()).unlink()

    def open(self) -> int | None:
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
            if os.fstat(self._fd).st_size < SLOTS * (1 + RECORD):
                os.ftruncate(self._fd, SLOTS * (1 + RECORD))
            self._states = mmap.mmap(self._fd, SLOTS, access=mmap.ACCESS_READ)
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
