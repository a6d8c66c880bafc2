"""A verb over libpq: its statements in the order of a transaction, each written, sent and read.

All connections of our own send this way, blocking or in an event loop. psycopg connects, reads rows
and names errors; its cursors do far more than one statement needs, and take as long as the server does.
One enqueue takes 146 instead of 227 µs of a producer's CPU time (a cursor with a prepared statement).

The two flavours differ in how they wait: `run` polls the socket, up to a deadline, so that signals are
heard; `arun` waits as a reader of the event loop, without a task or a lock of its own.
"""

from __future__ import annotations

import asyncio
import select
import struct
from collections.abc import Callable, Generator, Mapping, Sequence
from datetime import datetime
from time import monotonic
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

import msgspec
import psycopg
from psycopg import adapt, errors
from psycopg.pq import ConnStatus, DiagnosticField, ExecStatus, Format
from psycopg.types.numeric import Int8BinaryLoader

from winch.drivers.postgres.statements import Ids, Rows, Sql, Statement, Texts
from winch.storage.verbs import Verb

if TYPE_CHECKING:
    from psycopg.abc import Transformer
    from psycopg.pq.abc import PGconn, PGresult

T = TypeVar("T")
Action = Statement | Literal["begin", "commit", "rollback"]

# READ COMMITTED by name: a database may have another default, and the verbs' second looks need a new
# snapshot for each statement.
COMMANDS = {
    "begin": b"BEGIN ISOLATION LEVEL READ COMMITTED",
    "commit": b"COMMIT",
    "rollback": b"ROLLBACK",
}
# Statements whose moments are read as numbers (`records.read_claims`): a datetime costs more to make
# than all else of a row, and most of a batch are the same.
BARE_MOMENTS = frozenset(
    {
        "claim",
        "claim.few",
        "claim.gated",
        "admit.take",
        "wait.taken",
        "finish_and_claim",
        "finish_and_claim.next",
    }
)


# -- what a verb sends ---------------------------------------------------------------------------------


class Progress:
    """How far a verb has come, for the one question after a failure: may it have taken effect?"""

    __slots__ = ("maybe_applied",)

    def __init__(self) -> None:
        self.maybe_applied: bool = False


class Lone(msgspec.Struct, Generic[T], frozen=True):
    """A verb that is one statement where it has its transaction to itself (`Verb.lone`)."""

    statement: Statement
    read: Callable[[Rows], T]
    """The verb's result, from the rows of the statement."""

    def __call__(self, rows: Rows) -> T:
        return self.read(rows)


def script(verb: Verb[T], progress: Progress, *, is_own: bool = True) -> Generator[Action, Rows, T]:
    """The verb's steps in a transaction, or without one where a single statement is all. `is_own`: no
    caller has a transaction on the connection."""
    if is_own and isinstance(verb.lone, Lone):
        progress.maybe_applied = True
        stored: T = verb.lone((yield verb.lone.statement))
        return stored
    steps = verb.steps()
    in_transaction = False
    try:
        statement = next(steps)
        while True:
            if not in_transaction and not statement.is_alone:
                yield "begin"
                in_transaction = True
            # Only a commit, or a statement that is its own transaction, can apply.
            if not in_transaction:
                progress.maybe_applied = not verb.is_read
            statement = steps.send((yield statement))
    except StopIteration as stop:
        if in_transaction:
            progress.maybe_applied = not verb.is_read
            yield "commit"
        result: T = stop.value
        return result


# -- one connection ------------------------------------------------------------------------------------


class OwnConnection:
    """A connection of our own, and what its session keeps. `keeps` names the statements that it prepares
    when they are first sent."""

    __slots__ = ("answer", "connection", "is_cut", "keeps", "kept", "pgconn", "poll", "readers")

    def __init__(
        self,
        connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any],
        keeps: frozenset[str] = frozenset(),
    ) -> None:
        self.connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any] = connection
        self.pgconn: PGconn = connection.pgconn
        self.keeps: frozenset[str] = keeps
        self.kept: set[str] = set()
        self.readers: dict[str, Transformer] = {}
        self.answer: PendingAnswer | None = None  # the last that an event loop waited for
        self.is_cut: bool = False
        self.poll: select.poll = select.poll()
        self.poll.register(self.pgconn.socket, select.POLLIN)

    @property
    def is_fit(self) -> bool:
        """Whether it is open and quiet. What comes in without a request is the end of the connection."""
        return self.is_open and not self.is_cut and not self.poll.poll(0)

    @property
    def is_open(self) -> bool:
        return self.pgconn.status == ConnStatus.OK

    def close(self) -> None:
        self.pgconn.finish()

    def cut(self) -> None:
        """End what an event loop waits for with an error, and send nothing from then on."""
        self.is_cut = True
        if self.answer is not None:
            self.answer.cut()


class Written(msgspec.Struct, frozen=True):
    """An action as it travels."""

    action: Action
    values: Sequence[bytes | None] = ()
    formats: Sequence[int] | None = None


def write(action: Action) -> Written:
    """The action with its values written."""
    if not isinstance(action, Statement):
        return Written(action)
    return Written(action, *_written(action.values, action.sql.names))


def run(link: OwnConnection, action: Action, deadline: float) -> Rows:
    """Carry one action out and wait for its rows. Raises what psycopg would, and TimeoutError."""
    written = write(action)
    _prepare_first(link, action, deadline)
    _send(link, written)
    return _rows(link, action, _whole(link, deadline))


def send(link: OwnConnection, written: Written, deadline: float) -> None:
    """The first half of `run`: all of the action is on its way."""
    _prepare_first(link, written.action, deadline)
    _send(link, written)
    _flush(link, deadline)


def receive(link: OwnConnection, written: Written, deadline: float) -> Rows:
    """The second half of `run`."""
    return _rows(link, written.action, _whole(link, deadline))


async def arun(link: OwnConnection, action: Action) -> Rows:
    """`run` in an event loop. `OwnConnection.cut` ends it early."""
    written = write(action)
    if isinstance(action, Statement) and _is_to_prepare(link, action.sql):
        _prepare(link, action.sql)
        await PendingAnswer(link).whole()
        link.kept.add(action.sql.name)
    _send(link, written)
    return _rows(link, action, await PendingAnswer(link).whole())


def _prepare_first(link: OwnConnection, action: Action, deadline: float) -> None:
    if isinstance(action, Statement) and _is_to_prepare(link, action.sql):
        _prepare(link, action.sql)
        _whole(link, deadline)
        link.kept.add(action.sql.name)


def _is_to_prepare(link: OwnConnection, sql: Sql) -> bool:
    return sql.name in link.keeps and sql.name not in link.kept


def _prepare(link: OwnConnection, sql: Sql) -> None:
    link.pgconn.send_prepare(sql.server_name, sql.numbered)


def _send(link: OwnConnection, written: Written) -> None:
    if link.is_cut:
        raise _cut()
    action = written.action
    if not isinstance(action, Statement):
        link.pgconn.send_query(COMMANDS[action])
        return
    sql, values, formats = action.sql, written.values, written.formats
    # Binary answers: moments are read faster, and whatever DateStyle the database is set to.
    if sql.name in link.keeps:
        link.pgconn.send_query_prepared(sql.server_name, values, formats, Format.BINARY)
    else:
        link.pgconn.send_query_params(sql.numbered, values, None, formats, Format.BINARY)


# -- waiting -------------------------------------------------------------------------------------------


def _whole(link: OwnConnection, deadline: float) -> PGresult | None:
    """Wait for the whole answer to what was sent, blocking."""
    pgconn, poll = link.pgconn, link.poll
    _flush(link, deadline)
    results: list[PGresult] = []
    while True:
        while pgconn.is_busy():
            _wait(poll, deadline)
            pgconn.consume_input()
        if (result := pgconn.get_result()) is None:
            return _checked(link, results)
        results.append(result)


def _flush(link: OwnConnection, deadline: float) -> None:
    pgconn, poll = link.pgconn, link.poll
    if pgconn.flush():
        # More than the socket takes at once. Read meanwhile, lest both sides wait to be read.
        poll.modify(pgconn.socket, select.POLLIN | select.POLLOUT)
        while pgconn.flush():
            _wait(poll, deadline)
            pgconn.consume_input()
        poll.modify(pgconn.socket, select.POLLIN)


def _wait(poll: select.poll, deadline: float) -> None:
    if not poll.poll(max(deadline - monotonic(), 0.0) * 1000):
        raise TimeoutError


class PendingAnswer:
    """The answer to what was sent, read by an event loop as it comes."""

    __slots__ = ("_fileno", "_is_left", "_is_read", "_link", "_loop", "_results", "_whole")

    def __init__(self, link: OwnConnection) -> None:
        self._link = link
        self._loop = asyncio.get_running_loop()
        self._fileno = link.pgconn.socket
        self._whole: asyncio.Future[None] = self._loop.create_future()
        self._results: list[PGresult] = []
        self._is_left = bool(link.pgconn.flush())
        if self._is_left:  # more than the socket takes at once
            self._loop.add_writer(self._fileno, self._write)
        self._loop.add_reader(self._fileno, self._read)
        self._is_read = True
        link.answer = self

    async def whole(self) -> PGresult | None:
        """Wait for all of it. Raises what psycopg would."""
        try:
            await self._whole
        finally:
            self._stop()
        return _checked(self._link, self._results)

    def cut(self) -> None:
        """Wait no longer; nothing, where it is whole."""
        self._settle(_cut())

    def _stop(self) -> None:
        """Read no more, and only once: libpq closes the socket of a connection that is lost while it
        reads, and from then on its number may be that of another, which this must not touch."""
        if self._is_read:
            self._is_read = False
            self._loop.remove_reader(self._fileno)
            if self._is_left:
                self._loop.remove_writer(self._fileno)

    def _read(self) -> None:
        pgconn = self._link.pgconn
        try:
            pgconn.consume_input()
            while not pgconn.is_busy():
                if (result := pgconn.get_result()) is None:
                    self._settle(None)
                    return
                self._results.append(result)
        except psycopg.Error as error:
            self._settle(error)

    def _write(self) -> None:
        try:
            if not self._link.pgconn.flush():
                self._loop.remove_writer(self._fileno)
                self._is_left = False
        except psycopg.Error as error:
            self._settle(error)

    def _settle(self, error: Exception | None) -> None:
        if not self._whole.done():
            self._stop()
            if error is None:
                self._whole.set_result(None)
            else:
                self._whole.set_exception(error)


def _cut() -> psycopg.Error:
    return psycopg.OperationalError("the connection was cut")


# -- reading -------------------------------------------------------------------------------------------


def _checked(link: OwnConnection, results: Sequence[PGresult]) -> PGresult | None:
    """The last result; raises the error of the first that has one."""
    for result in results:
        if result.status == ExecStatus.FATAL_ERROR:
            if result.error_field(DiagnosticField.SQLSTATE) == b"26000":
                link.kept.clear()  # something has deallocated what was prepared
            raise errors.error_from_result(result, encoding=link.connection.info.encoding)
    return results[-1] if results else None


def _rows(link: OwnConnection, action: Action, result: PGresult | None) -> Rows:
    if not isinstance(action, Statement) or result is None or not (count := result.ntuples):
        return []
    name = action.sql.name
    reader = link.readers.get(name) or _reader(link, name)
    reader.set_pgresult(result)
    rows = reader.load_rows(0, count, tuple)
    reader.set_pgresult(None)
    return rows


def _reader(link: OwnConnection, name: str) -> Transformer:
    """What reads the rows of one statement on one connection; it keeps the loaders it has looked up."""
    cursor = link.connection.cursor()
    if name in BARE_MOMENTS:
        cursor.adapters.register_loader("timestamptz", Int8BinaryLoader)
    reader = link.readers[name] = adapt.Transformer(cursor)
    return reader


# -- writing -------------------------------------------------------------------------------------------

_UUID, _TEXT = (psycopg.adapters.types[name].oid for name in ("uuid", "text"))
# Of a binary array: dimensions, whether there are NULLs, the elements' type, their number, first index.
_HEADER = struct.Struct("!iiIii")
_EMPTY = struct.pack("!iiI", 0, 0, _UUID)
_LENGTH = struct.Struct("!i")
_NULL = b"\xff\xff\xff\xff"
# The length of a UUID, in front of each, in the digits that the ids themselves are written in.
_UUID_LENGTH = "00000010"
_UUID_BYTES = 20


def _written(
    values: Mapping[str, Any], names: Sequence[str]
) -> tuple[list[bytes | None], list[int] | None]:
    """The values as they travel, and their formats; None where all are text. A type is what the
    statement makes of it."""
    written: list[bytes | None] = []
    formats: list[int] | None = None
    for name in names:
        value = values[name]
        if value is None:
            written.append(None)
            continue
        kind = type(value)
        if kind is str:
            written.append(_encoded(value))
        elif kind is Ids or kind is Texts:
            if formats is None:
                formats = [Format.TEXT] * len(names)
            formats[len(written)] = Format.BINARY
            written.append(write_ids(value) if kind is Ids else write_texts(value))
        else:
            written.append(_plain(value))
    return written, formats


def _plain(value: object) -> bytes:
    """A number, a truth value, a moment, an enum's text, or a list of them or of texts."""
    if isinstance(value, str):
        return _encoded(value)
    if isinstance(value, datetime):
        return value.isoformat().encode()
    if isinstance(value, list):
        return b"{" + b",".join(map(_element, value)) + b"}"
    return str(value).encode()


def _element(value: object) -> bytes:
    if value is None:
        return b"NULL"
    text = _encoded(value) if isinstance(value, str) else _plain(value)
    return b'"' + text.replace(b"\\", b"\\\\").replace(b'"', b'\\"') + b'"'


def _encoded(text: str) -> bytes:
    if "\0" in text:
        raise psycopg.DataError("PostgreSQL text fields cannot contain NUL (0x00) bytes")
    return text.encode()


def write_ids(ids: Ids) -> bytes:
    """The ids as a binary `uuid[]`, all at once."""
    if not ids:
        return _EMPTY
    digits = (_UUID_LENGTH + _UUID_LENGTH.join(ids)).replace("-", "")
    data = bytes.fromhex(digits)
    if len(data) != _UUID_BYTES * len(ids):
        raise psycopg.DataError("not a list of UUIDs")
    return _HEADER.pack(1, 0, _UUID, len(ids), 1) + data


def write_texts(texts: Texts) -> bytes:
    """The texts as a binary `text[]`."""
    parts = [_HEADER.pack(1, 1, _TEXT, len(texts), 1)]
    last, part = None, _NULL
    for text in texts:
        if text is not last:  # many share the very same
            last = text
            if text is None:
                part = _NULL
            else:
                data = text.encode()
                part = _LENGTH.pack(len(data)) + data
        parts.append(part)
    return b"".join(parts)
