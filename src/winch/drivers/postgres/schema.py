"""The schema of the store: migrations, and the triggers for events where they are asked for.

Nothing is created by itself: the owner of a database decides when its schema changes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources

import psycopg

from winch.core.errors import ConfigError
from winch.drivers._shared import migrate
from winch.drivers._shared.migrate import Migration, Status
from winch.drivers.postgres.address import Address
from winch.drivers.postgres.connections.pool import Connection
from winch.drivers.postgres.statements import Row

PACKAGE = "winch.drivers.postgres"
MIGRATIONS = migrate.load(PACKAGE)
EVENTS_STEP = "events"
# A migration that cannot have its lock soon gives way, instead of making everybody wait behind it.
LOCK_TIMEOUT = "5s"

_TRIGGER = re.compile(r"CREATE TRIGGER (\w+)")


class PostgresLedger:
    """What the migration runner needs, on a connection of its own."""

    def __init__(self, connection: Connection, address: Address) -> None:
        self._connection = connection
        self._address = address

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with self._connection.transaction():
            # The lock ends with the transaction, so it holds through a pooler and after a crash.
            self._connection.execute("SELECT set_config('lock_timeout', %s, true)", ["60s"])
            self._connection.execute(
                "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))",
                [f"winch migrate {self._address.schema}"],
            )
            self._connection.execute("SELECT set_config('lock_timeout', %s, true)", [LOCK_TIMEOUT])
            yield

    def applied(self) -> dict[int, str] | None:
        return read_applied(self._connection, self._address)

    def execute(self, script: str) -> None:
        self._connection.execute(script)

    def record(self, migration: Migration) -> None:
        self._connection.execute(
            f"INSERT INTO {self._address.quoted}.winch_migration (number, name) VALUES (%s, %s)",  # noqa: S608  # the schema's name was checked
            [migration.number, migration.name],
        )


def migrations(address: Address) -> tuple[Migration, ...]:
    """The migrations with the schema's name filled in."""
    return tuple(
        Migration(step.number, step.name, step.sql.replace("{schema}", address.quoted))
        for step in MIGRATIONS
    )


def events_sql(address: Address) -> str:
    text = resources.files(PACKAGE).joinpath("events.sql").read_text(encoding="utf-8")
    return text.replace("{schema}", address.quoted)


def read_applied(connection: Connection, address: Address) -> dict[int, str] | None:
    """The migrations applied to the schema, or None when it has none of our tables."""
    table = f"{address.quoted}.winch_migration"
    found = connection.execute("SELECT to_regclass(%s)", [table]).fetchone()
    if found is None or found[0] is None:
        return None
    rows = connection.execute(f"SELECT number, name FROM {table}")  # noqa: S608  # as above
    return {row[0]: row[1] for row in rows}


def event_functions_sql(address: Address) -> str:
    """The part of `events_sql` that locks no table."""
    return events_sql(address).partition("CREATE TRIGGER")[0]


def has_old_functions(connection: Connection, address: Address) -> bool:
    """Whether a function of the triggers for events is not the one of this release."""
    rows = connection.execute(
        """
        SELECT prosrc
        FROM pg_proc
        WHERE pronamespace = to_regnamespace(%s)
            AND proname IN ('witness_job', 'witness_archive')
        """,
        [address.quoted],
    )
    text = events_sql(address)
    return any(row[0] not in text for row in rows)


def has_triggers(connection: Connection, address: Address) -> bool:
    wanted = set(_TRIGGER.findall(events_sql(address)))
    rows = connection.execute(
        """
        SELECT tgname
        FROM pg_trigger
        WHERE tgrelid IN (to_regclass(%s), to_regclass(%s))
        """,
        [f"{address.quoted}.job", f"{address.quoted}.archive"],
    )
    return wanted <= {row[0] for row in rows}


def read_status(connection: Connection, address: Address, *, events: bool) -> Status:
    """Where the schema stands. With `events`, it is ready only when the triggers are there."""
    status = migrate.status(read_applied(connection, address), MIGRATIONS)
    if events and status.is_ready and not has_triggers(connection, address):
        return Status(status.current, status.newest, is_ready=False)
    return status


def upgrade(connection: Connection, address: Address, *, events: bool) -> list[str]:
    """Bring the schema up to date; returns the names of the steps taken."""
    ledger = PostgresLedger(connection, address)
    taken = migrate.migrate(ledger, migrations(address))
    with ledger.transaction():
        if missing := _pending_events(connection, address, events=events):
            ledger.execute(missing)
            taken.append(EVENTS_STEP)
    return taken


def _pending_events(connection: Connection, address: Address, *, events: bool) -> str:
    """What is missing for events, also where only an earlier `migrate` wanted them; "" for nothing."""
    if not has_triggers(connection, address):
        return events_sql(address) if events else ""
    return event_functions_sql(address) if has_old_functions(connection, address) else ""


def pending_sql(connection: Connection, address: Address, *, events: bool) -> str:
    """The statements that `upgrade` would run now."""
    # With the ledger's rows, so that an administrator can run it where Winch itself may not.
    ledger = f"INSERT INTO {address.quoted}.winch_migration (number, name) VALUES"  # as above
    recorded = [
        Migration(
            step.number,
            step.name,
            f"{step.sql.rstrip()}\n\n{ledger} ({step.number}, '{step.name}');",
        )
        for step in migrations(address)
    ]
    text = migrate.pending_sql(read_applied(connection, address), recorded)
    if missing := _pending_events(connection, address, events=events):
        text += f"\n-- {EVENTS_STEP}\n{missing.strip()}\n"
    return text


ROLES = ("producer", "worker", "reader", "migrator")


def roles_sql(address: Address, pending: str) -> str:
    """The statements, for an administrator, that make the roles of this schema and grant them their
    rights; `pending` migrations run in between, as the migrator."""
    longest = max(map(len, ROLES)) + 1
    if len(address.schema) + longest > 63:
        raise ConfigError(
            f"a schema with roles has a name of at most {63 - longest} characters, "
            f"got {address.schema!r}"
        )
    text = resources.files(PACKAGE).joinpath("roles.sql").read_text(encoding="utf-8")
    text = text.replace("{schema}", address.quoted)
    for role in ROLES:
        text = text.replace(f"{{{role}}}", f'"{address.schema}_{role}"')
    roles, grants = text.split("-- grants\n")
    between = (
        f'SET ROLE "{address.schema}_migrator";\n{pending.strip()}\nRESET ROLE;\n' if pending else ""
    )
    return "\n".join(part for part in (roles.strip(), between.strip(), grants.strip()) if part) + "\n"


@contextmanager
def own_connection(address: Address) -> Iterator[Connection]:
    """A connection without the deadline of verbs: a migration takes as long as it takes."""
    connection = psycopg.Connection[Row].connect(
        **address.params, autocommit=True, prepare_threshold=None
    )
    with connection:
        yield connection
