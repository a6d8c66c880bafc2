"""What the verbs' bodies yield, and the one function that carries a body out on a connection.

A body yields a `Step` and is sent its rows, or a `Ring` and is sent nothing. A ring is kept until the
change is committed: a bell that rings earlier wakes a worker that finds nothing.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from winch.drivers._shared import sql
from winch.drivers._shared.rows import Row
from winch.storage.verbs import Verb

T = TypeVar("T")
_NAME = re.compile(r":([a-z_]+)")

# By name: numbered placeholders with a sequence of values are deprecated from Python 3.12 on.
SQL: dict[str, sql.SqlText] = sql.load("winch.drivers.sqlite", lambda name, _: f":{name}")


def by_position(name: str, *names: str) -> str:
    """A statement that takes its values one after the other: the quickest way to bind them.

    `names` are the parameters that the caller expects in this order; raises ValueError when they differ.
    """
    text = SQL[name].text
    if tuple(_NAME.findall(text)) != names:
        raise ValueError(f"{name} takes {', '.join(_NAME.findall(text))}, not {', '.join(names)}")
    return _NAME.sub("?", text)


class Step:
    """One statement. `many`: once for each set of values, without an answer; `is_counted`: the answer is
    how many rows it has changed."""

    __slots__ = ("is_counted", "many", "text", "values")

    def __init__(self, name: str, values: Mapping[str, Any], *, is_counted: bool = False) -> None:
        self.text: str = SQL[name].text
        self.values: Any = values
        self.many: bool = False
        self.is_counted: bool = is_counted

    @classmethod
    def each(cls, name: str, rows: list[dict[str, Any]]) -> Step:
        step = cls.__new__(cls)
        step.text = SQL[name].text
        step.values = rows
        step.many = True
        step.is_counted = False
        return step


class Ring(msgspec.Struct, eq=False):
    """What to wake: queues with how many jobs became ready in each, and the promoters (`due`)."""

    ready: dict[str, int] = {}  # msgspec gives each its own
    due: bool = False

    def __bool__(self) -> bool:
        return self.due or bool(self.ready)

    def count(self, queue: str, jobs: int = 1) -> None:
        self.ready[queue] = self.ready.get(queue, 0) + jobs

    def add(self, other: Ring) -> None:
        if not self.ready:
            self.ready = other.ready.copy()
        else:
            for queue, jobs in other.ready.items():
                self.count(queue, jobs)
        self.due = self.due or other.due


def carry(conn: sqlite3.Connection, verb: Verb[T], ring: Ring) -> T:
    """Carry the verb out on this connection, inside the transaction that is open there."""
    cursor = conn.cursor()
    cursor.row_factory = None  # plain tuples, also on a caller's own connection
    steps = verb.steps()
    answer: list[Row] | int | None = None
    try:
        step = next(steps)
        while True:
            if type(step) is Ring:
                ring.add(step)
                step = steps.send(None)
                continue
            try:
                if step.many:
                    cursor.executemany(step.text, step.values)
                    answer = []
                elif step.is_counted:
                    answer = cursor.execute(step.text, step.values).rowcount
                else:
                    answer = cursor.execute(step.text, step.values).fetchall()
            except sqlite3.Error as error:
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        cursor.close()
        steps.close()
