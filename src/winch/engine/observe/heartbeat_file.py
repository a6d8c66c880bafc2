"""A file that a worker or a server touches every second while its loop turns, for probes without HTTP.

`winch health --max-age 30` reads it. It does not check the store: a probe that restarts containers
must not restart all of them because a database is away. Each process has a file of its own, named by its
process id, in a folder of its user's.
"""

from __future__ import annotations

import asyncio
import os
import stat
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from winch.engine.base.log import log

EVERY = 1.0


def folder() -> Path:
    """Where this user's heartbeat files are."""
    return Path(tempfile.gettempdir()) / f"winch-{os.getuid()}"


async def keep_heartbeat_file(is_live: Callable[[], bool] = lambda: True) -> None:
    """Touch this process's file while it is live, until cancelled; then the file is removed."""
    file = folder() / f"{os.getpid()}.heartbeat"
    is_reported = False
    try:
        while True:
            if is_live():
                try:
                    _own_folder()
                    file.touch(mode=0o600)
                    is_reported = False
                except OSError as error:
                    if not is_reported:
                        log.warning("no heartbeat file for `winch health --max-age`: %s", error)
                    is_reported = True
            await asyncio.sleep(EVERY)
    finally:
        file.unlink(missing_ok=True)


def _own_folder() -> None:
    """Make the folder; refuse one that another user made in the shared temporary folder."""
    folder().mkdir(mode=0o700, exist_ok=True)
    found = folder().lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise PermissionError(f"{folder()} belongs to another user; remove it")


def ages() -> dict[int, float]:
    """How many seconds ago each live process of this user has touched its file, by process id."""
    found = {}
    for file in folder().glob("*.heartbeat"):
        try:
            pid, touched = int(file.stem), file.stat().st_mtime
        except (ValueError, OSError):
            continue
        if _is_alive(pid):
            found[pid] = max(time.time() - touched, 0.0)
    return found


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
