"""Connections of one event loop: a request does not wait for the reply to the one before."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Any, cast

import hiredis

from winch.core.errors import WinchError
from winch.drivers.redis.address import Address, Place
from winch.drivers.redis.connections.opening import (
    cannot_connect,
    check_greeting,
    greeting,
    ssl_context,
)
from winch.drivers.redis.connections.pool import find_primary
from winch.drivers.redis.connections.routing import (
    ConnectionLost,
    Route,
    Send,
    carried,
    confirming,
    first,
    replies_to,
    reply_of,
)
from winch.drivers.redis.scripts import Batch, Call, Pause

_NOTHING = object()
# Replies are read into a buffer of the connection's own. Without one, asyncio asks for 256 KiB of new
# memory for each reply, which takes longer than all the rest of receiving it.
_BUFFER = 262_144


class AsyncWire(asyncio.BufferedProtocol):
    """One connection. Replies come in the order of the requests."""

    def __init__(self, place: Place, address: Address) -> None:
        self.address = address
        self.is_lost: bool = False
        self._timeout = place.timeout
        self._reader = hiredis.Reader(notEnoughData=_NOTHING)
        self._buffer = bytearray(_BUFFER)
        self._pending: deque[tuple[asyncio.Future[list[Any]], int, float]] = deque()
        self._partial: list[Any] = []
        self._transport: asyncio.Transport | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._why = "the server closed the connection"

    @classmethod
    async def open(cls, place: Place, address: Address) -> AsyncWire:
        loop = asyncio.get_running_loop()
        context = ssl_context(place)
        try:
            async with asyncio.timeout(place.timeout / 2):
                _, wire = await loop.create_connection(
                    lambda: cls(place, address),
                    *address,
                    ssl=context,
                    server_hostname=address[0] if context else None,
                )
        except (OSError, TimeoutError) as error:
            raise cannot_connect(place, address, error) from error
        if requests := greeting(place):
            try:
                check_greeting(await wire.ask(b"".join(requests), len(requests)), place, address)
            except BaseException:
                wire.close()
                raise
        return wire

    async def ask(self, data: bytes, replies: int) -> list[Any]:
        if self.is_lost or self._transport is None:
            raise ConnectionLost(self.address, self._why, was_sent=False)
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
                waiter.set_exception(ConnectionLost(self.address, self._why, was_sent=True))

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


class AsyncSide:
    """The connections of a driver in one event loop."""

    def __init__(self, place: Place, route: Route) -> None:
        self._place = place
        self.route = route
        self._wires: dict[Address, AsyncWire] = {}
        self._opening: dict[Address, asyncio.Lock] = {}

    async def run(self, what: Call | Batch | Pause) -> Any:
        """Carry a call out and return its reply; of a batch, the replies and errors."""
        if isinstance(what, Batch):
            return await asyncio.gather(*map(self._settled, what.calls))
        if isinstance(what, Pause):
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

    async def carry_on(self, what: Call, route: Route, outcome: Any) -> Any:
        steps = carried(what, route, outcome)
        try:
            step = next(steps)
            while True:
                if isinstance(step, Pause):
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

    async def _settled(self, what: Call) -> Any:
        try:
            return await self.run(what)
        except WinchError as error:
            return error

    async def _send(self, request: Send, route: Route) -> Any:
        wire = await self.connection(route)
        replies = await wire.ask(confirming(request, self._place.timeout), replies_to(request))
        return reply_of(request, replies)

    async def connection(self, route: Route) -> AsyncWire:
        address = route.known()
        if address is None:
            loop = asyncio.get_running_loop()
            address = await loop.run_in_executor(None, find_primary, self._place)
            route.found(address)
        wire = self._wires.get(address)
        if wire is not None and not wire.is_lost:
            return wire
        async with self._opening.setdefault(address, asyncio.Lock()):
            wire = self._wires.get(address)
            if wire is None or wire.is_lost:
                wire = self._wires[address] = await AsyncWire.open(self._place, address)
            return wire

    def close(self) -> None:
        for wire in self._wires.values():
            wire.close()
        self._wires.clear()

    async def aclose(self) -> None:
        self.close()
        await asyncio.sleep(0)  # lets the transports go
