"""One signed POST to an address that a person chose: over TLS, to the open internet, and nowhere else.

Messages of the outbox and alerts go this way. A URL is text, and text may name anything: the machine
itself, a cloud's metadata service, a database in the same network, in many spellings.

The name is resolved once; if one of the addresses it gives is not public, nothing is sent to any of
them. The connection goes to an address that was looked at, so a name that changes its mind in between
gains nothing. Redirects are not followed, proxies of the environment are not asked, the answer is read
no further than its head, and all of it together has one time limit.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import ipaddress
import math
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from email.utils import parsedate_to_datetime
from typing import NamedTuple
from urllib.parse import urlsplit

from winch.core.errors import ConfigError, DeliveryRefused
from winch.core.values.bounds import check_length
from winch.core.values.ip_address import Network, is_public, is_within

PORTS = (443, 8443)
MAX_URL = 2000
MAX_HEAD = 16 * 1024

LookUp = Callable[[str, int], Awaitable[list[str]]]


class Reply(NamedTuple):
    """The response: its status, and the seconds of its Retry-After, if any."""

    status: int
    retry_after: int | None


class PostTarget(NamedTuple):
    """A URL taken apart and found good."""

    host: str
    port: int
    path: str
    is_encrypted: bool
    is_private_allowed: bool
    allowed: tuple[Network, ...] = ()
    """Networks of the operator's own, where plain HTTP may be spoken, on any port."""


def target(
    url: str,
    *,
    allow_private: bool = False,
    what: str = "an HTTP sink",
    allowing: str = "HttpSink(…, allow_private=True)",
) -> PostTarget:
    """Take a URL apart; raises ConfigError that names what is wrong with it. With `allow_private` it may
    be plain HTTP, on any port, at any address: for a service of one's own. `what` it is for, and what
    is `allowing` that, are for messages."""
    if not url.isascii() or not url.isprintable() or " " in url:
        raise ConfigError(f"the URL of {what} must be printable ASCII without spaces, got {url!r}")
    try:
        parts = urlsplit(check_length(url, MAX_URL, f"the URL of {what}"))
        port = parts.port
        host = (parts.hostname or "").encode("idna").decode()
    except (ValueError, UnicodeError) as error:
        raise ConfigError(f"the URL of {what} is malformed: {error}") from error
    if parts.scheme != "https" and not (allow_private and parts.scheme == "http"):
        raise ConfigError(
            f"the URL of {what} must begin with https://, got {parts.scheme or url!r}; "
            f"{allowing} allows plain HTTP to a service of your own"
        )
    if not host:
        raise ConfigError(f"the URL of {what} names no host: {url!r}")
    if parts.username is not None or parts.password is not None or parts.fragment:
        raise ConfigError(f"the URL of {what} takes no user, password or fragment")
    is_encrypted = parts.scheme == "https"
    port = port or (443 if is_encrypted else 80)
    if port not in PORTS and not allow_private:
        raise ConfigError(
            f"{what} may use the ports {', '.join(map(str, PORTS))}, got {port}; {allowing} allows any"
        )
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return PostTarget(host, port, path, is_encrypted, allow_private)


async def look_up(host: str, port: int) -> list[str]:
    """The addresses of a host, in the order of the system."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ConnectionError(f"{host} cannot be resolved: {error}") from error
    return list(dict.fromkeys(str(info[4][0]) for info in found))


async def resolve(where: PostTarget, lookup: LookUp = look_up) -> list[str]:
    """The addresses of a target; raises DeliveryRefused when one of them must not be called."""
    addresses = await lookup(where.host, where.port)
    for address in addresses if not where.is_private_allowed else ():
        if is_within(ipaddress.ip_address(address.partition("%")[0]), where.allowed):
            continue
        if not is_public(address):
            raise DeliveryRefused(
                f"{where.host} is at {address}, which is not on the open internet; nothing was sent. "
                "allow_private=True of the sink or target, or the setting alert_networks, allows it"
            )
        if not where.is_encrypted or where.port not in PORTS:
            raise DeliveryRefused(f"only https on port {' or '.join(map(str, PORTS))} is called")
    return addresses


def signed(body: bytes, message_id: str, *secrets: bytes | None) -> dict[str, str]:
    """The headers of Standard Webhooks: id, moment and, for each secret, a signature over both and the
    body. A receiver accepts the message by any one of them."""
    stamp = str(int(time.time()))
    headers = {"webhook-id": message_id, "webhook-timestamp": stamp}
    signatures = [signature(one, message_id, stamp, body) for one in secrets if one is not None]
    if signatures:
        headers["webhook-signature"] = " ".join(signatures)
    return headers


def signature(secret: bytes, message_id: str, stamp: str, body: bytes) -> str:
    """What a receiver checks: HMAC-SHA256 over id, moment and body."""
    digest = hmac.digest(secret, f"{message_id}.{stamp}.".encode() + body, hashlib.sha256)
    return f"v1,{base64.b64encode(digest).decode()}"


async def post(
    where: PostTarget,
    body: bytes,
    headers: Mapping[str, str],
    *,
    timeout: float,
    context: ssl.SSLContext | None,
    lookup: LookUp = look_up,
) -> Reply:
    """Send the body and read the head of the answer. Raises DeliveryRefused, OSError (TimeoutError among
    them), or ValueError for an answer that is no HTTP."""
    async with asyncio.timeout(timeout):
        reader, writer = await _connect(where, context, lookup)
        try:
            writer.write(_request(where, body, headers) + body)
            await writer.drain()
            return _read(await _head(reader))
        finally:
            # Nothing more is read: closing in good order could wait for the other side.
            writer.transport.abort()


async def _connect(
    where: PostTarget, context: ssl.SSLContext | None, lookup: LookUp
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    failed: OSError | None = None
    for address in await resolve(where, lookup):
        try:
            return await asyncio.open_connection(
                address,
                where.port,
                limit=MAX_HEAD,
                ssl=context if where.is_encrypted else None,
                server_hostname=where.host if where.is_encrypted else None,
            )
        except OSError as error:
            failed = error
    raise failed or ConnectionError(f"{where.host} has no address")


def _request(where: PostTarget, body: bytes, headers: Mapping[str, str]) -> bytes:
    host = f"[{where.host}]" if ":" in where.host else where.host
    usual = 443 if where.is_encrypted else 80
    lines = [
        f"POST {where.path} HTTP/1.1",
        f"Host: {host}" if where.port == usual else f"Host: {host}:{where.port}",
        f"Content-Length: {len(body)}",
        "Connection: close",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


async def _head(reader: asyncio.StreamReader) -> bytes:
    while True:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError as error:
            raise ValueError(f"the headers of the reply are longer than {MAX_HEAD} bytes") from error
        except asyncio.IncompleteReadError as error:
            raise ConnectionError("the connection closed before the reply was complete") from error
        if not head.startswith(b"HTTP/1.1 1"):  # 100 Continue and its like come before the answer
            return head


def _read(head: bytes) -> Reply:
    first, *lines = head.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    if not version.startswith("HTTP/1.") or not rest[:3].isdecimal():
        raise ValueError(f"the reply is not HTTP: {first[:80]!r}")
    named = {name.strip().lower(): value.strip() for name, _, value in (x.partition(":") for x in lines)}
    return Reply(int(rest[:3]), _seconds(named.get("retry-after", ""), named.get("date", "")))


def _seconds(wait: str, date: str) -> int | None:
    """Retry-After in seconds. A date counts from the reply's own Date: both are by the other side's
    clock."""
    if wait.isdecimal():
        return int(wait) if len(wait) < 8 else None
    try:
        seconds = (parsedate_to_datetime(wait) - parsedate_to_datetime(date)).total_seconds()
    except (ValueError, TypeError, OverflowError):  # not both are dates
        return None
    return max(0, math.ceil(seconds))
