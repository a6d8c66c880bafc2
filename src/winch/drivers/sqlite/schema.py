"""The schema of the SQLite store: migrations, and the triggers for events where they are asked for.

The embedded store needs no migrate step: the first use brings the schema up to date by itself.
"""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources

from winch.core.errors import ConfigError
from winch.drivers._shared import migrate
from winch.drivers._shared.migrate import Migration, Status
from winch.drivers.sqlite.connections.pool import Connections

PACKAGE = "winch.drivers.sqlite"
MIGRATIONS = migrate.load(PACKAGE)
EVENTS_STEP = "events"
_TRIGGER = re.compile(r"CREATE TRIGGER (\w+)")


class SqliteLedger:
    """What the migration runner needs, on the writing connection under the file's lock."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    @contextmanager
    def transaction(self) -> Iterator[None]:
        file = self._connections.acquire()
        try:
            conn = self._connections.writer()
            conn.execute("BEGIN IMMEDIATE")
            try:
                yield
                conn.execute("COMMIT")
            except BaseException:
                if conn.in_transaction:
                    conn.rollback()
                raise
        finally:
            file.release()

    def applied(self) -> dict[int, str] | None:
        return read_applied(self._connections.writer())

    def execute(self, script: str) -> None:
        conn = self._connections.writer()
        for statement in split(script):
            try:
                conn.execute(statement)
            except sqlite3.OperationalError as error:
                if "already exists" not in str(error):
                    raise
                raise ConfigError(
                    f"{self._connections.path} already has a table with that name ({error}); "
                    "use a separate file for Winch"
                ) from error

    def record(self, migration: Migration) -> None:
        self._connections.writer().execute(
            "INSERT INTO winch_migration (number, name, applied_at) VALUES (?, ?, ?)",
            (migration.number, migration.name, time.time_ns() // 1000),
        )


def read_applied(conn: sqlite3.Connection) -> dict[int, str] | None:
    """The migrations applied to the file, or None when it has none of our tables."""
    found = conn.execute(
        "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'winch_migration'"
    ).fetchone()
    if found is None:
        return None
    return dict(conn.execute("SELECT number, name FROM winch_migration").fetchall())


def read_status(conn: sqlite3.Connection, *, events: bool) -> Status:
    """Where the schema stands. With `events`, it is ready only when the triggers are there."""
    status = migrate.status(read_applied(conn), MIGRATIONS)
    if events and status.is_ready and missing_triggers(conn):
        return Status(status.current, status.newest, is_ready=False)
    return status


def upgrade(connections: Connections, *, events: bool) -> list[str]:
    """Bring the schema up to date; returns the names of the steps taken."""
    ledger = SqliteLedger(connections)
    taken = migrate.migrate(ledger, MIGRATIONS)
    if events:
        with ledger.transaction():
            if missing := missing_triggers(connections.writer()):
                for name, text in missing.items():
                    ledger.execute(f"DROP TRIGGER IF EXISTS {name};\n{text};")
                taken.append(EVENTS_STEP)
    return taken


def pending_sql(conn: sqlite3.Connection | None, *, events: bool) -> str:
    """The statements that `upgrade` would run now."""
    text = migrate.pending_sql(None if conn is None else read_applied(conn), MIGRATIONS)
    missing = triggers() if conn is None else missing_triggers(conn)
    if events and missing:
        text += "\n".join(
            ["", f"-- {EVENTS_STEP}", *(f"{trigger};" for trigger in missing.values()), ""]
        )
    return text


def triggers() -> dict[str, str]:
    """The triggers for events, their text by name."""
    script = resources.files(PACKAGE).joinpath("events.sql").read_text(encoding="utf-8")
    found = {}
    for statement in split(script):
        match = _TRIGGER.search(statement)
        if match is not None:
            found[match[1]] = statement[match.start() :].rstrip().removesuffix(";")
    return found


def missing_triggers(conn: sqlite3.Connection) -> dict[str, str]:
    """The triggers for events that the file lacks, or has in an older form."""
    there = dict(conn.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall())
    return {
        name: text
        for name, text in triggers().items()
        if _squeezed(there.get(name, "")) != _squeezed(text)
    }


def split(script: str) -> Iterator[str]:
    """The statements of a script. `executescript` would do it too, but commits first."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement.strip()
            statement = ""


def _squeezed(text: str) -> str:
    return " ".join(text.split())
