"""Small records beside the jobs: tokens, the audit, rates."""

from __future__ import annotations

from collections.abc import Sequence

from winch.core.values.codec import to_json
from winch.drivers.sqlite.connections.writer import store_time
from winch.drivers.sqlite.records import MICROSECOND
from winch.drivers.sqlite.statements import Step
from winch.drivers.sqlite.verbs.base import Body, query
from winch.storage.kv_records import KvFilter, KvRecord
from winch.storage.verbs import Now, Verb


class KvVerbs:
    """See KvVerbs in storage/families.py for the contracts."""

    def kv_put(self, records: Sequence[KvRecord], *, now: Now = None) -> Verb[None]:
        def body() -> Body[None]:
            at = store_time(now)
            yield from query("write_lines.over", now=at)
            rows = [
                {
                    "book": record.book,
                    "key": record.key,
                    "body": record.body,
                    "drop_at": None if record.keep is None else at + record.keep // MICROSECOND,
                }
                for record in records
            ]
            if rows:
                yield Step.each("write_lines", rows)

        return Verb("kv_put", body)

    def kv_swap(
        self, record: KvRecord, *, instead_of: str | None = None, now: Now = None
    ) -> Verb[str | None]:
        def body() -> Body[str | None]:
            at = store_time(now)
            rows = yield from query("swap_line", book=record.book, key=record.key, now=at)
            if rows and not (instead_of is not None and rows[0][0].startswith(instead_of)):
                there: str = rows[0][0]
                return there
            drop_at = None if record.keep is None else at + record.keep // MICROSECOND
            yield from query(
                "write_lines", book=record.book, key=record.key, body=record.body, drop_at=drop_at
            )
            return None

        return Verb("kv_swap", body)

    def kv_list(self, which: KvFilter, *, now: Now = None) -> Verb[list[KvRecord]]:
        def body() -> Body[list[KvRecord]]:
            rows = yield from query(
                "read_lines.newest" if which.is_newest_first else "read_lines",
                book=which.book,
                after=which.after or "",
                before=which.before,
                limit=which.limit,
                now=store_time(now),
            )
            return [KvRecord(book=which.book, key=key, body=text) for key, text in rows]

        return Verb("kv_list", body, is_read=True)

    def kv_delete(self, book: str, keys: Sequence[str]) -> Verb[int]:
        def body() -> Body[int]:
            return len((yield from query("strike_lines", book=book, keys=to_json(list(keys)))))

        return Verb("kv_delete", body)
