"""What verbs are made of here: statements with their values, and the order of a transaction.

`script` turns a verb into the plain sequence of things to send. The sync pool, the
async pool and the caller's own connection carry scripts out; they differ in how they wait alone.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from dataclasses import replace
from datetime import datetime
from functools import lru_cache
from typing import Any, Literal, TypeVar

import msgspec

from winch.drivers._shared import sql
from winch.drivers._shared.sql import SqlText
from winch.storage.verbs import Verb

T = TypeVar("T")
Row = tuple[Any, ...]
Rows = list[Row]

# psycopg's own style of parameters: the one place where a style is chosen. A `%` in a statement would
# have to be doubled; none has one.
STATEMENTS = sql.load("winch.drivers.postgres", lambda name, _: f"%({name})s")

# Statements that may be kept prepared on the server, on our own direct connections. Only inserts: a
# cached plan is made for the table as it was, and one of an empty table looks through a full one row by
# row, a hundred times slower. So all whose plan depends on a table's size are planned whenever they run.
PREPARED = frozenset({"enqueue", "enqueue.alike", "enqueue.one"})

# Statements whose moments are read as numbers (binary.Moments): many rows, most with the same ones.
BARE_MOMENTS = frozenset({"claim", "claim.few", "admit.take"})


class Statement(msgspec.Struct, frozen=True):
    """One statement to send. `is_alone`: nothing after it writes, so it may be its own transaction.
    `is_fixed`: it would be the same if it were made later, so it may be made early."""

    sql: SqlText
    values: Mapping[str, Any]
    is_alone: bool = False
    is_fixed: bool = False


class SchemaStatements:
    """The statements of one schema."""

    def __init__(self, quoted_schema: str) -> None:
        self._by_name = {
            name: replace(statement, text=statement.text.replace("{schema}", quoted_schema))
            for name, statement in STATEMENTS.items()
        }

    def __getitem__(self, name: str) -> SqlText:
        return self._by_name[name]


Body = Generator[Statement, Rows, T]
Action = Statement | Literal["begin", "commit"]


class Progress:
    """How far a script has come, for the one question after a failure: may it have taken effect?"""

    def __init__(self, verb: Verb[Any]) -> None:
        self._is_read = verb.is_read
        self.maybe_applied: bool = False

    def sending(self, action: Action, *, in_transaction: bool) -> None:
        """Called before an action is sent: only a commit, or a statement that is one, can apply."""
        if action == "commit" or (isinstance(action, Statement) and not in_transaction):
            self.maybe_applied = not self._is_read


def script(verb: Verb[T], progress: Progress) -> Generator[Action, Rows, T]:
    """The verb's steps in a transaction, or without one where a single statement is all."""
    steps = verb.steps()
    in_transaction = False
    try:
        statement = next(steps)
        while True:
            if not in_transaction and not statement.is_alone:
                yield "begin"
                in_transaction = True
            progress.sending(statement, in_transaction=in_transaction)
            statement = steps.send((yield statement))
    except StopIteration as stop:
        if in_transaction:
            progress.sending("commit", in_transaction=True)
            yield "commit"
        result: T = stop.value
        return result


# READ COMMITTED by name: a database may have another default, and the verbs' second looks need a new
# snapshot for each statement.
BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED"
COMMIT = "COMMIT"

_PLACE = re.compile(r"%\(([a-z_]+)\)s")


def numbered(text: str, values: Mapping[str, Any]) -> tuple[str, list[Any]]:
    """The statement with numbered parameters, and their values in that order.

    Texts, times and lists travel as text and are cast from it: what the application has registered for
    json or uuid (a common thing to do with asyncpg) then never sees them.
    """
    rendered, names = _numbered(text, tuple((name, _cast(value)) for name, value in values.items()))
    return rendered, [_plain(values[name]) for name in names]


@lru_cache(maxsize=256)
def numbered_names(text: str) -> tuple[str, tuple[str, ...]]:
    """The statement with numbered parameters, no casts but its own, and their names in order."""
    names = tuple(dict.fromkeys(_PLACE.findall(text)))
    return _PLACE.sub(lambda match: f"${names.index(match[1]) + 1}", text), names


@lru_cache(maxsize=256)
def _numbered(text: str, casts: tuple[tuple[str, str], ...]) -> tuple[str, tuple[str, ...]]:
    cast = dict(casts)
    names: list[str] = []

    def place(match: re.Match[str]) -> str:
        if match[1] not in names:
            names.append(match[1])
        return f"${names.index(match[1]) + 1}{cast[match[1]]}"

    return _PLACE.sub(place, text), tuple(names)


def _cast(value: object) -> str:
    if isinstance(value, list):
        return "::text[]"
    return "" if isinstance(value, bool | int | float) else "::text"


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value
