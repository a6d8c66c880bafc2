"""Small records beside the jobs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from winch.core.errors import StorageUnavailable
from winch.drivers.postgres.statements import Body
from winch.drivers.postgres.verbs.base import Base
from winch.storage.params import Line, Lines
from winch.storage.verbs import Verb

# How often a swap reads a line again that another transaction has removed.
LOOKS = 5


class KvVerbs:
    """See storage/families.py for the contracts."""

    def __init__(self, base: Base) -> None:
        self._base = base

    def write_lines(self, lines: Sequence[Line], *, now: datetime | None = None) -> Verb[None]:
        def body() -> Body[None]:
            yield self._base.step("write_lines.over", now=now)
            yield self._base.step(
                "write_lines",
                books=[line.book for line in lines],
                keys=[line.key for line in lines],
                bodies=[line.body for line in lines],
                keeps=[None if line.keep is None else line.keep.total_seconds() for line in lines],
                now=now,
            )

        return self._base.write("write_lines", body, now)

    def swap_line(
        self, line: Line, *, instead_of: str | None = None, now: datetime | None = None
    ) -> Verb[str | None]:
        def body() -> Body[str | None]:
            for _ in range(LOOKS):
                kept = yield self._base.step(
                    "swap_line",
                    book=line.book,
                    key=line.key,
                    body=line.body,
                    keep=None if line.keep is None else line.keep.total_seconds(),
                    instead_of=instead_of,
                    now=now,
                )
                if kept:
                    return None
                rows = yield self._base.step("swap_line.there", book=line.book, key=line.key)
                if rows:
                    there: str = rows[0][0]
                    return there
            raise StorageUnavailable(f"the line {line.key!r} comes and goes while it is looked at")

        return self._base.write("swap_line", body, now)

    def read_lines(self, which: Lines, *, now: datetime | None = None) -> Verb[list[Line]]:
        def body() -> Body[list[Line]]:
            rows = yield self._base.step(
                "read_lines.newest" if which.is_newest_first else "read_lines",
                is_alone=True,
                book=which.book,
                after=which.after or "",
                before=which.before,
                limit=which.limit,
                now=now,
            )
            return [Line(book=which.book, key=row[0], body=row[1]) for row in rows]

        return self._base.read("read_lines", body)

    def strike_lines(self, book: str, keys: Sequence[str]) -> Verb[int]:
        def body() -> Body[int]:
            return len(
                (yield self._base.step("strike_lines", is_alone=True, book=book, keys=list(keys)))
            )

        return self._base.write("strike_lines", body)
