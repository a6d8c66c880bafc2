"""Connections for synchronous callers: plain sockets, hiredis to read and write, kept for reuse."""

from __future__ import annotations

import os
import select
import socket
import ssl
import struct
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from time import monotonic
from typing import Any

import hiredis

from winch.core.errors import ConfigError, WinchError
from winch.drivers.redis.address import Address, Place
from winch.drivers.redis.connections.routing import ConnectionLost, Route, Send, carried, first
from winch.drivers.redis.connections.spin_wait import lookout
from winch.drivers.redis.scripts import Bare, Batch, Call, Pause, packed

# A connection used so many seconds ago is not asked whether it is still there.
FRESH = 0.25
# Bytes asked for at once. For more than 128 KiB the C library maps memory anew with each call, and gives
# it back when it is cut down to what came: that took longer than everything else about a short reply.
RECEIVED = 65_536
# Who asks again within so many seconds asks one thing after another.
IN_A_ROW = 0.001
# A request of so many bytes is sent before its turn, all but its last ones.
LONG, LAST = 16_384, 2
_NOTHING = object()


def ssl_context(place: Place) -> ssl.SSLContext | None:
    return _context(place.ca_file, place.verifies) if place.is_encrypted else None


@cache  # reading the system's authorities takes longer than all the rest of connecting
def _context(ca_file: str | None, verifies: bool) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise ConfigError(
            f"ca_file={ca_file} in the URL is no file with the certificate of an authority: {error}"
        ) from error
    if not verifies:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def cannot_connect(place: Place, address: Address, error: BaseException) -> ConnectionLost:
    """Why there is no connection, and what to do about it."""
    if isinstance(error, ssl.SSLCertVerificationError):
        hint = "name the authority that you trust with ca_file=FILE in the URL"
    elif isinstance(error, ssl.SSLError) or (place.is_encrypted and isinstance(error, TimeoutError)):
        # A port without TLS waits for the rest of what it takes for a command.
        hint = "rediss:// is for a port that speaks TLS, redis:// for one that does not"
    else:
        hint = "is the server running, and are host and port of the URL right?"
    text = f"cannot connect to {_named(address)}: {str(error) or 'no answer'}; {hint}"
    return ConnectionLost(address, text, was_sent=False)


def greeting(place: Place) -> list[bytes]:
    """What a new connection says first; each line is answered OK."""
    said = []
    if place.password is not None:
        login = (place.user, place.password) if place.user else (place.password,)
        said.append(packed("AUTH", *login))
    if place.database:
        said.append(packed("SELECT", place.database))
    return said


def check_greeting(answers: Sequence[Any], place: Place, address: Address) -> None:
    """Raise what keeps the connection from being used: a wrong password, a server that still starts."""
    for answer in answers:
        if isinstance(answer, hiredis.ReplyError):
            if str(answer).startswith("LOADING"):
                raise ConnectionLost(address, str(answer), was_sent=False)
            raise ConfigError(
                f"{place.describe()}: {answer}; check user and password in the URL, "
                "redis://user:password@host"
            )


def confirming(request: Send, timeout: float) -> bytes:
    """The bytes of a request, with WAIT behind it where that is wanted."""
    data = request.request
    if request.confirmations:
        milliseconds = round(timeout * 1000 / 5)
        data += packed("WAIT", request.confirmations, milliseconds)
    return data


def replies_to(request: Send) -> int:
    return 2 if request.confirmations else 1


def reply_of(request: Send, replies: list[Any]) -> Any:
    """The reply, or [reply, number of confirmations]."""
    return replies if request.confirmations else replies[0]


class Wire:
    """One connection of a synchronous caller."""

    def __init__(self, place: Place, address: Address) -> None:
        self.address = address
        self._timeout = place.timeout
        self._reader = hiredis.Reader(notEnoughData=_NOTHING)
        self._socket = _connected(place, address)
        self._lookout = lookout(self._socket)
        self._used_at = 0.0
        if said := greeting(place):
            try:
                check_greeting(self.ask(b"".join(said), len(said)), place, address)
            except Exception:
                self.close()
                raise

    def ask(self, data: bytes, replies: int) -> list[Any]:
        self.send(data)
        return self.receive(replies)

    def ask_one(self, data: bytes, *, is_alone: bool) -> Any:
        """The reply to a short request that is soon answered. `is_alone`: no other thread asks as well,
        which would go on with its own work if this one slept."""
        self.send(data)
        if is_alone and self._lookout is not None and monotonic() - self._used_at < IN_A_ROW:
            self._lookout.wait()
        return self.receive(1)[0]

    def send(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except (TimeoutError, BlockingIOError) as error:
            self.close()
            text = f"no answer within {self._timeout:g} s (timeout= in the URL)"
            raise ConnectionLost(self.address, text, was_sent=True) from error
        except OSError as error:
            self.close()
            # Of a short request nothing arrived, or not all of it.
            raise ConnectionLost(
                self.address, f"{_named(self.address)}: {error}", was_sent=len(data) > 65_536
            ) from error
        except BaseException:
            self.close()
            raise

    def send_ahead(self, data: bytes) -> int:
        """Send what the connection takes without waiting, but for the end: so many bytes. The server
        does nothing about a request before it has all of it."""
        if type(self._socket) is not socket.socket or not hasattr(socket, "MSG_DONTWAIT"):
            return 0  # TLS, or a system that always waits
        try:
            return self._socket.send(memoryview(data)[:-LAST], socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0

    def receive(self, replies: int) -> list[Any]:
        try:
            found: list[Any] = []
            reader = self._reader
            self._used_at = monotonic()
            while True:
                while (answer := reader.gets()) is not _NOTHING:
                    found.append(answer)
                    if len(found) == replies:
                        return found
                received = self._socket.recv(RECEIVED)
                if not received:
                    raise ConnectionResetError("the server closed the connection")
                reader.feed(received)
        except (TimeoutError, BlockingIOError) as error:
            self.close()
            text = f"no answer within {self._timeout:g} s (timeout= in the URL)"
            raise ConnectionLost(self.address, text, was_sent=True) from error
        except (OSError, hiredis.ProtocolError) as error:
            self.close()
            raise ConnectionLost(
                self.address, f"{_named(self.address)}: {error}", was_sent=True
            ) from error
        except BaseException:  # an interrupt: the next reply would be taken for another's
            self.close()
            raise

    def is_fresh(self) -> bool:
        """Whether the server has not hung up while nobody looked, where that is likely."""
        if monotonic() - self._used_at < FRESH:
            return True
        try:
            readable, _, _ = select.select([self._socket], [], [], 0)
        except (OSError, ValueError):
            return False
        return not readable

    def close(self) -> None:
        with suppress(OSError, AttributeError):  # one that was never connected has no socket
            self._socket.close()

    def __del__(self) -> None:  # of a driver that nobody closed
        self.close()


def _connected(place: Place, address: Address) -> socket.socket:
    context = ssl_context(place)
    try:
        found = socket.create_connection(address, timeout=place.timeout / 2)
        if context is not None:
            try:
                found = context.wrap_socket(found, server_hostname=address[0])
            except BaseException:
                found.close()
                raise
    except OSError as error:
        raise cannot_connect(place, address, error) from error
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if isinstance(found, ssl.SSLSocket):
        found.settimeout(place.timeout)
    else:
        # The kernel's own limits: with Python's, each call would first ask whether it may.
        found.settimeout(None)
        limit = struct.pack("ll", int(place.timeout), int(place.timeout % 1 * 1e6))
        found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
    return found


def _named(address: Address) -> str:
    return f"{address[0]}:{address[1]}"


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
        heard = f"sentinel {_named(address)} knows no {place.service!r}"
    raise ConnectionLost(None, heard, was_sent=False)


@dataclass(frozen=True, slots=True)
class Sent:
    """Calls on their way: for each the connection that its reply comes by, or why it has none."""

    what: Call | Batch
    calls: Sequence[Call]
    ways: Sequence[Wire | ConnectionLost]


@dataclass(frozen=True, slots=True)
class Ahead:
    """A call whose first bytes are sent, so many, on a connection of its own. Where it is given up its
    connection goes with it, and the server forgets what it has of the call."""

    what: Call
    wire: Wire
    sent: int


class Pool:
    """The connections of the sync side. A connection is lent to one call at a time."""

    def __init__(self, place: Place, route: Route) -> None:
        self._place = place
        self._route = route
        self._idle: dict[Address, deque[Wire]] = {}
        self._pid = os.getpid()
        self._caller = 0

    def run(self, what: Call | Batch | Pause) -> Any:
        """Carry a call out and return its reply; of a batch, the replies and errors."""
        if isinstance(what, Batch):
            return self._run_all(what.calls)
        if isinstance(what, Pause):
            return time.sleep(what.seconds)
        route = self._route.of(what.where)
        outcome: Any
        try:
            outcome = self._send(first(what), route)
        except ConnectionLost as error:
            outcome = error
        else:
            if not what.confirmations and type(outcome) is not hiredis.ReplyError:
                return outcome
        return self._carry_on(what, route, outcome)

    def run_bare(self, what: Bare, one: bytes, other: bytes) -> Any:
        """As `run` does with a call of it, for those who wait for one short reply and nothing else."""
        outcome: Any
        caller, before = threading.get_ident(), self._caller
        self._caller = caller
        try:
            wire = self._borrow(self._route)
            outcome = wire.ask_one(what.request(one, other), is_alone=caller == before)
            self._give_back(wire)
        except ConnectionLost as error:
            outcome = error
        else:
            if type(outcome) is not hiredis.ReplyError:
                return outcome
        return self._carry_on(what.call(one, other), self._route, outcome)

    def _run_all(self, calls: Sequence[Call]) -> list[Any]:
        """All are sent before the first reply is waited for."""
        return self._receive(calls, self._dispatch(calls))

    def ahead(self, what: Call | Batch | Pause) -> Ahead | None:
        """Send a long call but for its end, which is for `complete`: so it is there when the server has
        answered the one before it. None where there is nothing to gain, or something went wrong."""
        if not isinstance(what, Call) or what.confirmations or len(what.request) < LONG:
            return None
        try:
            wire = self._borrow(self._route.of(what.where))
        except (ConnectionLost, ConfigError):
            return None
        try:
            sent = wire.send_ahead(what.request)
        except OSError:
            wire.close()
            return None
        if not sent:
            self._give_back(wire)
            return None
        return Ahead(what, wire, sent)

    def complete(self, ahead: Ahead) -> Sent:
        """Send the rest; `end` waits for the reply."""
        what, way = ahead.what, ahead.wire
        try:
            way.send(what.request[ahead.sent :])
        except ConnectionLost as error:
            return Sent(what, [what], [error])
        return Sent(what, [what], [way])

    def begin(self, what: Call | Batch) -> Sent:
        """Send what is to be carried out; `end` waits for the replies."""
        calls = what.calls if isinstance(what, Batch) else [what]
        return Sent(what, calls, self._dispatch(calls))

    def end(self, sent: Sent) -> Any:
        """What `run` would have returned, or raised."""
        replies = self._receive(sent.calls, sent.ways)
        if isinstance(sent.what, Batch):
            return replies
        (reply,) = replies
        if isinstance(reply, WinchError):
            raise reply
        return reply

    def _dispatch(self, calls: Sequence[Call]) -> list[Wire | ConnectionLost]:
        sent: list[Wire | ConnectionLost] = []
        for what in calls:
            try:
                wire = self._borrow(self._route.of(what.where))
                wire.send(confirming(first(what), self._place.timeout))
                sent.append(wire)
            except ConnectionLost as error:
                sent.append(error)
        return sent

    def _receive(self, calls: Sequence[Call], ways: Sequence[Wire | ConnectionLost]) -> list[Any]:
        found: list[Any] = []
        for what, wire_or_error in zip(calls, ways, strict=True):
            outcome: Any = wire_or_error
            if isinstance(outcome, Wire):
                try:
                    outcome = reply_of(first(what), outcome.receive(replies_to(first(what))))
                    self._give_back(wire_or_error)  # type: ignore[arg-type]  # it is a Wire
                except ConnectionLost as error:
                    outcome = error
            found.append(outcome)
        return [self._settled(what, outcome) for what, outcome in zip(calls, found, strict=True)]

    def _settled(self, what: Call, outcome: Any) -> Any:
        """The reply to a call of a batch whose first try came to this, or the error."""
        if not what.confirmations and not isinstance(outcome, (hiredis.ReplyError, ConnectionLost)):
            return outcome
        try:
            return self._carry_on(what, self._route.of(what.where), outcome)
        except WinchError as error:
            return error

    def _carry_on(self, what: Call, route: Route, outcome: Any) -> Any:
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
        wire = self._borrow(route)
        if request.confirmations:
            replies = wire.ask(confirming(request, self._place.timeout), replies_to(request))
            self._give_back(wire)
            return reply_of(request, replies)
        (reply,) = wire.ask(request.request, 1)
        self._give_back(wire)
        return reply

    def _borrow(self, route: Route) -> Wire:
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
        return Wire(self._place, address)

    def _give_back(self, wire: Wire) -> None:
        idle = self._idle.setdefault(wire.address, deque())
        if len(idle) < self._place.pool:
            idle.append(wire)
        else:
            wire.close()

    def close(self) -> None:
        for idle in list(self._idle.values()):
            while idle:
                idle.pop().close()
