"""Books: lines under keys."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from winch.drivers.memory.verbs.base import Shelf
from winch.storage.params import Line, Lines
from winch.storage.verbs import Verb


class Books(Shelf):
    """Mixed into the memory driver."""

    def write_lines(self, lines: Sequence[Line], *, now: datetime | None = None) -> Verb[None]:
        def body() -> None:
            at, books = self._now(now), self._state.books
            for place in [place for place, (_, end) in books.items() if end is not None and end <= at]:
                del books[place]
            for line in lines:
                end = None if line.keep is None else at + line.keep
                books[line.book, line.key] = (line.body, end)

        return self._verb("write_lines", body)

    def swap_line(
        self, line: Line, *, instead_of: str | None = None, now: datetime | None = None
    ) -> Verb[str | None]:
        def body() -> str | None:
            at, books = self._now(now), self._state.books
            there, end = books.get((line.book, line.key), (None, None))
            is_over = there is None or (end is not None and end <= at)
            is_known = there is not None and instead_of is not None and there.startswith(instead_of)
            if not (is_over or is_known):
                return there
            books[line.book, line.key] = (line.body, None if line.keep is None else at + line.keep)
            return None

        return self._verb("swap_line", body)

    def read_lines(self, which: Lines, *, now: datetime | None = None) -> Verb[list[Line]]:
        def body() -> list[Line]:
            at = self._now(now)
            found = [
                Line(book=book, key=key, body=text)
                for (book, key), (text, end) in self._state.books.items()
                if book == which.book
                and (end is None or end > at)
                and (which.after is None or key > which.after)
                and (which.before is None or key < which.before)
            ]
            found.sort(key=lambda line: line.key, reverse=which.is_newest_first)
            return found[: which.limit]

        return self._verb("read_lines", body, is_read=True)

    def strike_lines(self, book: str, keys: Sequence[str]) -> Verb[int]:
        def body() -> int:
            gone = [self._state.books.pop((book, key), None) for key in dict.fromkeys(keys)]
            return sum(line is not None for line in gone)

        return self._verb("strike_lines", body)
