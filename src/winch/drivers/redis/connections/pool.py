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
from winch.drivers.redis.address import Address, Place
from winch.drivers.redis.connections.opening import named
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
from winch.drivers.redis.connections.sync import Wire
from winch.drivers.redis.scripts import Batch, Call, Pause, packed


class Pool:
    """The connections of the sync side. A connection is lent to one call at a time."""

    def __init__(
        self, place: Place, route: Route, connect: Callable[[Place, Address], Wire] = Wire
    ) -> None:
        self._place = place
        self._connect = connect
        self.route = route
        self._idle: dict[Address, deque[Wire]] = {}
        self._pid = os.getpid()

    def run(self, what: Call | Batch | Pause) -> Any:
        """Carry a call out and return its reply; of a batch, the replies and errors."""
        if isinstance(what, Batch):
            return self._run_all(what.calls)
        if isinstance(what, Pause):
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

    def _run_all(self, calls: Sequence[Call]) -> list[Any]:
        """All are sent before the first reply is waited for."""
        return self.receive(calls, self.dispatch(calls))

    def dispatch(self, calls: Sequence[Call]) -> list[Wire | ConnectionLost]:
        sent: list[Wire | ConnectionLost] = []
        for what in calls:
            try:
                wire = self.borrow(self.route.of(what.where))
                wire.send(confirming(first(what), self._place.timeout))
                sent.append(wire)
            except ConnectionLost as error:
                sent.append(error)
        return sent

    def receive(self, calls: Sequence[Call], ways: Sequence[Wire | ConnectionLost]) -> list[Any]:
        found: list[Any] = []
        for what, wire_or_error in zip(calls, ways, strict=True):
            outcome: Any = wire_or_error
            if isinstance(outcome, Wire):
                try:
                    outcome = reply_of(first(what), outcome.receive(replies_to(first(what))))
                    self.give_back(wire_or_error)  # type: ignore[arg-type]  # it is a Wire
                except ConnectionLost as error:
                    outcome = error
            found.append(outcome)
        return [self._settled(what, outcome) for what, outcome in zip(calls, found, strict=True)]

    def _settled(self, what: Call, outcome: Any) -> Any:
        """The reply to a call of a batch whose first try came to this, or the error."""
        if not what.confirmations and not isinstance(outcome, (hiredis.ReplyError, ConnectionLost)):
            return outcome
        try:
            return self.carry_on(what, self.route.of(what.where), outcome)
        except WinchError as error:
            return error

    def carry_on(self, what: Call, route: Route, outcome: Any) -> Any:
        steps = carried(what, route, outcome)
        try:
            step = next(steps)
            while True:
                if isinstance(step, Pause):
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

    def _send(self, request: Send, route: Route) -> Any:
        wire = self.borrow(route)
        if request.confirmations:
            replies = wire.ask(confirming(request, self._place.timeout), replies_to(request))
            self.give_back(wire)
            return reply_of(request, replies)
        (reply,) = wire.ask(request.request, 1)
        self.give_back(wire)
        return reply

    def borrow(self, route: Route) -> Wire:
        if self._pid != os.getpid():  # a fork shares the sockets: they are the parent's
            self._idle, self._pid = {}, os.getpid()
        address = route.known()
        if address is None:
            address = find_primary(self._place)
            route.found(address)
            self.close()  # those to the server that was the primary
        idle = self._idle.get(address)
        while idle:
            try:
                wire = idle.pop()
            except IndexError:  # another thread was faster
                break
            if wire.is_fresh():
                return wire
            wire.close()
        return self._connect(self._place, address)

    def give_back(self, wire: Wire) -> None:
        idle = self._idle.setdefault(wire.address, deque())
        if len(idle) < self._place.pool:
            idle.append(wire)
        else:
            wire.close()

    def close(self) -> None:
        for idle in list(self._idle.values()):
            while idle:
                idle.pop().close()


def find_primary(place: Place) -> Address:
    """Ask the sentinels which server is the primary now."""
    heard = "none answered"
    for address in place.addresses:
        try:
            # A password is the server's; sentinels are asked without one.
            asked = replace(
                place,
                addresses=(address,),
                user=None,
                password=None,
                timeout=min(place.timeout, 2.0),
            )
            sentinel = Wire(asked, address)
        except ConnectionLost as error:
            heard = str(error)
            continue
        try:
            request = packed("SENTINEL", "GET-MASTER-ADDR-BY-NAME", place.service or "")
            (answer,) = sentinel.ask(request, 1)
        except ConnectionLost as error:
            heard = str(error)
            continue
        finally:
            sentinel.close()
        if isinstance(answer, list):
            return answer[0].decode(), int(answer[1])
        heard = f"sentinel {named(address)} knows no {place.service!r}"
    raise ConnectionLost(None, heard, was_sent=False)
