"""Numbered migrations, forward only: one runner for every SQL store.

A migration is a file `migrations/NNNN_name.sql` of the driver's package. Each runs in a transaction of
its own that also writes its row into `winch_migration(number, name, applied_at)`, so a migrator that
dies leaves whole steps behind and the next one continues from there. Two at once are safe: the
transaction is taken under the store's lock for migrators, and what is applied is read again inside it.
The first migration creates the table itself.

Migrations are additive first: a release keeps working on the schema of the next one, so that workers of
both run side by side during a deploy. One that the release before cannot live with is marked in its
name, `NNNN_name_breaking.sql`; releases that do not know it refuse to start, and touch nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import resources
from typing import Protocol

from winch.core.errors import SchemaMismatch

_FILE = re.compile(r"(\d{4})_([a-z0-9_]+)\.sql")


@dataclass(frozen=True, slots=True)
class Migration:
    """One step of the schema's history."""

    number: int
    name: str
    sql: str

    @property
    def is_breaking(self) -> bool:
        return is_breaking(self.name)

    @property
    def label(self) -> str:
        return f"{self.number:04}_{self.name}"


@dataclass(frozen=True, slots=True)
class Status:
    """Where a schema stands: `current` of `newest`; None is no schema at all."""

    current: int | None
    newest: int
    is_ready: bool


class Ledger(Protocol):
    """What the runner needs from a store."""

    def transaction(self) -> AbstractContextManager[None]:
        """One transaction under the migrators' lock; commits at the end, rolls back on an error."""
        ...

    def applied(self) -> dict[int, str] | None:
        """The migrations in `winch_migration`, names by number; None when there is no such table."""
        ...

    def execute(self, script: str) -> None:
        """Run the statements of a script, inside the transaction."""
        ...

    def record(self, migration: Migration) -> None:
        """Write the migration's row, inside the transaction."""
        ...


def load(package: str) -> tuple[Migration, ...]:
    """The package's migrations in order; raises ValueError when a number is missing or used twice."""
    found = [
        Migration(int(match[1]), match[2], file.read_text(encoding="utf-8"))
        for file in resources.files(package).joinpath("migrations").iterdir()
        if (match := _FILE.fullmatch(file.name))
    ]
    found.sort(key=lambda migration: migration.number)
    if [migration.number for migration in found] != list(range(1, len(found) + 1)):
        raise ValueError(f"migrations of {package} must be numbered from 0001 without a gap")
    return tuple(found)


def migrate(ledger: Ledger, migrations: Sequence[Migration]) -> list[str]:
    """Apply what is missing; returns the labels of the steps that this call took."""
    taken = []
    for migration in migrations:
        with ledger.transaction():
            done = ledger.applied() or {}
            refuse_other_layout(done, migrations)
            refuse_newer(done, migrations)
            if migration.number in done:
                continue
            ledger.execute(migration.sql)
            ledger.record(migration)
        taken.append(migration.label)
    return taken


def status(applied: Mapping[int, str] | None, migrations: Sequence[Migration]) -> Status:
    """Where a store with these applied migrations stands. A newer one is ready unless a step breaks."""
    refuse_other_layout(applied or {}, migrations)
    newest = migrations[-1].number
    current = max(applied, default=None) if applied is not None else None
    is_ready = current is not None and current >= newest and not _breaking(applied or {}, migrations)
    return Status(current, newest, is_ready)


def refuse_other_layout(applied: Mapping[int, str], migrations: Sequence[Migration]) -> None:
    """Raise SchemaMismatch for a schema with another first step: made before the first release."""
    first = migrations[0]
    name = applied.get(first.number, first.name)
    if name != first.name:
        raise SchemaMismatch(
            f"the store's schema begins with step {first.number:04}_{name} and this Winch's with "
            f"{first.label}: a version before the first release has made it, and it cannot be migrated; "
            "let that version finish its jobs, then start with an empty store"
        )


def refuse_newer(applied: Mapping[int, str], migrations: Sequence[Migration]) -> None:
    """Raise SchemaMismatch for a schema that a later release has changed beyond this one's grasp."""
    broken = _breaking(applied, migrations)
    if broken:
        raise SchemaMismatch(
            f"the store's schema is at step {max(broken):04} and this Winch knows up to "
            f"{migrations[-1].number:04}: a later release has migrated it; upgrade Winch here"
        )


def is_breaking(name: str) -> bool:
    """Whether releases that do not know this migration cannot work on its schema."""
    return name.endswith("_breaking")


def _breaking(applied: Mapping[int, str], migrations: Sequence[Migration]) -> list[int]:
    known = migrations[-1].number
    return [number for number, name in applied.items() if number > known and is_breaking(name)]


def pending_sql(applied: Mapping[int, str] | None, migrations: Sequence[Migration]) -> str:
    """The text of the migrations not applied yet, to read."""
    done = applied or {}
    refuse_other_layout(done, migrations)
    return "\n".join(
        f"-- {migration.label}\n{migration.sql.strip()}\n"
        for migration in migrations
        if migration.number not in done
    )
