"""When to copy the WAL into the database, and how."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from winch.drivers.sqlite.connections.opening import TIMEOUT

# Checkpoint after about this much has been written to the WAL. SQLite does not report how much of
# the file is in use, because it writes the file from its start again after a checkpoint; so this is an
# estimate from above.
# A checkpoint syncs twice, however little it copies: at half of this a producer of single jobs whose
# commits do not sync waited 1.6 times as long for the disk.
CHECKPOINT_BYTES = 8 * 1024 * 1024
_COMMIT_BYTES, _CHANGE_BYTES = 12 * 1024, 700
# A checkpoint that a long read kept from coming to its end is tried again after this much more.
_CHECKPOINT_STEP = 1024 * 1024

# After so many commits of its own a process looks how long the WAL's file has become.
_LOOK_EVERY = 256
# Not cut shorter each time: appending to a file makes each sync twice as slow as writing within it.
WAL_FILE_BYTES = 16 * 1024 * 1024


class Checkpoints:
    """Counts what this process writes to the WAL. `count` is how many checkpoints it has made."""

    def __init__(self) -> None:
        self.count: int = 0
        self._written = 0
        self._commits = 0

    def is_due(self, path: Path, changes: int) -> bool:
        """After a commit with this many changed rows: whether it is time for a checkpoint."""
        if changes:
            self._written += _COMMIT_BYTES + changes * _CHANGE_BYTES
            self._commits += 1
            # Other processes write too, and are not counted here: their sum shows in the file.
            if self._commits % _LOOK_EVERY == 0 and wal_bytes(path) > WAL_FILE_BYTES:
                return True
        return self._written > CHECKPOINT_BYTES

    def run(self, path: Path, conn: sqlite3.Connection) -> None:
        """Copy the WAL into the database, so that SQLite writes it from its start again. Only with the
        file's lock held. After an error all commits are still in the WAL; the next one tries again."""
        self.count += 1
        is_whole = False
        try:
            if wal_bytes(path) > WAL_FILE_BYTES:
                conn.execute("PRAGMA busy_timeout = 20")  # for readers, which are mostly quick
                conn.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
                conn.execute(f"PRAGMA busy_timeout = {int(TIMEOUT * 1000)}")
                is_whole = wal_bytes(path) == 0
            else:
                _, frames, copied = conn.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
                is_whole = frames == copied
        finally:
            self._written = 0 if is_whole else CHECKPOINT_BYTES - _CHECKPOINT_STEP


def wal_bytes(path: Path) -> int:
    """How long the file of the WAL is."""
    try:
        return path.with_name(path.name + "-wal").stat().st_size
    except FileNotFoundError:
        return 0
