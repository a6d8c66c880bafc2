"""One step on somebody else's connection: psycopg, psycopg2 and asyncpg differ in how parameters are
written, how rows come back, and how a transaction is told from none.

Made for one verb each. `is_on_its_own`: autocommit, and no transaction open, so there is none to join.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import datetime
from functools import lru_cache
from typing import Any, Protocol

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from winch.drivers._shared import callers
from winch.drivers._shared.callers import ASYNCPG, PSYCOPG2
from winch.drivers.postgres.binary import Tids
from winch.drivers.postgres.statements import Row, Rows, Step

# The loaders that the rows are read with, whatever the application has registered for its own.
_DEFAULTS = psycopg.adapters
_TYPES = ("text", "int4", "int8", "float8", "bool", "timestamptz", "text[]")
_PLACE = re.compile(r"%\(([a-z_]+)\)s")


class Wire(Protocol):
    """A connection that blocks."""

    @property
    def is_on_its_own(self) -> bool: ...

    def own(self) -> AbstractContextManager[Any]:
        """A transaction for the verb alone."""
        ...

    def send(self, step: Step) -> Rows: ...


class AsyncWire(Protocol):
    """A connection whose answers are awaited."""

    @property
    def is_on_its_own(self) -> bool: ...

    def own(self) -> AbstractAsyncContextManager[Any]: ...

    async def send(self, step: Step) -> Rows: ...


def wire(conn: object) -> Wire | None:
    """The wire of a driver's connection; None where it is none of these, or has to be awaited."""
    if isinstance(conn, psycopg.Connection):
        return PsycopgWire(conn)
    if callers.kind_of(conn) == PSYCOPG2:
        return Psycopg2Wire(conn)
    return None


def async_wire(conn: object) -> AsyncWire | None:
    if isinstance(conn, psycopg.AsyncConnection):
        return AsyncPsycopgWire(conn)
    if callers.kind_of(conn) in ASYNCPG:
        return AsyncpgWire(conn)
    return None


class PsycopgWire:
    def __init__(self, conn: psycopg.Connection[Any]) -> None:
        self._conn = conn

    @property
    def is_on_its_own(self) -> bool:
        return _is_on_its_own(self._conn)

    def own(self) -> AbstractContextManager[Any]:
        return self._conn.transaction()

    def send(self, step: Step) -> Rows:
        # A cursor of psycopg's own kind: the connection's may bind in another style or give other rows.
        with psycopg.Cursor[Row](self._conn, row_factory=tuple_row) as cursor:
            _use_default_loaders(cursor)
            cursor.execute(step.statement.text, _values(step), prepare=False)
            return cursor.fetchall() if cursor.description is not None else []


class AsyncPsycopgWire:
    def __init__(self, conn: psycopg.AsyncConnection[Any]) -> None:
        self._conn = conn

    @property
    def is_on_its_own(self) -> bool:
        return _is_on_its_own(self._conn)

    def own(self) -> AbstractAsyncContextManager[Any]:
        return self._conn.transaction()

    async def send(self, step: Step) -> Rows:
        async with psycopg.AsyncCursor[Row](self._conn, row_factory=tuple_row) as cursor:
            _use_default_loaders(cursor)
            await cursor.execute(step.statement.text, _values(step), prepare=False)
            return await cursor.fetchall() if cursor.description is not None else []


def _values(step: Step) -> Mapping[str, Any]:
    """The step's values without hints that only our own connections can write."""
    return {name: None if isinstance(value, Tids) else value for name, value in step.values.items()}


def _is_on_its_own(conn: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    return conn.autocommit and conn.info.transaction_status == TransactionStatus.IDLE


def _use_default_loaders(cursor: psycopg.Cursor[Row] | psycopg.AsyncCursor[Row]) -> None:
    for name in _TYPES:
        info = _DEFAULTS.types[name]
        loader = _DEFAULTS.get_loader(info.oid, psycopg.pq.Format.TEXT)
        if loader is not None:
            cursor.adapters.register_loader(info.oid, loader)


class Psycopg2Wire:
    """psycopg2 writes parameters as psycopg does."""

    def __init__(self, conn: Any) -> None:
        self._conn = conn

    @property
    def is_on_its_own(self) -> bool:
        return bool(self._conn.autocommit) and self._conn.info.transaction_status == 0

    def own(self) -> AbstractContextManager[Any]:
        return _Psycopg2Transaction(self._conn)

    def send(self, step: Step) -> Rows:
        from psycopg2.extensions import cursor as plain_cursor  # the connection's may give other rows

        with self._conn.cursor(cursor_factory=plain_cursor) as cursor:
            cursor.execute(step.statement.text, _values(step))
            rows: Rows = cursor.fetchall() if cursor.description is not None else []
            return rows


class _Psycopg2Transaction:
    """psycopg2 has no block that begins a transaction on a connection in autocommit mode."""

    def __init__(self, conn: Any) -> None:
        self._conn = conn

    def __enter__(self) -> None:
        self._say("BEGIN")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if not self._conn.closed:
            self._say("COMMIT" if kind is None else "ROLLBACK")

    def _say(self, word: str) -> None:
        with self._conn.cursor() as cursor:
            cursor.execute(word)


class AsyncpgWire:
    def __init__(self, conn: Any) -> None:
        self._conn = conn

    @property
    def is_on_its_own(self) -> bool:
        return not self._conn.is_in_transaction()

    def own(self) -> AbstractAsyncContextManager[Any]:
        own: AbstractAsyncContextManager[Any] = self._conn.transaction()
        return own

    async def send(self, step: Step) -> Rows:
        text, values = numbered(step.statement.text, _values(step))
        return [tuple(row) for row in await self._conn.fetch(text, *values)]


def numbered(text: str, values: Mapping[str, Any]) -> tuple[str, list[Any]]:
    """The statement with numbered parameters, and their values in that order.

    Texts, times and lists travel as text and are cast from it: what the application has registered for
    json or uuid (a common thing to do with asyncpg) then never sees them.
    """
    rendered, names = _numbered(text, tuple((name, _cast(value)) for name, value in values.items()))
    return rendered, [_plain(values[name]) for name in names]


@lru_cache(maxsize=256)
def numbered_names(text: str) -> tuple[str, tuple[str, ...]]:
    """The statement with numbered parameters, no casts but its own, and their names in order."""
    names = tuple(dict.fromkeys(_PLACE.findall(text)))
    return _PLACE.sub(lambda match: f"${names.index(match[1]) + 1}", text), names


@lru_cache(maxsize=256)
def _numbered(text: str, casts: tuple[tuple[str, str], ...]) -> tuple[str, tuple[str, ...]]:
    cast = dict(casts)
    names: list[str] = []

    def place(match: re.Match[str]) -> str:
        if match[1] not in names:
            names.append(match[1])
        return f"${names.index(match[1]) + 1}{cast[match[1]]}"

    return _PLACE.sub(place, text), tuple(names)


def _cast(value: object) -> str:
    if isinstance(value, list):
        return "::text[]"
    return "" if isinstance(value, bool | int | float) else "::text"


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value
