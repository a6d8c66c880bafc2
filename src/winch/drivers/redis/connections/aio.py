"""Connections of one event loop: a request does not wait for the reply to the one before."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Any, cast

import hiredis

from winch.core.errors import WinchError
from winch.drivers.redis.address import Address, HostPort
from winch.drivers.redis.connections.opening import (
    cannot_connect,
    check_greeting,
    greeting,
    ssl_context,
)
from winch.drivers.redis.connections.pool import find_primary
from winch.drivers.redis.connections.routing import (
    ConnectionLost,
    SendRequest,
    ServerRoute,
    carried,
    confirming,
    confirming_apart,
    first,
    replies_to,
    reply_of,
)
from winch.drivers.redis.scripts import RetryPause, ScriptBatch, ScriptCall

_NOTHING = object()
# Replies are read into a buffer of the connection's own. Without one, asyncio asks for 256 KiB of new
# memory for each reply, which takes longer than all the rest of receiving it.
_BUFFER = 262_144


class AsyncConnection(asyncio.BufferedProtocol):
    """One connection. Replies come in the order of the requests."""

    def __init__(self, address: Address, server: HostPort) -> None:
        self.server = server
        self.is_lost: bool = False
        self._timeout = address.timeout
        self._reader = hiredis.Reader(notEnoughData=_NOTHING)
        self._buffer = bytearray(_BUFFER)
        self._pending: deque[tuple[asyncio.Future[list[Any]], int, float]] = deque()
        self._partial: list[Any] = []
        self._transport: asyncio.Transport | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._why = "the server closed the connection"

    @classmethod
    async def open(cls, address: Address, server: HostPort) -> AsyncConnection:
        loop = asyncio.get_running_loop()
        context = ssl_context(address)
        try:
            async with asyncio.timeout(address.timeout / 2):
                _, connection = await loop.create_connection(
                    lambda: cls(address, server),
                    *server,
                    ssl=context,
                    server_hostname=server[0] if context else None,
                )
        except (OSError, TimeoutError) as error:
            raise cannot_connect(address, server, error) from error
        if requests := greeting(address):
            try:
                check_greeting(await connection.ask(b"".join(requests), len(requests)), address, server)
            except BaseException:
                connection.close()
                raise
        return connection

    async def ask(self, data: bytes, replies: int) -> list[Any]:
        if self.is_lost or self._transport is None:
            raise ConnectionLost(self.server, self._why, was_sent=False)
        waiter: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self._pending.append((waiter, replies, time.monotonic() + self._timeout))
        self._transport.write(data)
        if self._watch is None:
            self._look_later()
        return await waiter

    # -- what the event loop calls -----------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        reader = self._reader
        reader.feed(self._buffer, 0, nbytes)  # type: ignore[arg-type]  # the stub: takes any buffer
        while True:
            try:
                answer = reader.gets()
            except hiredis.ProtocolError as error:
                self._cut(f"the server's reply is not to be understood: {error}")
                return
            if answer is _NOTHING:
                return
            if not self._pending:
                continue
            waiter, replies, _ = self._pending[0]
            if replies > 1:
                self._partial.append(answer)
                if len(self._partial) < replies:
                    continue
                found, self._partial = self._partial, []
            else:
                found = [answer]
            self._pending.popleft()
            if not waiter.done():  # the caller may have been cancelled
                waiter.set_result(found)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        if exc is not None:
            self._why = str(exc) or type(exc).__name__
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        while self._pending:
            waiter, _, _ = self._pending.popleft()
            if not waiter.done():
                waiter.set_exception(ConnectionLost(self.server, self._why, was_sent=True))

    # -- silence -----------------------------------------------------------------------------------

    def _look_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._watch = loop.call_later(min(1.0, self._timeout / 4), self._look)

    def _look(self) -> None:
        self._watch = None
        if not self._pending:
            return
        if self._pending[0][2] < time.monotonic():
            self._cut(f"no answer within {self._timeout:g} s (timeout= in the URL)")
        else:
            self._look_later()

    def _cut(self, why: str) -> None:
        self._why, self.is_lost = why, True
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        self._cut("the driver was closed")


class LoopConnections:
    """The connections of a driver in one event loop."""

    def __init__(self, address: Address, route: ServerRoute) -> None:
        self._address = address
        self.route = route
        self._connections: dict[HostPort, AsyncConnection] = {}
        self._opening: dict[HostPort, asyncio.Lock] = {}

    async def run(self, what: ScriptCall | ScriptBatch | RetryPause) -> Any:
        """Carry a call out and return its reply; of a batch, the replies and errors."""
        if isinstance(what, ScriptBatch):
            return await asyncio.gather(*map(self._settled, what.calls))
        if isinstance(what, RetryPause):
            return await asyncio.sleep(what.seconds)
        route = self.route.of(what.where)
        outcome: Any
        try:
            outcome = await self._send(first(what), route)
        except ConnectionLost as error:
            outcome = error
        else:
            if not what.confirmations and type(outcome) is not hiredis.ReplyError:
                return outcome
        return await self.carry_on(what, route, outcome)

    async def carry_on(self, what: ScriptCall, route: ServerRoute, outcome: Any) -> Any:
        steps = carried(what, route, outcome)
        try:
            step = next(steps)
            while True:
                if isinstance(step, RetryPause):
                    await asyncio.sleep(step.seconds)
                    step = steps.send(None)
                    continue
                try:
                    reply = await self._send(step, route)
                except ConnectionLost as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(reply)
        except StopIteration as stop:
            return stop.value

    async def _settled(self, what: ScriptCall) -> Any:
        try:
            return await self.run(what)
        except WinchError as error:
            return error

    async def _send(self, request: SendRequest, route: ServerRoute) -> Any:
        connection = await self.connection(route)
        replies = await connection.ask(confirming(request, self._address.timeout), replies_to(request))
        if (data := confirming_apart(request, replies, self._address.timeout)) is not None:
            replies += await connection.ask(data, 1)
        return reply_of(request, replies)

    async def connection(self, route: ServerRoute) -> AsyncConnection:
        server = route.known()
        if server is None:
            loop = asyncio.get_running_loop()
            server = await loop.run_in_executor(None, find_primary, self._address)
            route.found(server)
        connection = self._connections.get(server)
        if connection is not None and not connection.is_lost:
            return connection
        async with self._opening.setdefault(server, asyncio.Lock()):
            connection = self._connections.get(server)
            if connection is None or connection.is_lost:
                connection = self._connections[server] = await AsyncConnection.open(
                    self._address, server
                )
            return connection

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    async def aclose(self) -> None:
        self.close()
        await asyncio.sleep(0)  # lets the transports go
