"""The verbs of books: what Winch itself notes beside the jobs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from winch.drivers.redis.records import MICROSECOND, micros
from winch.drivers.redis.verbs.base import Base, Body
from winch.storage.params import Line, Lines
from winch.storage.verbs import Verb


class KvVerbs:
    """write_lines, read_lines, strike_lines; see storage/families.py for the contracts."""

    def __init__(self, base: Base) -> None:
        self._call = base.call

    def write_lines(self, lines: Sequence[Line], *, now: datetime | None = None) -> Verb[None]:
        def body() -> Body[None]:
            yield self._call(
                "write_lines",
                now=micros(now),
                lines=[
                    (
                        line.book,
                        line.key,
                        line.body,
                        False if line.keep is None else line.keep // MICROSECOND,
                    )
                    for line in lines
                ],
            )

        return Verb("write_lines", body)

    def swap_line(
        self, line: Line, *, instead_of: str | None = None, now: datetime | None = None
    ) -> Verb[str | None]:
        def body() -> Body[str | None]:
            reply = yield self._call(
                "swap_line",
                now=micros(now),
                book=line.book,
                key=line.key,
                body=line.body,
                keep=False if line.keep is None else line.keep // MICROSECOND,
                instead_of=False if instead_of is None else instead_of,
            )
            return reply.decode() if isinstance(reply, bytes) and reply else None

        return Verb("swap_line", body)

    def read_lines(self, which: Lines, *, now: datetime | None = None) -> Verb[list[Line]]:
        def body() -> Body[list[Line]]:
            reply = yield self._call(
                "read_lines",
                now=micros(now),
                book=which.book,
                after=which.after,
                before=which.before,
                limit=which.limit,
                is_newest_first=which.is_newest_first,
            )
            words = [word.decode() for word in reply]
            return [
                Line(book=which.book, key=key, body=text)
                for key, text in zip(words[::2], words[1::2], strict=True)
            ]

        return Verb("read_lines", body, is_read=True)

    def strike_lines(self, book: str, keys: Sequence[str]) -> Verb[int]:
        def body() -> Body[int]:
            gone: int = yield self._call("strike_lines", book=book, keys=keys)
            return gone

        return Verb("strike_lines", body)
