"""The connections of synchronous callers, kept for reuse."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import hiredis

from winch.core.errors import WinchError
from winch.drivers.redis.address import Address, HostPort
from winch.drivers.redis.connections.opening import named
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
from winch.drivers.redis.connections.sync import SyncConnection
from winch.drivers.redis.scripts import RetryPause, ScriptBatch, ScriptCall, packed


class Pool:
    """The connections of synchronous callers. A connection is lent to one call at a time."""

    def __init__(
        self,
        address: Address,
        route: ServerRoute,
        connect: Callable[[Address, HostPort], SyncConnection] = SyncConnection,
    ) -> None:
        self._address = address
        self._connect = connect
        self.route = route
        self._idle: dict[HostPort, deque[SyncConnection]] = {}
        self._pid = os.getpid()

    def run(self, what: ScriptCall | ScriptBatch | RetryPause) -> Any:
        """Carry a call out and return its reply; of a batch, the replies and errors."""
        if isinstance(what, ScriptBatch):
            return self._run_all(what.calls)
        if isinstance(what, RetryPause):
            return time.sleep(what.seconds)
        route = self.route.of(what.where)
        outcome: Any
        try:
            outcome = self._send(first(what), route)
        except ConnectionLost as error:
            outcome = error
        else:
            if not what.confirmations and type(outcome) is not hiredis.ReplyError:
                return outcome
        return self.carry_on(what, route, outcome)

    def _run_all(self, calls: Sequence[ScriptCall]) -> list[Any]:
        """All are sent before the first reply is waited for."""
        return self.receive(calls, self.dispatch(calls))

    def dispatch(self, calls: Sequence[ScriptCall]) -> list[SyncConnection | ConnectionLost]:
        sent: list[SyncConnection | ConnectionLost] = []
        for what in calls:
            try:
                # A node that has died is found out before anything is sent to it: then nothing is
                # uncertain, and the call can go elsewhere.
                connection = self.borrow(self.route.of(what.where), is_checked=True)
                connection.send(confirming(first(what), self._address.timeout))
                sent.append(connection)
            except ConnectionLost as error:
                sent.append(error)
        return sent

    def receive(
        self, calls: Sequence[ScriptCall], ways: Sequence[SyncConnection | ConnectionLost]
    ) -> list[Any]:
        found: list[Any] = []
        for what, way in zip(calls, ways, strict=True):
            outcome: Any = way
            if isinstance(outcome, SyncConnection):
                try:
                    outcome = self._received(outcome, first(what))
                    self.give_back(way)  # type: ignore[arg-type]  # it is a SyncConnection
                except ConnectionLost as error:
                    outcome = error
            found.append(outcome)
        return [self._settled(what, outcome) for what, outcome in zip(calls, found, strict=True)]

    def _settled(self, what: ScriptCall, outcome: Any) -> Any:
        """The reply to a call of a batch whose first try came to this, or the error."""
        if not what.confirmations and not isinstance(outcome, (hiredis.ReplyError, ConnectionLost)):
            return outcome
        try:
            return self.carry_on(what, self.route.of(what.where), outcome)
        except WinchError as error:
            return error

    def carry_on(self, what: ScriptCall, route: ServerRoute, outcome: Any) -> Any:
        steps = carried(what, route, outcome)
        try:
            step = next(steps)
            while True:
                if isinstance(step, RetryPause):
                    time.sleep(step.seconds)
                    step = steps.send(None)
                    continue
                try:
                    reply = self._send(step, route)
                except ConnectionLost as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(reply)
        except StopIteration as stop:
            return stop.value

    def _send(self, request: SendRequest, route: ServerRoute) -> Any:
        connection = self.borrow(route)
        if request.confirmations:
            connection.send(confirming(request, self._address.timeout))
            reply = self._received(connection, request)
            self.give_back(connection)
            return reply
        (reply,) = connection.ask(request.request, 1)
        self.give_back(connection)
        return reply

    def _received(self, connection: SyncConnection, request: SendRequest) -> Any:
        """The reply to a request that was sent, and its confirmations."""
        replies = connection.receive(replies_to(request))
        if (data := confirming_apart(request, replies, self._address.timeout)) is not None:
            replies += connection.ask(data, 1)
        return reply_of(request, replies)

    def borrow(self, route: ServerRoute, *, is_checked: bool = False) -> SyncConnection:
        if self._pid != os.getpid():  # a fork shares the sockets: they are the parent's
            self._idle, self._pid = {}, os.getpid()
        server = route.known()
        if server is None:
            server = find_primary(self._address)
            route.found(server)
            self.close()  # those to the server that was the primary
        idle = self._idle.get(server)
        while idle:
            try:
                connection = idle.pop()
            except IndexError:  # another thread was faster
                break
            if connection.is_open() if is_checked else connection.is_fresh():
                return connection
            connection.close()
        return self._connect(self._address, server)

    def give_back(self, connection: SyncConnection) -> None:
        idle = self._idle.setdefault(connection.server, deque())
        if len(idle) < self._address.pool:
            idle.append(connection)
        else:
            connection.close()

    def close(self) -> None:
        for idle in list(self._idle.values()):
            while idle:
                idle.pop().close()


def find_primary(address: Address) -> HostPort:
    """Ask the sentinels which server is the primary now."""
    heard = "none answered"
    for server in address.servers:
        try:
            # A password is the server's; sentinels are asked without one.
            asked = replace(
                address,
                servers=(server,),
                user=None,
                password=None,
                timeout=min(address.timeout, 2.0),
            )
            sentinel = SyncConnection(asked, server)
        except ConnectionLost as error:
            heard = str(error)
            continue
        try:
            request = packed("SENTINEL", "GET-MASTER-ADDR-BY-NAME", address.service or "")
            (answer,) = sentinel.ask(request, 1)
        except ConnectionLost as error:
            heard = str(error)
            continue
        finally:
            sentinel.close()
        if isinstance(answer, list):
            return answer[0].decode(), int(answer[1])
        heard = f"sentinel {named(server)} knows no {address.service!r}"
    raise ConnectionLost(None, heard, was_sent=False)
