"""Keeps written room at the end of the WAL's file, so that commits need not make it longer.

A sync of bytes inside a written file costs one write to the disk. Where the file has become longer,
its new length goes through the file system's journal too, and the sync takes about twice as long. That
befell every commit until the first checkpoint, and all of them in a store that is little used. So
whenever SQLite had to make the file longer, zeros are written behind. They reach the disk with the next
commit's own sync.

Why that is safe is in docs/protocol.md (SQLite): zeros are no frame, SQLite never goes by the file's
length but to end its search after a crash, and they are written while this process holds SQLite's own
write lock, behind everything that anybody has written.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import suppress
from pathlib import Path

# About what is written between two checkpoints; more would never be used.
AHEAD_BYTES = 8 * 1024 * 1024
# At once. The next commit waits for them: more at once would show in the 99th percentile.
_STEP = 512 * 1024
# Not the last of a small disk: the database has to grow too.
SPARED_BYTES = 64 * 1024 * 1024
_BLOCK = 4096
_TAIL = 8 * 1024  # longer than a frame of the default page size, so that it has the head of one


class WalFile:
    """The WAL's file, for as long as the writing connection is open: SQLite removes it only when nobody
    has the database open. All calls with the file's lock held."""

    def __init__(self, database: Path) -> None:
        self._path = database.with_name(database.name + "-wal")
        self._fd = -1
        self._end = -1

    def keep_room(self, conn: sqlite3.Connection) -> None:
        """After a commit: write ahead if it has made the file longer. Never raises: room is a favour."""
        try:
            if self._fd < 0:
                self._fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            size = os.lseek(self._fd, 0, os.SEEK_END)
            if size != self._end:
                self._end = size
                if _TAIL <= size < AHEAD_BYTES:
                    self._make_room(conn)
        except (OSError, sqlite3.Error):
            return

    def close(self) -> None:
        # SQLite has no record locks on this file, so closing it drops none.
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = self._end = -1

    def _make_room(self, conn: sqlite3.Connection) -> None:
        [patience] = conn.execute("PRAGMA busy_timeout").fetchone()
        conn.execute("PRAGMA busy_timeout = 0")
        try:
            # Connections that are not ours write without our lock; this one they respect.
            conn.execute("BEGIN IMMEDIATE")
            try:
                self._write_ahead()
            finally:
                conn.execute("ROLLBACK")
        finally:
            conn.execute(f"PRAGMA busy_timeout = {patience}")

    def _write_ahead(self) -> None:
        """Only with SQLite's write lock held: nobody can write to the file, cut it or remove it."""
        size = self._end = os.fstat(self._fd).st_size
        # One that is empty stays so: its head would be zeros.
        if not _TAIL <= size < AHEAD_BYTES or self._has_room(size):
            return
        space = os.fstatvfs(self._fd)
        if space.f_bavail * space.f_frsize < SPARED_BYTES:
            return
        end = (size + min(_STEP, AHEAD_BYTES - size)) // _BLOCK * _BLOCK
        try:
            written = os.pwrite(self._fd, bytes(end - size), size)
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._fd, size)
            return
        self._end = size + written

    def _has_room(self, size: int) -> bool:
        """Whether another process has written ahead."""
        return not os.pread(self._fd, _TAIL, size - _TAIL).strip(b"\0")
