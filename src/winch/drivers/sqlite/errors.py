"""SQLite's errors as Winch's: what happened, to which file, and what to do about it."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from winch.core.errors import StorageError, StorageFull, StorageUnavailable, WinchError

# Primary result codes; extended ones carry them in their low byte.
_PRIMARY = 0xFF
_NEVER_AGAIN = frozenset(
    {sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CANTOPEN}
)


def code_of(error: BaseException) -> int:
    """The primary result code, or SQLITE_OK for an error that SQLite did not report."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK) & _PRIMARY


def spoils_connection(error: BaseException) -> bool:
    """After an I/O error it is unknown what reached the disk: such a connection is not used again."""
    return code_of(error) in _NEVER_AGAIN


def is_full(error: BaseException) -> bool:
    """Whether there was no room on the disk."""
    return code_of(error) == sqlite3.SQLITE_FULL


def translated(error: BaseException, path: Path, *, in_commit: bool = False) -> BaseException:
    """The error as the caller sees it; errors that are not SQLite's pass as they are.

    `in_commit`: an I/O error there leaves open whether the change is on the disk.
    """
    if isinstance(error, WinchError) or not isinstance(error, sqlite3.Error):
        return error
    own = _as_winch_error(error, path, in_commit)
    own.__cause__ = error
    return own


def _as_winch_error(error: sqlite3.Error, path: Path, in_commit: bool) -> WinchError:
    match code_of(error):
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return StorageUnavailable(f"{path} stayed locked by another connection: {error}")
        case sqlite3.SQLITE_FULL:
            return StorageFull(f"no room to write {path}: {error}. Free space on its disk")
        case sqlite3.SQLITE_IOERR:
            return StorageUnavailable(
                f"reading or writing {path} failed: {error}. Look at the disk and the system's log",
                maybe_applied=in_commit,
            )
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM | sqlite3.SQLITE_AUTH:
            return StorageError(
                f"{path} cannot be written: {error}. This user needs write permission for the file "
                "and for its folder"
            )
        case sqlite3.SQLITE_CANTOPEN:
            return StorageError(
                f"{path} cannot be opened: {error}. This user needs permission for it and its folder"
            )
        case sqlite3.SQLITE_NOTADB:
            return StorageError(
                f"{path} is not a SQLite database: {error}. Give the URL of another file"
            )
        case sqlite3.SQLITE_CORRUPT:
            return StorageError(f"{path} is damaged: {error}. Restore it from a backup")
    return StorageError(f"SQLite failed on {path}: {error}")
