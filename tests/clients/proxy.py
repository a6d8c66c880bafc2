"""A proxy between an SDK and the server: it records requests, loses replies, delays, and refuses.

Its address stays while the server behind it is killed and started again.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

PREFIX = "/api/v1"
MOST_HEAD = 256 * 1024


@dataclass
class Request:
    """A request of the SDK, as it came."""

    method: str
    path: str  # without the prefix of the API
    headers: dict[str, str]
    body: Any
    at: float
    status: int | None = None  # of the reply that the SDK got

    def facts(self) -> dict[str, Any]:
        return {
            "method": self.method,
            "path": self.path,
            "headers": self.headers,
            "body": self.body,
            "status": self.status,
        }


@dataclass
class Fault:
    """What happens to the next requests that fit."""

    do: str  # drop_request, drop_reply, delay, delay_reply, answer
    method: str | None = None
    path: str = ""
    times: int | None = 1
    pause: float = 0.0
    status: int = 503
    headers: dict[str, str] = field(default_factory=dict)
    body: Any = None

    def fits(self, request: Request) -> bool:
        is_method = self.method is None or self.method == request.method
        return is_method and self.times != 0 and re.search(self.path, request.path) is not None


class Proxy:
    """Runs in a thread of its own from `start` to `close`."""

    def __init__(self, backend: Callable[[], int | None]) -> None:
        self._backend = backend
        self._lock = threading.Lock()
        self._requests: list[Request] = []
        self._faults: list[Fault] = []
        self._is_refusing = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        self._thread.start()
        self._server = self._run(asyncio.start_server(self._connected, "127.0.0.1", 0, limit=MOST_HEAD))
        self.port = self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        async def end() -> None:
            if self._server is not None:
                self._server.close()
            for writer in self._writers:
                writer.transport.abort()
            running = [one for one in asyncio.all_tasks() if one is not asyncio.current_task()]
            for one in running:
                one.cancel()
            await asyncio.gather(*running, return_exceptions=True)

        self._run(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(10)

    # -- what a scenario does with it ----------------------------------------------------------------

    def requests(self) -> list[Request]:
        with self._lock:
            return list(self._requests)

    def add(self, fault: Fault) -> None:
        with self._lock:
            self._faults.append(fault)

    def clear(self) -> None:
        """No more faults."""
        with self._lock:
            self._faults.clear()
            self._is_refusing = False

    def refuse(self) -> None:
        """Close every connection, open ones and those to come, until `clear`."""
        with self._lock:
            self._is_refusing = True

        async def cut() -> None:
            for writer in self._writers:
                writer.transport.abort()

        self._run(cut())

    def _fault_for(self, request: Request) -> Fault | None:
        with self._lock:
            for fault in self._faults:
                if fault.fits(request):
                    if fault.times is not None:
                        fault.times -= 1
                    return fault
        return None

    # -- connections ---------------------------------------------------------------------------------

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while not self._is_refusing and await self._one(reader, writer):
                pass
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request; False when the connection is over."""
        head, headers = await _head(reader)
        body = await _body(reader, headers)
        method, path, _ = head.split(" ", 2)
        try:
            data = json.loads(body) if body else None
        except ValueError:
            data = body.decode(errors="replace")
        request = Request(method, path.removeprefix(PREFIX), headers, data, time.monotonic())
        with self._lock:
            self._requests.append(request)
        fault = self._fault_for(request)
        if fault is not None:
            if fault.do == "drop_request":
                return False
            if fault.do == "delay":
                await asyncio.sleep(fault.pause)
            if fault.do == "answer":
                await self._answer(writer, request, fault)
                return True
        reply, status = await self._forwarded(reader, head, headers, body)
        if reply is None or (fault is not None and fault.do == "drop_reply"):
            return False
        if fault is not None and fault.do == "delay_reply":
            await asyncio.sleep(fault.pause)
        request.status = status
        writer.write(reply)
        await writer.drain()
        return True

    async def _answer(self, writer: asyncio.StreamWriter, request: Request, fault: Fault) -> None:
        body = json.dumps(fault.body if fault.body is not None else {"status": fault.status}).encode()
        lines = [f"HTTP/1.1 {fault.status} -", "content-type: application/problem+json"]
        lines += [f"{name}: {value}" for name, value in fault.headers.items()]
        lines += [f"content-length: {len(body)}", "", ""]
        request.status = fault.status
        writer.write("\r\n".join(lines).encode() + body)
        await writer.drain()

    async def _forwarded(
        self, reader: asyncio.StreamReader, head: str, headers: dict[str, str], body: bytes
    ) -> tuple[bytes | None, int]:
        """The server's reply; None where there is no server or the client has gone away meanwhile."""
        port = self._backend()
        if port is None:
            return None, 0
        try:
            there, out = await asyncio.open_connection("127.0.0.1", port, limit=MOST_HEAD)
        except OSError:
            return None, 0
        given = {**headers, "connection": "close", "host": f"127.0.0.1:{port}"}
        given.pop("transfer-encoding", None)
        if body or "content-length" in given:
            given["content-length"] = str(len(body))
        lines = [head, *(f"{name}: {value}" for name, value in given.items()), "", ""]
        gone = asyncio.ensure_future(_gone(reader))
        answer = asyncio.ensure_future(_reply(there))
        try:
            out.write("\r\n".join(lines).encode() + body)
            await asyncio.wait([gone, answer], return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                return None, 0
            return answer.result()
        except (OSError, asyncio.IncompleteReadError, ValueError):
            return None, 0
        finally:
            for one in (gone, answer):
                one.cancel()
            await asyncio.gather(gone, answer, return_exceptions=True)
            out.transport.abort()


async def _gone(reader: asyncio.StreamReader) -> None:
    """Returns when the client closes its connection. No SDK sends a request before the reply to the
    last one, so nothing else can come; what is buffered stays."""
    while not reader.at_eof():
        if reader.exception() is not None:
            return
        await asyncio.sleep(0.02)


async def _head(reader: asyncio.StreamReader) -> tuple[str, dict[str, str]]:
    text = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = text.rstrip("\r\n").split("\r\n")
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    return first, headers


async def _body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    if headers.get("transfer-encoding", "").lower() == "chunked":
        parts = []
        while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
            parts.append(await reader.readexactly(size))
            await reader.readexactly(2)
        await reader.readuntil(b"\r\n")
        return b"".join(parts)
    return await reader.readexactly(int(headers.get("content-length", "0")))


async def _reply(there: asyncio.StreamReader) -> tuple[bytes, int]:
    head, headers = await _head(there)
    status = int(head.split(" ")[1])
    if status in (204, 304):
        body = b""
    elif "content-length" in headers or "transfer-encoding" in headers:
        body = await _body(there, headers)
    else:
        body = await there.read()
    for name in ("transfer-encoding", "connection", "content-length"):
        headers.pop(name, None)
    lines = [head, *(f"{name}: {value}" for name, value in headers.items())]
    if status not in (204, 304):
        lines.append(f"content-length: {len(body)}")
    with suppress(ValueError):
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + body, status
    raise ValueError("a reply that cannot be sent on")
