"""A fast path of the connection: the requests that API clients send, parsed and answered without h11.

What it saves: a third of the server's CPU time for an enqueue. h11 looks at each header several times
and writes each answer in three pieces.

A request takes this path if it is a POST of HTTP/1.1 with a host, a content-length of at most
`MOST_BYTES`, printable headers, and nothing that changes how a connection is read or kept. Anything else
goes to h11, byte by byte as it came, so there is one place that judges odd requests. A request of this
path leaves h11 untouched, so both kinds may follow each other on one connection. `WINCH_FAST=off`
switches it off.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

import h11
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES

from winch.web.server.connections import Connection

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_BYTES = 1024 * 1024
MOST_HEAD = 16 * 1024
# What came before its turn; then the client has to wait.
MOST_EARLY = 64 * 1024
_LINE = re.compile(rb"POST (/[!-~]*) HTTP/1\.1")
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):([ \t!-~]*)")
_LENGTH = re.compile(rb"[0-9]{1,7}")
_ODD = frozenset({b"transfer-encoding", b"expect", b"upgrade", b"te", b"trailer", b"http2-settings"})
_SINGLE = frozenset({b"host", b"content-length", b"connection"})
_STATUS = {code: b"HTTP/1.1 %d %s\r\n" % (code, phrase) for code, phrase in STATUS_PHRASES.items()}
_FAILED = b"Internal Server Error"
_CLOSE = (b"connection", b"close")


class PlainRequest(NamedTuple):
    """A request of this path: its target, its headers with names in lower case, where its body begins
    and how long that is."""

    target: bytes
    headers: list[tuple[bytes, bytes]]
    body_at: int
    length: int


def parsed(data: bytes) -> PlainRequest | None:
    """The request at the beginning of these bytes; None for one that h11 is to judge."""
    if data[:6] != b"POST /":
        return None
    end = data.find(b"\r\n\r\n", 0, MOST_HEAD)
    if end < 0:
        return None
    first, *lines = data[:end].split(b"\r\n")
    line = _LINE.fullmatch(first)
    if line is None:
        return None
    headers: list[tuple[bytes, bytes]] = []
    single: dict[bytes, bytes] = {}
    for text in lines:
        found = _HEADER.fullmatch(text)
        if found is None:
            return None
        name, value = found[1].lower(), found[2].strip(b" \t")
        if name in _ODD:
            return None
        if name in _SINGLE:
            if name in single:
                return None
            single[name] = value
        headers.append((name, value))
    length = single.get(b"content-length", b"")
    if b"host" not in single or _LENGTH.fullmatch(length) is None or int(length) > MOST_BYTES:
        return None
    if single.get(b"connection", b"keep-alive").lower() != b"keep-alive":
        return None
    return PlainRequest(line[1], headers, end + 4, int(length))


class PlainCycle:
    """One request and its answer. It has what a connection looks at in a cycle of uvicorn."""

    def __init__(self, connection: PlainConnection, scope: dict[str, Any], body: bytes) -> None:
        self._connection = connection
        self._scope = scope
        self.message_event: asyncio.Event = asyncio.Event()
        self.body: bytes | None = body
        self.more_body: bool = False
        self.keep_alive: bool = True
        self.disconnected: bool = False
        self.response_complete: bool = False
        self._head: bytes | None = None
        self._is_begun = False

    async def run(self, app: Any) -> None:
        connection = self._connection
        try:
            await app(self._scope, self.receive, self.send)
        except BaseException as error:
            connection.logger.error("Exception in ASGI application\n", exc_info=error)
            if isinstance(error, (KeyboardInterrupt, SystemExit)):
                raise
        if not self.response_complete and not self.disconnected:
            if not self._is_begun:
                self.keep_alive = False
                headers = [
                    (b"content-type", b"text/plain"),
                    (b"content-length", b"%d" % len(_FAILED)),
                ]
                connection.transport.write(self._written(500, headers) + _FAILED)
            self.response_complete = True
            connection.transport.close()

    async def receive(self) -> dict[str, Any]:
        if self.body is not None:
            body, self.body = self.body, None
            return {"type": "http.request", "body": body, "more_body": False}
        if not self.disconnected and not self.response_complete:
            await self.message_event.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        connection = self._connection
        if connection.flow.write_paused and not self.disconnected:
            await connection.flow.drain()
        if self.disconnected:
            return
        if message["type"] == "http.response.start":
            self._head = self._written(message["status"], message.get("headers", ()))
            return
        body, is_more = message.get("body", b""), message.get("more_body", False)
        if self._head is not None:
            head, self._head, self._is_begun = self._head, None, True
            body = head + body
        if body:
            connection.transport.write(body)
        if not is_more:
            self.response_complete = True
            self.message_event.set()
            connection.on_plain_response(self.keep_alive)

    def _written(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> bytes:
        """The head of an answer. One of unknown length ends with the connection."""
        lines = [*self._connection.server_state.default_headers, *headers]
        if _CLOSE in lines or all(name.lower() != b"content-length" for name, _ in headers):
            self.keep_alive = False
        if not self.keep_alive and _CLOSE not in lines:
            lines.append(_CLOSE)
        head = b"".join([_STATUS[status], *(b"%b: %b\r\n" % pair for pair in lines), b"\r\n"])
        if head.count(b"\n") != len(lines) + 2 or head.count(b"\r") != len(lines) + 2:
            raise ValueError("a header of the answer holds a line break")
        return head


class PlainConnection(Connection):
    """A connection that takes the fast path where it can."""

    # A request of which the body is not here yet, and what has come of it. It is parsed once: a client
    # may send it byte by byte.
    _request: PlainRequest | None = None
    _partial: bytearray
    _early = b""  # what came while a request of this path was being answered

    def data_received(self, data: bytes) -> None:
        cycle: Any = self.cycle
        if type(cycle) is PlainCycle and not cycle.response_complete:
            self._early += data
            if len(self._early) > MOST_EARLY:
                self.flow.pause_reading()
            return
        request = self._request
        if request is not None:
            self._partial += data
            if len(self._partial) < request.body_at + request.length:
                return
            data, self._request = bytes(self._partial), None
        elif (
            self.conn.their_state is not h11.IDLE
            or self.conn.our_state is not h11.IDLE
            or self.conn.trailing_data[0]
        ):
            super().data_received(data)
            return
        else:
            request = parsed(data)
        if request is None:
            super().data_received(data)
            return
        whole = request.body_at + request.length
        if len(data) < whole:
            self._request, self._partial = request, bytearray(data)
            self._unset_keepalive_if_required()
            self._start_head_timer()
            return
        self._early = data[whole:]
        self._answer(request, data[request.body_at : whole])

    def _late(self) -> None:
        self._head_timer = None
        if self._request is not None:  # h11 and the site know how long a body may take
            self._request = None
            super().data_received(bytes(self._partial))
        else:
            super()._late()

    def _answer(self, request: PlainRequest, body: bytes) -> None:
        self._unset_keepalive_if_required()
        self._stop_head_timer()
        raw_path, _, query = request.target.partition(b"?")
        scope = {
            "type": "http",
            "asgi": {"version": self.asgi_version, "spec_version": "2.3"},
            "http_version": "1.1",
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme,
            "method": "POST",
            "root_path": self.root_path,
            "path": self.root_path + unquote(raw_path.decode("ascii")),
            "raw_path": self.root_path.encode("ascii") + raw_path,
            "query_string": query,
            "headers": request.headers,
            "state": self.app_state.copy(),
        }
        cycle: Any = PlainCycle(self, scope, body)
        self.cycle = cycle
        self.crowd.works(self)
        task = self.loop.create_task(cycle.run(self.app))
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)

    def on_plain_response(self, keep_alive: bool) -> None:
        """An answer of this path is written."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        if not keep_alive:
            self.transport.close()
            return
        self.crowd.waits(self)
        self._start_keep_alive_timer()
        self.flow.resume_reading()
        if self._early:
            data, self._early = self._early, b""
            self.data_received(data)
