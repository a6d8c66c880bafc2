"""What `winch doctor` asks a PostgreSQL store."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import msgspec

from winch.drivers.postgres.connections.pool import WHO_ANSWERS, Connection, is_pooled
from winch.drivers.postgres.records import read_moment


class SnapshotHolder(msgspec.Struct, frozen=True):
    """A transaction that keeps vacuum from removing dead rows, and claims walk over them."""

    pid: int
    age: timedelta
    who: str
    state: str


class ServerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """`clock_ahead`: how far the store's clock is ahead of this machine's, within a round trip."""

    version: str
    fsync: bool
    synchronous_commit: str
    full_page_writes: bool
    is_pooled: bool
    is_encrypted: bool
    is_standby: bool
    listener: str
    clock_ahead: timedelta
    oldest: SnapshotHolder | None


_SERVER = """
SELECT
    current_setting('server_version'),
    current_setting('fsync') = 'on',
    current_setting('synchronous_commit'),
    current_setting('full_page_writes') = 'on',
    pg_is_in_recovery()
"""

# The transaction whose snapshot or id is the oldest one that vacuum must respect, in this database.
_OLDEST = """
SELECT
    pid,
    extract(epoch FROM clock_timestamp() - coalesce(xact_start, backend_start))::double precision,
    concat_ws(' ', usename, nullif(application_name, '')),
    coalesce(state, backend_type)
FROM pg_stat_activity
WHERE coalesce(backend_xmin, backend_xid) IS NOT NULL
    AND pid <> pg_backend_pid()
    AND (datname = current_database() OR datname IS NULL)
ORDER BY greatest(age(backend_xmin), age(backend_xid)) DESC, xact_start
LIMIT 1
"""


def read_facts(connection: Connection, *, listener: str) -> ServerFacts:
    started = time.monotonic()
    asked = datetime.now(UTC)
    moment = connection.execute("SELECT clock_timestamp()").fetchone()
    half = timedelta(seconds=(time.monotonic() - started) / 2)
    server = connection.execute(_SERVER).fetchone()
    assert moment is not None  # noqa: S101  # a SELECT without FROM has one row
    assert server is not None  # noqa: S101  # the same
    oldest = connection.execute(_OLDEST).fetchone()
    return ServerFacts(
        version=server[0],
        fsync=server[1],
        synchronous_commit=server[2],
        full_page_writes=server[3],
        is_standby=server[4],
        is_pooled=is_pooled(connection, connection.execute(WHO_ANSWERS).fetchone()),
        is_encrypted=bool(connection.pgconn.ssl_in_use),
        listener=listener,
        clock_ahead=read_moment(moment[0]) - (asked + half),
        oldest=None
        if oldest is None
        else SnapshotHolder(oldest[0], timedelta(seconds=oldest[1]), oldest[2], oldest[3]),
    )
