"""What verbs are made of here: statements with their values. Values only: connections/ sends them."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from typing import Any, TypeVar

import msgspec

from winch.drivers._shared import sql

T = TypeVar("T")
Row = tuple[Any, ...]
Rows = list[Row]

# psycopg's own style of parameters, for the connections of callers. A `%` in a statement would have to
# be doubled; none has one.
STATEMENTS = sql.load("winch.drivers.postgres", lambda name, _: f"%({name})s")

# Statements that are kept prepared on every direct connection of ours. Only inserts: a cached plan is
# made for the table as it was, and one of an empty table looks through a full one row by row, a hundred
# times slower. So statements whose plan depends on a table's size are planned whenever they run.
PREPARED = frozenset({"enqueue", "enqueue.alike", "enqueue.one"})

PLACE = re.compile(r"%\(([a-z_]+)\)s")


class Sql(msgspec.Struct, frozen=True):
    """One statement of one schema, in both styles of parameters."""

    name: str
    text: str
    names: tuple[str, ...]
    """The parameters in the order of their numbers."""
    numbered: bytes
    """The text with numbered parameters, as libpq takes it."""
    server_name: bytes
    """What a connection calls it that keeps it prepared."""


class Statement(msgspec.Struct, frozen=True):
    """One statement to send. `is_alone`: nothing after it writes, so it may be its own transaction.
    `is_fixed`: it would be the same if it were made later, so it may be made early."""

    sql: Sql
    values: Mapping[str, Any]
    is_alone: bool = False
    is_fixed: bool = False


Body = Generator[Statement, Rows, T]


class Ids(list[str]):
    """Ids in canonical text for a parameter that is `uuid[]`: they travel in binary on our own
    connections. Sent as text, 500 of them cost the server more to parse than to look up."""


class Texts(list[str | None]):
    """Texts for a parameter that is `text[]`: they travel in binary on our own connections."""


def of_schema(quoted_schema: str) -> dict[str, Sql]:
    """The statements of one schema by name."""
    found = {}
    for name, statement in STATEMENTS.items():
        text = statement.text.replace("{schema}", quoted_schema)
        numbered = text
        for number, parameter in enumerate(statement.names, 1):
            numbered = numbered.replace(f"%({parameter})s", f"${number}")
        server_name = f"winch {name}".encode()
        found[name] = Sql(name, text, statement.names, numbered.encode(), server_name)
    return found
