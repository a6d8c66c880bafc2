"""Probes of a worker over HTTP, with nothing but the standard library.

`/livez` reports that this process runs and never touches the store; `/readyz` that its children take
jobs and the store has answered their heartbeats; `/metrics` what they have done. One short answer per
connection: this is for probes and scrapers, not for browsers.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
from collections.abc import Callable, Mapping

import msgspec

from winch.core.errors import ConfigError
from winch.engine.base.log import log
from winch.engine.observe.prometheus import CONTENT_TYPE

MOST_HEAD = 8 * 1024
HEAD_SECONDS = 5.0
MOST_OPEN = 100
_REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 403: "Forbidden", 404: "Not Found",
            405: "Method Not Allowed", 503: "Service Unavailable"}  # fmt: skip

Checks = Mapping[str, str]
"""What was looked at, and `pass` or what is wrong with it."""


class HealthPort:
    """Answers probes on one port. `metrics_token`: what a scraper must show; a port that other machines
    reach shows no numbers without one."""

    def __init__(
        self,
        *,
        live: Callable[[], Checks],
        ready: Callable[[], Checks],
        metrics: Callable[[], str],
        is_local: bool,
        metrics_token: str | None = None,
    ) -> None:
        self._pages: Mapping[str, Callable[[], Checks]] = {
            "/livez": live,
            "/readyz": ready,
            "/startupz": ready,
            "/healthz": ready,
        }
        self._metrics = metrics
        self._is_local = is_local
        self._metrics_token = metrics_token
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.StreamWriter, None] = {}

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port. Raises ConfigError when the address cannot be had."""
        try:
            self._server = await asyncio.start_server(self._serve, host, port, limit=MOST_HEAD)
        except OSError as error:
            raise ConfigError(
                f"--health-port: cannot listen on {host}:{port}: {error}; try another port"
            ) from error
        found: int = self._server.sockets[0].getsockname()[1]
        return found

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open[writer] = None
        if len(self._open) > MOST_OPEN:
            # The oldest makes room: connections that send nothing must not keep a probe from its answer.
            oldest = next(iter(self._open))
            del self._open[oldest]
            oldest.transport.abort()
        try:
            async with asyncio.timeout(HEAD_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
            writer.write(self._answer(head.decode("latin-1")))
            await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # a probe that does not speak is no matter of ours
        except Exception:
            log.exception("a probe could not be answered")
        finally:
            self._open.pop(writer, None)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    def _answer(self, head: str) -> bytes:
        first, *rest = head.split("\r\n")
        words = first.split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return _response(400, "text/plain", b"not a request\n")
        method, path = words[0], words[1].partition("?")[0]
        is_verbose = "verbose" in words[1].partition("?")[2]
        if method not in ("GET", "HEAD"):
            return _response(405, "text/plain", b"GET only\n")
        if path == "/metrics":
            return self._scrape(rest, is_head=method == "HEAD")
        if path not in self._pages:
            return _response(404, "text/plain", b"/livez /readyz /startupz /healthz /metrics\n")
        checks = self._pages[path]()
        is_well = all(result == "pass" for result in checks.values())
        shown: dict[str, object] = {"status": "pass" if is_well else "fail"}
        if is_verbose or not is_well:
            shown["checks"] = dict(checks)
        status = 200 if is_well else 503
        return _response(
            status, "application/health+json", msgspec.json.encode(shown), is_head=method == "HEAD"
        )

    def _scrape(self, headers: list[str], *, is_head: bool) -> bytes:
        if self._metrics_token is not None:
            wanted = f"Bearer {self._metrics_token}".encode()
            given = next(
                (line[14:].strip() for line in headers if line.lower().startswith("authorization:")), ""
            )
            if not hmac.compare_digest(given.encode(), wanted):
                return _response(401, "text/plain", b"a token is needed\n", challenge=True)
        elif not self._is_local:
            return _response(
                403,
                "text/plain",
                b"this port can be reached from other machines: set WINCH_METRICS_TOKEN on the worker "
                b"and have the scraper send it as a bearer token\n",
            )
        return _response(200, CONTENT_TYPE, self._metrics().encode(), is_head=is_head)


def _response(
    status: int, kind: str, body: bytes, *, is_head: bool = False, challenge: bool = False
) -> bytes:
    head = [
        f"HTTP/1.1 {status} {_REASONS[status]}",
        f"content-type: {kind}",
        f"content-length: {len(body)}",
        "cache-control: no-store",
        "x-content-type-options: nosniff",
        "connection: close",
    ]
    if challenge:
        head.append('www-authenticate: Bearer realm="winch"')
    return "\r\n".join([*head, "", ""]).encode() + (b"" if is_head else body)
