"""The webhook of alerts: one signed POST (`http_post`) for callers that are not asynchronous."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

from winch.core.errors import ConfigError, DeliveryRefused
from winch.core.values.ip_address import Address, Network
from winch.engine.base.http_post import LookUp, PostTarget, look_up, post, signed

TIMEOUT = 10.0

Resolve = Callable[[str, int], Sequence[Address]]


def target(url: str, allowed: Sequence[Network] = ()) -> PostTarget:
    """A URL that may be called, judged by its text; raises ConfigError."""
    try:
        parts = urlsplit(url)
        port = parts.port
        host = (parts.hostname or "").encode("idna").decode()
    except (ValueError, UnicodeError) as error:
        raise ConfigError(f"the webhook's URL cannot be read: {error}") from error
    if parts.scheme not in ("https", "http") or not host:
        raise ConfigError("the webhook's URL must begin with https:// and name a host")
    if parts.username is not None or parts.password is not None:
        raise ConfigError("the webhook's URL must not hold a user or password; use a secret to sign")
    if port == 0 or not url.isascii() or not url.isprintable() or " " in url:
        raise ConfigError("the webhook's URL has an invalid port or character")
    is_encrypted = parts.scheme == "https"
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    usual = 443 if is_encrypted else 80
    return PostTarget(host, port or usual, path, is_encrypted, False, tuple(allowed))


def send(
    url: str,
    body: bytes,
    *,
    message_id: str,
    content_type: str,
    secret: str | None = None,
    allowed: Sequence[Network] = (),
    resolver: Resolve | None = None,
    timeout: float = TIMEOUT,
    tls: ssl.SSLContext | None = None,
) -> int:
    """Post the body; returns the status, one of the 200s. Raises DeliveryRefused, ConfigError. Not from
    within an event loop."""
    where = target(url, allowed)
    headers = {
        "content-type": content_type,
        "user-agent": "winch",
        **signed(body, message_id, _key(secret)),
    }
    if where.is_encrypted and tls is None:
        tls = ssl.create_default_context()
    lookup = look_up if resolver is None else _resolved_by(resolver)
    try:
        reply = asyncio.run(post(where, body, headers, timeout=timeout, context=tls, lookup=lookup))
    except (OSError, ValueError) as error:
        raise DeliveryRefused(f"{where.host} did not take the message: {error}") from error
    if not 200 <= reply.status < 300:
        raise DeliveryRefused(f"{where.host} answered {reply.status}")
    return reply.status


def _key(secret: str | None) -> bytes | None:
    if secret is None or not secret.startswith("whsec_"):
        return None if secret is None else secret.encode()
    return base64.b64decode(secret.removeprefix("whsec_"))


def _resolved_by(resolver: Resolve) -> LookUp:
    async def lookup(host: str, port: int) -> list[str]:
        return [str(address) for address in resolver(host, port)]

    return lookup
