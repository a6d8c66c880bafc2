"""Verbs on the caller's own connection, inside the caller's own transaction.

Never commits and never rolls back. On a connection in autocommit mode with no transaction open there is
none to join: the verb is then a transaction of its own. `joined` is the exception: the application lends
its session to a job, whose end commits it.

psycopg, psycopg2 and asyncpg differ in how they write parameters, how they return rows, and how they
show whether a transaction is open: each has a class below, made for one verb.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from datetime import datetime
from functools import lru_cache
from typing import Any, Protocol, TypeVar

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from winch.core.errors import ConfigError
from winch.drivers._shared import callers
from winch.drivers._shared.callers import ASYNCPG, PSYCOPG2
from winch.drivers.postgres.address import Address
from winch.drivers.postgres.connections.libpq import Progress, script
from winch.drivers.postgres.errors import is_connection_lost, is_database_error, translated
from winch.drivers.postgres.statements import PLACE, Row, Rows, Statement
from winch.storage.verbs import Verb

T = TypeVar("T")
SUPPORTED = (
    "psycopg.Connection or AsyncConnection, asyncpg.Connection, SQLAlchemy's Session, AsyncSession, "
    "Connection or AsyncConnection over one of them (or psycopg2), and django.db.connection"
)

# The loaders that the rows are read with, whatever the application has registered for its own.
_DEFAULTS = psycopg.adapters
_TYPES = ("text", "int4", "int8", "float8", "bool", "timestamptz", "text[]")


def run_on(conn: object, verb: Verb[T], address: Address) -> T:
    """Carry the verb out on a caller's connection; raises ConfigError for one that cannot carry it."""
    caller = _caller_of(conn)
    is_alone = caller.is_on_its_own
    own: AbstractContextManager[Any] = caller.own() if is_alone else nullcontext()
    sending = script(verb, Progress(), is_own=False)
    try:
        with own:
            try:
                action = next(sending)
                while True:
                    action = sending.send(caller.send(action) if isinstance(action, Statement) else [])
            except StopIteration as stop:
                result: T = stop.value
                return result
    except Exception as error:
        if not is_database_error(error):
            raise
        raise translated(error, address, maybe_applied=is_alone and not verb.is_read) from error


async def arun_on(conn: object, verb: Verb[T], address: Address) -> T:
    """`run_on` for an async connection; a sync one blocks the event loop for as long as it takes."""
    if not callers.is_async(conn):
        return run_on(conn, verb, address)
    caller = await _async_caller_of(conn)
    is_alone = caller.is_on_its_own
    own: AbstractAsyncContextManager[Any] = caller.own() if is_alone else nullcontext()
    sending = script(verb, Progress(), is_own=False)
    try:
        async with own:
            try:
                action = next(sending)
                while True:
                    rows = await caller.send(action) if isinstance(action, Statement) else []
                    action = sending.send(rows)
            except StopIteration as stop:
                result: T = stop.value
                return result
    except Exception as error:
        if not is_database_error(error):
            raise
        raise translated(error, address, maybe_applied=is_alone and not verb.is_read) from error


@contextmanager
def joined(conn: object, address: Address) -> Iterator[Any]:
    """The caller's connection or session for one block, committed at its end."""
    if callers.kind_of(conn) is None or callers.is_async(conn):
        raise refusal(conn)
    with callers.joined(conn, lambda error: _unknown(error, address)) as same:
        if _caller_of(same).is_on_its_own:
            raise _autocommit(same)
        yield same


@asynccontextmanager
async def ajoined(conn: object, address: Address) -> AsyncIterator[Any]:
    """`joined` in an async handler."""
    if callers.kind_of(conn) is None:
        raise refusal(conn)
    async with callers.ajoined(conn, lambda error: _unknown(error, address)) as same:
        caller: Caller | AsyncCaller = (
            await _async_caller_of(same) if callers.is_async(same) else _caller_of(same)
        )
        if caller.is_on_its_own:
            raise _autocommit(same)
        yield same


def refusal(conn: object) -> ConfigError:
    """The error for a connection that is none of ours."""
    kind = callers.describe(conn)
    if callers.is_async(conn):
        return ConfigError(
            f"conn= got {kind}: an async connection needs `await`: use aenqueue and its like"
        )
    return ConfigError(f"conn= must be a connection to join the transaction of: {SUPPORTED}; got {kind}")


def _caller_of(conn: object) -> Caller:
    if callers.is_async(conn):
        raise refusal(conn)
    under = callers.raw(conn)
    found = _caller(under)
    if found is None:
        raise refusal(conn) if under is conn else _other_driver(conn, under)
    return found


async def _async_caller_of(conn: object) -> AsyncCaller:
    under = await callers.araw(conn)
    found = _async_caller(under)
    if found is None:
        raise refusal(conn) if under is conn else _other_driver(conn, under)
    return found


def _other_driver(conn: object, under: object) -> ConfigError:
    hint = ""
    if _async_caller(under) is not None:
        hint = "; it is an async driver's, so hand over the AsyncSession or AsyncConnection and await"
    return ConfigError(
        f"conn= got {callers.describe(conn)} over {callers.describe(under)}, which cannot carry a job "
        f"into PostgreSQL: the connection underneath must be of psycopg, psycopg2 or asyncpg{hint}"
    )


def _autocommit(conn: object) -> ConfigError:
    return ConfigError(
        f"ctx.transaction({callers.describe(conn)}) needs a transaction, and its connection is in "
        "autocommit mode: give the session an engine without isolation_level='AUTOCOMMIT'"
    )


def _unknown(error: BaseException, address: Address) -> Exception | None:
    """An error of the COMMIT: the one to raise when it is unknown whether it took effect."""
    chain: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and len(chain) < 5:
        chain.append(link)
        # SQLAlchemy keeps the driver's error beside its own, Django as the cause of its own.
        link = getattr(link, "orig", None) or link.__cause__
    for link in chain:
        if isinstance(link, Exception) and is_connection_lost(link):
            return translated(link, address, maybe_applied=True)
    return None


class Caller(Protocol):
    """A connection that blocks. `is_on_its_own`: autocommit, and no transaction is open."""

    @property
    def is_on_its_own(self) -> bool: ...

    def own(self) -> AbstractContextManager[Any]:
        """A transaction for the verb alone."""
        ...

    def send(self, statement: Statement) -> Rows: ...


class AsyncCaller(Protocol):
    """An async connection."""

    @property
    def is_on_its_own(self) -> bool: ...

    def own(self) -> AbstractAsyncContextManager[Any]: ...

    async def send(self, statement: Statement) -> Rows: ...


def _caller(conn: object) -> Caller | None:
    """For a connection of psycopg or psycopg2; None for any other, and for an async one."""
    if isinstance(conn, psycopg.Connection):
        return PsycopgCaller(conn)
    if callers.kind_of(conn) == PSYCOPG2:
        return Psycopg2Caller(conn)
    return None


def _async_caller(conn: object) -> AsyncCaller | None:
    if isinstance(conn, psycopg.AsyncConnection):
        return AsyncPsycopgCaller(conn)
    if callers.kind_of(conn) in ASYNCPG:
        return AsyncpgCaller(conn)
    return None


class PsycopgCaller:
    def __init__(self, conn: psycopg.Connection[Any]) -> None:
        self._conn = conn

    @property
    def is_on_its_own(self) -> bool:
        return _is_on_its_own(self._conn)

    def own(self) -> AbstractContextManager[Any]:
        return self._conn.transaction()

    def send(self, statement: Statement) -> Rows:
        # A cursor of psycopg's own kind: the connection's may bind in another style or give other rows.
        with psycopg.Cursor[Row](self._conn, row_factory=tuple_row) as cursor:
            _use_default_loaders(cursor)
            cursor.execute(statement.sql.text, statement.values, prepare=False)
            return cursor.fetchall() if cursor.description is not None else []


class AsyncPsycopgCaller:
    def __init__(self, conn: psycopg.AsyncConnection[Any]) -> None:
        self._conn = conn

    @property
    def is_on_its_own(self) -> bool:
        return _is_on_its_own(self._conn)

    def own(self) -> AbstractAsyncContextManager[Any]:
        return self._conn.transaction()

    async def send(self, statement: Statement) -> Rows:
        async with psycopg.AsyncCursor[Row](self._conn, row_factory=tuple_row) as cursor:
            _use_default_loaders(cursor)
            await cursor.execute(statement.sql.text, statement.values, prepare=False)
            return await cursor.fetchall() if cursor.description is not None else []


def _is_on_its_own(conn: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    return conn.autocommit and conn.info.transaction_status == TransactionStatus.IDLE


def _use_default_loaders(cursor: psycopg.Cursor[Row] | psycopg.AsyncCursor[Row]) -> None:
    for name in _TYPES:
        info = _DEFAULTS.types[name]
        loader = _DEFAULTS.get_loader(info.oid, psycopg.pq.Format.TEXT)
        if loader is not None:
            cursor.adapters.register_loader(info.oid, loader)


class Psycopg2Caller:
    """psycopg2 writes parameters as psycopg does."""

    def __init__(self, conn: Any) -> None:
        self._conn = conn

    @property
    def is_on_its_own(self) -> bool:
        return bool(self._conn.autocommit) and self._conn.info.transaction_status == 0

    def own(self) -> AbstractContextManager[Any]:
        return _Psycopg2Transaction(self._conn)

    def send(self, statement: Statement) -> Rows:
        from psycopg2.extensions import cursor as plain_cursor  # the connection's may give other rows

        with self._conn.cursor(cursor_factory=plain_cursor) as cursor:
            cursor.execute(statement.sql.text, statement.values)
            rows: Rows = cursor.fetchall() if cursor.description is not None else []
            return rows


class _Psycopg2Transaction:
    """psycopg2 has no block that begins a transaction on a connection in autocommit mode."""

    def __init__(self, conn: Any) -> None:
        self._conn = conn

    def __enter__(self) -> None:
        self._execute("BEGIN")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if not self._conn.closed:
            self._execute("COMMIT" if kind is None else "ROLLBACK")

    def _execute(self, command: str) -> None:
        with self._conn.cursor() as cursor:
            cursor.execute(command)


class AsyncpgCaller:
    def __init__(self, conn: Any) -> None:
        self._conn = conn

    @property
    def is_on_its_own(self) -> bool:
        return not self._conn.is_in_transaction()

    def own(self) -> AbstractAsyncContextManager[Any]:
        own: AbstractAsyncContextManager[Any] = self._conn.transaction()
        return own

    async def send(self, statement: Statement) -> Rows:
        text, values = _numbered(statement.sql.text, statement.values)
        return [tuple(row) for row in await self._conn.fetch(text, *values)]


def _numbered(text: str, values: Mapping[str, Any]) -> tuple[str, list[Any]]:
    """The statement with numbered parameters, and their values in that order.

    Texts, times and lists travel as text and are cast from it: what the application has registered for
    json or uuid (a common thing to do with asyncpg) then never sees them.
    """
    casts = tuple((name, _cast(value)) for name, value in values.items())
    rendered, names = _with_casts(text, casts)
    return rendered, [_as_text(values[name]) for name in names]


@lru_cache(maxsize=256)
def _with_casts(text: str, casts: tuple[tuple[str, str], ...]) -> tuple[str, tuple[str, ...]]:
    cast = dict(casts)
    names = tuple(dict.fromkeys(PLACE.findall(text)))
    return PLACE.sub(lambda match: f"${names.index(match[1]) + 1}{cast[match[1]]}", text), names


def _cast(value: object) -> str:
    if isinstance(value, list):
        return "::text[]"
    return "" if isinstance(value, bool | int | float) else "::text"


def _as_text(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value
