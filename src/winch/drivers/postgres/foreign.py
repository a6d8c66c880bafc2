"""Verbs on the caller's own connection, inside the caller's own transaction.

Never commits and never rolls back. On a connection in autocommit mode with no transaction open there is
none to join: the verb is then a transaction of its own.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from typing import Any, TypeVar

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from winch.core.errors import ConfigError
from winch.drivers.postgres.faults import translated
from winch.drivers.postgres.place import Place
from winch.drivers.postgres.steps import Progress, Row, Rows, Step, script
from winch.storage.verbs import Verb

T = TypeVar("T")
SUPPORTED = "psycopg.Connection and psycopg.AsyncConnection (version 3)"

# The loaders that the rows are read with, whatever the application has registered for its own.
_DEFAULTS = psycopg.adapters
_TYPES = ("text", "int4", "int8", "float8", "bool", "timestamptz", "text[]")


def run_on(conn: object, verb: Verb[T], place: Place) -> T:
    """Carry the verb out on a caller's connection; raises ConfigError for one that cannot carry it."""
    if not isinstance(conn, psycopg.Connection):
        raise refusal(conn, "an async connection needs `await`: use aenqueue and its like")
    progress = Progress(verb)
    sending = script(verb, progress)
    is_own = _is_on_its_own(conn)
    own: AbstractContextManager[Any] = conn.transaction() if is_own else nullcontext()
    try:
        with own:
            try:
                action = next(sending)
                while True:
                    action = sending.send(_send(conn, action) if isinstance(action, Step) else [])
            except StopIteration as stop:
                result: T = stop.value
                return result
    except psycopg.Error as error:
        raise translated(error, place, maybe_applied=is_own and not verb.is_read) from error


async def arun_on(conn: object, verb: Verb[T], place: Place) -> T:
    """`run_on` for an async connection; a sync one blocks the event loop for as long as it takes."""
    if isinstance(conn, psycopg.Connection):
        return run_on(conn, verb, place)
    if not isinstance(conn, psycopg.AsyncConnection):
        raise refusal(conn)
    progress = Progress(verb)
    sending = script(verb, progress)
    is_own = _is_on_its_own(conn)
    own: AbstractAsyncContextManager[Any] = conn.transaction() if is_own else nullcontext()
    try:
        async with own:
            try:
                action = next(sending)
                while True:
                    rows = await _asend(conn, action) if isinstance(action, Step) else []
                    action = sending.send(rows)
            except StopIteration as stop:
                result: T = stop.value
                return result
    except psycopg.Error as error:
        raise translated(error, place, maybe_applied=is_own and not verb.is_read) from error


def refusal(conn: object, hint: str = "") -> ConfigError:
    """The error for a connection that is none of ours."""
    kind = f"{type(conn).__module__}.{type(conn).__qualname__}"
    if isinstance(conn, psycopg.AsyncConnection) and hint:
        return ConfigError(f"conn= got {kind}: {hint}")
    return ConfigError(f"conn= must be a connection to join the transaction of: {SUPPORTED}; got {kind}")


def _is_on_its_own(conn: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    return conn.autocommit and conn.info.transaction_status == TransactionStatus.IDLE


def _send(conn: psycopg.Connection[Any], step: Step) -> Rows:
    # A cursor of psycopg's own kind: the connection's may bind in another style or give other rows.
    with psycopg.Cursor[Row](conn, row_factory=tuple_row) as cursor:
        _use_default_loaders(cursor)
        cursor.execute(step.statement.text, step.values, prepare=False)
        return cursor.fetchall() if cursor.description is not None else []


async def _asend(conn: psycopg.AsyncConnection[Any], step: Step) -> Rows:
    async with psycopg.AsyncCursor[Row](conn, row_factory=tuple_row) as cursor:
        _use_default_loaders(cursor)
        await cursor.execute(step.statement.text, step.values, prepare=False)
        return await cursor.fetchall() if cursor.description is not None else []


def _use_default_loaders(cursor: psycopg.Cursor[Row] | psycopg.AsyncCursor[Row]) -> None:
    for name in _TYPES:
        info = _DEFAULTS.types[name]
        loader = _DEFAULTS.get_loader(info.oid, psycopg.pq.Format.TEXT)
        if loader is not None:
            cursor.adapters.register_loader(info.oid, loader)
