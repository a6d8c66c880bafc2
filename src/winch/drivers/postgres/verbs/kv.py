"""Small records beside the jobs."""

from __future__ import annotations

from collections.abc import Sequence

from winch.core.errors import StorageUnavailable
from winch.drivers.postgres.statements import Body
from winch.drivers.postgres.verbs.base import Base
from winch.storage.kv_records import KvFilter, KvRecord
from winch.storage.verbs import Now, Verb

# How often a swap reads a line again that another transaction has removed.
LOOKS = 5


class KvVerbs:
    """See storage/families.py for the contracts."""

    def __init__(self, base: Base) -> None:
        self._base = base

    def kv_put(self, records: Sequence[KvRecord], *, now: Now = None) -> Verb[None]:
        def body() -> Body[None]:
            yield self._base.statement("write_lines.over", now=now)
            yield self._base.statement(
                "write_lines",
                books=[record.book for record in records],
                keys=[record.key for record in records],
                bodies=[record.body for record in records],
                keeps=[
                    None if record.keep is None else record.keep.total_seconds() for record in records
                ],
                now=now,
            )

        return Verb("kv_put", body)

    def kv_swap(
        self, record: KvRecord, *, instead_of: str | None = None, now: Now = None
    ) -> Verb[str | None]:
        def body() -> Body[str | None]:
            for _ in range(LOOKS):
                kept = yield self._base.statement(
                    "swap_line",
                    book=record.book,
                    key=record.key,
                    body=record.body,
                    keep=None if record.keep is None else record.keep.total_seconds(),
                    instead_of=instead_of,
                    now=now,
                )
                if kept:
                    return None
                rows = yield self._base.statement("swap_line.there", book=record.book, key=record.key)
                if rows:
                    there: str = rows[0][0]
                    return there
            raise StorageUnavailable(f"the record {record.key!r} keeps changing while it is read")

        return Verb("kv_swap", body)

    def kv_list(self, which: KvFilter, *, now: Now = None) -> Verb[list[KvRecord]]:
        def body() -> Body[list[KvRecord]]:
            rows = yield self._base.statement(
                "read_lines.newest" if which.is_newest_first else "read_lines",
                is_alone=True,
                book=which.book,
                after=which.after or "",
                before=which.before,
                limit=which.limit,
                now=now,
            )
            return [KvRecord(book=which.book, key=row[0], body=row[1]) for row in rows]

        return self._base.read("kv_list", body)

    def kv_delete(self, book: str, keys: Sequence[str]) -> Verb[int]:
        def body() -> Body[int]:
            return len(
                (yield self._base.statement("strike_lines", is_alone=True, book=book, keys=list(keys)))
            )

        return Verb("kv_delete", body)
