"""What travels in binary on our own connections: long lists of ids out, moments back.

An id is text everywhere in Winch. Sent as text, 500 of them cost the server more to parse than to look
up, and psycopg as long again to write; here the whole list is turned at once. On a caller's connection,
which has none of this, `Ids` and `Texts` are the lists that they are.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
from psycopg.adapt import Buffer, Dumper
from psycopg.pq import Format
from psycopg.types.numeric import Int8BinaryLoader

_TYPES = psycopg.adapters.types
_UUID, _TEXT, _MOMENT, _TID = (_TYPES[name].oid for name in ("uuid", "text", "timestamptz", "tid"))
# Dimensions, whether there are NULLs, the elements' type; then the length and the first number.
_HEADER = struct.Struct("!iiIii")
_LENGTH = struct.Struct("!i")
_EMPTY = struct.pack("!iiI", 0, 0, _UUID)
_NULL = b"\xff\xff\xff\xff"
# The length of a UUID, in front of each, in the digits that the ids themselves are written in.
_UUID_LENGTH = "00000010"
_UUID_BYTES = 20
_TID_LENGTH = struct.pack("!i", 6)

# Moments come as microseconds since this one.
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


class Ids(list[str]):
    """Ids in canonical text, for a parameter that is `uuid[]`."""


class Texts(list[str | None]):
    """Texts for a parameter that is `text[]`."""


class Tids(list[bytes | None]):
    """Places of rows as the server writes them, for a parameter that is `tid[]`. On connections that are
    not ours they are left out."""


def write_ids(ids: Ids) -> bytes:
    if not ids:
        return _EMPTY
    digits = (_UUID_LENGTH + _UUID_LENGTH.join(ids)).replace("-", "")
    data = bytes.fromhex(digits)
    if len(data) != _UUID_BYTES * len(ids):
        raise psycopg.DataError("not a list of UUIDs")
    return _HEADER.pack(1, 0, _UUID, len(ids), 1) + data


def write_texts(texts: Texts) -> bytes:
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


def write_tids(tids: Tids) -> bytes:
    if None in tids:
        data = b"".join([_NULL if tid is None else _TID_LENGTH + tid for tid in tids])
    else:
        data = _TID_LENGTH + _TID_LENGTH.join(tids)  # type: ignore[arg-type]  # none is None
    return _HEADER.pack(1, 1, _TID, len(tids), 1) + data


class _IdsDumper(Dumper):
    format = Format.BINARY
    oid = _TYPES["uuid"].array_oid

    def dump(self, obj: Ids) -> Buffer | None:
        return write_ids(obj)


class _TextsDumper(Dumper):
    format = Format.BINARY
    oid = _TYPES["text"].array_oid

    def dump(self, obj: Texts) -> Buffer | None:
        return write_texts(obj)


class _TidsDumper(Dumper):
    format = Format.BINARY
    oid = _TYPES["tid"].array_oid

    def dump(self, obj: Tids) -> Buffer | None:
        return write_tids(obj)


def adapt(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    """Make a connection of our own send these lists in binary."""
    connection.adapters.register_dumper(Ids, _IdsDumper)
    connection.adapters.register_dumper(Texts, _TextsDumper)
    connection.adapters.register_dumper(Tids, _TidsDumper)


def bare_moments(cursor: psycopg.Cursor[Any] | psycopg.AsyncCursor[Any]) -> None:
    """Make a cursor give moments as numbers: a datetime costs more to make than all else of a row, and
    most of a batch are the same."""
    cursor.adapters.register_loader(_MOMENT, Int8BinaryLoader)


class Moments:
    """Numbers of a cursor with bare moments to datetimes, each made once."""

    def __init__(self) -> None:
        self._made: dict[int, datetime] = {}

    def of(self, micros: int) -> datetime:
        made = self._made.get(micros)
        if made is None:
            made = self._made[micros] = _EPOCH + timedelta(microseconds=micros)
        return made


def same(values: Iterable[str | None]) -> tuple[bool, str | None]:
    """Whether all the values are one, and which."""
    found = set(values)
    return (True, found.pop()) if len(found) == 1 else (not found, None)
