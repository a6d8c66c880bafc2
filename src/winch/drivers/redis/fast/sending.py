"""Send a batch of jobs while the server still works on the one before.

Saves: the time in which the server waits for the next request of a producer that enqueues batch after
batch. The producer writes the next call ahead; of a long one it holds back the final CRLF, so that the
server buffers the request without running it. Equals: running the verb when its turn comes
(`storage.verbs.Unhurried`).
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from winch.core.errors import ConfigError, WinchError
from winch.drivers.redis.connections.pool import Pool
from winch.drivers.redis.connections.routing import ConnectionLost
from winch.drivers.redis.connections.sync import SyncConnection
from winch.drivers.redis.scripts import RetryPause, ScriptBatch, ScriptCall
from winch.drivers.redis.verbs.base import Base, Body, run_body

T = TypeVar("T")
# A request of so many bytes is sent before its turn, all but its last ones.
LONG, LAST = 16_384, 2


class SentInHalves(Generic[T]):
    """A verb whose first call is on its way while its caller does something else."""

    def __init__(
        self, pool: Pool, base: Base, steps: Body[T], what: ScriptCall | ScriptBatch | RetryPause
    ) -> None:
        self._pool = pool
        self._base = base
        self._steps = steps
        self._what = what
        self._sent: _Sent | None = None
        self._begun = _begin(pool, what)

    def send(self) -> None:
        begun, self._begun = self._begun, None
        if begun is not None:
            self._sent = _complete(begun)
        elif not isinstance(self._what, RetryPause):
            calls = self._what.calls if isinstance(self._what, ScriptBatch) else [self._what]
            self._sent = _Sent(calls, self._pool.dispatch(calls))

    def answer(self) -> T:
        """Wait for the first reply and run the rest of the verb."""
        reply = self._pool.run(self._what) if self._sent is None else self._reply(self._sent)
        try:
            following = self._steps.send(reply)
        except StopIteration as stop:
            result: T = stop.value
            return result
        return run_body(self._pool, self._base, self._steps, following)

    def _reply(self, sent: _Sent) -> Any:
        """What `Pool.run` would have returned, or raised."""
        replies = self._pool.receive(sent.calls, sent.connections)
        if isinstance(self._what, ScriptBatch):
            return replies
        (reply,) = replies
        if isinstance(reply, WinchError):
            raise reply
        return reply


@dataclass(frozen=True, slots=True)
class _Sent:
    """Calls on their way: for each the connection that its reply comes by, or why it has none."""

    calls: Sequence[ScriptCall]
    connections: Sequence[SyncConnection | ConnectionLost]


@dataclass(frozen=True, slots=True)
class _Begun:
    """A call of which the first bytes are sent, on a connection of its own. Where the caller drops it,
    its connection closes with it, and the server forgets what it has of the call."""

    what: ScriptCall
    connection: SyncConnection
    sent: int


def _begin(pool: Pool, what: ScriptCall | ScriptBatch | RetryPause) -> _Begun | None:
    """Send a long call but for its end. None where there is nothing to gain, or something went wrong."""
    if not isinstance(what, ScriptCall) or what.confirmations or len(what.request) < LONG:
        return None
    try:
        connection = pool.borrow(pool.route.of(what.where))
    except (ConnectionLost, ConfigError):
        return None
    try:
        sent = _send_ahead(connection.socket, what.request)
    except OSError:
        connection.close()
        return None
    if not sent:
        pool.give_back(connection)
        return None
    return _Begun(what, connection, sent)


def _send_ahead(sock: socket.socket, data: bytes) -> int:
    """Send what the connection takes without waiting, but for the end; returns the number of bytes."""
    if type(sock) is not socket.socket or not hasattr(socket, "MSG_DONTWAIT"):
        return 0  # TLS, or a system that always waits
    try:
        return sock.send(memoryview(data)[:-LAST], socket.MSG_DONTWAIT)
    except BlockingIOError:
        return 0


def _complete(begun: _Begun) -> _Sent:
    """Send the rest."""
    try:
        begun.connection.send(begun.what.request[begun.sent :])
    except ConnectionLost as error:
        return _Sent([begun.what], [error])
    return _Sent([begun.what], [begun.connection])
