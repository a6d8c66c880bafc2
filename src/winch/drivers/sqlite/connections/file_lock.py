"""The fair lock between processes that every write and every checkpoint holds.

SQLite's own waiting is a row of sleeps: of two busy processes one can get every turn and the other none
for seconds. And builds with the WAL-reset bug lose committed rows when a write meets a checkpoint from
another connection, so the two must be kept apart. Hence this lock.

It is two record locks on a file beside the database. A writer takes the *waiting room* first, then the
*write* lock, and leaves the room once it has it. A process that has just written finds the room taken
and cannot overtake. The room is for fairness only: after a second outside (the process inside may be
stopped in a debugger) a writer tries the write lock directly.

Record locks belong to the process: the kernel frees them when it dies, a forked child does not inherit
them, threads do not exclude each other by them, and closing *any* descriptor of the file drops them. So
there is one descriptor and one mutex per file in a process, found by the file's number and never closed
while anything uses it.

`OpenFile` is the lock of a database together with what is used only under it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import sqlite3
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from winch.core.errors import ConfigError, StorageError, StorageUnavailable
from winch.drivers.sqlite.connections import fork_gate

_ROOM, _WRITE = 0, 1  # bytes of the file
_TRY, _GIVE_BACK = fcntl.LOCK_EX | fcntl.LOCK_NB, fcntl.LOCK_UN
_PATIENCE = 1.0
_YIELDS = 20
_NEAR_PAUSE, _FAR_PAUSE = 0.00005, 0.0003
_LOOK_SECONDS = 0.1


@dataclass(eq=False)
class LockFile:
    """What this process knows about one lock file."""

    key: tuple[int, int]
    fd: int
    users: int = 0
    mutex: threading.Lock = field(default_factory=threading.Lock)
    owner: int | None = None


_files: dict[tuple[int, int], LockFile] = {}
_guard = threading.Lock()


class FileLock:
    """The lock of one database. Any number of these may exist for one file, in any threads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._held = _join(path)
        self._is_closed = False

    def acquire(self, timeout: float) -> bool:
        """Take the lock; raises StorageUnavailable when `timeout` seconds were not enough.

        False: it was closed by another thread in the meantime.
        """
        held = self._held
        mutex = held.mutex
        began = 0.0
        if not mutex.acquire(False):
            if held.owner == threading.get_ident():
                raise ConfigError(
                    "this thread is inside driver.transaction(), which holds the database; "
                    "pass its connection: conn="
                )
            began = time.monotonic()
            if not mutex.acquire(timeout=timeout):
                raise self._too_late(timeout)
        if held.fd < 0:
            mutex.release()
            return False
        try:
            try:
                fcntl.lockf(held.fd, _TRY, 2, _ROOM)  # no process waits or writes
            except OSError:
                if not self._wait(held.fd, (began or time.monotonic()) + timeout):
                    raise self._too_late(timeout) from None
            else:
                fcntl.lockf(held.fd, _GIVE_BACK, 1, _ROOM)
            held.owner = threading.get_ident()
        except BaseException:
            mutex.release()
            raise
        return True

    def release(self) -> None:
        held = self._held
        held.owner = None
        fcntl.lockf(held.fd, _GIVE_BACK, 1, _WRITE)
        held.mutex.release()

    @property
    def is_mine(self) -> bool:
        """Whether this thread holds it."""
        return self._held.owner == threading.get_ident()

    def is_same(self, other: FileLock) -> bool:
        """Whether both are the lock of one file."""
        return self._held is other._held

    def close(self) -> None:
        """Forget the file once nothing in this process uses it. Not while holding the lock."""
        with _guard:
            if self._is_closed:
                return
            self._is_closed = True
            held = self._held
            held.users -= 1
            if held.users == 0:
                del _files[held.key]
                with held.mutex:  # a thread that waits for it finds a closed lock
                    os.close(held.fd)
                    held.fd = -1

    def _wait(self, fd: int, deadline: float) -> bool:
        # Looking again every so often, and not a blocking call: that one has no timeout, and a process
        # that was stopped while it holds the lock would stop all others with it.
        impatient_at = time.monotonic() + _PATIENCE
        tries = 0
        is_inside = False
        try:
            while True:
                is_inside = is_inside or _try_lock(fd, _ROOM)
                now = time.monotonic()
                if (is_inside or now > impatient_at) and _try_lock(fd, _WRITE):
                    return True
                if now > deadline:
                    return False
                tries += 1
                if not is_inside:
                    time.sleep(_FAR_PAUSE)
                else:
                    time.sleep(0 if tries < _YIELDS else _NEAR_PAUSE)
        finally:
            if is_inside:
                _unlock(fd, _ROOM)

    def _too_late(self, timeout: float) -> StorageUnavailable:
        return StorageUnavailable(
            f"another process or transaction has held {self._path} for more than {timeout:g} seconds"
        )


class OpenFile(FileLock):
    """One opening of a database: its lock, and the connection that writes under it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path.with_name(path.name + "-lock"))
        self.path = path
        self._identity = _identity(path)
        self._next_look = 0.0
        self.writing: sqlite3.Connection | None = None
        """Only with the lock held."""
        self.is_ready: bool = False
        """Whether its schema is known to be up to date."""
        self.is_over: bool = False
        """Its driver no longer uses this opening; the last to release the lock closes it."""

    def acquire(self, timeout: float) -> bool:
        """As FileLock does. False also when this opening is over. A fork gets the lock next, however
        many threads want it."""
        if fork_gate.gate.forker is not None and not self.is_mine and fork_gate.gate.is_shut():
            fork_gate.gate.wait(timeout)
        if not FileLock.acquire(self, timeout):  # super() takes a tenth of what the lock takes
            return False
        if self.is_over:
            self.release()
            return False
        return True

    def release(self) -> None:
        FileLock.release(self)
        if self.is_over:
            self.close()

    def is_replaced(self) -> bool:
        """With the lock held: whether the file at the path is no longer the one that is open.

        Writing on would store jobs in a file that no other process can see. Checked ten times a second.
        """
        now = time.monotonic()
        if now < self._next_look:
            return False
        self._next_look = now + _LOOK_SECONDS
        try:
            return _identity(self.path) != self._identity
        except FileNotFoundError:
            return True


def _identity(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino


def _join(path: Path) -> LockFile:
    with _guard:
        held = None
        if path.exists():
            held = _files.get(_identity(path))
        if held is None:
            try:
                fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            except OSError as error:
                raise StorageError(
                    f"the lock file {path} cannot be opened: {error}. This user needs write permission "
                    "for it and for its folder"
                ) from error
            found = os.fstat(fd)
            held = LockFile((found.st_dev, found.st_ino), fd)
            _files[held.key] = held
        held.users += 1
        return held


def _try_lock(fd: int, byte: int) -> bool:
    try:
        fcntl.lockf(fd, _TRY, 1, byte)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            return False
        raise StorageUnavailable(f"the lock beside the database cannot be taken: {error}") from error
    return True


def _unlock(fd: int, byte: int) -> None:
    fcntl.lockf(fd, _GIVE_BACK, 1, byte)


def _forget() -> None:
    """In a forked child: it holds nothing, and the threads that held mutexes are not here."""
    global _guard  # noqa: PLW0603  # the parent's may have been taken at the moment of the fork
    _guard = threading.Lock()
    for held in _files.values():
        held.mutex = threading.Lock()
        held.owner = None


os.register_at_fork(after_in_child=_forget)
