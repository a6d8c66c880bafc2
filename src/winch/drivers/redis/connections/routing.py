"""How one call reaches the server and what its refusals mean, without touching a socket.

`carried` is a generator of what to do next; a sync and an async runner do it. Refusals that say "not
here" or "not now" (MOVED, ASK, TRYAGAIN, CLUSTERDOWN, LOADING, READONLY, NOSCRIPT, no connection) have
changed nothing and are tried again, a bounded number of times with growing, random pauses. A reply that
never came is another matter: the script may have run, so only reads are repeated here.
"""

from __future__ import annotations

import random
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import hiredis

from winch.core.errors import ConfigError, StorageError, StorageFull, StorageUnavailable, WinchError
from winch.drivers.redis.address import Address, HostPort
from winch.drivers.redis.scripts import RetryPause, ScriptCall, packed

TRIES = 10
CONNECT_TRIES = 3
# The server answers that it cannot right now; nothing was changed.
# ASK sends one command to the node that a slot moves to; a script needs all keys of its slot, so it
# waits until the move is over.
_PASSING = ("ASK", "TRYAGAIN", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "READONLY", "BUSY", "NOREPLICAS")


class ConnectionLost(Exception):
    """No answer. `was_sent`: the request may have arrived."""

    def __init__(self, server: HostPort | None, text: str, *, was_sent: bool) -> None:
        super().__init__(text)
        self.server = server
        self.was_sent = was_sent


@dataclass(frozen=True, slots=True)
class SendRequest:
    """Send the call and give back its reply, also an error. `is_apart`: ask for the confirmations only
    when the call has written something, for a WAIT that nothing confirms takes all of its time."""

    request: bytes
    confirmations: int
    is_apart: bool = False


class ServerRoute:
    """Which server to ask first. Shared by all connections of a driver."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._primary: HostPort | None = None

    def known(self) -> HostPort | None:
        """The server that answered last; None where it has to be found (again)."""
        return self._primary if self.address.is_sentinel else self.address.servers[0]

    def of(self, where: int) -> ServerRoute:
        """The way to a part of the store; there is but one, except in a cluster."""
        return self

    def found(self, server: HostPort) -> None:
        self._primary = server

    def lost(self) -> None:
        self._primary = None


def first(what: ScriptCall) -> SendRequest:
    """What is sent first; most calls need no more."""
    return SendRequest(what.request, what.confirmations, what.is_brief)


def confirming(request: SendRequest, timeout: float) -> bytes:
    """The bytes of a request, with WAIT behind it where that is wanted."""
    if request.confirmations and not request.is_apart:
        return request.request + _wait(request, timeout)
    return request.request


def _wait(request: SendRequest, timeout: float) -> bytes:
    return packed("WAIT", request.confirmations, round(timeout * 1000 / 5))


def confirming_apart(request: SendRequest, replies: list[Any], timeout: float) -> bytes | None:
    """What is sent on the same connection after the replies to a request have come; None: nothing."""
    if not (request.confirmations and request.is_apart):
        return None
    (reply,) = replies
    parts = reply if isinstance(reply, list) else [reply]
    if all(isinstance(part, hiredis.ReplyError) for part in parts):
        replies.append(None)  # nothing was written
        return None
    return _wait(request, timeout)


def replies_to(request: SendRequest) -> int:
    return 2 if request.confirmations and not request.is_apart else 1


def reply_of(request: SendRequest, replies: list[Any]) -> Any:
    """The reply, or [reply, number of confirmations]."""
    return replies if request.confirmations else replies[0]


def carried(
    what: ScriptCall, route: ServerRoute, outcome: Any
) -> Generator[SendRequest | RetryPause, Any, Any]:
    """Carry on with a call whose first try came to `outcome`, a reply or a ConnectionLost."""
    request = what.request
    tries = refused = 0
    is_first = True
    while True:
        try:
            if not is_first:
                outcome = yield SendRequest(request, what.confirmations, what.is_brief)
            is_first = False
            if isinstance(outcome, ConnectionLost):
                raise outcome
            reply = outcome
        except ConnectionLost as lost:
            route.lost()
            if lost.was_sent and not what.is_read:
                raise _unavailable(route, str(lost), maybe_applied=True) from lost
            refused += 1
            if what.is_brief or refused >= CONNECT_TRIES * (
                len(route.address.servers) if route.address.is_cluster else 1
            ):
                raise _unavailable(route, str(lost)) from lost
            yield RetryPause(delay(refused))
            continue
        error = reply[0] if what.confirmations and isinstance(reply, list) else reply
        if not isinstance(error, hiredis.ReplyError):
            return reply
        text = str(error)
        code, _, rest = text.partition(" ")
        if code == "NOSCRIPT" and what.full is not None and request is what.request:
            # Not one of the tries: a server that was loading for all of them has no scripts after it.
            request = what.full()
            continue
        tries += 1
        if tries > TRIES:
            raise translated(text, route)
        if code == "MOVED":
            route.found(_server(rest, route))
        elif code in _PASSING:
            if code in ("READONLY", "CLUSTERDOWN", "MASTERDOWN"):
                route.lost()
            if what.is_brief:
                raise translated(text, route)
            yield RetryPause(delay(tries))
        else:
            raise translated(text, route)


def delay(tries: int) -> float:
    """Seconds before the next try: short, growing, and different for each of many clients."""
    return min(0.02 * (1 << tries), 0.5) * random.uniform(0.5, 1.5)  # noqa: S311  # not a secret


def _server(text: str, route: ServerRoute) -> HostPort:
    """The node in "7638 10.0.0.1:6380"; one without a host is the host that was asked."""
    host, _, port = text.rsplit(" ", maxsplit=1)[-1].rpartition(":")
    known = route.known()
    return host or (known[0] if known else "localhost"), int(port)


def _unavailable(route: ServerRoute, text: str, *, maybe_applied: bool = False) -> StorageUnavailable:
    return StorageUnavailable(f"{route.address.describe()}: {text}", maybe_applied=maybe_applied)


def translated(text: str, route: ServerRoute) -> WinchError:
    """What Winch raises for an error that the server answered with; nothing was changed."""
    code = text.partition(" ")[0]
    where = f"{route.address.describe()}: {' '.join(text.split())}"
    if code == "OOM":
        return StorageFull(f"{where}; nothing was written")
    if code == "MISCONF":
        return StorageFull(f"{where}; the server cannot write to its disk, nothing was written")
    if code in ("NOAUTH", "WRONGPASS"):
        return ConfigError(f"{where}; put user and password into the URL, redis://user:password@host")
    if code == "NOPERM":
        return StorageError(f"{where}; the user lacks a right, see docs/howto/redis.md")
    if code in _PASSING or code in ("MOVED", "NOSCRIPT"):
        if code == "MOVED" and not route.address.is_cluster:
            return ConfigError(
                f"{where}; this is a node of a cluster: begin the URL with redis+cluster://"
            )
        return StorageUnavailable(where)
    return StorageError(where)
