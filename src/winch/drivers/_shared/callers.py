"""The application's own connections and sessions: which transaction each stands for, and which side
ends it.

Known by the classes' names and modules, so that looking at an object imports nothing: Winch uses none of
these libraries unless the application does. Two things are made of them here. `raw` and `araw` give the
driver's connection underneath, inside the very transaction that the application will commit. `joined`
and `ajoined` are for the one case in which Winch commits it: the application lends its session to a job.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from typing import Any, NamedTuple

from winch.core.errors import ConfigError


class Kind(NamedTuple):
    """A class that is known here: the library's name, and its own."""

    library: str
    name: str


SESSION, CONNECTION = Kind("sqlalchemy", "Session"), Kind("sqlalchemy", "Connection")
ASYNC_SESSION = Kind("sqlalchemy", "AsyncSession")
ASYNC_CONNECTION = Kind("sqlalchemy", "AsyncConnection")
SCOPED = (Kind("sqlalchemy", "scoped_session"), Kind("sqlalchemy", "async_scoped_session"))
# django.db.connection is a proxy; what it leads to, and connections["name"], is a wrapper.
DJANGO = (Kind("django", "ConnectionProxy"), Kind("django", "BaseDatabaseWrapper"))
PSYCOPG, PSYCOPG_ASYNC = Kind("psycopg", "Connection"), Kind("psycopg", "AsyncConnection")
PSYCOPG2 = Kind("psycopg2", "connection")
ASYNCPG = (Kind("asyncpg", "Connection"), Kind("asyncpg", "PoolConnectionProxy"))
SQLITE = Kind("sqlite3", "Connection")

_KNOWN = frozenset(
    (SESSION, CONNECTION, ASYNC_SESSION, ASYNC_CONNECTION, PSYCOPG, PSYCOPG_ASYNC, PSYCOPG2, SQLITE)
).union(SCOPED, DJANGO, ASYNCPG)
_ASYNC = frozenset((ASYNC_SESSION, ASYNC_CONNECTION, PSYCOPG_ASYNC)).union(ASYNCPG)


def kind_of(conn: object) -> Kind | None:
    """Which of the known classes the object is one of; None for anything else."""
    for base in type(conn).__mro__:
        kind = Kind(base.__module__.partition(".")[0], base.__name__)
        if kind in _KNOWN:
            return kind
    return None


def is_async(conn: object) -> bool:
    """Whether what the object does has to be awaited."""
    return kind_of(unscoped(conn)) in _ASYNC


def describe(conn: object) -> str:
    """The object's class, for messages."""
    return f"{type(conn).__module__}.{type(conn).__qualname__}"


def unscoped(conn: Any) -> Any:
    """The session of this thread or task, where a scoped one was given."""
    return conn.registry() if kind_of(conn) in SCOPED else conn


# -- the connection underneath -----------------------------------------------------------------------


def raw(conn: Any) -> Any:
    """The driver's connection underneath, in the transaction that the application has or is about to
    have; anything that is not wrapped is given back as it is."""
    conn = unscoped(conn)
    kind = kind_of(conn)
    if kind == SESSION:
        return raw(conn.connection())
    if kind == CONNECTION:
        # What goes to the driver's connection directly is not seen by SQLAlchemy: without a transaction
        # in its own books, its commit() would do nothing.
        if not conn.in_transaction():
            conn.begin()
        return conn.connection.driver_connection
    if kind in DJANGO and hasattr(conn, "ensure_connection"):
        conn.validate_no_broken_transaction()
        conn.ensure_connection()
        return conn.connection
    return conn


async def araw(conn: Any) -> Any:
    """`raw` for an async connection or session; takes the sync ones too."""
    conn = unscoped(conn)
    kind = kind_of(conn)
    if kind == ASYNC_SESSION:
        return await araw(await conn.connection())
    if kind != ASYNC_CONNECTION:
        return raw(conn)
    if not conn.in_transaction():
        await conn.begin()
    found = (await conn.get_raw_connection()).driver_connection
    if kind_of(found) in ASYNCPG and not found.is_in_transaction():
        # SQLAlchemy sends BEGIN to asyncpg together with the first statement that goes through it.
        await conn.exec_driver_sql("SELECT 1")
    return found


def no_transactions(store: str) -> ConfigError:
    """The error of `conn=` on a store that has no transactions of the application's."""
    return ConfigError(
        f"conn= needs a store that shares the caller's database; {store} has no "
        "transactions to join. Use a sqlite:/// or postgresql:// URL"
    )


# -- the application's transaction, ended by Winch -----------------------------------------------------

Unknown = Callable[[BaseException], Exception | None]


@contextmanager
def joined(conn: Any, unknown: Unknown) -> Iterator[Any]:
    """The application's connection or session, for a block that Winch commits, and rolls back on an
    exception. `unknown` is what to raise for an error of the COMMIT that leaves its outcome open."""
    conn = unscoped(conn)
    _refuse_nested(conn)
    is_ending = False
    try:
        with _block(conn):
            yield conn
            is_ending = True
    except Exception as error:
        if is_ending and (lost := unknown(error)) is not None:
            raise lost from error
        raise


@asynccontextmanager
async def ajoined(conn: Any, unknown: Unknown) -> AsyncIterator[Any]:
    """`joined` for an async connection or session; takes the sync ones too."""
    conn = unscoped(conn)
    if not is_async(conn):
        with joined(conn, unknown) as same:
            yield same
        return
    _refuse_nested(conn)
    is_ending = False
    try:
        async with _ablock(conn):
            yield conn
            is_ending = True
    except Exception as error:
        if is_ending and (lost := unknown(error)) is not None:
            raise lost from error
        raise


def _block(conn: Any) -> AbstractContextManager[Any]:
    kind = kind_of(conn)
    if kind in DJANGO:
        from django.db import transaction

        atomic: AbstractContextManager[Any] = transaction.atomic(using=conn.alias)
        return atomic
    if kind == PSYCOPG and conn.autocommit:
        block: AbstractContextManager[Any] = conn.transaction()
        return block
    return _committed(conn)


def _ablock(conn: Any) -> AbstractAsyncContextManager[Any]:
    kind = kind_of(conn)
    if kind in ASYNCPG or (kind == PSYCOPG_ASYNC and conn.autocommit):
        block: AbstractAsyncContextManager[Any] = conn.transaction()
        return block
    return _acommitted(conn)


@contextmanager
def _committed(conn: Any) -> Iterator[None]:
    try:
        yield
        conn.commit()
    except BaseException:
        with suppress(Exception):  # a connection that is gone cannot be rolled back, and need not be
            conn.rollback()
        raise


@asynccontextmanager
async def _acommitted(conn: Any) -> AsyncIterator[None]:
    try:
        yield
        await conn.commit()
    except BaseException:
        with suppress(Exception):
            await conn.rollback()
        raise


def _refuse_nested(conn: Any) -> None:
    """Raise ConfigError where a commit through this object would not be one: inside a savepoint, or
    inside a block that commits by itself, later or never. What the application has done since its
    transaction began belongs to the transaction and is committed with it."""
    kind = kind_of(conn)
    inside = None
    if kind is not None and kind.library == "sqlalchemy":
        bind = getattr(conn, "bind", None)
        if conn.in_nested_transaction():
            inside = "begin_nested()"
        elif bind is not None and hasattr(bind, "in_transaction") and bind.in_transaction():
            inside = "a transaction of the connection that it is bound to"
    elif kind in DJANGO:
        if conn.in_atomic_block:
            inside = "transaction.atomic()"
        elif not conn.get_autocommit():
            inside = "a transaction that set_autocommit(False) began"
    elif kind in (PSYCOPG, PSYCOPG_ASYNC):
        if conn._num_transactions or (conn.autocommit and conn.info.transaction_status):
            inside = "conn.transaction()" if conn._num_transactions else "a BEGIN of its own"
    elif kind in ASYNCPG and conn.is_in_transaction():
        inside = "conn.transaction()"
    if inside is not None:
        raise ConfigError(
            f"ctx.transaction({describe(conn)}) must be the outermost transaction, because Winch "
            f"commits it at the end of the block; this one is inside {inside}"
        )
