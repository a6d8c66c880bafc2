"""The short way for the one statement that most callers wait for: storing a job.

psycopg's cursors do far more than one prepared statement without an answer needs, and take as long as
the server does. Here libpq is driven as psycopg drives it: send, wait for the socket, read. The wait is
Python's own, so that signals are heard.
"""

from __future__ import annotations

import select
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from weakref import WeakKeyDictionary

import psycopg
from psycopg import errors
from psycopg.pq import ExecStatus, Format

from winch.drivers.postgres.binary import Ids, Texts, write_ids, write_texts
from winch.drivers.postgres.steps import Step
from winch.drivers.postgres.wires import numbered_names

# Whose answer nobody reads.
STATEMENTS = frozenset({"enqueue.alike", "enqueue.one"})

_prepared: WeakKeyDictionary[psycopg.Connection[Any], set[bytes]] = WeakKeyDictionary()


def send(connection: psycopg.Connection[Any], step: Step) -> None:
    """Carry the statement out; raises what psycopg would."""
    pgconn = connection.pgconn
    text, names = numbered_names(step.statement.text)
    name = b"winch " + step.statement.name.encode()
    known = _prepared.setdefault(connection, set())
    if name not in known:
        pgconn.send_prepare(name, text.encode())
        _answer(connection)
        known.add(name)
    values, formats = _written(step.values, names)
    pgconn.send_query_prepared(name, values, formats)
    _answer(connection)


def _written(values: Mapping[str, Any], names: Sequence[str]) -> tuple[list[bytes | None], list[int]]:
    written: list[bytes | None] = []
    formats: list[int] = []
    for name in names:
        value, form = values[name], Format.TEXT
        if value is None:
            written.append(None)
        elif isinstance(value, str):
            if "\0" in value:
                raise psycopg.DataError("PostgreSQL text fields cannot contain NUL (0x00) bytes")
            written.append(value.encode())
        elif isinstance(value, Ids):
            written.append(write_ids(value))
            form = Format.BINARY
        elif isinstance(value, Texts):
            written.append(write_texts(value))
            form = Format.BINARY
        elif isinstance(value, datetime):
            written.append(value.isoformat().encode())
        else:
            written.append(str(value).encode())
        formats.append(form)
    return written, formats


def _answer(connection: psycopg.Connection[Any]) -> None:
    pgconn = connection.pgconn
    poll = select.poll()
    while pgconn.flush():
        poll.register(pgconn.socket, select.POLLIN | select.POLLOUT)
        poll.poll()
        pgconn.consume_input()
    poll.register(pgconn.socket, select.POLLIN)
    failed = None
    while True:
        while pgconn.is_busy():
            poll.poll()
            pgconn.consume_input()
        result = pgconn.get_result()
        if result is None:
            break
        if result.status == ExecStatus.FATAL_ERROR and failed is None:
            failed = errors.error_from_result(result, encoding=connection.info.encoding)
    if failed is not None:
        raise failed
