"""Waiting for a reply without sleeping, for a moment, where that is sooner over.

A caller that stores one job after another waits for a server that answers within some 50 µs, when it
is on the same machine or near. To put a process to sleep and to wake it takes as long again, and part
of that is the server's time: it has to wake whoever sleeps. So such a caller first looks for its
reply a few times. Where that is in vain, because the server is far or the processors have others to
run, the next calls sleep at once; the more of them, the more often it was in vain. Where several
threads store jobs by turns nobody looks: while one sleeps, another works.
"""

from __future__ import annotations

import select
import socket
from time import monotonic

# How long one looks, in seconds.
LOOKING = 200e-6
# Calls that sleep after one that looked in vain: at first, and at most.
FEWEST, MOST = 16, 4096


class Lookout:
    """What one connection has found out about looking."""

    def __init__(self, sock: socket.socket) -> None:
        look = select.poll()
        look.register(sock, select.POLLIN)
        self._look = look.poll
        self.sleeps: int = 0
        """So many calls do not look."""
        self._next_sleeps = FEWEST

    def wait(self) -> None:
        """Until there is something to read, or it takes too long."""
        if self.sleeps:
            self.sleeps -= 1
            return
        until = monotonic() + LOOKING
        while not self._look(0):  # other threads of the process run meanwhile
            if monotonic() > until:
                self.sleeps = self._next_sleeps
                self._next_sleeps = min(2 * self.sleeps, MOST)
                return
        if self._next_sleeps > FEWEST:
            self._next_sleeps //= 2


def lookout(sock: socket.socket) -> Lookout | None:
    """None where what can be read is not what has come (TLS), or the system has no `poll`."""
    if not hasattr(select, "poll") or type(sock) is not socket.socket:
        return None
    return Lookout(sock)
