"""The verbs of books: what Winch notes beside the jobs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from winch.drivers.sqlite.records import MICROSECOND, to_json
from winch.drivers.sqlite.statements import Step
from winch.drivers.sqlite.verbs.base import Body, ask, micros, verb
from winch.storage.params import Line, Lines
from winch.storage.verbs import Verb


class BookVerbs:
    """The books' part of Storage; see storage/families.py for the contracts."""

    def write_lines(self, lines: Sequence[Line], *, now: datetime | None = None) -> Verb[None]:
        def body() -> Body[None]:
            at = micros(now)
            yield from ask("write_lines.over", now=at)
            rows = [
                {
                    "book": line.book,
                    "key": line.key,
                    "body": line.body,
                    "drop_at": None if line.keep is None else at + line.keep // MICROSECOND,
                }
                for line in lines
            ]
            if rows:
                yield Step.each("write_lines", rows)

        return verb("write_lines", body)

    def swap_line(
        self, line: Line, *, instead_of: str | None = None, now: datetime | None = None
    ) -> Verb[str | None]:
        def body() -> Body[str | None]:
            at = micros(now)
            rows = yield from ask("swap_line", book=line.book, key=line.key, now=at)
            if rows and not (instead_of is not None and rows[0][0].startswith(instead_of)):
                there: str = rows[0][0]
                return there
            drop_at = None if line.keep is None else at + line.keep // MICROSECOND
            yield from ask("write_lines", book=line.book, key=line.key, body=line.body, drop_at=drop_at)
            return None

        return verb("swap_line", body)

    def read_lines(self, which: Lines, *, now: datetime | None = None) -> Verb[list[Line]]:
        def body() -> Body[list[Line]]:
            rows = yield from ask(
                "read_lines.newest" if which.is_newest_first else "read_lines",
                book=which.book,
                after=which.after or "",
                before=which.before,
                limit=which.limit,
                now=micros(now),
            )
            return [Line(book=which.book, key=key, body=text) for key, text in rows]

        return verb("read_lines", body, is_read=True)

    def strike_lines(self, book: str, keys: Sequence[str]) -> Verb[int]:
        def body() -> Body[int]:
            return len((yield from ask("strike_lines", book=book, keys=to_json(list(keys)))))

        return verb("strike_lines", body)
