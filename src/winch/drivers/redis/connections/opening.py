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
from winch.drivers.redis.address import Address, HostPort
from winch.drivers.redis.connections.routing import ConnectionLost
from winch.drivers.redis.scripts import packed


def ssl_context(address: Address) -> ssl.SSLContext | None:
    return _context(address.ca_file, address.verifies) if address.is_encrypted else None


@cache  # reading the system's authorities takes longer than all the rest of connecting
def _context(ca_file: str | None, verifies: bool) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise ConfigError(
            f"ca_file={ca_file} in the URL is not a file with the certificate of an authority: {error}"
        ) from error
    if not verifies:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def cannot_connect(address: Address, server: HostPort, error: BaseException) -> ConnectionLost:
    """Why there is no connection, and what to do about it."""
    if isinstance(error, ssl.SSLCertVerificationError):
        hint = "name the authority that you trust with ca_file=FILE in the URL"
    elif isinstance(error, ssl.SSLError) or (address.is_encrypted and isinstance(error, TimeoutError)):
        # A port without TLS waits for the rest of what it takes for a command.
        hint = "rediss:// is for a port that speaks TLS, redis:// for one that does not"
    else:
        hint = "is the server running, and are host and port of the URL right?"
    text = f"cannot connect to {named(server)}: {str(error) or 'no answer'}; {hint}"
    return ConnectionLost(server, text, was_sent=False)


def greeting(address: Address) -> list[bytes]:
    """The first requests of a new connection; the server answers each with OK."""
    requests = []
    if address.password is not None:
        login = (address.user, address.password) if address.user else (address.password,)
        requests.append(packed("AUTH", *login))
    if address.database:
        requests.append(packed("SELECT", address.database))
    return requests


def check_greeting(answers: Sequence[Any], address: Address, server: HostPort) -> None:
    """Raise what keeps the connection from being used: a wrong password, a server that still starts."""
    for answer in answers:
        if isinstance(answer, hiredis.ReplyError):
            if str(answer).startswith("LOADING"):
                raise ConnectionLost(server, str(answer), was_sent=False)
            raise ConfigError(
                f"{address.describe()}: {answer}; check user and password in the URL, "
                "redis://user:password@host"
            )


def open_socket(address: Address, server: HostPort) -> socket.socket:
    context = ssl_context(address)
    try:
        found = socket.create_connection(server, timeout=address.timeout / 2)
        if context is not None:
            try:
                found = context.wrap_socket(found, server_hostname=server[0])
            except BaseException:
                found.close()
                raise
    except OSError as error:
        raise cannot_connect(address, server, error) from error
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if isinstance(found, ssl.SSLSocket):
        found.settimeout(address.timeout)
    else:
        # The kernel's own limits: with Python's, each call would first ask whether it may.
        found.settimeout(None)
        limit = struct.pack("ll", int(address.timeout), int(address.timeout % 1 * 1e6))
        found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
    return found


def named(server: HostPort) -> str:
    return f"{server[0]}:{server[1]}"
