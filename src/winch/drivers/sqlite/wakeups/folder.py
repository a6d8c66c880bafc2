"""The folder of the bells of one database: entering it, leaving it, and removing it.

It is beside the database, or, where that path is too long for a socket, in the folder for temporary
files. A process that opens the board holds a shared lock on the file `users` in it, and the kernel
releases that lock when the process dies. A process that gets the lock exclusively is alone: the last
process to leave removes the folder, and the first to enter removes what dead processes have left.
A process whose locked file was removed meanwhile sees that the name is gone, and begins again.

A folder whose processes were all killed is found by the next worker that starts on any database whose
bells are in the folder for temporary files.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import socket
import stat
import tempfile
import time
from collections.abc import Iterable
from contextlib import closing, suppress
from pathlib import Path

NONCE_BYTES = 8
_USERS, _BOARD = "users", "board"
_SOCKET = re.compile(rf"[0-9a-f]{{{2 * NONCE_BYTES}}}")
_PREFIX = "winch-bells-"
_MAX_SOCKET_PATH = 100  # the kernel allows 108 bytes, macOS 104
_TRIES, _PAUSE = 50, 0.001
# A folder without `users` is being made just now, or was made by a release that had no such file.
_OLD_SECONDS = 3600
_SWEEP_LIMIT = 200


def folder_for(database: Path) -> Path:
    """Where the bells of a database are: beside it, or where that path is too long for a socket, in a
    folder for temporary files under a name that all processes derive alike."""
    beside = database.with_name(database.name + "-bells")
    if len(os.fsencode(beside)) + 2 * NONCE_BYTES + 1 <= _MAX_SOCKET_PATH:
        return beside
    digest = hashlib.sha256(os.fsencode(database)).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"{_PREFIX}{os.getuid()}-{digest}"


def is_temporary(folder: Path) -> bool:
    return folder.parent == Path(tempfile.gettempdir()) and folder.name.startswith(_PREFIX)


def enter(folder: Path, database: Path) -> int | None:
    """Be among the users of the folder, which is made if need be; a descriptor to `leave` with.

    None: it belongs to another user, or cannot be had at the moment.
    """
    for _ in range(_TRIES):
        try:
            with suppress(FileExistsError):
                folder.mkdir(mode=0o700)
            if not _is_ours(folder):
                return None
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            users = os.open(folder / _USERS, flags, 0o600)
        except FileNotFoundError:  # the last one has just cleared it away
            continue
        if _is_entered(users, folder, database):
            return users
        os.close(users)
        time.sleep(_PAUSE)
    return None


def leave(users: int, folder: Path) -> None:
    """Use the folder no longer; the last one removes it."""
    with suppress(OSError):
        _remove_if_alone(users, folder)
    os.close(users)


def sweep() -> int:
    """Remove folders for temporary files that no process uses any more, some at a time; how many."""
    removed = 0
    temporary = Path(tempfile.gettempdir())
    prefix = f"{_PREFIX}{os.getuid()}-"
    with suppress(OSError), os.scandir(temporary) as entries:
        for entry in entries:
            if entry.name.startswith(prefix) and removed < _SWEEP_LIMIT:
                with suppress(OSError):
                    removed += remove_if_dead(temporary / entry.name)
    return removed


def remove_if_dead(folder: Path) -> bool:
    """Remove the folder unless a process uses it; whether it was removed."""
    if not _is_ours(folder):
        return False
    try:
        users = os.open(folder / _USERS, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        is_new = time.time() - folder.lstat().st_mtime < _OLD_SECONDS
        if is_new or any(_is_heard(path) for path in folder.iterdir() if _SOCKET.fullmatch(path.name)):
            return False
        return _remove(folder)
    try:
        return _remove_if_alone(users, folder)
    finally:
        os.close(users)


def _is_entered(users: int, folder: Path, database: Path) -> bool:
    if _has_lock(users, fcntl.LOCK_EX) and _is_there(users, folder):
        _clear(path for path in folder.iterdir() if path.name != _USERS)
        os.ftruncate(users, 0)
        os.pwrite(users, os.fsencode(database), 0)  # a digest is not readable
    return _has_lock(users, fcntl.LOCK_SH) and _is_there(users, folder)


def _remove_if_alone(users: int, folder: Path) -> bool:
    return _has_lock(users, fcntl.LOCK_EX) and _is_there(users, folder) and _remove(folder)


def _has_lock(users: int, kind: int) -> bool:
    try:
        fcntl.flock(users, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_there(users: int, folder: Path) -> bool:
    """Whether the file that is open still has its name."""
    try:
        found = (folder / _USERS).lstat()
    except FileNotFoundError:
        return False
    return os.path.samestat(found, os.fstat(users))


def _is_ours(folder: Path) -> bool:
    found = folder.lstat()
    others_write = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not others_write


def _remove(folder: Path) -> bool:
    _clear(folder.iterdir())
    with suppress(OSError):  # what is not ours keeps it
        folder.rmdir()
        return True
    return False


def _clear(paths: Iterable[Path]) -> None:
    for path in list(paths):
        if path.name in (_USERS, _BOARD) or _SOCKET.fullmatch(path.name):
            path.unlink(missing_ok=True)


def _is_heard(path: Path) -> bool:
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as probe:
        try:
            probe.connect(os.fspath(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
    return True
