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
from dataclasses import replace
from functools import cache
from typing import Any

import hiredis

from winch.core.errors import ConfigError
from winch.drivers.redis.carry import ConnectionLost, Pause, Route, Send, carried, first
from winch.drivers.redis.place import Address, Place
from winch.drivers.redis.scripts import Call, packed

# A connection used so many seconds ago is not asked whether it is still there.
FRESH = 0.25
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
        self._used_at = 0.0
        if said := greeting(place):
            try:
                check_greeting(self.ask(b"".join(said), len(said)), place, address)
            except Exception:
                self.close()
                raise

    def ask(self, data: bytes, replies: int) -> list[Any]:
        was_sent = False
        try:
            self._socket.sendall(data)
            was_sent = True
            found: list[Any] = []
            reader = self._reader
            self._used_at = time.monotonic()
            while True:
                while (answer := reader.gets()) is not _NOTHING:
                    found.append(answer)
                    if len(found) == replies:
                        return found
                received = self._socket.recv(262_144)
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
                self.address, f"{_named(self.address)}: {error}", was_sent=was_sent or len(data) > 65_536
            ) from error
        except BaseException:  # an interrupt: the next reply would be taken for another's
            self.close()
            raise

    def is_fresh(self) -> bool:
        """Whether the server has not hung up while nobody looked, where that is likely."""
        if time.monotonic() - self._used_at < FRESH:
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


class Pool:
    """The connections of the sync side. A connection is lent to one call at a time."""

    def __init__(self, place: Place, route: Route) -> None:
        self._place = place
        self._route = route
        self._idle: deque[Wire] = deque()
        self._pid = os.getpid()
        self._guard = threading.Lock()

    def run(self, what: Call) -> Any:
        """Carry a call out and return its reply."""
        outcome: Any
        try:
            outcome = self._send(first(what))
        except ConnectionLost as error:
            outcome = error
        else:
            if not what.confirmations and type(outcome) is not hiredis.ReplyError:
                return outcome
        steps = carried(what, self._route, outcome)
        try:
            step = next(steps)
            while True:
                if isinstance(step, Pause):
                    time.sleep(step.seconds)
                    step = steps.send(None)
                    continue
                try:
                    reply = self._send(step)
                except ConnectionLost as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(reply)
        except StopIteration as stop:
            return stop.value

    def _send(self, request: Send) -> Any:
        wire = self._borrow()
        if request.confirmations:
            replies = wire.ask(confirming(request, self._place.timeout), replies_to(request))
            self._give_back(wire)
            return reply_of(request, replies)
        (reply,) = wire.ask(request.request, 1)
        self._give_back(wire)
        return reply

    def _borrow(self) -> Wire:
        if self._pid != os.getpid():  # a fork shares the sockets: they are the parent's
            self._idle, self._pid = deque(), os.getpid()
        address = self._route.known()
        if address is None:
            address = find_primary(self._place)
            self._route.found(address)
        while True:
            try:
                wire = self._idle.pop()
            except IndexError:
                return Wire(self._place, address)
            if wire.address == address and wire.is_fresh():
                return wire
            wire.close()

    def _give_back(self, wire: Wire) -> None:
        if len(self._idle) < self._place.pool:
            self._idle.append(wire)
        else:
            wire.close()

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()
