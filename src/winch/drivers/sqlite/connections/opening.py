"""Opening connections with Winch's settings."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import TypeVar

from winch.core.errors import ConfigError
from winch.drivers.sqlite.statements import Ring

C = TypeVar("C", bound=sqlite3.Connection)

# How long a caller waits for the file before StorageUnavailable: longer than a transaction may last
# (a third of a lease of 30 s), shorter than what is left of the lease after it.
TIMEOUT = 12.0
_PAGE_CACHE_KB = 8000
_NO_CHECKPOINT_ON_CLOSE = 1006  # SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, settable from Python 3.12


def has_wal_reset_bug(version: tuple[int, ...]) -> bool:
    """Whether this SQLite can lose committed rows when a write races a checkpoint.

    3.7.0 to 3.51.2 have the bug; it was fixed in 3.51.3 and also in 3.44.6 and 3.50.7.
    """
    if (3, 44, 6) <= version < (3, 45) or (3, 50, 7) <= version < (3, 51):
        return False
    return (3, 7, 0) <= version <= (3, 51, 2)


class WinchConnection(sqlite3.Connection):
    """The connection that `SqliteDriver.transaction` gives; it begins and commits for it."""

    ring: Ring
    path: Path

    def commit(self) -> None:
        raise ConfigError("app.transaction() commits at the end of its block; leave the block instead")


def connect(path: Path, kind: type[C]) -> C:
    """A new connection; `configure` makes it one of Winch's."""
    return sqlite3.connect(
        path,
        timeout=TIMEOUT,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=256,
        factory=kind,
    )


def configure(conn: sqlite3.Connection, *, sync: str, is_writer: bool) -> None:
    """Durability as the URL sets it, and no checkpoint that Winch does not make."""
    conn.execute("PRAGMA wal_autocheckpoint = 0")
    conn.execute(f"PRAGMA synchronous = {sync}")
    if is_writer:
        conn.execute("PRAGMA journal_mode = WAL")
        conn.execute(f"PRAGMA cache_size = -{_PAGE_CACHE_KB}")
        # Some builds write every page anew that is no longer used, only to fill it with zeros:
        # nearly half of what the end of a job writes. What is written anyway is still cleared.
        conn.execute("PRAGMA secure_delete = FAST")
    else:
        conn.execute("PRAGMA query_only = ON")
    if hasattr(conn, "setconfig"):
        conn.setconfig(_NO_CHECKPOINT_ON_CLOSE, True)
