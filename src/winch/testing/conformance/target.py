"""Where the suite gets its stores from: an empty one for each case, as cheaply as the store allows."""

from __future__ import annotations

import secrets
import shutil
import sqlite3
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    closing,
    contextmanager,
)
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from winch.core.errors import ConfigError
from winch.drivers.connect import connect
from winch.drivers.memory import MemoryDriver
from winch.storage.protocol import Driver


class WallClock:
    """The system's clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def time(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()


@dataclass(frozen=True)
class StoreAddress:
    """How another process finds the store."""

    url: str
    schema: str | None = None


class Target(ABC):
    """One driver under test.

    `fresh`, `another` and `blank` must be written; `address` where the driver shares_processes,
    `connection` (and `aconnection`, where async connections differ) where it joins_transactions.
    """

    name: str

    @abstractmethod
    def fresh(self, *, events: bool = False) -> Driver:
        """A driver on a migrated, empty store. The one before it is no longer used."""

    def finished(self, driver: Driver) -> None:
        """A case in sync mode is over. A target that uses its driver again leaves it open."""
        driver.close()

    async def afinished(self, driver: Driver) -> None:
        """A case in async mode is over."""
        await driver.aclose()

    @abstractmethod
    def another(self) -> Driver:
        """A second driver on the store of the last `fresh`, as a second process would have it."""

    @abstractmethod
    def blank(self) -> AbstractContextManager[Driver]:
        """A driver on a store of its own that has no schema yet."""

    def address(self) -> StoreAddress:
        """Where the store of the last `fresh` is."""
        raise NotImplementedError(f"{type(self).__name__} must say where its store is")

    def connection(self) -> AbstractContextManager[object]:
        """A caller's own connection to the store of the last `fresh`, in a transaction that is
        committed at the end, or rolled back when the body raises."""
        raise NotImplementedError(f"{type(self).__name__} must say how a caller connects")

    def aconnection(self) -> AbstractAsyncContextManager[object]:
        """The same for async callers; a sync connection unless the driver takes async ones."""

        @asynccontextmanager
        async def connected() -> AsyncIterator[object]:
            with self.connection() as conn:
                yield conn

        return connected()

    def close(self) -> None:  # noqa: B027  # most targets have nothing to do
        """Remove everything. Called once, after `aclose`."""

    async def aclose(self) -> None:  # noqa: B027  # most targets have nothing to do
        """Give back what belongs to the event loop."""


class MemoryTarget(Target):
    name = "memory"

    def fresh(self, *, events: bool = False) -> Driver:
        return MemoryDriver(WallClock(), events=events)

    def another(self) -> Driver:
        # What a second process gets from the same URL.
        return self.fresh()

    @contextmanager
    def blank(self) -> Iterator[Driver]:
        yield self.fresh()


class SqliteTarget(Target):
    """A new file for each case, copied from one that was migrated once."""

    name = "sqlite"

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="winch-conformance-", dir=folder))
        self._made = 0
        self._template = self._folder / "template.db"
        driver = self._open(self._template)
        driver.migrate()
        driver.close()
        # From Python 3.12 on, a close leaves the WAL behind; the copy of the file alone would be empty.
        with closing(sqlite3.connect(self._template)) as conn:
            conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    @property
    def _path(self) -> Path:
        return self._folder / f"{self._made}" / "winch.db"

    def _open(self, path: Path, *, events: bool = False) -> Any:
        return connect(f"sqlite:///{path}", clock=WallClock(), events=events)

    def fresh(self, *, events: bool = False) -> Driver:
        if self._made:
            shutil.rmtree(self._path.parent)
        self._made += 1
        self._path.parent.mkdir()
        shutil.copyfile(self._template, self._path)
        self._driver = self._open(self._path, events=events)
        opened: Driver = self._driver
        return opened

    def another(self) -> Driver:
        opened: Driver = self._open(self._path)
        return opened

    @contextmanager
    def blank(self) -> Iterator[Driver]:
        driver = self._open(self._path.with_name("blank.db"))
        try:
            yield driver
        finally:
            driver.close()

    def address(self) -> StoreAddress:
        return StoreAddress(f"sqlite:///{self._path}")

    def connection(self) -> AbstractContextManager[object]:
        transaction: AbstractContextManager[object] = self._driver.transaction()
        return transaction

    def close(self) -> None:
        shutil.rmtree(self._folder)


class PostgresTarget(Target):
    """Two schemas of our own, with and without events, emptied for each case. Drivers and their
    connections are used again, because opening them takes longer than a case."""

    name = "postgres"

    def __init__(self, url: str, *, direct: str | None = None) -> None:
        """`direct`: the target's own way to the server, where `url` leads through a pooler that
        cannot carry what it sets for itself."""
        import psycopg

        self._url = url
        self._own = psycopg.connect(direct or url, autocommit=True)
        # A connection that a case left open in a transaction must not stop the suite for ever.
        self._own.execute("SET lock_timeout = '10s'")
        self._name = f"winch_conformance_{secrets.token_hex(4)}"
        self._schemas = {False: self._name, True: f"{self._name}_events"}
        self._drivers = {
            events: self._open(self._schemas[events], events=events) for events in self._schemas
        }
        for driver in self._drivers.values():
            driver.migrate()
        self._seeded = {schema: self._tables_with_rows(schema) for schema in self._schemas.values()}
        self._schema = self._name

    def _open(self, schema: str, *, events: bool = False) -> Driver:
        return connect(self._url, clock=WallClock(), schema=schema, events=events)

    def fresh(self, *, events: bool = False) -> Driver:
        from psycopg import sql

        self._schema = schema = self._schemas[events]
        # Some ten times as fast as TRUNCATE, which makes new files for every table and index.
        names = self._tables_with_rows(schema) - self._seeded[schema]
        # A job that goes is written down for jobs that wait for it, where there was nothing before, too.
        for name in sorted(names | {"recheck"} if "job" in names else names):
            self._own.execute(sql.SQL("DELETE FROM {}").format(sql.Identifier(schema, name)))
        return self._drivers[events]

    def _tables_with_rows(self, schema: str) -> set[str]:
        from psycopg import sql

        found = self._own.execute(
            "SELECT relname FROM pg_class WHERE relnamespace = %s::regnamespace AND relkind = 'r'",
            [schema],
        )
        looks = [
            sql.SQL("SELECT {} WHERE EXISTS (SELECT FROM {})").format(
                sql.Literal(name), sql.Identifier(schema, name)
            )
            for (name,) in found
        ]
        return {name for (name,) in self._own.execute(sql.SQL(" UNION ALL ").join(looks))}

    def finished(self, driver: Driver) -> None:
        self._look_for_impossible()

    async def afinished(self, driver: Driver) -> None:
        self._look_for_impossible()

    def _look_for_impossible(self) -> None:
        """Check again what the database checks only when a job changes, not when it is stored."""
        from psycopg import sql

        look = sql.SQL("SELECT id::text, state FROM {} AS job WHERE NOT {}(job)").format(
            sql.Identifier(self._schema, "job"), sql.Identifier(self._schema, "is_possible")
        )
        found = self._own.execute(look).fetchall()
        if found:
            raise AssertionError(f"the case left jobs that cannot be: {found}")

    def another(self) -> Driver:
        return self._open(self._schema)

    @contextmanager
    def blank(self) -> Iterator[Driver]:
        schema = f"{self._name}_blank"
        driver = self._open(schema)
        try:
            yield driver
        finally:
            driver.close()
            self._drop(schema)

    def address(self) -> StoreAddress:
        return StoreAddress(self._url, self._schema)

    @contextmanager
    def connection(self) -> Iterator[object]:
        import psycopg

        with psycopg.connect(self._url) as conn:
            yield conn

    @asynccontextmanager
    async def aconnection(self) -> AsyncIterator[object]:
        import psycopg

        async with await psycopg.AsyncConnection.connect(self._url) as conn:
            yield conn

    async def aclose(self) -> None:
        for driver in self._drivers.values():
            await driver.aclose()

    def close(self) -> None:
        for driver in self._drivers.values():
            driver.close()
        for schema in self._schemas.values():
            self._drop(schema)
        self._own.close()

    def _drop(self, schema: str) -> None:
        from psycopg import sql

        self._own.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(schema)))


class RedisTarget(Target):
    """Two schemas of our own, with and without events, emptied for each case; drivers and their
    connections are used again. Scripts are flushed again and again, as a restart would."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._name = f"winch_conformance_{secrets.token_hex(4)}"
        self._schemas = {False: self._name, True: f"{self._name}_events"}
        self._drivers = {
            events: self._open(self._schemas[events], events=events) for events in self._schemas
        }
        self._schema = self._name
        self._cases = 0
        self.name: str = self._drivers[False].name

    def _open(self, schema: str, *, events: bool = False) -> Any:
        return connect(self._url, clock=WallClock(), schema=schema, events=events)

    def fresh(self, *, events: bool = False) -> Driver:
        self._schema = self._schemas[events]
        opened = self._drivers[events]
        opened.erase()
        opened.migrate()
        self._cases += 1
        if self._cases % 20 == 0:
            opened.forget_scripts()
        driver: Driver = opened
        return driver

    def finished(self, driver: Driver) -> None:
        pass

    async def afinished(self, driver: Driver) -> None:
        pass

    def another(self) -> Driver:
        opened: Driver = self._open(self._schema)
        return opened

    @contextmanager
    def blank(self) -> Iterator[Driver]:
        driver = self._open(f"{self._name}_blank")
        try:
            yield driver
        finally:
            driver.erase()
            driver.close()

    def address(self) -> StoreAddress:
        return StoreAddress(self._url, self._schema)

    async def aclose(self) -> None:
        for driver in self._drivers.values():
            await driver.aclose()

    def close(self) -> None:
        for driver in self._drivers.values():
            driver.erase()
            driver.close()


def target_for(url: str) -> Target:
    """The target for a URL that Winch knows. Nothing that is there already is touched: SQLite gets files
    of its own beside the one named, PostgreSQL and Redis a schema of its own."""
    match urlsplit(url).scheme:
        case "memory":
            return MemoryTarget()
        case "sqlite":
            path = Path(url.removeprefix("sqlite:///").partition("?")[0])
            return SqliteTarget(path.parent)
        case "postgresql" | "postgres":
            return PostgresTarget(url)
        case scheme if scheme.startswith(("redis", "valkey")):
            return RedisTarget(url)
        case scheme:
            raise ConfigError(
                f"url must begin with memory, sqlite, postgresql or redis, got scheme {scheme!r}"
            )
