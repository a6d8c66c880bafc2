"""The short way for the few statements that somebody waits for: storing a job, claiming, finishing.

psycopg's cursors do far more than one prepared statement needs, and take as long as the server does.
Here libpq is driven as psycopg drives it: send, wait for the socket, read. The sync wait is Python's
own, so that signals are heard; the async one is the event loop's, without a task or a lock of its own.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec
import psycopg
from psycopg import adapt, errors
from psycopg.pq import ConnStatus, DiagnosticField, ExecStatus, Format
from psycopg.rows import RowFactory, tuple_row

from winch.drivers._shared.sql import SqlText
from winch.drivers.postgres.binary import (
    Ids,
    Texts,
    Tids,
    bare_moments,
    write_ids,
    write_texts,
    write_tids,
)
from winch.drivers.postgres.errors import sever
from winch.drivers.postgres.statements import BARE_MOMENTS, Row, Rows, Statement, numbered_names
from winch.storage.params import Enqueued

if TYPE_CHECKING:
    from psycopg.abc import Transformer
    from psycopg.pq.abc import PGconn, PGresult

# Whose answer nobody reads.
STATEMENTS = frozenset({"enqueue.alike", "enqueue.one"})
# Those that go this way on a worker's connections for claim and finish, which keep their plans.
WORKING = frozenset({"claim", "claim.few", "finish", "has_gated", "wait.offer", "wait.withdrawn"})

# A statement that is kept prepared: its name on the server, and the names of its values in order.
Kept = tuple[bytes, tuple[str, ...]]


class Own(psycopg.Connection[Row]):
    """A connection of ours, with what the short way needs at hand."""

    def __init__(self, pgconn: PGconn, row_factory: RowFactory[Row] = tuple_row) -> None:
        super().__init__(pgconn, row_factory)
        self.kept: dict[str, Kept] = {}
        self.poll: select.poll = select.poll()
        self.poll.register(pgconn.socket, select.POLLIN)
        self.is_cut: bool = False  # by the watchdog, and of no use from then on
        # Prepared ones: they are wanted, and no pooler stands between.
        self.keeps_statements: bool = False

    @property
    def is_fit(self) -> bool:
        """Whether it is open and quiet. What comes in while nobody asks is the end of the connection."""
        return self.pgconn.status == ConnStatus.OK and not self.poll.poll(0)


class AsyncOwn(psycopg.AsyncConnection[Row]):
    """The same for an event loop."""

    def __init__(self, pgconn: PGconn, row_factory: RowFactory[Row] = tuple_row) -> None:
        super().__init__(pgconn, row_factory)  # type: ignore[arg-type]  # rows are made alike on both sides
        self.kept: dict[str, Kept] = {}
        self.readers: dict[str, Transformer] = {}
        self.answer: PendingResult | None = None  # the last that was waited for
        self.poll: select.poll = select.poll()
        self.poll.register(pgconn.socket, select.POLLIN)

    @property
    def is_readable(self) -> bool:
        return bool(self.poll.poll(0))

    def cut(self) -> None:
        """End whatever is under way, with an error where it is waited for: also where nobody would hear
        of the end of the socket."""
        with suppress(psycopg.Error):  # it is closed
            sever(self.fileno())
        if self.answer is not None:
            self.answer.cut()


class Written:
    """A statement with its values as they travel."""

    __slots__ = ("formats", "sql", "values")

    def __init__(self, statement: Statement) -> None:
        self.sql: SqlText = statement.sql
        self.values: list[bytes | None]
        self.formats: list[int] | None
        self.values, self.formats = _written(statement.values, numbered_names(statement.sql.text)[1])


def send(connection: Own, statement: Statement) -> None:
    """Carry the statement out; raises what psycopg would.

    Short on purpose: between two waits Python runs with cold caches, three times slower than in a loop.
    """
    name, names = connection.kept.get(statement.sql.name) or _kept(connection, statement.sql)
    connection.pgconn.send_query_prepared(name, *_written(statement.values, names))
    answer(connection)


class StoreOne(msgspec.Struct, frozen=True):
    """The enqueue of one plain job, on a connection that has it to itself: `Verb.lone`."""

    statement: Statement
    stored: list[Enqueued]

    def __call__(self, connection: Own) -> list[Enqueued]:
        send(connection, self.statement)
        return self.stored

    async def acall(self, connection: AsyncOwn) -> list[Enqueued]:
        await asend(connection, self.statement)
        return self.stored


def begin(connection: Own, written: Written) -> None:
    """Send the statement, as far as the socket takes it; `answer` sends the rest."""
    name, _ = _kept(connection, written.sql)
    connection.pgconn.send_query_prepared(name, written.values, written.formats)
    connection.pgconn.flush()


def _kept(connection: Own, sql: SqlText) -> Kept:
    """The statement as this connection keeps it; prepared when it is first asked for."""
    kept = connection.kept.get(sql.name)
    if kept is None:
        text, names = numbered_names(sql.text)
        kept = _server_name(sql.name), names
        connection.pgconn.send_prepare(kept[0], text.encode())
        answer(connection)
        connection.kept[sql.name] = kept
    return kept


def _server_name(name: str) -> bytes:
    return b"winch " + name.encode()


async def asend(connection: AsyncOwn, statement: Statement) -> Rows:
    """The same without blocking the event loop; and the rows, read as a binary cursor would."""
    name = statement.sql.name
    kept = connection.kept.get(name)
    if kept is None:
        text, names = numbered_names(statement.sql.text)
        kept = _server_name(name), names
        connection.pgconn.send_prepare(kept[0], text.encode())
        await PendingResult(connection).whole()
        connection.kept[name] = kept
    values, formats = _written(statement.values, kept[1])
    connection.pgconn.send_query_prepared(kept[0], values, formats, result_format=Format.BINARY)
    return await rows_of(PendingResult(connection), name)


def abegin(connection: AsyncOwn, written: Written) -> PendingResult:
    """Send a statement that the connection has prepared; `rows_of` waits for what it gives."""
    name, _ = connection.kept[written.sql.name]
    connection.pgconn.send_query_prepared(
        name, written.values, written.formats, result_format=Format.BINARY
    )
    return PendingResult(connection)


async def rows_of(answer: PendingResult, name: str) -> Rows:
    await answer.whole()
    return rows_in(answer, name)


def rows_in(answer: PendingResult, name: str) -> Rows:
    """The rows of an answer that is whole and no error."""
    result = answer.last
    if result is None or not (count := result.ntuples):
        return []
    reader = _reader(answer.connection, name)
    reader.set_pgresult(result)
    rows = reader.load_rows(0, count, tuple)
    reader.set_pgresult(None)
    return rows


def _reader(connection: AsyncOwn, name: str) -> Transformer:
    """What reads the rows of one statement on one connection; it keeps the loaders it has looked up."""
    reader = connection.readers.get(name)
    if reader is None:
        cursor = connection.cursor(binary=True)
        if name in BARE_MOMENTS:
            bare_moments(cursor)
        reader = connection.readers[name] = adapt.Transformer(cursor)
    return reader


def _written(
    values: Mapping[str, Any], names: Sequence[str]
) -> tuple[list[bytes | None], list[int] | None]:
    """The values as they travel, and their formats; None where all are text."""
    written: list[bytes | None] = []
    formats: list[int] | None = None
    for name in names:
        value = values[name]
        if isinstance(value, str):
            if "\0" in value:
                raise psycopg.DataError("PostgreSQL text fields cannot contain NUL (0x00) bytes")
            written.append(value.encode())
        elif value is None:
            written.append(None)
        elif type(value) is int:
            written.append(b"%d" % value)
        elif isinstance(value, list):
            data, form = _list(value)
            if form is not Format.TEXT:
                if formats is None:
                    formats = [Format.TEXT] * len(names)
                formats[len(written)] = form
            written.append(data)
        elif isinstance(value, datetime):
            written.append(value.isoformat().encode())
        else:
            written.append(str(value).encode())
    return written, formats


def _list(value: list[Any]) -> tuple[bytes, Format]:
    if isinstance(value, Ids):
        return write_ids(value), Format.BINARY
    if isinstance(value, Texts):
        return write_texts(value), Format.BINARY
    if isinstance(value, Tids):
        return write_tids(value), Format.BINARY
    if all(isinstance(one, int) for one in value):
        return f"{{{','.join(map(str, value))}}}".encode(), Format.TEXT
    return write_texts(Texts(value)), Format.BINARY


def answer(connection: Own) -> None:
    """Wait for the whole answer to what was sent; raises what psycopg would."""
    pgconn, poll = connection.pgconn, connection.poll
    if pgconn.flush():
        _send_rest(connection)
    failed: PGresult | None = None
    while True:
        while pgconn.is_busy():
            poll.poll()
            pgconn.consume_input()
        if (result := pgconn.get_result()) is None:
            break
        if result.status == ExecStatus.FATAL_ERROR:
            failed = failed or result
    if failed is not None:
        _raise_first(connection, [failed])


def _send_rest(connection: Own) -> None:
    """Send what the socket did not take at once, and read meanwhile, lest both sides wait to be read."""
    pgconn, poll = connection.pgconn, connection.poll
    poll.modify(pgconn.socket, select.POLLIN | select.POLLOUT)
    try:
        while pgconn.flush():
            poll.poll()
            pgconn.consume_input()
    finally:
        poll.modify(pgconn.socket, select.POLLIN)


class PendingResult:
    """The answer to what was sent on an async connection, read as it comes."""

    __slots__ = (
        *("_fileno", "_is_left", "_is_read", "_loop", "_results", "_whole"),
        *("connection", "then"),
    )

    def __init__(self, connection: AsyncOwn) -> None:
        self.connection = connection
        # Called the moment it is whole and no error, before whoever waits for it is woken.
        self.then: Callable[[], None] | None = None
        self._loop = asyncio.get_running_loop()
        self._fileno = connection.pgconn.socket
        self._whole: asyncio.Future[None] = self._loop.create_future()
        self._results: list[PGresult] = []
        self._is_left = bool(connection.pgconn.flush())
        if self._is_left:  # more than the socket takes at once
            self._loop.add_writer(self._fileno, self._write)
        self._loop.add_reader(self._fileno, self._read)
        self._is_read = True
        connection.answer = self

    async def whole(self) -> None:
        """Wait for all of it. Raises what psycopg would."""
        try:
            await self._whole
        finally:
            self.stop()
        _raise_first(self.connection, self._results)

    @property
    def last(self) -> PGresult | None:
        return self._results[-1] if self._results else None

    def stop(self) -> None:
        """Read no more, and only once: libpq closes the socket of a connection that is lost while it
        reads, and from then on its number may be that of another, which this must not touch."""
        if self._is_read:
            self._is_read = False
            self._loop.remove_reader(self._fileno)
            if self._is_left:
                self._loop.remove_writer(self._fileno)

    def cut(self) -> None:
        """Wait no longer; nothing, where it is whole."""
        if not self._whole.done():
            self.stop()
            self._settle(psycopg.OperationalError("the connection was cut"))

    def _read(self) -> None:
        pgconn = self.connection.pgconn
        try:
            pgconn.consume_input()
            while not pgconn.is_busy():
                if (result := pgconn.get_result()) is None:
                    self._settle()
                    return
                self._results.append(result)
        except psycopg.Error as error:
            self.stop()
            self._settle(error)

    def _write(self) -> None:
        try:
            if not self.connection.pgconn.flush():
                self._loop.remove_writer(self._fileno)
                self._is_left = False
        except psycopg.Error as error:
            self.stop()
            self._settle(error)

    def _settle(self, error: Exception | None = None) -> None:
        if self._whole.done():
            return
        if error is None:
            try:
                if self.then is not None and not any(map(_is_failed, self._results)):
                    self.then()
            finally:
                self._whole.set_result(None)
        else:
            self._whole.set_exception(error)


def _is_failed(result: PGresult) -> bool:
    return result.status == ExecStatus.FATAL_ERROR


def _raise_first(connection: Own | AsyncOwn, results: Sequence[PGresult]) -> None:
    for result in results:
        if _is_failed(result):
            if result.error_field(DiagnosticField.SQLSTATE) == b"26000":
                # psycopg deallocates whatever is prepared on a connection after a ROLLBACK.
                connection.kept.clear()
            raise errors.error_from_result(result, encoding=connection.info.encoding)
