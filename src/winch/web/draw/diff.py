"""What an edit changes in a JSON value, line by line."""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

MOST = 400


@dataclass(frozen=True)
class DiffLine:
    """One line of a diff; `kind` is the class that colours it."""

    kind: str
    sign: str
    number: str
    text: str


def changes(before: Any, after: Any) -> Sequence[DiffLine]:
    """The whole value with what is removed and added, so that it can be read without the editor."""
    old, new = pretty_lines(before), pretty_lines(after)
    found, number = [], 0
    for line in difflib.ndiff(old, new):
        sign, text = line[0], line[2:]
        if sign == "?":
            continue
        if sign != "-":
            number += 1
        kind = {"-": "is-removed", "+": "is-added"}.get(sign, "")
        shown = str(number + 1) if sign == "-" else str(number)
        found.append(DiffLine(kind, {"-": "−", "+": "+"}.get(sign, ""), shown, text))
    return found[:MOST]


def pretty_lines(value: Any) -> list[str]:
    """A value as the lines of its JSON."""
    return json.dumps(value, indent=2, ensure_ascii=False).splitlines()
