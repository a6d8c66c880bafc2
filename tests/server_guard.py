"""Outlives a test run just long enough to clean up after it.

A test run that is killed (a timeout in CI, the out-of-memory killer, an impatient person) runs no exit
handlers and would leave its servers behind for ever. So each server has this small process beside it.
It reads process ids from a pipe that only the test run holds open; when the run ends, however it ends,
the pipe closes, and whatever is left of those processes and their folder is removed.

    python server_guard.py FOLDER < pipe
"""

from __future__ import annotations

import ctypes
import shutil
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil

EXIT_SECONDS = 10.0


def kill_tree(root: psutil.Process) -> None:
    """SIGKILL a process and everything below it, and wait until all are gone."""
    try:
        # Frozen first: a postmaster that sees a child die would start another while we count.
        root.suspend()
        tree = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for process in tree:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    deadline = time.monotonic() + EXIT_SECONDS
    while not all(is_gone(process) for process in tree) and time.monotonic() < deadline:
        time.sleep(0.005)


def is_gone(process: psutil.Process) -> bool:
    """Whether a process has ended. A zombie has: it waits for init, which may never look."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def remove_shared_memory(folder: Path) -> None:
    """Remove the System V segments of PostgreSQL servers that died without doing so themselves."""
    for pid_file in folder.glob("*/postmaster.pid"):
        lines = pid_file.read_text().splitlines()
        if len(lines) > 6:  # killed before it had written the line, it had no segment yet
            _key, segment = lines[6].split()
            ipc_rmid = 0
            ctypes.CDLL(None).shmctl(int(segment), ipc_rmid, None)


def main() -> None:
    folder = Path(sys.argv[1])
    watched = []
    for line in sys.stdin:
        # Taken while it is alive: psutil compares start times, so a recycled id is never killed.
        with suppress(psutil.NoSuchProcess):
            watched.append(psutil.Process(int(line)))
    for process in watched:
        kill_tree(process)
    remove_shared_memory(folder)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
