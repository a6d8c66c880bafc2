"""Small records beside the jobs."""

from __future__ import annotations

from collections.abc import Sequence

from winch.drivers.memory.verbs.base import Base, verb
from winch.storage.kv_records import KvFilter, KvRecord
from winch.storage.verbs import Now, Verb


class KvVerbs:
    """Small records beside the jobs: tokens, the audit, rates."""

    def __init__(self, base: Base) -> None:
        self._base = base
        self._state = base.state

    def kv_put(self, records: Sequence[KvRecord], *, now: Now = None) -> Verb[None]:
        def body() -> None:
            at, kept = self._base.now(now), self._state.records
            for key in [key for key, (_, end) in kept.items() if end is not None and end <= at]:
                del kept[key]
            for record in records:
                end = None if record.keep is None else at + record.keep
                kept[record.book, record.key] = (record.body, end)

        return verb("kv_put", body)

    def kv_swap(
        self, record: KvRecord, *, instead_of: str | None = None, now: Now = None
    ) -> Verb[str | None]:
        def body() -> str | None:
            at, kept = self._base.now(now), self._state.records
            there, end = kept.get((record.book, record.key), (None, None))
            is_over = there is None or (end is not None and end <= at)
            is_known = there is not None and instead_of is not None and there.startswith(instead_of)
            if not (is_over or is_known):
                return there
            kept[record.book, record.key] = (
                record.body,
                None if record.keep is None else at + record.keep,
            )
            return None

        return verb("kv_swap", body)

    def kv_list(self, which: KvFilter, *, now: Now = None) -> Verb[list[KvRecord]]:
        def body() -> list[KvRecord]:
            at = self._base.now(now)
            found = [
                KvRecord(book=book, key=key, body=text)
                for (book, key), (text, end) in self._state.records.items()
                if book == which.book
                and (end is None or end > at)
                and (which.after is None or key > which.after)
                and (which.before is None or key < which.before)
            ]
            found.sort(key=lambda record: record.key, reverse=which.is_newest_first)
            return found[: which.limit]

        return verb("kv_list", body, is_read=True)

    def kv_delete(self, book: str, keys: Sequence[str]) -> Verb[int]:
        def body() -> int:
            gone = [self._state.records.pop((book, key), None) for key in dict.fromkeys(keys)]
            return sum(record is not None for record in gone)

        return verb("kv_delete", body)
