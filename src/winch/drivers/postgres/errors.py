"""The errors of psycopg, and of what callers connect with, translated into Winch's."""

from __future__ import annotations

import random

import psycopg

from winch.core.errors import (
    ConfigError,
    InvalidPayload,
    SchemaMismatch,
    StorageError,
    StorageFull,
    StorageUnavailable,
    WinchError,
)
from winch.drivers.postgres.address import Address

# The store asks to start over: a deadlock, a snapshot that is no longer good enough, or a prepared
# statement that it does not have any more (libpq.py then prepares it again).
START_OVER = ("40P01", "40001", "26000")
TRIES = 5

# Shutting down, starting up, out of connections, read-only (a standby that is about to be promoted),
# cancelled by a timeout of the server's, a lock that was not to be had.
_PASSING = ("57P01", "57P02", "57P03", "57P05", "53300", "25006", "25P03", "57014", "55P03")
# Libraries that callers bring along; known by name, because Winch imports neither.
_OTHERS = frozenset(("psycopg2", "asyncpg"))
_NO_SCHEMA = ("3F000", "42P01", "42883", "42703")


def start_over_delay(tries: int) -> float:
    """Seconds to wait before the next try: short, growing, and different for each of two rivals."""
    return random.uniform(0.002, 0.01) * (1 << tries)  # noqa: S311  # not a secret


def is_database_error(error: BaseException) -> bool:
    """Whether the error comes from a library that talks to PostgreSQL, or from its connection."""
    return isinstance(error, psycopg.Error | OSError) or _library(error) in _OTHERS


def is_connection_lost(error: BaseException) -> bool:
    """Whether no answer came, so that what was sent may have taken effect."""
    if isinstance(error, OSError):
        return True
    code = _code(error)
    # The server's FATAL errors come instead of an answer.
    if code in ("57P01", "57P02", "57P05", "25P03"):
        return True
    # Without a code the error is libpq's own, or the library's.
    if isinstance(error, psycopg.Error):
        return code is None and isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    if _library(error) not in _OTHERS:
        return False
    names = {base.__name__ for base in type(error).__mro__}
    if "PostgresConnectionError" in names:  # asyncpg gives its own ones the server's codes
        return True
    # asyncpg's DataError, a value that cannot be sent, is an InterfaceError too.
    return (
        code is None
        and bool(names & {"OperationalError", "InterfaceError"})
        and "DataError" not in names
    )


def _library(error: BaseException) -> str:
    roots = (base.__module__.partition(".")[0] for base in type(error).__mro__)
    return next((root for root in roots if root in _OTHERS), "")


def _code(error: BaseException) -> str | None:
    """The server's code for the error; psycopg2 calls it pgcode."""
    code = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    return code if isinstance(code, str) else None


def translated(error: Exception, address: Address, *, maybe_applied: bool) -> WinchError:
    """What Winch raises for this error; the caller raises it from the original."""
    if isinstance(error, WinchError):
        return error
    code = _code(error)
    diag = getattr(error, "diag", None)  # asyncpg has the fields of it on the error itself
    primary = getattr(diag, "message_primary", None)
    text = " ".join((primary or str(error) or type(error).__name__).split())
    where = f"{address.describe()}: {text}"
    if is_connection_lost(error) or not is_database_error(error):
        return StorageUnavailable(where, maybe_applied=maybe_applied)
    if code in START_OVER:
        return StorageUnavailable(f"{where}; the transaction was rolled back, repeat it whole")
    if code in _PASSING or (code or "").startswith("08"):
        return StorageUnavailable(where)
    if code in ("53100", "53200"):
        return StorageFull(f"{where}; nothing was written")
    if code in _NO_SCHEMA:
        return SchemaMismatch(
            f"{where}; schema {address.schema!r} is missing or of another release: run `winch migrate`"
        )
    if code == "42501":
        return StorageError(f"{where}; {_missing_grant(text, address)}")
    if code == "23505" and getattr(diag or error, "constraint_name", None) == "job_pkey":
        detail = getattr(diag, "message_detail", None) or getattr(error, "detail", None)
        return ConfigError(f"a job id was drawn twice: {detail or text}")
    if code is None and (isinstance(error, psycopg.DataError) or type(error).__name__ == "DataError"):
        return InvalidPayload(f"a text cannot be stored in PostgreSQL: {text}")
    return StorageError(where)


def no_answer(address: Address, *, maybe_applied: bool) -> StorageUnavailable:
    """The error for a connection that was closed because the server did not answer in time."""
    return StorageUnavailable(
        f"{address.describe()}: no answer within {address.timeout:g} s (timeout= in the URL)",
        maybe_applied=maybe_applied,
    )


def _missing_grant(text: str, address: Address) -> str:
    """The statement that would give the right that "permission denied for table job" speaks of."""
    kind, _, name = text.partition("permission denied for ")[2].partition(" ")
    role = address.params.get("user") or "the role that connects"
    grant = {
        "table": f"GRANT SELECT, INSERT, UPDATE, DELETE ON {address.quoted}.{name} TO {role}",
        "function": f"GRANT EXECUTE ON FUNCTION {address.quoted}.{name} TO {role}",
        "schema": f"GRANT USAGE ON SCHEMA {address.quoted} TO {role}",
        "sequence": f"GRANT USAGE ON SEQUENCE {address.quoted}.{name} TO {role}",
    }.get(kind)
    return f"missing: {grant}" if grant else f"role {role} lacks a right in schema {address.schema!r}"
