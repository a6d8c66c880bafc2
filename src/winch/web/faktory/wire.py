"""The bytes of Faktory's protocol: lines come in, replies in the form of RESP go out."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from winch.core.values.redact import mask_text

# A client that has not said hello may send little; then a line holds a thousand jobs of some kB.
MAX_HELLO_BYTES = 4 * 1024
MAX_LINE_BYTES = 8 * 1024 * 1024
CHUNK = 64 * 1024
MAX_ERROR_CHARS = 500
OK = b"+OK\r\n"
NOTHING = b"$-1\r\n"


class FaktoryError(Exception):
    """What a client gets as the error of its command. `is_last`: the connection ends with it."""

    def __init__(self, text: str, *, is_last: bool = False) -> None:
        super().__init__(text)
        self.is_last = is_last


class Lines:
    """The lines that a client sends, each no longer than `limit`."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self._buffer = bytearray()
        self.limit: int = MAX_HELLO_BYTES

    async def next(self) -> str | None:
        """The next line without its end; None where the client has ended."""
        start = 0
        while (end := self._buffer.find(b"\n", start)) < 0:
            start = len(self._buffer)
            if start > self.limit:
                break
            chunk = await self._reader.read(CHUNK)
            if not chunk:
                return None
            self._buffer += chunk
        if end < 0 or end > self.limit:
            raise FaktoryError(f"a line has at most {self.limit:,} bytes", is_last=True)
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        try:
            return line.rstrip(b"\r").decode()
        except UnicodeDecodeError:
            raise FaktoryError("a line must be UTF-8 text", is_last=True) from None

    @property
    def has_ended(self) -> bool:
        """Whether the client is known to be gone."""
        return self._reader.at_eof()


def error(text: str) -> bytes:
    """An error reply: one line, without secrets."""
    line = " ".join(mask_text(text).split())
    if len(line) > MAX_ERROR_CHARS:
        line = f"{line[:MAX_ERROR_CHARS]}…"
    return f"-ERR {line}\r\n".encode("utf-8", "replace")


def bulk(value: Any) -> bytes:
    """A reply that holds JSON."""
    return _bulk(msgspec.json.encode(value))


def text(value: str) -> bytes:
    """A reply that holds plain text."""
    return _bulk(value.encode())


def _bulk(body: bytes) -> bytes:
    return b"$%d\r\n%s\r\n" % (len(body), body)
