"""Tables for people, one JSON document for programs. Both go to stdout; remarks go to stderr."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import click

from winch.cli.text import cut, dim, one_line, padded, width

GAP = "  "
# A column that gives way on a narrow terminal keeps at least this much.
LEAST = 12


@dataclass(frozen=True, slots=True)
class Column:
    """`gives_way`: cut first when a terminal is too narrow; its cells hold no colours."""

    title: str
    is_right: bool = False
    gives_way: bool = False


@dataclass
class Table:
    """Rows under headings, aligned. Where nobody looks (a pipe, a file) nothing is cut."""

    columns: Sequence[Column]
    rows: list[list[str]] = field(default_factory=list)

    def add(self, *cells: str) -> None:
        self.rows.append([cell or dim("-") for cell in cells])

    def show(self, *, indent: str = "") -> None:
        for line in self.lines(terminal_width() - len(indent)):
            click.echo(indent + line)

    def lines(self, room: int | None) -> list[str]:
        widths = [
            max([width(column.title), *(width(row[index]) for row in self.rows)])
            for index, column in enumerate(self.columns)
        ]
        if room is not None:
            self._squeeze(widths, room)
        titles = [column.title for column in self.columns]
        return [dim(self._line(titles, widths)), *(self._line(row, widths) for row in self.rows)]

    def _squeeze(self, widths: list[int], room: int) -> None:
        over = sum(widths) + len(GAP) * (len(widths) - 1) - room
        while over > 0:
            giving = [
                index
                for index, column in enumerate(self.columns)
                if column.gives_way and widths[index] > max(LEAST, width(column.title))
            ]
            if not giving:
                return
            widest = max(giving, key=widths.__getitem__)
            widths[widest] -= 1
            over -= 1

    def _line(self, cells: Sequence[str], widths: Sequence[int]) -> str:
        shown = [
            padded(cut(cell, columns) if column.gives_way else cell, columns, is_right=column.is_right)
            for cell, columns, column in zip(cells, widths, self.columns, strict=True)
        ]
        return GAP.join(shown).rstrip()


def terminal_width() -> int:
    """The columns of the terminal; for a pipe or file, more than any line needs."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 1_000_000


def is_interactive() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


def emit_json(value: Any) -> None:
    """One JSON document. ASCII only, so that stored text cannot steer a terminal."""
    click.echo(json.dumps(value, indent=2, default=_plain))


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    raise TypeError(f"{type(value).__name__} has no JSON form here")


def say(text: str = "") -> None:
    """A line of the answer."""
    click.echo(text)


def remark(text: str) -> None:
    """A line about the answer, for people: stderr, so that a pipe gets data only."""
    click.echo(text, err=True)


def complain(text: str) -> None:
    """An error about one of several things; the command goes on with the others."""
    remark(f"winch: {one_line(text)}")
