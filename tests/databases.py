"""What can be done in any PostgreSQL server: databases and stores, made, emptied and dropped."""

from __future__ import annotations

import secrets
import time
from typing import Any
from urllib.parse import urlsplit

import psycopg
from psycopg import sql

from tests.server_process import ServerError
from winch.drivers.postgres.driver import PostgresDriver


class Databases:
    """Makes and drops databases in one PostgreSQL server; `url` leads to a database that stays."""

    def __init__(self, url: str) -> None:
        if not url.startswith(("postgresql://", "postgres://")):
            raise ServerError(f"expected a URL such as postgresql://localhost/postgres, got {url!r}")
        self.url = url
        self._made: set[str] = set()
        self._store: str | None = None
        self._copies: set[str] = set()
        self._spare: list[str] = []
        self._as_made: tuple[object, ...] = ()

    def new_database(self, template: str = "template1") -> str:
        """Make an empty database (or a copy of `template`) and return its URL."""
        name = f"winch_test_{secrets.token_hex(6)}"
        self._execute("CREATE DATABASE {} TEMPLATE {}", name, template)
        self._made.add(name)
        return self._url_of(name)

    def _url_of(self, name: str) -> str:
        parts = urlsplit(self.url)
        query = f"?{parts.query}" if parts.query else ""
        return f"{parts.scheme}://{parts.netloc}/{name}{query}"

    def new_store(self) -> str:
        """Make a database with Winch's schema: one that was given back, or the copy of one that was
        migrated once. A copy is hundreds of files and takes half a second of a core."""
        if self._spare:
            return self._url_of(self._spare.pop())
        if self._store is None:
            url = self.new_database()
            driver = PostgresDriver.from_url(url)
            driver.migrate()
            driver.close()
            with psycopg.connect(url, autocommit=True) as connection:
                self._as_made = _contents(connection)
            self._store = urlsplit(url).path.removeprefix("/")
        url = self.new_database(template=self._store)
        self._copies.add(urlsplit(url).path.removeprefix("/"))
        return url

    def drop_database(self, url: str) -> None:
        """Drop a database made here, also while clients are connected to it. A store whose tables can be
        emptied is kept for the next test."""
        name = urlsplit(url).path.removeprefix("/")
        if name not in self._made:
            raise ServerError(f"{name!r} was not made here, so it is not dropped here")
        if name in self._copies and name not in self._spare and self._is_emptied(name):
            self._spare.append(name)
            return
        self._execute("DROP DATABASE IF EXISTS {} WITH (FORCE)", name)
        self._made.discard(name)
        self._copies.discard(name)

    def _is_emptied(self, name: str) -> bool:
        """Bring a store back to what it was when it was made. False where that cannot be done: its
        tables were changed, or a client will not leave."""
        try:
            with psycopg.connect(self._url_of(name), autocommit=True) as connection:
                _disconnect_others(connection)
                _empty(connection, self._as_made)
                return _contents(connection) == self._as_made
        except (psycopg.Error, TimeoutError):
            return False

    def drop_all(self) -> None:
        """Drop what was made here and not dropped yet."""
        for name in sorted(self._made):
            self._execute("DROP DATABASE IF EXISTS {} WITH (FORCE)", name)
        self._made.clear()
        self._copies.clear()
        self._spare.clear()
        self._store = None

    def _execute(self, statement: str, *names: str) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))


# What a test may change in a database beside the rows of its tables. Of the long catalogs this takes the
# number of rows and the newest transaction that wrote one: their text costs more than the rest.
# TRUNCATE and ANALYZE write to pg_class alone.
_OBJECTS = """
WITH ours AS (
    SELECT oid FROM pg_namespace WHERE nspname NOT LIKE 'pg\\_%' AND nspname <> 'information_schema'
)
SELECT nspname, nspacl::text, '', '' FROM pg_namespace WHERE oid IN (SELECT oid FROM ours)
UNION ALL
SELECT relname, relkind::text, relacl::text, concat(relnatts, reloptions, relpersistence, relowner)
FROM pg_class WHERE relnamespace IN (SELECT oid FROM ours)
UNION ALL
SELECT 'pg_attribute', count(*)::text, max(xmin::text::bigint)::text, ''
FROM pg_attribute WHERE attrelid >= 16384
UNION ALL
SELECT 'pg_constraint', count(*)::text, max(xmin::text::bigint)::text, ''
FROM pg_constraint WHERE oid >= 16384
UNION ALL
SELECT 'pg_index', count(*)::text, max(xmin::text::bigint)::text, ''
FROM pg_index WHERE indexrelid >= 16384
UNION ALL
SELECT 'pg_proc', count(*)::text, max(xmin::text::bigint)::text, ''
FROM pg_proc WHERE oid >= 16384
UNION ALL
SELECT tgname, tgrelid::text, tgenabled::text, '' FROM pg_trigger
UNION ALL
SELECT extname, '', '', '' FROM pg_extension
UNION ALL
SELECT datname, datacl::text, '', setconfig::text
FROM pg_database JOIN pg_db_role_setting ON setdatabase = pg_database.oid
WHERE datname = current_database()
ORDER BY 1, 2, 3, 4
"""
_SEQUENCES = "SELECT schemaname, sequencename, start_value, last_value FROM pg_sequences ORDER BY 1, 2"


def _disconnect_others(connection: psycopg.Connection[Any]) -> None:
    """End every other client of the database of this connection."""
    deadline = time.monotonic() + 5.0
    # Ends when the last client has left, not when the server has asked it to leave.
    while connection.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    ).fetchall():
        if time.monotonic() > deadline:
            raise TimeoutError("clients of a store do not leave")
        time.sleep(0.01)


def _contents(connection: psycopg.Connection[Any]) -> tuple[object, ...]:
    """Every object of a database, where its sequences are, and the rows of the tables that have any."""
    objects = connection.execute(f"SELECT md5(string_agg(o::text, ',')) FROM ({_OBJECTS}) o").fetchone()
    sequences = connection.execute(_SEQUENCES).fetchall()
    rows = {
        name: connection.execute(
            sql.SQL("SELECT t::text FROM {} t").format(sql.Identifier(*name))
        ).fetchall()
        for name in _tables_with_rows(connection)
    }
    return objects, sequences, rows


def _tables_with_rows(connection: psycopg.Connection[Any]) -> list[tuple[str, str]]:
    # A table of no bytes has no rows. To look into each of the hundred, the server would open all their
    # indexes, which costs more than most tests do.
    found = connection.execute(
        "SELECT nspname, relname FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace "
        "WHERE nspname NOT LIKE 'pg\\_%' AND nspname <> 'information_schema' "
        "AND relkind IN ('r', 'p') AND pg_relation_size(pg_class.oid) > 0"
    ).fetchall()
    looks = [
        sql.SQL("SELECT {}, {} WHERE EXISTS (SELECT FROM {})").format(
            *map(sql.Literal, name), sql.Identifier(*name)
        )
        for name in found
    ]
    if not looks:
        return []
    return sorted(connection.execute(sql.SQL(" UNION ALL ").join(looks)).fetchall())


def _empty(connection: psycopg.Connection[Any], as_made: tuple[object, ...]) -> None:
    """Empty the tables that had no rows, as if nothing had been in them: no dead rows, no statistics."""
    _, sequences, rows = as_made
    assert isinstance(rows, dict)
    filled = [sql.Identifier(*name) for name in _tables_with_rows(connection) if name not in rows]
    connection.execute("SET session_replication_role = replica")  # no trigger writes of what goes
    if filled:
        connection.execute(
            sql.SQL("TRUNCATE {} RESTART IDENTITY CASCADE").format(sql.SQL(", ").join(filled))
        )
    connection.execute("DELETE FROM pg_statistic WHERE starelid >= 16384")
    if connection.execute(_SEQUENCES).fetchall() != sequences:
        connection.execute(
            "SELECT setval(format('%I.%I', schemaname, sequencename)::regclass, start_value, false) "
            "FROM pg_sequences WHERE last_value IS NOT NULL"
        )


def emptied(url: str) -> str:
    """Empty the tables that have bytes, all but the list of migrations. TRUNCATE makes new files for a
    table and each of its indexes, DELETE opens every partition: of all hundred tables either takes ten
    times as long as most tests."""
    with psycopg.connect(url, autocommit=True) as connection:
        found = connection.execute(
            "SELECT nspname, relname FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace "
            "WHERE nspname IN ('public', 'winch') AND relkind = 'r' AND relname <> 'winch_migration' "
            "AND pg_relation_size(pg_class.oid) > 0"
        ).fetchall()
        if found:
            names = sql.SQL(", ").join(sql.Identifier(*name) for name in found)
            connection.execute(sql.SQL("TRUNCATE {} RESTART IDENTITY CASCADE").format(names))
    return url
