"""Stacks of a child whose event loop is blocked: the child writes them in a signal handler.

The handler is faulthandler's. It is C code and needs neither the event loop nor the GIL, so it also
works while a job holds both. It writes to a file that the child shares with its supervisor. The signal
is SIGURG: programs rarely use it, and processes that have no handler for it ignore it, such as programs
that a job has started.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import signal
import time

from winch.engine.worker.started_jobs import anonymous_file

SIGNAL = signal.SIGURG
# A dump is complete when the file has not grown for so long: it ends without a mark.
SETTLED = 0.2
LOOK_EVERY = 0.05
WITHIN = 3.0


def dump_on_signal(fd: int) -> None:
    """In the child: write the stacks of all threads to this file whenever the signal comes."""
    faulthandler.register(SIGNAL, file=fd, all_threads=True, chain=False)


class StackDump:
    """The supervisor's side of one child's file."""

    def __init__(self) -> None:
        self.fd: int = anonymous_file("winch-stacks")

    async def take(self, pid: int) -> str | None:
        """Send the signal, and read what the child writes; None where it writes nothing in time."""
        os.ftruncate(self.fd, 0)
        os.lseek(self.fd, 0, os.SEEK_SET)  # the child has the same offset
        os.kill(pid, SIGNAL)
        end = time.monotonic() + WITHIN
        size, since = 0, 0.0
        while time.monotonic() < end:
            await asyncio.sleep(LOOK_EVERY)
            now = os.fstat(self.fd).st_size
            if now != size:
                size, since = now, time.monotonic()
            elif size and time.monotonic() - since >= SETTLED:
                break
        return os.pread(self.fd, size, 0).decode(errors="replace") or None

    def close(self) -> None:
        os.close(self.fd)
