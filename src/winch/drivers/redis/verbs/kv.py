"""The verbs of books: what Winch itself notes beside the jobs."""

from __future__ import annotations

from collections.abc import Sequence

from winch.drivers.redis.records import MICROSECOND, micros
from winch.drivers.redis.verbs.base import Base, Body
from winch.storage.kv_records import KvFilter, KvRecord
from winch.storage.verbs import Now, Verb


class KvVerbs:
    """kv_put, kv_swap, kv_list, kv_delete; see storage/families.py for the contracts."""

    def __init__(self, base: Base) -> None:
        self._call = base.call

    def kv_put(self, records: Sequence[KvRecord], *, now: Now = None) -> Verb[None]:
        def body() -> Body[None]:
            yield self._call(
                "write_lines",
                now=micros(now),
                lines=[
                    (
                        record.book,
                        record.key,
                        record.body,
                        False if record.keep is None else record.keep // MICROSECOND,
                    )
                    for record in records
                ],
            )

        return Verb("kv_put", body)

    def kv_swap(
        self, record: KvRecord, *, instead_of: str | None = None, now: Now = None
    ) -> Verb[str | None]:
        def body() -> Body[str | None]:
            reply = yield self._call(
                "swap_line",
                now=micros(now),
                book=record.book,
                key=record.key,
                body=record.body,
                keep=False if record.keep is None else record.keep // MICROSECOND,
                instead_of=False if instead_of is None else instead_of,
            )
            return reply.decode() if isinstance(reply, bytes) and reply else None

        return Verb("kv_swap", body)

    def kv_list(self, which: KvFilter, *, now: Now = None) -> Verb[list[KvRecord]]:
        def body() -> Body[list[KvRecord]]:
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
                KvRecord(book=which.book, key=key, body=text)
                for key, text in zip(words[::2], words[1::2], strict=True)
            ]

        return Verb("kv_list", body, is_read=True)

    def kv_delete(self, book: str, keys: Sequence[str]) -> Verb[int]:
        def body() -> Body[int]:
            gone: int = yield self._call("strike_lines", book=book, keys=keys)
            return gone

        return Verb("kv_delete", body)
