"""The outermost layer: what holds for every request and every answer, errors and files included."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from winch.core.values.ip_address import Network
from winch.web.access import host_name
from winch.web.problems import Problem
from winch.web.proxies import resolved

CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: tuple[tuple[bytes, bytes], ...] = (
    (b"content-security-policy", CSP.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
)

# Names have at most 256 characters; a query is a search, a few names and a cursor.
MAX_PATH = 2000
MAX_QUERY = 16 * 1024
# A name or an address of IPv4, or one of IPv6 in brackets, and a port; HTTP/1.0 needs none. Starlette
# before 1.10 fails where brackets are not in pairs.
HOST = re.compile(r"(?:[^\s\[\]/?#@\\]{0,1000}|\[[0-9A-Za-z:.%_-]{1,100}\](?::[0-9]{1,5})?)")


# Answered however many other requests there are.
PROBES = frozenset({"/livez", "/readyz", "/startupz", "/healthz"})


class SecurityHeaders:
    """Checks the host and the body's size, gives each request an id, and adds headers to each answer."""

    def __init__(
        self,
        inner: ASGIApp,
        *,
        hosts: frozenset[str] | None,
        max_body: int,
        proxies: Sequence[Network] = (),
        is_full: Callable[[str], bool] | None = None,
    ) -> None:
        self._inner = inner
        self._proxies = proxies
        self._is_full = is_full
        self._hosts = hosts
        self._max_body = max_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._inner(scope, receive, send)
            return
        peer = scope["client"][0] if scope.get("client") else ""
        if self._proxies:
            scope = resolved(scope, self._proxies)
        request_id = os.urandom(8).hex()
        scope.setdefault("state", {})["request_id"] = request_id
        headers = dict(scope["headers"])

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = message.setdefault("headers", [])
                names = {name.lower() for name, _ in given}
                given.extend(pair for pair in HEADERS if pair[0] not in names)
                if b"cache-control" not in names:
                    given.append((b"cache-control", b"no-store"))
                given.append((b"x-request-id", request_id.encode()))
            await send(message)

        problem = self._crowded(scope["path"], peer) or self._refusal(scope, headers)
        if problem is not None:
            await problem.response(scope["path"], request_id)(scope, receive, with_headers)
            return
        await self._inner(scope, self._bounded(receive), with_headers)

    def _crowded(self, path: str, peer: str) -> Problem | None:
        if self._is_full is None or path in PROBES or not self._is_full(peer):
            return None
        return Problem(
            "busy",
            "too many requests are being answered; try again in a moment",
            headers={"retry-after": "1", "connection": "close"},
        )

    def _refusal(self, scope: Scope, headers: dict[bytes, bytes]) -> Problem | None:
        if len(scope["path"]) > MAX_PATH or len(scope["query_string"]) > MAX_QUERY:
            return Problem(
                "too-long",
                f"a path may have {MAX_PATH:,} characters and a query {MAX_QUERY:,} bytes",
            )
        if not scope["path"].isprintable():
            return Problem("bad-request", "the path holds a character that cannot be printed")
        host = headers.get(b"host", b"").decode("latin-1")
        if not HOST.fullmatch(host):
            return Problem("bad-request", "the header Host is no host name with a port")
        if self._hosts is not None:
            name = host_name(host)
            if name not in self._hosts:
                return Problem("wrong-host", f"this server does not answer for {name!r}")
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and (len(length) > 18 or int(length) > self._max_body):
            # Before a byte of it is read. The connection is of no more use: the body is on its way.
            return Problem(
                "too-large",
                f"a body may have {self._max_body:,} bytes",
                headers={"connection": "close"},
            )
        return None

    def _bounded(self, receive: Receive) -> Receive:
        """For bodies that do not say how long they are."""
        seen = 0

        async def bounded() -> Any:
            nonlocal seen
            message = await receive()
            if message["type"] == "http.request":
                seen += len(message.get("body", b""))
                if seen > self._max_body:
                    raise Problem("too-large", f"a body may have {self._max_body:,} bytes")
            return message

        return bounded
