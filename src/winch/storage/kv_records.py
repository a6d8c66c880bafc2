"""Small records: books of keys and texts beside the jobs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Protocol

import msgspec

from winch.storage.verbs import Now, Verb


class KvRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A small record that Winch keeps beside the jobs: access tokens, the audit, rates.

    `book` groups records of one kind. `body` is JSON text. The record expires `keep` after the store's
    now; with None it stays until it is deleted.
    """

    book: str
    key: str
    body: str
    keep: timedelta | None = None


class KvFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which records of a book to read: keys after `after` and before `before`, by key."""

    book: str
    after: str | None = None
    before: str | None = None
    limit: int = 1000
    is_newest_first: bool = False


class KvVerbs(Protocol):
    """Small records beside the jobs: tokens, the audit, rates."""

    def kv_put(self, records: Sequence[KvRecord], *, now: Now = None) -> Verb[None]:
        """Keep these records. A record with the same book and key is replaced, so a repeat changes
        nothing. The call also removes some records that have expired."""

    def kv_swap(
        self, record: KvRecord, *, instead_of: str | None = None, now: Now = None
    ) -> Verb[str | None]:
        """Keep this record where there is none, where the one there has expired, or where its body
        begins with `instead_of`; None: it is kept. Else nothing is changed, and the answer is the body
        that is there. Of several concurrent calls, one is kept."""

    def kv_list(self, which: KvFilter, *, now: Now = None) -> Verb[list[KvRecord]]:
        """Records of one book by key, without those that have expired; `keep` is not read back."""

    def kv_delete(self, book: str, keys: Sequence[str]) -> Verb[int]:
        """Remove these records; returns how many there were."""
