"""The connections of one server: how many it keeps, from where, and how long each may keep it waiting.

A client that opens sockets and sends nothing, or half a request, costs a file descriptor for as long as
the server lets it. So a request must arrive within a time, and the oldest waiting connection of a source
makes room for a new one: the server reads every new connection, and a probe always gets its answer.
"""

from __future__ import annotations

import asyncio
import ipaddress
import secrets
from collections import Counter
from collections.abc import Sequence

import h11
import msgspec
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from winch.core.values.ip_address import Network, is_within
from winch.web.problems import Problem
from winch.web.security_headers import HEADERS

HEAD_SECONDS = 10.0
WRITE_SECONDS = 30.0
KEEP_ALIVE_SECONDS = 30
MOST = 1000
# asyncio accepts up to so many connections before the first of them is looked at.
BACKLOG = 512
# For the store, files and everything else that is no connection.
OTHER_FILES = 100
WANTED_FILES = 4096
WAITS, WORKS, GONE = "waits", "works", "gone"


class Crowd:
    """The open connections by source. A connection waits while the server has no whole request of it."""

    def __init__(self, most: int = MOST, trusted: Sequence[Network] = ()) -> None:
        self.most = most
        # The other half stays for other sources.
        self.most_of_one: int = max(1, most // 2)
        self._trusted = tuple(trusted)
        self._open: Counter[str] = Counter()
        self._busy: Counter[str] = Counter()
        self._waiting: dict[str, dict[Connection, None]] = {}

    def opened(self, one: Connection) -> None:
        one.state = WAITS
        self._open[one.source] += 1
        self._waiting.setdefault(one.source, {})[one] = None
        if self._open[one.source] > self._limit(one.source):
            self._make_room(one.source, one)
        elif self._open.total() > self.most:
            self._make_room(max(self._waiting, key=self._open.__getitem__), one)

    def closed(self, one: Connection) -> None:
        if one.state == GONE:
            return
        self.waits(one)
        self._forget(one)
        _take(self._open, one.source)
        one.state = GONE

    def works(self, one: Connection) -> None:
        """The server has a whole request of this connection."""
        if one.state == WAITS:
            one.state = WORKS
            self._forget(one)
            self._busy[one.source] += 1

    def waits(self, one: Connection) -> None:
        """The server waits for this connection again."""
        if one.state == WORKS:
            one.state = WAITS
            _take(self._busy, one.source)
            self._waiting.setdefault(one.source, {})[one] = None

    def is_full(self, source: str) -> bool:
        """Whether requests of this source must wait, probes excepted."""
        return self._busy[source] > self._limit(source) or self._busy.total() > self.most

    def _limit(self, source: str) -> int:
        """A trusted proxy has many clients behind one address."""
        if not self._trusted:
            return self.most_of_one
        try:
            is_trusted = is_within(ipaddress.ip_address(source), self._trusted)
        except ValueError:
            is_trusted = False
        return self.most if is_trusted else self.most_of_one

    def _make_room(self, source: str, newcomer: Connection) -> None:
        oldest = next((one for one in self._waiting.get(source, {}) if one is not newcomer), None)
        if oldest is not None:
            self.closed(oldest)  # now: many connections may come before this one is reported lost
            oldest.transport.abort()

    def _forget(self, one: Connection) -> None:
        del self._waiting[one.source][one]
        if not self._waiting[one.source]:
            del self._waiting[one.source]


def _take(counter: Counter[str], source: str) -> None:
    counter[source] -= 1
    if not counter[source]:
        del counter[source]


class Connection(H11Protocol):
    """One HTTP connection: it must send each request in time, and read what it is sent."""

    crowd: Crowd
    source: str = ""
    state: str = GONE
    _head_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None
    timeout_keep_alive_task: asyncio.TimerHandle | None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.source = self.client[0] if self.client else ""
        self._start_head_timer()
        self.crowd.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        self._stop_write_timer()
        self.crowd.closed(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self._look():
            self._start_head_timer()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._look()

    def _look(self) -> bool:
        """Note whether a request is being answered. One whose body is not here yet still waits."""
        cycle = self.cycle
        is_begun = cycle is not None and not cycle.response_complete
        if is_begun:
            self._stop_head_timer()
        if is_begun and not cycle.more_body:
            self.crowd.works(self)
        elif not self.transport.is_closing():
            self.crowd.waits(self)
        return is_begun

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _start_head_timer(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self._late)

    def _start_keep_alive_timer(self) -> None:
        """Close the connection unless the next request comes in time."""
        handler = self.timeout_keep_alive_handler
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, handler)

    def _late(self) -> None:
        if self.conn.trailing_data[0]:
            self._refuse(Problem("timeout", f"a request must arrive within {HEAD_SECONDS:g} seconds"))
        else:
            self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_timer = self.loop.call_later(WRITE_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_write_timer()

    def send_400_response(self, msg: str) -> None:
        self._refuse(Problem("bad-request", "this is not a valid HTTP/1.1 request"))

    def _refuse(self, problem: Problem) -> None:
        """Answer a request that never came to the site, and close."""
        body = msgspec.json.encode(problem.body("", secrets.token_hex(8)))
        response = h11.Response(
            status_code=problem.status,
            headers=[
                (b"content-type", b"application/problem+json"),
                (b"content-length", str(len(body)).encode()),
                (b"connection", b"close"),
                *HEADERS,
            ],
            reason=STATUS_PHRASES[problem.status],
        )
        try:
            for event in (response, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        except h11.LocalProtocolError:  # an answer is under way
            pass
        self.transport.close()


def protocol_of(crowd: Crowd, kind: type[Connection] = Connection) -> type[Connection]:
    """The protocol whose connections are counted in this crowd."""
    return type("CountedConnection", (kind,), {"crowd": crowd})


def most_connections() -> int:
    """How many connections the limit of open files leaves room for; raises that limit where it may."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return MOST
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MOST
    wanted = WANTED_FILES if hard == resource.RLIM_INFINITY else min(WANTED_FILES, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    return max(10, min(MOST, soft - BACKLOG - OTHER_FILES))
