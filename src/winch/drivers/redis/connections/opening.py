"""How a connection is opened: TLS, the first requests, and what is wrong where that fails."""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Sequence
from functools import cache
from typing import Any

import hiredis

from winch.core.errors import ConfigError
from winch.drivers.redis.address import Address, Place
from winch.drivers.redis.connections.routing import ConnectionLost
from winch.drivers.redis.scripts import packed


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
    text = f"cannot connect to {named(address)}: {str(error) or 'no answer'}; {hint}"
    return ConnectionLost(address, text, was_sent=False)


def greeting(place: Place) -> list[bytes]:
    """The first requests of a new connection; the server answers each with OK."""
    requests = []
    if place.password is not None:
        login = (place.user, place.password) if place.user else (place.password,)
        requests.append(packed("AUTH", *login))
    if place.database:
        requests.append(packed("SELECT", place.database))
    return requests


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


def open_socket(place: Place, address: Address) -> socket.socket:
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


def named(address: Address) -> str:
    return f"{address[0]}:{address[1]}"
