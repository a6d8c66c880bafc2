"""Spin briefly for a reply before sleeping.

Saves: the sleep and the wake-up of a producer that enqueues one job after another. A server on the same
machine or near it answers within some 50 µs; to put a process to sleep and to wake it takes as long
again, and part of that is the server's time. Equals: receiving the reply without spinning.

A connection spins for up to 200 µs. Where that is in vain, because the server is far or the processors
are busy, its next calls sleep at once; the more often it was in vain, the more calls. Where several
threads enqueue by turns, no connection spins: while one thread sleeps, another works.
"""

from __future__ import annotations

import select
import socket
from time import monotonic

from winch.drivers.redis.address import Address, HostPort
from winch.drivers.redis.connections.sync import SyncConnection

# How long one call spins, in seconds.
LONGEST_SPIN = 200e-6
# Calls that sleep at once after one that spun in vain: at first, and at most.
FEWEST, MOST = 16, 4096
# A connection used again within so many seconds carries one call after another.
IN_A_ROW = 0.001


class SpinWait:
    """Spins on one socket, and learns whether that helps."""

    def __init__(self, sock: socket.socket) -> None:
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        self._poll = poll.poll
        self.sleeps: int = 0
        """How many calls do not spin."""
        self._next_sleeps = FEWEST

    def wait(self) -> None:
        """Return when there is something to read, or when it takes too long."""
        if self.sleeps:
            self.sleeps -= 1
            return
        until = monotonic() + LONGEST_SPIN
        while not self._poll(0):  # other threads of the process run meanwhile
            if monotonic() > until:
                self.sleeps = self._next_sleeps
                self._next_sleeps = min(2 * self.sleeps, MOST)
                return
        if self._next_sleeps > FEWEST:
            self._next_sleeps //= 2


def spin_wait(sock: socket.socket) -> SpinWait | None:
    """None where readable bytes are not a reply (TLS), or where the system has no `poll`."""
    if not hasattr(select, "poll") or type(sock) is not socket.socket:
        return None
    return SpinWait(sock)


class SpinningConnection(SyncConnection):
    """A connection that can spin for a reply."""

    def __init__(self, address: Address, server: HostPort) -> None:
        super().__init__(address, server)
        self._spin_wait = spin_wait(self.socket)

    def spin(self) -> None:
        """Wait for the reply to a short request, if this connection carries one call after another."""
        if self._spin_wait is not None and monotonic() - self.used_at < IN_A_ROW:
            self._spin_wait.wait()
