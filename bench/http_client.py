"""The cheapest HTTP client: raw sockets and prepared bytes, so that a figure is the server's."""

from __future__ import annotations

import selectors
import socket
import time
from typing import Any

import msgspec

_encode, _decode = msgspec.json.encode, msgspec.json.decode


class HttpError(Exception):
    """An answer that is no success."""


class Connection:
    """One kept connection to a server, with the token that its requests carry."""

    def __init__(self, port: int, token: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._token = token
        self._buffer = b""

    def fileno(self) -> int:
        return self._socket.fileno()

    def written(self, path: str, body: Any) -> bytes:
        """The bytes of a request."""
        data = _encode(body)
        head = (
            f"POST /api/v1{path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {self._token}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        return head.encode() + data

    def send(self, request: bytes) -> None:
        self._socket.sendall(request)

    def receive(self) -> bytes:
        """The body of the next answer; raises HttpError for one that is no success."""
        while b"\r\n\r\n" not in self._buffer:
            self._more()
        head, _, rest = self._buffer.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
        self._buffer = rest
        while len(self._buffer) < length:
            self._more()
        body, self._buffer = self._buffer[:length], self._buffer[length:]
        if head[9:10] != b"2":
            raise HttpError(f"{head[9:12].decode()}: {body.decode()}")
        return body

    def _more(self) -> None:
        data = self._socket.recv(262_144)
        if not data:
            raise HttpError("the server closed the connection")
        self._buffer += data

    def post(self, path: str, body: Any) -> Any:
        """One request and its answer."""
        self.send(self.written(path, body))
        return _decode(self.receive())

    def close(self) -> None:
        self._socket.close()


def one_by_one(connection: Connection, path: str, body: Any, seconds: float) -> tuple[int, float]:
    """Requests one after another; how many, and in which time."""
    request = connection.written(path, body)
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        for _ in range(20):
            connection.send(request)
            connection.receive()
        count += 20
    return count, time.perf_counter() - began


def at_once(connections: list[Connection], path: str, body: Any, seconds: float) -> tuple[int, float]:
    """The same on several connections, each with one request on its way."""
    request = connections[0].written(path, body)
    with selectors.DefaultSelector() as selector:
        for one in connections:
            selector.register(one, selectors.EVENT_READ, one)
            one.send(request)
        began, count, on_the_way = time.perf_counter(), 0, len(connections)
        while on_the_way:
            is_over = time.perf_counter() - began > seconds
            for key, _ in selector.select():
                ready: Connection = key.data
                ready.receive()
                count += 1
                if is_over:
                    on_the_way -= 1
                else:
                    ready.send(request)
        return count, time.perf_counter() - began
