"""Wakes idle workers in other processes: a datagram to a Unix socket, sent after the commit.

A folder beside the database holds one socket per bell and a *board*: a small file with a slot for each
bell that says whether somebody waits, and for which queues. A sender reads the board's first 256 bytes;
where nobody waits that is all it does. Else it clears the slot and sends one byte. The order makes lost
races harmless: the sender clears, then sends; the waiter empties its socket, then sets the slot, then
looks at the store once more. One bell is rung for each job that became ready, not all for one.

All this is a hint. A process that dies leaves its slot behind; whoever finds the socket dead cleans up.
What the datagrams miss (connections that are not ours, a full board, no socket at all) is found by
asking SQLite ten times a second whether the file has changed.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import secrets
import socket
import stat
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from winch.core.errors import StorageError
from winch.drivers.sqlite.steps import Ring

POLL_SECONDS = 0.1
SLOTS = 256
_FREE, _TAKEN, _WAITING = b"\0", b"\1", b"\2"
_NONCE, _FILTER = 8, 32
_RECORD = 48  # nonce, filter of queues, one byte for due, padding
_MAX_SOCKET_PATH = 100  # the kernel allows 108 bytes, macOS 104


def folder_for(database: Path) -> Path:
    """Where the bells of a database are: beside it, or where that path is too long for a socket, in a
    folder for temporary files under a name that all processes derive alike."""
    beside = database.with_name(database.name + "-bells")
    if len(os.fsencode(beside)) + 2 * _NONCE + 1 <= _MAX_SOCKET_PATH:
        return beside
    digest = hashlib.sha256(os.fsencode(database)).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"winch-bells-{os.getuid()}-{digest}"


def _filter_of(queues: Iterable[str]) -> int:
    bits = 0
    for queue in queues:
        bits |= 1 << (zlib.crc32(queue.encode()) % (8 * _FILTER))
    return bits


@dataclass(frozen=True, slots=True)
class _Slot:
    number: int
    nonce: bytes


class Board:
    """The file that says who waits, and the socket through which this process rings."""

    def __init__(self, database: Path) -> None:
        self.folder: Path = folder_for(database)
        self._is_barred = False
        self._fd: int | None = None
        self._socket: socket.socket | None = None
        self._pid = os.getpid()
        self._guard = threading.Lock()
        self.rings: int = 0

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
        if self._socket is not None:
            self._socket.close()
        self._fd = self._socket = None

    # -- ringing -----------------------------------------------------------------------------------

    def ring(self, ring: Ring) -> None:
        """Wake as many bells as there is work for. Never raises: the poll is there."""
        try:
            fd = self._fd
            if fd is None:
                fd = self._open()
            if fd is not None and _WAITING in (states := os.pread(fd, SLOTS, 0)):
                self._ring_some(fd, states, ring)
        except OSError:
            return

    def _ring_some(self, fd: int, states: bytes, ring: Ring) -> None:
        wanted = {_filter_of((queue,)): count for queue, count in ring.ready.items()}
        # Start somewhere else each time, so that the work is spread.
        turn = secrets.randbelow(SLOTS)
        for number in (*range(turn, SLOTS), *range(turn)):
            if states[number] != _WAITING[0]:
                continue
            record = os.pread(fd, _RECORD, SLOTS + number * _RECORD)
            listens = int.from_bytes(record[_NONCE : _NONCE + _FILTER], "big")
            matches = [bit for bit, left in wanted.items() if left > 0 and bit & listens]
            if matches or (ring.due and record[_NONCE + _FILTER]):
                os.pwrite(fd, _TAKEN, number)
                if self._send(_Slot(number, record[:_NONCE])) and matches:
                    wanted[matches[0]] -= 1

    def _send(self, slot: _Slot) -> bool:
        if self._socket is None:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.setblocking(False)
        self.rings += 1
        try:
            self._socket.sendto(b"!", os.fspath(self.folder / slot.nonce.hex()))
        except BlockingIOError:
            return True  # its socket is full of rings
        except (ConnectionRefusedError, FileNotFoundError):
            self._bury(slot)  # whoever waited there is dead
            return False
        return True

    # -- waiting -----------------------------------------------------------------------------------

    def take(self, queues: Sequence[str], *, due: bool) -> tuple[_Slot, socket.socket] | None:
        """A slot and the socket that is rung for it; None when the board is full."""
        with self._guard:
            return self._take(queues, due)

    def _take(self, queues: Sequence[str], due: bool) -> tuple[_Slot, socket.socket] | None:
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
        return _Slot(number, nonce), bell

    def set_waiting(self, slot: _Slot) -> bool:
        """Say that somebody waits; False when the slot was taken for dead and given away."""
        if self._fd is None or not self._is_mine(self._fd, slot):
            return False
        os.pwrite(self._fd, _WAITING, slot.number)
        return True

    def give_back(self, slot: _Slot) -> None:
        if os.getpid() == self._pid:  # a forked child must not take its parent's away
            self._bury(slot)

    def _free(self, slot: _Slot) -> None:
        with suppress(OSError):
            if self._fd is not None and self._is_mine(self._fd, slot):
                os.pwrite(self._fd, _FREE, slot.number)

    def _is_mine(self, fd: int, slot: _Slot) -> bool:
        if os.pread(fd, 1, slot.number) == _FREE:
            return False
        return os.pread(fd, _NONCE, SLOTS + slot.number * _RECORD) == slot.nonce

    def _free_slot(self, fd: int) -> int | None:
        states = os.pread(fd, SLOTS, 0)
        number = states.find(_FREE)
        if number >= 0:
            return number
        for taken in range(SLOTS):
            slot = _Slot(taken, os.pread(fd, _NONCE, SLOTS + taken * _RECORD))
            if not self._is_alive(slot):
                self._bury(slot)
                return taken
        return None

    def _is_alive(self, slot: _Slot) -> bool:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect(os.fspath(self.folder / slot.nonce.hex()))
            except (ConnectionRefusedError, FileNotFoundError):
                return False
        return True

    def _bury(self, slot: _Slot) -> None:
        self._free(slot)
        with suppress(OSError):
            (self.folder / slot.nonce.hex()).unlink()

    def _open(self) -> int | None:
        """The board's file; None where it cannot be had, and then it is not tried again."""
        if self._is_barred:
            return None
        self._is_barred = True
        self.folder.mkdir(mode=0o700, exist_ok=True)
        found = self.folder.lstat()
        if (
            not stat.S_ISDIR(found.st_mode)
            or found.st_uid != os.getuid()
            or found.st_mode & stat.S_IWOTH
        ):
            return None  # somebody else's: do without
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._fd = os.open(self.folder / "board", flags, 0o600)
        if os.fstat(self._fd).st_size < SLOTS * (1 + _RECORD):
            os.ftruncate(self._fd, SLOTS * (1 + _RECORD))
        self._is_barred = False
        return self._fd


class SqliteBell:
    """One waiting place of one event loop. See Bell in storage/protocol.py.

    `look(seen)` tells which version the file is at, and whether there is something to wake up for if
    that is another than `seen`. `prepare` opens the database; it may block.
    """

    def __init__(
        self,
        board: Callable[[], Board],
        look: Callable[[int | None], tuple[int | None, bool]],
        prepare: Callable[[], None],
        queues: Sequence[str],
        *,
        due: bool,
    ) -> None:
        self._board_now = board
        self._look = look
        self._queues = tuple(queues)
        self._due = due
        self._prepare = prepare
        self._board: Board | None = None
        self._slot: _Slot | None = None
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
        return self._board is not None and self._slot is not None and self._board.set_waiting(self._slot)

    def _register(self) -> None:
        self._board = self._board_now()
        taken = self._board.take(self._queues, due=self._due)
        if taken is not None:
            self._slot, self._socket = taken
            asyncio.get_running_loop().add_reader(self._socket.fileno(), self._ring)

    def _unregister(self) -> None:
        if self._socket is not None:
            with suppress(RuntimeError):  # the loop is gone
                asyncio.get_running_loop().remove_reader(self._socket.fileno())
            self._socket.close()
        if self._slot is not None and self._board is not None:
            self._board.give_back(self._slot)
        self._slot = self._socket = None

    def _ring(self) -> None:
        self._drain()
        self._rang.set()

    def _drain(self) -> None:
        if self._socket is not None:
            with suppress(BlockingIOError):
                while True:
                    self._socket.recv(16)
