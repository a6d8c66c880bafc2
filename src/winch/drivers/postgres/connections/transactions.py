"""Connections that the application has for one transaction each, kept for the next one.

They are not the pool's: what the application sets on one, and how long it takes, is its own. So only the
link to the server is kept. Before it is lent again the server wipes it, and the connection on it is new;
the one before is closed for all that still have it. A link that met an error is thrown away, one that
was lent often too, and behind a pooler none is kept: there a session is many, and connecting is cheap.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import cache
from typing import Any

import psycopg
from psycopg import pq
from psycopg.pq.abc import PGconn
from psycopg.rows import tuple_row

from winch.drivers.postgres.address import Address
from winch.drivers.postgres.connections.pool import (
    WHO_ANSWERS,
    AsyncConnection,
    Connection,
    is_pooled,
    is_readable,
)
from winch.drivers.postgres.errors import translated
from winch.drivers.postgres.statements import Row

# Settings, temporary tables, advisory locks, LISTEN, prepared statements, cursors.
WIPE = "DISCARD ALL"
MOST_LOANS = 500
# Through a pooler a named statement may belong to another client.
_CONNECT: dict[str, Any] = {"row_factory": tuple_row, "prepare_threshold": None}


class TransactionPool:
    """For threads, and after a fork."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._pid = os.getpid()
        self._idle: list[tuple[PGconn, int]] = []

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        """A connection in a transaction that commits at the end and rolls back on an exception. A lost
        COMMIT may have applied."""
        in_commit = False
        try:
            connection, loans = self._wiped() or self._connect()
            try:
                yield connection
                in_commit = True
                connection.commit()
            except BaseException:
                connection.close()
                raise
        except psycopg.Error as error:
            if in_commit or isinstance(error, psycopg.OperationalError):
                raise translated(error, self._address, maybe_applied=in_commit) from error
            raise
        if loans < MOST_LOANS and len(self._idle) < self._address.pool and _is_clean(connection):
            self._idle.append((_taken_from(connection), loans + 1))
        else:
            connection.close()

    def _wiped(self) -> tuple[Connection, int] | None:
        if self._pid != os.getpid():
            self._idle, self._pid = [], os.getpid()  # the parent's connections are the parent's
        while True:
            try:
                link, loans = self._idle.pop()
            except IndexError:  # not looked for before: another thread may take the last one
                return None
            connection = psycopg.Connection[Row](link, row_factory=tuple_row)
            connection.prepare_threshold = None
            try:
                if not is_readable(link.socket):
                    connection.autocommit = True
                    connection.execute(WIPE)
                    connection.autocommit = False
                    return connection, loans
            except psycopg.Error:
                pass  # closed while it was idle
            except BaseException:  # interrupted
                connection.close()
                raise
            connection.close()

    def _connect(self) -> tuple[Connection, int]:
        made = psycopg.Connection[Row].connect(**self._address.params, **_CONNECT, autocommit=True)
        try:
            loans = _first(is_pooled(made, made.execute(WHO_ANSWERS).fetchone()))
            made.autocommit = False
        except BaseException:  # no other code knows of this connection yet
            made.close()
            raise
        return made, loans

    def close(self) -> None:
        """Close what is not lent right now."""
        if self._pid == os.getpid():
            with suppress(IndexError):
                while True:
                    self._idle.pop()[0].finish()


class AsyncTransactionPool:
    """For one event loop."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._idle: list[tuple[PGconn, int]] = []

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[AsyncConnection]:
        """As TransactionPool.begin."""
        in_commit = False
        try:
            connection, loans = await self._wiped() or await self._connect()
            try:
                yield connection
                in_commit = True
                await connection.commit()
            except BaseException:
                await connection.close()
                raise
        except psycopg.Error as error:
            if in_commit or isinstance(error, psycopg.OperationalError):
                raise translated(error, self._address, maybe_applied=in_commit) from error
            raise
        if loans < MOST_LOANS and len(self._idle) < self._address.pool and _is_clean(connection):
            self._idle.append((_taken_from(connection), loans + 1))
        else:
            await connection.close()

    async def _wiped(self) -> tuple[AsyncConnection, int] | None:
        while self._idle:
            link, loans = self._idle.pop()
            connection = psycopg.AsyncConnection[Row](link, row_factory=tuple_row)
            connection.prepare_threshold = None
            try:
                if not is_readable(link.socket):
                    await connection.set_autocommit(True)
                    await connection.execute(WIPE)
                    await connection.set_autocommit(False)
                    return connection, loans
            except psycopg.Error:
                pass  # closed while it was idle
            except BaseException:  # cancelled
                await connection.close()
                raise
            await connection.close()
        return None

    async def _connect(self) -> tuple[AsyncConnection, int]:
        made = await psycopg.AsyncConnection[Row].connect(
            **self._address.params, **_CONNECT, autocommit=True
        )
        try:
            answer = await made.execute(WHO_ANSWERS)
            loans = _first(is_pooled(made, await answer.fetchone()))
            await made.set_autocommit(False)
        except BaseException:  # cancelled, mostly
            await made.close()
            raise
        return made, loans

    def close(self) -> None:
        """Close what is not lent right now."""
        while self._idle:
            self._idle.pop()[0].finish()


def _first(is_pooled: bool) -> int:
    """How often a new connection counts as lent."""
    return MOST_LOANS if is_pooled else 0


def _is_clean(connection: Connection | AsyncConnection) -> bool:
    is_idle = connection.info.transaction_status == pq.TransactionStatus.IDLE
    return not connection.closed and is_idle


def _taken_from(connection: Connection | AsyncConnection) -> PGconn:
    """The link of a connection, which is closed from now on."""
    link = connection.pgconn
    connection.pgconn = _no_link()
    return link


@cache
def _no_link() -> PGconn:
    made = pq.PGconn.connect_start(b"host=/nowhere")
    made.finish()
    return made
