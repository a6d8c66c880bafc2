"""Small records: books of keys and texts beside the jobs."""

from __future__ import annotations

from datetime import timedelta

import msgspec


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
