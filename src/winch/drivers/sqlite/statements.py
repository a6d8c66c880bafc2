"""The statements, and what a verb's body yields.

A body yields one of these values, and writer.py (`carry`) answers it:

    Step    one statement; the answer is its rows
    Ring    what to wake once the change is committed; a bell that rings earlier wakes a worker that
            finds nothing. No answer
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from winch.drivers._shared import sql

# By name: numbered placeholders with a sequence of values are deprecated from Python 3.12 on.
SQL: dict[str, sql.SqlText] = sql.load("winch.drivers.sqlite", lambda name, _: f":{name}")


class Step(msgspec.Struct, frozen=True):
    """One statement of `SQL` with its values, by name or, where it has no names, in their order.
    `is_counted`: the answer is how many rows it has changed. `many`: once for each set of values; no
    answer."""

    name: str
    values: Any
    is_counted: bool = False
    many: bool = False

    @classmethod
    def each(cls, name: str, rows: Sequence[Mapping[str, Any]]) -> Step:
        return cls(name, rows, many=True)


class Ring(msgspec.Struct, eq=False):
    """What to wake: queues with how many jobs became ready in each, and the promoters (`due`)."""

    ready: dict[str, int] = msgspec.field(default_factory=partial(defaultdict, int))
    due: bool = False
