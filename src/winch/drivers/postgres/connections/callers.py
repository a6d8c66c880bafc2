"""Verbs on the caller's own connection, inside the caller's own transaction.

Never commits and never rolls back. On a connection in autocommit mode with no transaction open there is
none to join: the verb is then a transaction of its own. `joined` is the exception: the application lends
its session to a job, whose end commits it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from typing import Any, TypeVar

from winch.core.errors import ConfigError
from winch.drivers._shared import callers
from winch.drivers.postgres.address import Place
from winch.drivers.postgres.connections.caller_wires import AsyncWire, Wire, async_wire, wire
from winch.drivers.postgres.errors import is_connection_lost, is_database_error, translated
from winch.drivers.postgres.statements import Progress, Step, script
from winch.storage.verbs import Verb

T = TypeVar("T")
SUPPORTED = (
    "psycopg.Connection or AsyncConnection, asyncpg.Connection, SQLAlchemy's Session, AsyncSession, "
    "Connection or AsyncConnection over one of them (or psycopg2), and django.db.connection"
)


def run_on(conn: object, verb: Verb[T], place: Place) -> T:
    """Carry the verb out on a caller's connection; raises ConfigError for one that cannot carry it."""
    line = _line(conn)
    is_alone = line.is_on_its_own
    own: AbstractContextManager[Any] = line.own() if is_alone else nullcontext()
    sending = script(verb, Progress(verb))
    try:
        with own:
            try:
                action = next(sending)
                while True:
                    action = sending.send(line.send(action) if isinstance(action, Step) else [])
            except StopIteration as stop:
                result: T = stop.value
                return result
    except Exception as error:
        if not is_database_error(error):
            raise
        raise translated(error, place, maybe_applied=is_alone and not verb.is_read) from error


async def arun_on(conn: object, verb: Verb[T], place: Place) -> T:
    """`run_on` for an async connection; a sync one blocks the event loop for as long as it takes."""
    if not callers.is_async(conn):
        return run_on(conn, verb, place)
    line = await _aline(conn)
    is_alone = line.is_on_its_own
    own: AbstractAsyncContextManager[Any] = line.own() if is_alone else nullcontext()
    sending = script(verb, Progress(verb))
    try:
        async with own:
            try:
                action = next(sending)
                while True:
                    rows = await line.send(action) if isinstance(action, Step) else []
                    action = sending.send(rows)
            except StopIteration as stop:
                result: T = stop.value
                return result
    except Exception as error:
        if not is_database_error(error):
            raise
        raise translated(error, place, maybe_applied=is_alone and not verb.is_read) from error


@contextmanager
def joined(conn: object, place: Place) -> Iterator[Any]:
    """The caller's connection or session for one block, committed at its end."""
    if callers.kind_of(conn) is None or callers.is_async(conn):
        raise refusal(conn)
    with callers.joined(conn, lambda error: _unknown(error, place)) as same:
        if _line(same).is_on_its_own:
            raise _autocommit(same)
        yield same


@asynccontextmanager
async def ajoined(conn: object, place: Place) -> AsyncIterator[Any]:
    """`joined` in an async handler."""
    if callers.kind_of(conn) is None:
        raise refusal(conn)
    async with callers.ajoined(conn, lambda error: _unknown(error, place)) as same:
        line: Wire | AsyncWire = await _aline(same) if callers.is_async(same) else _line(same)
        if line.is_on_its_own:
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


def _line(conn: object) -> Wire:
    if callers.is_async(conn):
        raise refusal(conn)
    under = callers.raw(conn)
    found = wire(under)
    if found is None:
        raise refusal(conn) if under is conn else _other_driver(conn, under)
    return found


async def _aline(conn: object) -> AsyncWire:
    under = await callers.araw(conn)
    found = async_wire(under)
    if found is None:
        raise refusal(conn) if under is conn else _other_driver(conn, under)
    return found


def _other_driver(conn: object, under: object) -> ConfigError:
    hint = ""
    if async_wire(under) is not None:
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


def _unknown(error: BaseException, place: Place) -> Exception | None:
    """An error of the COMMIT: the one to raise when nobody knows whether it took effect."""
    chain: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and len(chain) < 5:
        chain.append(link)
        # SQLAlchemy keeps the driver's error beside its own, Django as the cause of its own.
        link = getattr(link, "orig", None) or link.__cause__
    for link in chain:
        if isinstance(link, Exception) and is_connection_lost(link):
            return translated(link, place, maybe_applied=True)
    return None
