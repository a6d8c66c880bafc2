"""The connections to one database file, and the lock under which they write and close.

One connection writes, some read, one looks whether the file has changed, one carries `transaction()`.
No connection checkpoints by itself: on SQLite builds with the WAL-reset bug a checkpoint that meets a
write from another connection can lose committed rows, so checkpoints are the writer's, under the lock.
The last connection that closes checkpoints too, so closing also happens under the lock, and so does
the closing of what a forgotten driver leaves behind.

A SQLite connection must not be carried across a fork: the child would believe in locks that it does not
have. All connections are therefore closed just before a fork and opened again on the next use.
Until the fork is over, fork_gate.py keeps the other threads from opening or reading.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from winch.core.errors import StorageError, StorageUnavailable, WinchError
from winch.drivers.sqlite.address import Address, prepare
from winch.drivers.sqlite.connections import fork_gate
from winch.drivers.sqlite.connections.checkpoints import Checkpoints
from winch.drivers.sqlite.connections.file_lock import FileLock
from winch.drivers.sqlite.connections.opening import (
    TIMEOUT,
    C,
    WinchConnection,
    configure,
    connect,
)
from winch.drivers.sqlite.errors import spoils_connection, translated

CLOSE_TIMEOUT = 2.0
_LOOK_SECONDS = 0.1
# Connections that could not be closed under the lock. They stay referenced, because the garbage
# collector would close them without it.
_left_open: list[sqlite3.Connection] = []


class Connections:
    """The connections of one driver. Opens what is asked for; `close` is undone by the next use."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self.path: Path = address.path
        self._next_look = 0.0
        self._guard = threading.Lock()
        self._lock: FileLock | None = None
        self._identity: tuple[int, int] | None = None
        self._writing: sqlite3.Connection | None = None
        self._carrying: WinchConnection | None = None
        self._looking: sqlite3.Connection | None = None
        self._idle: list[sqlite3.Connection] = []
        self._reading = 0
        self._is_forked_open = False
        self._is_left_to_child = False
        self._fork_lock: FileLock | None = None
        self._has_fork_lock = False
        self._checkpoints = Checkpoints()
        self.opening: int = 0
        """The number of the opening of the file that holds now; 0 while it is closed."""
        self._openings = 0
        fork_gate.add(self)

    # -- the file ----------------------------------------------------------------------------------

    def lock(self) -> FileLock:
        """The file's lock; the first call checks the file, or creates it."""
        if self._lock is not None:
            return self._lock
        with self._outside_forks():
            self.refuse_forked()
            if self._lock is None:
                self.path = prepare(self._address.path)
                self._next_look = 0.0
                found = self.path.stat()
                self._identity = (found.st_dev, found.st_ino)
                self._lock = FileLock(self.path.with_name(self.path.name + "-lock"))
                self._openings += 1
                self.opening = self._openings
            return self._lock

    def acquire(self, timeout: float = TIMEOUT) -> FileLock:
        """Take the file's lock; give it back with `release`."""
        if fork_gate.gate.forker is not None:  # it gets the lock next, however many others want it
            self._wait_for_fork(timeout)
        while True:
            lock = self._lock or self.lock()
            if lock.acquire(timeout):
                if self._lock is lock:
                    return lock
                self.release(lock)

    def release(self, lock: FileLock) -> None:
        lock.release()
        if self._lock is not lock:  # closed while it was held
            lock.close()

    def refuse_forked(self) -> None:
        if self._is_forked_open:
            raise StorageError(
                f"this process was forked while {self.path} was in use, and SQLite does not survive "
                "that; fork outside of transactions and reads, or start children with 'spawn'"
            )

    def check_identity(self) -> None:
        """With the lock held: raise when the file at the path is no longer the one that is open.

        Writing on would store jobs in a file that no other process can see. Checked ten times a second.
        """
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + _LOOK_SECONDS
        try:
            found = self.path.stat()
            is_same = (found.st_dev, found.st_ino) == self._identity
        except FileNotFoundError:
            is_same = False
        if not is_same:
            self._close_all()
            raise StorageUnavailable(f"{self.path} was removed or replaced while open; try again")

    # -- connections -------------------------------------------------------------------------------

    def checked_writer(self) -> sqlite3.Connection:
        """The writing connection to a file that is still at its path. Only with the lock held."""
        if time.monotonic() >= self._next_look:
            self.check_identity()
        return self._writing or self.writer()

    def writer(self) -> sqlite3.Connection:
        """The writing connection. Only with the lock held."""
        if self._writing is None:
            self._writing = self.open(sqlite3.Connection, is_writer=True)
            # What a statement or savepoint would need to be taken back, which else goes through a file
            # from 64 KiB on: a batch of claims is more. Not for `carrier`, where the application decides
            # how much that is.
            self._writing.execute("PRAGMA temp_store = MEMORY")
        return self._writing

    def carrier(self) -> WinchConnection:
        """The connection that carries `transaction()`. Only with the lock held."""
        if self._carrying is None:
            self._carrying = self.open(WinchConnection, is_writer=True)
        return self._carrying

    @contextmanager
    def watcher(self) -> Iterator[sqlite3.Connection | None]:
        """The connection that sees whether the file has changed; None while the driver is closed, and
        while the process forks: an event loop does not wait for that."""
        with self._guard:
            is_open = self._lock is not None and not fork_gate.gate.is_shut()
            if is_open and self._looking is None:
                self._looking = self.open(sqlite3.Connection, is_writer=False)
                self._looking.execute("PRAGMA busy_timeout = 0")
            conn = self._looking if is_open else None
            self._reading += conn is not None
        try:
            yield conn
        finally:
            with self._guard:
                self._reading -= conn is not None

    @contextmanager
    def reader(self) -> Iterator[sqlite3.Connection]:
        """A reading connection to oneself; readers never wait for writers."""
        with self._outside_forks():
            self.refuse_forked()
            conn = self._idle.pop() if self._idle else None
            self._reading += 1
        try:
            if conn is None:
                conn = self.open(sqlite3.Connection, is_writer=False)
            yield conn
        except BaseException as error:
            if conn is not None:
                with suppress(sqlite3.Error):
                    conn.rollback()
                if spoils_connection(error):
                    self._retire(conn)
                    conn = None
            raise
        finally:
            with self._guard:
                self._reading -= 1
                if conn is not None:
                    self._idle.append(conn)

    def open(self, kind: type[C], *, is_writer: bool) -> C:
        """A new connection with Winch's settings."""
        try:
            conn = connect(self.path, kind)
        except sqlite3.Error as error:
            raise translated(error, self.path) from error
        try:
            configure(conn, sync=self._address.sync, is_writer=is_writer)
        except sqlite3.Error as error:
            self._retire(conn)
            raise translated(error, self.path) from error
        return conn

    # -- upkeep ------------------------------------------------------------------------------------

    def is_checkpoint_due(self, changes: int) -> bool:
        """After a commit with this many changed rows: whether it is time for a checkpoint."""
        return self._checkpoints.is_due(self.path, changes)

    def checkpoint(self) -> None:
        """Copy the WAL into the database. Only with the lock held."""
        try:
            self._checkpoints.run(self.path, self.writer())
        except sqlite3.Error as error:
            if spoils_connection(error):
                self.discard_writer()

    def make_room(self) -> None:
        """After a write that found the disk full: the WAL itself may be what fills it, and only a
        checkpoint lets it be written from its start again. Each process counts no more than its own
        writes, so that no process may have thought one due. Only with the lock held."""
        self.checkpoint()

    def discard_writer(self) -> None:
        """Throw the writing connection away after an I/O error. Only with the lock held."""
        conn, self._writing = self._writing, None
        if conn is not None:
            _close(conn)

    def discard_carrier(self) -> None:
        """The same for the connection of `transaction()`."""
        conn, self._carrying = self._carrying, None
        if conn is not None:
            _close(conn)

    def forget_carrier(self) -> None:
        """Leave the connection of `transaction()` to its holder; the next transaction gets another."""
        self._carrying = None

    def close(self, timeout: float = CLOSE_TIMEOUT) -> None:
        """Close all connections, under the lock; waits until reads and writes have ended."""
        if self._lock is None:
            return
        try:
            lock = self.acquire(timeout)
        except StorageError:
            self._leave_open()
            return
        try:
            if self._wait_for_readers(timeout):
                self._close_all()
            else:
                self._leave_open()
        finally:
            self.release(lock)

    def _wait_for_readers(self, timeout: float) -> bool:
        deadline = time.monotonic() + timeout
        while self._reading and time.monotonic() < deadline:
            time.sleep(0.001)
        return not self._reading

    def _close_all(self) -> None:
        with self._guard:
            self._lock = None
            self._identity = None
            self.opening = 0
            gone = [*self._idle, self._looking, self._carrying, self._writing]
            self._idle = []
            self._looking = self._carrying = self._writing = None
        for conn in gone:
            if conn is not None:
                _close(conn)

    def forget(self) -> None:
        """`close` for a driver that was dropped. It may be collected anywhere, also inside a
        transaction of another driver of the same file; then its connections stay open."""
        try:
            self.close()
        except WinchError:
            self._leave_open()

    def _leave_open(self) -> None:
        with self._guard:
            gone = [*self._idle, self._looking, self._carrying, self._writing]
            self._idle = []
            self._looking = self._carrying = self._writing = None
            self._lock = None
            self.opening = 0
        _left_open.extend(conn for conn in gone if conn is not None)

    def _retire(self, conn: sqlite3.Connection) -> None:
        lock = self._lock
        if lock is not None and lock.is_mine:
            _close(conn)
            return
        try:
            lock = self.acquire(CLOSE_TIMEOUT)
        except StorageError:
            _left_open.append(conn)
            return
        try:
            _close(conn)
        finally:
            self.release(lock)

    # -- fork --------------------------------------------------------------------------------------

    @contextmanager
    def _outside_forks(self) -> Iterator[None]:
        """The guard, at a moment when no other thread forks."""
        while True:
            with self._guard:
                if not fork_gate.gate.is_shut() or self._is_holder:
                    yield
                    return
            fork_gate.gate.wait(TIMEOUT)

    def _wait_for_fork(self, timeout: float) -> None:
        if fork_gate.gate.is_shut() and not self._is_holder:
            fork_gate.gate.wait(timeout)

    @property
    def _is_holder(self) -> bool:
        """Whether this thread has the file's lock. A fork waits for it, so it must not wait for one."""
        return self._lock is not None and self._lock.is_mine

    def before_fork(self, taken: list[FileLock]) -> None:
        """Close all connections, and keep the file's lock until the fork is over. `taken` are the locks
        that the fork has for others. Waits a few seconds at most for threads that use the file.

        A thread that stays inside a transaction for longer keeps its connections, and the child refuses
        the file.
        """
        self._is_left_to_child = not self._close_for_fork(taken)

    def _close_for_fork(self, taken: list[FileLock]) -> bool:
        if not self._guard.acquire(timeout=CLOSE_TIMEOUT):
            return False
        is_used = bool(self._lock or self._looking or self._idle or self._reading)
        self._guard.release()
        if not is_used:
            return True
        try:
            lock = self.lock()
            if not any(map(lock.is_same, taken)):  # another driver may have the same file
                lock = self.acquire(CLOSE_TIMEOUT)
                self._has_fork_lock = True
                taken.append(lock)
        except WinchError:  # a thread is in a transaction
            return False
        self._fork_lock = lock
        if not self._wait_for_readers(CLOSE_TIMEOUT):
            return False
        self._close_all()
        return True

    def after_fork_in_parent(self) -> None:
        lock, self._fork_lock = self._fork_lock, None
        if lock is None:
            return
        if self._has_fork_lock:
            self._has_fork_lock = False
            self.release(lock)
        elif self._lock is not lock:
            lock.close()

    def after_fork_in_child(self) -> None:
        self._guard = threading.Lock()
        self._fork_lock = None
        self._has_fork_lock = False
        self._reading = 0
        if self._is_left_to_child:
            self._is_forked_open = True
            self._leave_open()  # closing would wait for SQLite's mutexes, which other threads had


def _close(conn: sqlite3.Connection) -> None:
    with suppress(sqlite3.Error):
        conn.close()
