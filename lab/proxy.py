"""A TCP proxy that misbehaves on purpose: cuts, stalls, delays, and swallows an answer.

    with Proxy(("127.0.0.1", 5432)) as proxy:
        url = proxy.url("postgresql://user@127.0.0.1:5432/db")
        cut = proxy.cut_after_request(r"insert into job")

It runs an event loop in a thread of its own. For PostgreSQL it reads the frames of the wire
protocol, as far as it must to know when a statement has taken effect: it forwards the client's
request, waits until the server has sent ReadyForQuery outside of a transaction and without an error,
and only then cuts, so the commit is certain and the client cannot know. Connections must not be
encrypted: a request for encryption is answered with no.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import struct
import threading
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import urlsplit, urlunsplit

CHUNK = 64 * 1024
SSL_REQUEST, CANCEL_REQUEST, GSS_REQUEST = 80877103, 80877102, 80877104
_LENGTH = struct.Struct("!I")
_START = struct.Struct("!II")


@dataclass
class Cut:
    """A cut to come: the next `times` answers to requests that match are swallowed."""

    pattern: re.Pattern[str]
    left: int
    seen: list[str] = field(default_factory=list)
    done: threading.Event = field(default_factory=threading.Event)

    def fits(self, texts: list[str]) -> str | None:
        return next((text for text in texts if self.pattern.search(text)), None)

    @property
    def count(self) -> int:
        """How many connections were cut."""
        return len(self.seen)

    def wait(self, seconds: float) -> bool:
        """Wait until all the cuts have been made."""
        return self.done.wait(seconds)


class Frames:
    """Splits one direction of a PostgreSQL conversation into messages."""

    def __init__(self, *, has_start: bool) -> None:
        self._data = bytearray()
        self._has_start = has_start  # the client's first messages have no type

    def feed(self, data: bytes) -> Iterator[tuple[bytes, bytes]]:
        """(type, whole message) for each message that is complete now; type b"" is a start-up."""
        self._data += data
        while True:
            head = 0 if self._has_start else 1
            if len(self._data) < head + 4:
                return
            size = head + _LENGTH.unpack_from(self._data, head)[0]
            if len(self._data) < size:
                return
            message = bytes(self._data[:size])
            del self._data[:size]
            if not self._has_start:
                yield message[:1], message
                continue
            code = _START.unpack_from(message)[1]
            if code not in (SSL_REQUEST, GSS_REQUEST):
                self._has_start = False
            yield b"", message


@dataclass
class _Request:
    """What the client sent up to one Sync or Query; answered by one ReadyForQuery."""

    sql: list[str]


class _Connection:
    """One client, the server behind it, and what is known of their conversation."""

    def __init__(
        self,
        proxy: Proxy,
        client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        server: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        self._proxy = proxy
        self._from_client, self._to_client = client
        self._from_server, self._to_server = server
        self._sent = Frames(has_start=True)
        self._answered = Frames(has_start=False)
        self._prepared: dict[str, str] = {}
        self._portals: dict[str, str] = {}
        self._current: list[str] = []
        self._pending: deque[_Request] = deque()
        self._unsettled: list[str] = []  # statements of a transaction that is still open
        self._is_watched: bool | None = None  # whether the present answer may have to be swallowed
        self._held: list[tuple[bytes, bytes]] = []

    async def run(self) -> None:
        both = [
            asyncio.create_task(self._upstream(), name="proxy to server"),
            asyncio.create_task(self._downstream(), name="proxy to client"),
        ]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in both:
                task.cancel()
            await asyncio.gather(*both, return_exceptions=True)
            self.abort()

    def abort(self) -> None:
        """End both sides at once, as a broken network would."""
        for writer in (self._to_client, self._to_server):
            writer.transport.abort()

    async def _upstream(self) -> None:
        with contextlib.suppress(OSError):
            while data := await self._from_client.read(CHUNK):
                await self._proxy._obstacle()
                for kind, message in self._sent.feed(data) if self._proxy.is_postgres else ():
                    if kind == b"" and _START.unpack_from(message)[1] in (SSL_REQUEST, GSS_REQUEST):
                        self._to_client.write(b"N")
                        continue
                    self._note_request(kind, message)
                    self._to_server.write(message)
                if not self._proxy.is_postgres:
                    self._to_server.write(data)
                await self._to_server.drain()

    async def _downstream(self) -> None:
        with contextlib.suppress(OSError):
            while data := await self._from_server.read(CHUNK):
                await self._proxy._obstacle()
                if not self._proxy.is_postgres:
                    self._to_client.write(data)
                for kind, message in self._answered.feed(data) if self._proxy.is_postgres else ():
                    if self._pass_on(kind, message):
                        return
                await self._to_client.drain()

    def _pass_on(self, kind: bytes, message: bytes) -> bool:
        """Hand one message to the client, or hold it back; True when the connection is to be cut."""
        if kind == b"A" and self._proxy.is_deaf:
            self._proxy.counters["unheard"] += 1
            return False
        if kind in (b"N", b"S", b"A") or not self._pending:  # may come at any time
            self._to_client.write(message)
            return False
        self._held.append((kind, message))
        texts = self._pending[0].sql
        if self._is_watched is None:
            self._is_watched = self._proxy._matches([*self._unsettled, *texts])
        if kind == b"Z":
            self._pending.popleft()
            texts = _with_effect(texts, [message for held, message in self._held if held == b"C"])
            # Idle after a matching request, and no error: it has taken effect.
            is_idle = message[5:6] == b"I"
            is_refused = any(held == b"E" for held, _ in self._held) or any(map(_rolls_back, texts))
            if is_idle and not is_refused and self._proxy._take_cut([*self._unsettled, *texts]):
                return True
            self._unsettled = [] if is_idle else [*self._unsettled, *texts]
        if kind == b"Z" or not self._is_watched:
            self._to_client.write(b"".join(held for _, held in self._held))
            self._held.clear()
        if kind == b"Z":
            self._is_watched = None
        return False

    # -- reading along -----------------------------------------------------------------------------

    def _note_request(self, kind: bytes, message: bytes) -> None:
        match kind:
            case b"Q":
                self._proxy._log.append(_text(message, 5)[0])
                self._pending.append(_Request([_text(message, 5)[0]]))
            case b"P":
                name, at = _text(message, 5)
                self._prepared[name] = _text(message, at)[0]
            case b"B":
                portal, at = _text(message, 5)
                self._portals[portal] = self._prepared.get(_text(message, at)[0], "")
            case b"E":
                statement = self._portals.get(_text(message, 5)[0], "")
                self._proxy._log.append(statement)
                self._current.append(statement)
            case b"S":
                self._pending.append(_Request(self._current))
                self._current = []
            case b"":
                if _START.unpack_from(message)[1] != CANCEL_REQUEST:
                    self._pending.append(_Request([]))  # a start-up ends with ReadyForQuery too


class Proxy:
    """Stands between clients and a server at `address`. `counters` count its actions."""

    def __init__(self, address: tuple[str, int], *, is_postgres: bool = True) -> None:
        self.address = address
        self.is_postgres = is_postgres
        self.counters: Counter[str] = Counter()
        self.is_deaf: bool = False
        """Swallow every notification on its way to a client."""
        self._cuts: list[Cut] = []
        self._log: list[str] = []
        self._lock = threading.Lock()
        self._connections: set[_Connection] = set()
        self._delay = 0.0
        self._port = 0
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="winch-proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(10)

    @property
    def port(self) -> int:
        return self._port

    def url(self, url: str) -> str:
        """The same URL with the proxy in front of the server."""
        parts = urlsplit(url)
        login, at, _ = parts.netloc.rpartition("@")
        return urlunsplit(parts._replace(netloc=f"{login}{at}127.0.0.1:{self._port}"))

    # -- faults ------------------------------------------------------------------------------------

    def cut(self) -> int:
        """Break every connection now; returns how many there were. New ones are let through."""

        async def abort() -> int:
            found = list(self._connections)
            for connection in found:
                connection.abort()
            self.counters["cut"] += len(found)
            return len(found)

        return asyncio.run_coroutine_threadsafe(abort(), self._loop).result(10)

    @contextmanager
    def stall(self) -> Iterator[None]:
        """Pass nothing on in either direction, and close nothing: a half-open network."""
        self._loop.call_soon_threadsafe(self._flowing.clear)
        self.counters["stalled"] += 1
        try:
            yield
        finally:
            self._loop.call_soon_threadsafe(self._flowing.set)

    @contextmanager
    def delay(self, seconds: float) -> Iterator[None]:
        """Hold every packet back for this long."""
        self._delay = seconds
        self.counters["delayed"] += 1
        try:
            yield
        finally:
            self._delay = 0.0

    def cut_after_request(self, match: str, times: int = 1) -> Cut:
        """Swallow the answer to the next `times` requests whose SQL matches, and cut each client off.

        The request reaches the server and takes effect; the cut comes after its ReadyForQuery. One that
        touched no row is passed on.
        """
        cut = Cut(re.compile(match, re.IGNORECASE | re.DOTALL), times)
        with self._lock:
            self._cuts.append(cut)
        return cut

    def seen(self, match: str) -> list[str]:
        """The statements that have gone to the server so far and match."""
        pattern = re.compile(match, re.IGNORECASE | re.DOTALL)
        return [text for text in list(self._log) if pattern.search(text)]

    def heal(self) -> None:
        """Forget the cuts that have not been made."""
        with self._lock:
            self._cuts.clear()

    # -- inside ------------------------------------------------------------------------------------

    def _matches(self, texts: list[str]) -> bool:
        with self._lock:
            return any(cut.left and cut.fits(texts) for cut in self._cuts)

    def _take_cut(self, texts: list[str]) -> bool:
        """Whether an answer to these statements is to be swallowed; counts it as done."""
        with self._lock:
            for cut in self._cuts:
                found = cut.fits(texts)
                if cut.left and found:
                    cut.left -= 1
                    cut.seen.append(found)
                    self.counters["cut"] += 1
                    self.counters["swallowed"] += 1
                    if not cut.left:
                        cut.done.set()
                    return True
        return False

    async def _obstacle(self) -> None:
        if self._delay:
            await asyncio.sleep(self._delay)
        await self._flowing.wait()

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self._flowing = asyncio.Event()
        self._flowing.set()
        server = await asyncio.start_server(self._accept, "127.0.0.1", self._port)
        self._port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stopping.wait()
        server.close()
        while self._connections:
            for connection in list(self._connections):
                connection.abort()
            await asyncio.sleep(0.005)  # until their handlers have seen it

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.counters["accepted"] += 1
        try:
            upstream = await asyncio.open_connection(*self.address)
        except OSError:
            writer.transport.abort()
            return
        connection = _Connection(self, (reader, writer), upstream)
        self._connections.add(connection)
        try:
            await connection.run()
        finally:
            self._connections.discard(connection)


def _text(message: bytes, at: int) -> tuple[str, int]:
    """A NUL-terminated text at this place, and the place after it."""
    end = message.index(0, at)
    return message[at:end].decode(errors="replace"), end + 1


def _with_effect(texts: list[str], tags: list[bytes]) -> list[str]:
    """The statements that touched a row, by their command tags (`UPDATE 0`): the others are not worth a
    cut. COMMIT and its like touch none, and their tags have no count."""
    if len(texts) != len(tags):
        return texts
    return [text for text, tag in zip(texts, tags, strict=True) if not tag.endswith(b" 0\0")]


def _rolls_back(text: str) -> bool:
    return re.match(r"\s*(rollback|abort)\b", text, re.IGNORECASE) is not None
