"""The connections to one database file: opening, lending and closing them.

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
from winch.drivers.sqlite.connections.file_lock import OpenFile
from winch.drivers.sqlite.connections.opening import (
    TIMEOUT,
    C,
    WinchConnection,
    configure,
    connect,
)
from winch.drivers.sqlite.errors import spoils_connection, translated

CLOSE_TIMEOUT = 2.0
# Connections that could not be closed under the lock. They stay referenced, because the garbage
# collector would close them without it.
_left_open: list[sqlite3.Connection] = []


class Connections:
    """The connections of one driver. Opens what is asked for; `close` is undone by the next use."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self.path: Path = address.path
        self.is_synced: bool = address.sync == "full"
        self._guard = threading.Lock()
        self.file: OpenFile | None = None
        """The opening of the file that holds now; None while it is closed."""
        self._carrying: WinchConnection | None = None
        self._looking: sqlite3.Connection | None = None
        self._idle: list[sqlite3.Connection] = []
        self._reading = 0
        self._is_forked_open = False
        self._is_left_to_child = False
        self._fork_file: OpenFile | None = None
        self._has_fork_lock = False
        fork_gate.add(self)

    # -- the file ----------------------------------------------------------------------------------

    def open_file(self) -> OpenFile:
        """The file, and its lock; the first call checks the file, or creates it."""
        if self.file is not None:
            return self.file
        with self._outside_forks():
            self.refuse_forked()
            if self.file is None:
                self.path = prepare(self._address.path)
                self.file = OpenFile(self.path)
            return self.file

    def acquire(self, timeout: float = TIMEOUT) -> OpenFile:
        """The file with its lock taken; give that back with `release`."""
        while True:
            file = self.open_file()
            if file.acquire(timeout):
                return file

    def refuse_forked(self) -> None:
        if self._is_forked_open:
            raise StorageError(
                f"this process was forked while {self.path} was in use, which SQLite does not "
                "support; fork outside of transactions and reads, or start children with 'spawn'"
            )

    def drop_replaced(self) -> StorageUnavailable:
        """Close a file that is no longer at its path; returns what to raise. With the lock held."""
        self._close_all()
        return StorageUnavailable(f"{self.path} was removed or replaced while open; try again")

    # -- connections -------------------------------------------------------------------------------

    def writer(self) -> sqlite3.Connection:
        """The writing connection. Only with the lock held."""
        file = self.open_file()
        if file.writing is None:
            file.writing = self.open(sqlite3.Connection, is_writer=True)
            # What a statement or savepoint would need to be taken back, which else goes through a file
            # from 64 KiB on: a batch of claims is more. Not for `carrier`, where the application decides
            # how much that is.
            file.writing.execute("PRAGMA temp_store = MEMORY")
        return file.writing

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
            is_forking = fork_gate.gate.forker is not None and fork_gate.gate.is_shut()
            is_open = self.file is not None and not is_forking
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

    def discard_writer(self) -> None:
        """Throw the writing connection away after an I/O error. Only with the lock held."""
        if self.file is not None and self.file.writing is not None:
            _close(self.file.writing)
            self.file.writing = None

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
        if self.file is None:
            return
        try:
            file = self.acquire(timeout)
        except StorageError:
            self._leave_open()
            return
        try:
            if self._wait_for_readers(timeout):
                self._close_all()
            else:
                self._leave_open()
        finally:
            file.release()

    def _wait_for_readers(self, timeout: float) -> bool:
        deadline = time.monotonic() + timeout
        while self._reading and time.monotonic() < deadline:
            time.sleep(0.001)
        return not self._reading

    def _close_all(self) -> None:
        for conn in self._taken_out():
            _close(conn)

    def _taken_out(self) -> list[sqlite3.Connection]:
        """All connections; the next use opens the file anew."""
        with self._guard:
            file, self.file = self.file, None
            gone = [*self._idle, self._looking, self._carrying]
            self._idle = []
            self._looking = self._carrying = None
        if file is not None:
            gone.append(file.writing)
            file.writing = None
            file.is_over = True
        return [conn for conn in gone if conn is not None]

    def forget(self) -> None:
        """`close` for a driver that was dropped. It may be collected anywhere, also inside a
        transaction of another driver of the same file; then its connections stay open."""
        try:
            self.close()
        except WinchError:
            self._leave_open()

    def _leave_open(self) -> None:
        _left_open.extend(self._taken_out())

    def _retire(self, conn: sqlite3.Connection) -> None:
        if self._is_holder:
            _close(conn)
            return
        try:
            file = self.acquire(CLOSE_TIMEOUT)
        except StorageError:
            _left_open.append(conn)
            return
        try:
            _close(conn)
        finally:
            file.release()

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

    @property
    def _is_holder(self) -> bool:
        """Whether this thread has the file's lock. A fork waits for it, so it must not wait for one."""
        return self.file is not None and self.file.is_mine

    def before_fork(self, taken: list[OpenFile]) -> None:
        """Close all connections, and keep the file's lock until the fork is over. `taken` are the locks
        that the fork has for others. Waits a few seconds at most for threads that use the file.

        A thread that stays inside a transaction for longer keeps its connections, and the child refuses
        the file.
        """
        self._is_left_to_child = not self._close_for_fork(taken)

    def _close_for_fork(self, taken: list[OpenFile]) -> bool:
        if not self._guard.acquire(timeout=CLOSE_TIMEOUT):
            return False
        is_used = bool(self.file or self._looking or self._idle or self._reading)
        self._guard.release()
        if not is_used:
            return True
        try:
            file = self.open_file()
            if not any(map(file.is_same, taken)):  # another driver may have the same file
                file = self.acquire(CLOSE_TIMEOUT)
                self._has_fork_lock = True
                taken.append(file)
        except WinchError:  # a thread is in a transaction
            return False
        self._fork_file = file
        if not self._wait_for_readers(CLOSE_TIMEOUT):
            return False
        self._close_all()
        return True

    def after_fork_in_parent(self) -> None:
        file, self._fork_file = self._fork_file, None
        if file is None:
            return
        if self._has_fork_lock:
            self._has_fork_lock = False
            file.release()
        elif file.is_over:
            file.close()

    def after_fork_in_child(self) -> None:
        self._guard = threading.Lock()
        self._fork_file = None
        self._has_fork_lock = False
        self._reading = 0
        if self._is_left_to_child:
            self._is_forked_open = True
            self._leave_open()  # closing would wait for SQLite's mutexes, which other threads had


def _close(conn: sqlite3.Connection) -> None:
    with suppress(sqlite3.Error):
        conn.close()
