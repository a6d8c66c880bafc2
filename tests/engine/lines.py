"""The libraries' own ways to the same database: each opens a connection or session, and knows how it
commits, rolls back and runs a statement. The setup that a library needs stands here once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
)
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import asyncpg
import django
import psycopg
import psycopg2
import sqlalchemy
from django.conf import settings as django_settings
from django.db import connections as django_connections
from django.db import transaction as django_transaction
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool

if not django_settings.configured:
    django_settings.configure(DATABASES={}, USE_TZ=True, INSTALLED_APPS=[])
    django.setup()


class Line:
    """A connection or session with a transaction that the test ends."""

    def __init__(
        self,
        conn: Any,
        execute: Callable[[str], Any],
        commit: Callable[[], Any],
        rollback: Callable[[], Any],
    ) -> None:
        self.conn = conn
        self.execute = execute
        self.commit = commit
        self.rollback = rollback


def sqlalchemy_url(url: str, driver: str) -> str:
    return url.replace("postgresql://", f"postgresql+{driver}://", 1)


# -- sync --------------------------------------------------------------------------------------------


@contextmanager
def open_psycopg(url: str) -> Iterator[Line]:
    with psycopg.connect(url) as conn:
        yield Line(conn, conn.execute, conn.commit, conn.rollback)


@contextmanager
def open_psycopg2(url: str) -> Iterator[Line]:
    conn = psycopg2.connect(url)
    try:
        yield Line(conn, conn.cursor().execute, conn.commit, conn.rollback)
    finally:
        conn.close()


def _sqlalchemy(driver: str, of: str) -> Callable[[str], AbstractContextManager[Line]]:
    @contextmanager
    def opened(url: str) -> Iterator[Line]:
        engine = sqlalchemy.create_engine(sqlalchemy_url(url, driver), poolclass=NullPool)
        conn: Any
        match of:
            case "Connection":
                conn = engine.connect()
            case "Session":
                conn = Session(engine)
            case _:
                conn = scoped_session(sessionmaker(engine))
        try:
            yield Line(
                conn,
                lambda text: conn.execute(sqlalchemy.text(text)),
                conn.commit,
                conn.rollback,
            )
        finally:
            conn.close()
            engine.dispose()

    return opened


@contextmanager
def django_database(engine: str, **options: Any) -> Iterator[Any]:
    """django.db.connection, led to another database for as long as the block."""
    described = {"ENGINE": f"django.db.backends.{engine}", **options}
    django_connections.settings["default"] = described
    django_connections.settings = django_connections.configure_settings(django_connections.settings)
    if hasattr(django_connections._connections, "default"):
        del django_connections["default"]
    from django.db import connection

    try:
        yield connection
    finally:
        connection.close()
        del django_connections["default"]


def django_postgres(url: str) -> AbstractContextManager[Any]:
    parts = urlsplit(url)
    return django_database(
        "postgresql",
        NAME=parts.path.removeprefix("/"),
        USER=unquote(parts.username or ""),
        PASSWORD=unquote(parts.password or ""),
        HOST=parts.hostname or "",
        PORT=str(parts.port or ""),
    )


@contextmanager
def open_django(url: str) -> Iterator[Line]:
    with django_postgres(url) as connection, _atomic(connection) as line:
        yield line


@contextmanager
def _atomic(connection: Any) -> Iterator[Line]:
    block = django_transaction.atomic()
    block.__enter__()
    is_open = [True]

    def end(error: BaseException | None) -> None:
        if is_open[0]:
            is_open[0] = False
            block.__exit__(type(error) if error else None, error, None)

    def execute(text: str) -> Any:
        cursor = connection.cursor()
        cursor.execute(text)
        return cursor

    try:
        yield Line(connection, execute, lambda: end(None), lambda: end(RuntimeError("roll back")))
    finally:
        end(RuntimeError("left open"))


SYNC: dict[str, Callable[[str], AbstractContextManager[Line]]] = {
    "psycopg": open_psycopg,
    "psycopg2": open_psycopg2,
    "sqlalchemy connection": _sqlalchemy("psycopg", "Connection"),
    "sqlalchemy session": _sqlalchemy("psycopg", "Session"),
    "sqlalchemy scoped session": _sqlalchemy("psycopg", "scoped"),
    "sqlalchemy session on psycopg2": _sqlalchemy("psycopg2", "Session"),
    "django": open_django,
}


@contextmanager
def lend_django(url: str) -> Iterator[Line]:
    with django_postgres(url) as connection:
        yield Line(connection, lambda text: connection.cursor().execute(text), _nothing, _nothing)


def _nothing() -> None: ...


# For a block that Winch ends: no transaction has been begun.
LENT: dict[str, Callable[[str], AbstractContextManager[Line]]] = {**SYNC, "django": lend_django}

# -- async -------------------------------------------------------------------------------------------


@asynccontextmanager
async def aopen_psycopg(url: str) -> AsyncIterator[Line]:
    async with await psycopg.AsyncConnection.connect(url) as conn:
        yield Line(conn, conn.execute, conn.commit, conn.rollback)


@asynccontextmanager
async def aopen_asyncpg(url: str) -> AsyncIterator[Line]:
    conn = await asyncpg.connect(url)
    try:
        transaction = conn.transaction()
        await transaction.start()
        yield Line(conn, conn.execute, transaction.commit, transaction.rollback)
    finally:
        await conn.close()


@asynccontextmanager
async def aopen_pool(url: str) -> AsyncIterator[Line]:
    async with asyncpg.create_pool(url, min_size=1, max_size=1) as pool, pool.acquire() as conn:
        transaction = conn.transaction()
        await transaction.start()
        yield Line(conn, conn.execute, transaction.commit, transaction.rollback)


def _asqlalchemy(driver: str, of: str) -> Callable[[str], AbstractAsyncContextManager[Line]]:
    @asynccontextmanager
    async def opened(url: str) -> AsyncIterator[Line]:
        engine = create_async_engine(sqlalchemy_url(url, driver), poolclass=NullPool)
        conn: AsyncSession | AsyncConnection
        conn = await engine.connect() if of == "AsyncConnection" else AsyncSession(engine)
        try:
            yield Line(
                conn,
                lambda text: conn.execute(sqlalchemy.text(text)),
                conn.commit,
                conn.rollback,
            )
        finally:
            await conn.close()
            await engine.dispose()

    return opened


ASYNC: dict[str, Callable[[str], AbstractAsyncContextManager[Line]]] = {
    "psycopg": aopen_psycopg,
    "asyncpg": aopen_asyncpg,
    "asyncpg pool": aopen_pool,
    "sqlalchemy connection": _asqlalchemy("psycopg", "AsyncConnection"),
    "sqlalchemy session": _asqlalchemy("psycopg", "AsyncSession"),
    "sqlalchemy connection on asyncpg": _asqlalchemy("asyncpg", "AsyncConnection"),
    "sqlalchemy session on asyncpg": _asqlalchemy("asyncpg", "AsyncSession"),
}


@asynccontextmanager
async def alend_asyncpg(url: str) -> AsyncIterator[Line]:
    conn = await asyncpg.connect(url)
    try:
        yield Line(conn, conn.execute, _nothing, _nothing)
    finally:
        await conn.close()


@asynccontextmanager
async def alend_pool(url: str) -> AsyncIterator[Line]:
    async with asyncpg.create_pool(url, min_size=1, max_size=1) as pool, pool.acquire() as conn:
        yield Line(conn, conn.execute, _nothing, _nothing)


ALENT: dict[str, Callable[[str], AbstractAsyncContextManager[Line]]] = {
    **ASYNC,
    "asyncpg": alend_asyncpg,
    "asyncpg pool": alend_pool,
}

# -- SQLite ------------------------------------------------------------------------------------------


@contextmanager
def sqlite_session(path: Path) -> Iterator[Session]:
    engine = sqlalchemy.create_engine(f"sqlite:///{path}", poolclass=NullPool)
    with Session(engine) as session:
        yield session
    engine.dispose()


def django_sqlite(path: Path) -> AbstractContextManager[Any]:
    return django_database("sqlite3", NAME=str(path))
