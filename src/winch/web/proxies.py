"""Requests through a proxy: the client's own address, scheme and host, as far as the proxy is trusted.

Any client can send `X-Forwarded-For`. The headers count only when the peer is in the list of trusted
proxies, and of the addresses only those that trusted proxies have added.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from starlette.types import Scope

from winch.core.values.ip_address import Address, Network, is_within

MAX_HOPS = 20
_NAMES = (b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-host")


def resolved(scope: Scope, trusted: Sequence[Network]) -> Scope:
    """The request as the client sent it to the first trusted proxy; the same one for any other peer."""
    peer = _address((scope.get("client") or ("",))[0])
    if peer is None or not is_within(peer, trusted):
        return scope
    given = {name: _last_values(scope, name) for name in _NAMES}
    found = dict(scope)
    client = peer
    for text in given[b"x-forwarded-for"][:MAX_HOPS]:
        address = _address(text)
        if address is None:
            break
        client = address
        if not is_within(address, trusted):
            break
    if client is not peer:
        found["client"] = (str(client), 0)
    scheme = next(iter(given[b"x-forwarded-proto"]), "").lower()
    if scheme in ("http", "https"):
        found["scheme"] = scheme
    if host := next(iter(given[b"x-forwarded-host"]), ""):
        others = [pair for pair in scope["headers"] if pair[0] != b"host"]
        found["headers"] = [(b"host", host.encode("latin-1")), *others]
    return found


def _last_values(scope: Scope, name: bytes) -> list[str]:
    """The values of a header that may repeat, the nearest proxy's first."""
    lines = [value.decode("latin-1") for known, value in scope["headers"] if known == name]
    return [part.strip() for part in reversed(",".join(lines).split(",")) if part.strip()]


def _address(text: str) -> Address | None:
    """An address, also with a port: `192.0.2.1:1234`, `[2001:db8::1]:1234`."""
    text = text.strip()[:64]
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None
