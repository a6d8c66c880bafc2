"""One signed HTTP POST to an address that a person configured, without becoming a way into the network.

A URL is text, and text may name anything: the machine itself, a cloud's metadata service, a database in
the same network, in many spellings. So the name is resolved once, every address it has must be on the
open internet (or in a network that the operator allows), and the connection goes to the very address
that was checked. Redirects are not followed, proxies of the environment are not used.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import ipaddress
import socket
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from urllib.parse import SplitResult, urlsplit

from winch.core.address import Address, Network, is_public, is_within
from winch.core.errors import ConfigError, WinchError

PORTS = (443, 8443)
TIMEOUT = 10.0
MOST_ANSWER = 64 * 1024

Resolve = Callable[[str, int], Sequence[Address]]


class WebhookRefused(WinchError):
    """The address must not be called, or did not take the message."""


def networks(text: str) -> tuple[Network, ...]:
    """`10.0.0.0/8, fd00::/8` as networks; raises ConfigError."""
    try:
        return tuple(ipaddress.ip_network(one.strip()) for one in text.split(",") if one.strip())
    except ValueError as error:
        raise ConfigError(f"networks must be like 10.0.0.0/8,192.168.1.7/32: {error}") from error


def check_url(url: str) -> SplitResult:
    """The parts of a URL that may be called as far as its text tells; raises ConfigError."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"the webhook's URL cannot be read: {error}") from error
    if parts.scheme not in ("https", "http") or not parts.hostname:
        raise ConfigError("the webhook's URL must begin with https:// and name a host")
    if parts.username is not None or parts.password is not None:
        raise ConfigError("the webhook's URL must not hold a user or password; use a secret to sign")
    if port == 0 or any(ord(char) <= 32 or ord(char) == 127 for char in url):
        raise ConfigError("the webhook's URL has a port or a character that cannot be")
    return parts


def resolve(host: str, port: int) -> list[Address]:
    """All addresses of a host, in the order of the system."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    except (OSError, UnicodeError) as error:
        raise WebhookRefused(f"{host} cannot be resolved: {error}") from error
    return [ipaddress.ip_address(str(info[4][0]).partition("%")[0]) for info in found]


def signed(body: bytes, message_id: str, secret: str | None, now: float) -> dict[str, str]:
    """The headers of Standard Webhooks: id, time and, with a secret, a signature over both and the
    body."""
    stamp = str(int(now))
    headers = {"webhook-id": message_id, "webhook-timestamp": stamp}
    if secret is not None:
        key = secret.encode()
        if secret.startswith("whsec_"):
            key = base64.b64decode(secret.removeprefix("whsec_"))
        digest = hmac.new(key, f"{message_id}.{stamp}.".encode() + body, hashlib.sha256).digest()
        headers["webhook-signature"] = f"v1,{base64.b64encode(digest).decode()}"
    return headers


def send(
    url: str,
    body: bytes,
    *,
    message_id: str,
    content_type: str,
    secret: str | None = None,
    allowed: Sequence[Network] = (),
    headers: Mapping[str, str] | None = None,
    resolver: Resolve = resolve,
    timeout: float = TIMEOUT,
    tls: ssl.SSLContext | None = None,
) -> int:
    """Post the body; returns the status, one of the 200s. Raises WebhookRefused, ConfigError."""
    parts = check_url(url)
    host = parts.hostname or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    addresses = resolver(host, port)
    if not addresses:
        raise WebhookRefused(f"{host} has no address")
    for address in addresses:
        is_own = is_within(address, allowed)
        if not is_own and not is_public(str(address)):
            raise WebhookRefused(
                f"{host} is {address}, which is not on the open internet; allow its network to call it"
            )
        if not is_own and (parts.scheme != "https" or port not in PORTS):
            raise WebhookRefused(f"only https on port {' or '.join(map(str, PORTS))} is called")
    sent = {
        "content-type": content_type,
        "user-agent": "winch",
        **(headers or {}),
        **signed(body, message_id, secret, time.time()),
    }
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    connection = _Pinned(host, port, addresses[0], timeout, _tls(parts, tls))
    try:
        connection.request("POST", path, body, sent)
        answer = connection.getresponse()
        answer.read(MOST_ANSWER)
    except (OSError, http.client.HTTPException) as error:
        raise WebhookRefused(f"{host} did not take the message: {error}") from error
    finally:
        connection.close()
    if not 200 <= answer.status < 300:
        raise WebhookRefused(f"{host} answered {answer.status}")
    return answer.status


def _tls(parts: SplitResult, given: ssl.SSLContext | None) -> ssl.SSLContext | None:
    if parts.scheme != "https":
        return None
    return ssl.create_default_context() if given is None else given


class _Pinned(http.client.HTTPConnection):
    """A connection to the address that was checked, under the name that was asked for."""

    def __init__(
        self, host: str, port: int, address: Address, timeout: float, tls: ssl.SSLContext | None
    ) -> None:
        # The name goes into the Host header, without the port where it is the usual one.
        self.default_port = 443 if tls is not None else 80
        super().__init__(host, port, timeout=timeout)
        self._address = address
        self._tls = tls

    def connect(self) -> None:
        self.sock = socket.create_connection((str(self._address), self.port), self.timeout)
        if self._tls is not None:
            self.sock = self._tls.wrap_socket(self.sock, server_hostname=self.host)
