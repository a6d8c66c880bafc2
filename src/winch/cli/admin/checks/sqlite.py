"""Checks of a SQLite file and where it lies. None of them opens the file but through the driver.

A connection of our own would checkpoint when it is closed, outside of Winch's lock.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import sys
from pathlib import Path

from winch.app import App
from winch.cli.admin.checks import Finding, Findings, Level
from winch.drivers.sqlite.address import parse_url
from winch.drivers.sqlite.connections.opening import has_wal_reset_bug
from winch.drivers.sqlite.driver import SqliteDriver
from winch.drivers.sqlite.facts import FIXED_IN

VOLATILE = frozenset({"tmpfs", "ramfs", "devtmpfs"})
LEAST_FREE = 256 * 1024 * 1024


def check_sqlite(app: App) -> Findings:
    place = parse_url(app.settings.url)
    yield _version()
    yield from check_sharing(app)
    yield _file_system(place.path)
    if place.sync != "full":
        yield Finding(
            Level.WARNING,
            "durability",
            f"sync={place.sync}: a power cut may take back the last jobs that were acknowledged",
            "leave sync out of the URL to have every commit on disk before it is acknowledged",
        )
    else:
        yield Finding(Level.OK, "durability", "every commit is on disk before it is acknowledged")
    yield from _file(place.path)


def check_sharing(app: App) -> Findings:
    """Whether other programs use the file, which is a risk also where `?shared=1` allows it."""
    if isinstance(app.driver, SqliteDriver) and (risk := app.driver.sharing_risk()):
        yield Finding(Level.PROBLEM, "shared file", risk, "keep jobs and data in two files")


def _version() -> Finding:
    version = sqlite3.sqlite_version
    if not has_wal_reset_bug(sqlite3.sqlite_version_info):
        return Finding(Level.OK, "sqlite", f"version {version}")
    return Finding(
        Level.NOTE,
        "sqlite",
        f"version {version} has the WAL-reset bug: a write that races a checkpoint of another "
        "connection can be lost. Winch shields its own file with a lock between processes",
        f"open the file with Winch only; a Python with SQLite {FIXED_IN} or later has it fixed",
    )


def _file_system(path: Path) -> Finding:
    kind = mount_kind(path.parent)
    if kind in VOLATILE:
        return Finding(
            Level.WARNING,
            "file system",
            f"{path.parent} is on {kind}, which is empty after a restart of the machine",
            "put the database on a disk",
        )
    # Network file systems need no check: the driver refuses to open a file there.
    return Finding(Level.OK, "file system", f"{kind or 'local'} at {path.parent}")


def mount_kind(folder: Path) -> str | None:
    """The type of the file system that holds the folder, if the system reports it."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        device = folder.stat().st_dev
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        if before.split(" ")[2:3] == [wanted]:
            return after.split(" ")[0]
    return None


def _file(path: Path) -> Findings:
    try:
        mode = path.stat().st_mode
        free = shutil.disk_usage(path.parent).free
    except OSError:
        return  # not there yet: the schema check reports it
    if mode & (stat.S_IRGRP | stat.S_IROTH):
        yield Finding(
            Level.WARNING,
            "permissions",
            f"other users of this machine may read {path}, and with it every job's arguments",
            f"chmod 600 {path}",
        )
    if free < LEAST_FREE:
        yield Finding(
            Level.PROBLEM,
            "disk",
            f"{free // 1024 // 1024} MB are free at {path.parent}; a full disk stops every enqueue",
            "make room",
        )
