"""What verbs are made of here: statements with their values, and the order of a transaction.

`script` turns a verb into the plain sequence of things to send. The three who carry scripts out (the
sync pool, the async pool and the caller's own connection) differ in how they wait, and in nothing else.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import replace
from typing import Any, Literal, TypeVar

import msgspec

from winch.drivers._shared import sql
from winch.drivers._shared.sql import Statement
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
PREPARED = frozenset(f"enqueue{way}" for way in ("", ".alike", ".handed", ".noted", ".one", ".plain"))

# Statements whose moments are read as numbers (binary.Moments): many rows, most with the same ones.
BARE_MOMENTS = frozenset({"claim", "claim.few", "admit.take"})


class Step(msgspec.Struct, frozen=True):
    """One statement to send. `is_alone`: nothing after it writes, so it may be its own transaction.
    `is_fixed`: it would be the same if it were made later, so it may be made early."""

    statement: Statement
    values: Mapping[str, Any]
    is_alone: bool = False
    is_fixed: bool = False


class Statements:
    """The statements of one schema."""

    def __init__(self, quoted_schema: str) -> None:
        self._by_name = {
            name: replace(statement, text=statement.text.replace("{schema}", quoted_schema))
            for name, statement in STATEMENTS.items()
        }

    def __getitem__(self, name: str) -> Statement:
        return self._by_name[name]


Body = Generator[Step, Rows, T]
Action = Step | Literal["begin", "commit"]


class Progress:
    """How far a script has come, for the one question after a failure: may it have taken effect?"""

    def __init__(self, verb: Verb[Any]) -> None:
        self._is_read = verb.is_read
        self.maybe_applied: bool = False

    def sending(self, action: Action, *, in_transaction: bool) -> None:
        """Called before an action is sent: only a commit, or a statement that is one, can apply."""
        if action == "commit" or (isinstance(action, Step) and not in_transaction):
            self.maybe_applied = not self._is_read


def script(verb: Verb[T], progress: Progress) -> Generator[Action, Rows, T]:
    """The verb's steps in a transaction, or without one where a single statement is all."""
    steps = verb.steps()
    in_transaction = False
    try:
        step = next(steps)
        while True:
            if not in_transaction and not step.is_alone:
                yield "begin"
                in_transaction = True
            progress.sending(step, in_transaction=in_transaction)
            step = steps.send((yield step))
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
