"""The WAL's file beside SQLite: room at its end, and what of it is on the disk.

*Room is kept written at its end, so that commits need not make it longer.*

A sync of bytes inside a written file costs one write to the disk. Where the file has become longer,
its new length goes through the file system's journal too, and the sync takes about twice as long. That
befell every commit until the first checkpoint, and all of them in a store that is little used. So
whenever SQLite had to make the file longer, zeros are written behind. They reach the disk with the next
commit's own sync.

*Where commits do not sync* (`sync=normal`), what was written since the last checkpoint is left to the
next one, which waits for the disk that long with the lock held. So the system is told now and then to
begin with it; nobody waits for that.

Why that is safe is in docs/protocol.md (SQLite): zeros are no frame, SQLite never goes by the file's
length but to end its search after a crash, and they are written while this process holds SQLite's own
write lock, behind everything that anybody has written.
"""

from __future__ import annotations

import errno
import functools
import os
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

# About what is written between two checkpoints; more would never be used.
AHEAD_BYTES = 8 * 1024 * 1024
# At once. The next commit waits for them: more at once would show in the 99th percentile.
_STEP = 512 * 1024
# Not the last of a small disk: the database has to grow too.
SPARED_BYTES = 64 * 1024 * 1024
_BLOCK = 4096
_WRITE = 2  # SYNC_FILE_RANGE_WRITE
_TAIL = 8 * 1024  # longer than a frame of the default page size, so that it has the head of one


@functools.cache
def _begin_writing() -> Callable[[int, int, int, int], object] | None:
    """sync_file_range, which Linux has and Python does not offer."""
    try:
        import ctypes  # not by everybody who imports winch

        call = ctypes.CDLL(None).sync_file_range
    except (ImportError, OSError, AttributeError):
        return None
    call.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    begin: Callable[[int, int, int, int], object] = call
    return begin


class OpenFile:
    """A descriptor that is closed when nobody has it any more. SQLite has no record locks on the WAL's
    file, so closing it drops none."""

    def __init__(self, path: Path) -> None:
        self.fd: int = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)

    def __del__(self) -> None:
        with suppress(AttributeError, OSError):
            os.close(self.fd)


class WalFile:
    """The WAL's file, for as long as the writing connection is open: SQLite removes it only when nobody
    has the database open. All calls with the file's lock held."""

    def __init__(self, database: Path) -> None:
        self._path = database.with_name(database.name + "-wal")
        self.file: OpenFile | None = None
        self._end = -1

    def open(self) -> bool:
        """Open the file, and see to it that its name outlives a power cut; whether that could be had."""
        if self.file is None:
            try:
                self.file = OpenFile(self._path)
                folder = os.open(self._path.parent, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    os.fsync(folder)
                finally:
                    os.close(folder)
            except OSError:
                self.close()
        return self.file is not None

    def begin_writing(self) -> None:
        """Have the system begin to write to the disk what it has of the file. Waits for nothing, and
        promises nothing."""
        begin = _begin_writing()
        if begin is not None and self.open() and self.file is not None:
            begin(self.file.fd, 0, 0, _WRITE)  # an error shows in the sync of the checkpoint

    def keep_room(self, conn: sqlite3.Connection) -> None:
        """After a commit: write ahead if it has made the file longer. Never raises: room is a favour."""
        try:
            if not self.open() or self.file is None:
                return
            size = os.lseek(self.file.fd, 0, os.SEEK_END)
            if size != self._end:
                self._end = size
                if _TAIL <= size < AHEAD_BYTES:
                    self._make_room(conn, self.file.fd)
        except (OSError, sqlite3.Error):
            return

    def close(self) -> None:
        self.file = None
        self._end = -1

    def write_again(self, conn: sqlite3.Connection) -> None:
        """After a sync that failed: what the system takes for written may not be on the disk, and no
        later sync would write it. So all of it is written anew, as it is read. Raises OSError or
        sqlite3.Error where that fails too."""
        if not self.open() or self.file is None:
            raise OSError(errno.EIO, f"{self._path} cannot be opened")
        conn.execute("BEGIN IMMEDIATE")  # nobody writes frames meanwhile, and nobody cuts the file
        try:
            at = 0
            while part := os.pread(self.file.fd, _STEP, at):
                at += os.pwrite(self.file.fd, part, at)
            os.fdatasync(self.file.fd)
        finally:
            conn.execute("ROLLBACK")

    def _make_room(self, conn: sqlite3.Connection, fd: int) -> None:
        [patience] = conn.execute("PRAGMA busy_timeout").fetchone()
        conn.execute("PRAGMA busy_timeout = 0")
        try:
            # Connections that are not ours write without our lock; this one they respect.
            conn.execute("BEGIN IMMEDIATE")
            try:
                self._write_ahead(fd)
            finally:
                conn.execute("ROLLBACK")
        finally:
            conn.execute(f"PRAGMA busy_timeout = {patience}")

    def _write_ahead(self, fd: int) -> None:
        """Only with SQLite's write lock held: nobody can write to the file, cut it or remove it."""
        size = self._end = os.fstat(fd).st_size
        # One that is empty stays so: its head would be zeros.
        if not _TAIL <= size < AHEAD_BYTES or self._has_room(fd, size):
            return
        space = os.fstatvfs(fd)
        if space.f_bavail * space.f_frsize < SPARED_BYTES:
            return
        end = (size + min(_STEP, AHEAD_BYTES - size)) // _BLOCK * _BLOCK
        try:
            written = os.pwrite(fd, bytes(end - size), size)
        except OSError:
            with suppress(OSError):
                os.ftruncate(fd, size)
            return
        self._end = size + written

    def _has_room(self, fd: int, size: int) -> bool:
        """Whether another process has written ahead."""
        return not os.pread(fd, _TAIL, size - _TAIL).strip(b"\0")
