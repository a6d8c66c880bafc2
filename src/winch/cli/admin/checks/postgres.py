"""Checks of a PostgreSQL server, over a connection of their own."""

from __future__ import annotations

import ipaddress
from datetime import timedelta
from typing import Any

import psycopg

from winch.app import App
from winch.cli.admin.checks import Finding, Findings, Level
from winch.cli.shared.text import now, one_line, span
from winch.core.errors import StorageUnavailable
from winch.drivers.postgres.address import parse_url

LONG = timedelta(minutes=1)
SKEW = timedelta(seconds=1)
# How long the look at live jobs may take: a second for some hundred thousand.
LOOKING = timedelta(seconds=10)
Connection = psycopg.Connection[tuple[Any, ...]]

# Whatever keeps vacuum from removing dead rows: open transactions, prepared ones, replication slots.
HOLDERS = """
    SELECT 'pid ' || pid::text,
           coalesce(nullif(application_name, ''), backend_type) || ', ' || coalesce(state, 'active'),
           clock_timestamp() - xact_start,
           'ask its owner to end it, or: SELECT pg_terminate_backend(' || pid::text || ')'
      FROM pg_stat_activity
     WHERE (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
       AND pid <> pg_backend_pid()
       AND backend_type = 'client backend'
       AND xact_start < clock_timestamp() - %(long)s
     UNION ALL
    SELECT 'prepared transaction ' || quote_literal(gid), owner::text,
           clock_timestamp() - prepared, 'ROLLBACK PREPARED ' || quote_literal(gid)
      FROM pg_prepared_xacts
     WHERE prepared < clock_timestamp() - %(long)s
     ORDER BY 3 DESC
     LIMIT 10
"""


def check_postgres(app: App) -> Findings:
    place = parse_url(app.settings.url, schema=app.settings.schema)
    try:
        with psycopg.connect(**place.params, autocommit=True) as conn:
            yield Finding(Level.OK, "postgresql", f"version {_setting(conn, 'server_version')}")
            yield from _durability(conn)
            yield from _transport(conn)
            yield from _pooler(conn)
            yield from _clock(conn)
            yield from _long_transactions(conn)
            yield from _impossible_jobs(conn, place.quoted)
    except psycopg.OperationalError as error:
        raise StorageUnavailable(f"{place.describe()} cannot be reached: {error}") from error


def _durability(conn: Connection) -> Findings:
    settings = {
        name: _setting(conn, name) for name in ("fsync", "full_page_writes", "synchronous_commit")
    }
    if settings["fsync"] == "off" or settings["full_page_writes"] == "off":
        which = "fsync" if settings["fsync"] == "off" else "full_page_writes"
        yield Finding(
            Level.PROBLEM,
            "durability",
            f"{which} is off: after a power cut the database may be damaged beyond repair",
            f"set {which} = on in postgresql.conf",
        )
    elif settings["synchronous_commit"] == "off":
        yield Finding(
            Level.PROBLEM,
            "durability",
            "synchronous_commit is off: a crash of the server takes back the last jobs that were "
            "acknowledged",
            "set synchronous_commit = on (or local) for this user or database",
        )
    else:
        yield Finding(Level.OK, "durability", "every commit is on disk before it is acknowledged")


def _setting(conn: Connection, name: str) -> str:
    row = conn.execute("SELECT current_setting(%s)", (name,)).fetchone()
    return str(row[0]) if row else ""


def _transport(conn: Connection) -> Findings:
    host = conn.info.hostaddr or conn.info.host
    if conn.pgconn.ssl_in_use:
        yield Finding(Level.OK, "transport", "encrypted (TLS)")
    elif is_local(host):
        yield Finding(Level.OK, "transport", "the server is on this machine")
    else:
        yield Finding(
            Level.PROBLEM,
            "transport",
            f"the connection to {host} is not encrypted; arguments and password can be read on the way",
            "add sslmode=verify-full (or at least sslmode=require) to the URL",
        )


def is_local(host: str) -> bool:
    """Whether the host is this machine: a socket's folder, localhost or a loopback address."""
    if not host or host.startswith(("/", "@")) or host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _pooler(conn: Connection) -> Findings:
    row = conn.execute("SELECT pg_backend_pid()").fetchone()
    if row is not None and row[0] != conn.info.backend_pid:
        # A pooler answers the start of the connection itself, with a process id of its own invention.
        yield Finding(
            Level.NOTE,
            "pooler",
            "there is a connection pooler in front of the server; Winch works through one, but "
            "wake-ups may not, and then a worker finds new jobs at its next poll",
            "for the shortest start times give workers a direct URL",
        )


def _clock(conn: Connection) -> Findings:
    before = now()
    row = conn.execute("SELECT clock_timestamp()").fetchone()
    after = now()
    if row is None:
        return
    difference = row[0] - (before + (after - before) / 2)
    if abs(difference) <= SKEW:
        yield Finding(Level.OK, "clock", "this machine and the server agree")
        return
    which = "behind" if difference > timedelta(0) else "ahead of"
    yield Finding(
        Level.WARNING,
        "clock",
        f"this machine's clock is {span(abs(difference))} {which} the server's. Leases and delays "
        "follow the server, but run_at and the times shown here do not",
        "let both follow NTP",
    )


def _long_transactions(conn: Connection) -> Findings:
    rows = conn.execute(HOLDERS, {"long": LONG}).fetchall()
    for who, what, age, advice in rows:
        yield Finding(
            Level.PROBLEM,
            "vacuum",
            f"{one_line(who)} ({one_line(what)}) holds a transaction open since {span(age)}; dead rows "
            "accumulate and claims get slower",
            advice,
        )
    if not rows:
        yield Finding(Level.OK, "vacuum", f"no transaction is open for longer than {span(LONG)}")


def _impossible_jobs(conn: Connection, schema: str) -> Findings:
    """Rows that no verb of Winch writes. The database refuses them where a job is changed, and takes
    them from rows that were stored by hand."""
    which = f"FROM {schema}.job WHERE NOT {schema}.is_possible(job)"
    conn.execute(f"SET statement_timeout = {LOOKING // timedelta(milliseconds=1)}")
    try:
        rows = conn.execute(f"SELECT id::text, state {which} LIMIT 3").fetchall()
    except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedFunction):
        return  # not migrated: another check reports that
    except psycopg.errors.QueryCanceled:
        text = f"there are too many to look at all of them within {span(LOOKING)}"
        yield Finding(Level.NOTE, "jobs", f"live jobs were not checked: {text}")
        return
    finally:
        conn.execute("RESET statement_timeout")
    for job, state in rows:
        yield Finding(
            Level.PROBLEM,
            "jobs",
            f"job {job} is {one_line(state)} with fields that do not match: no worker claims it, "
            "or none can finish it",
            "another program has changed Winch's table; delete the job and enqueue it again",
        )
    if not rows:
        yield Finding(Level.OK, "jobs", "every live job has the fields of its state")
