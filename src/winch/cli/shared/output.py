"""Tables for people, one JSON document for programs. Both go to stdout; remarks go to stderr."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import click

from winch.cli.shared.text import cut, dim, one_line, padded, width

GAP = "  "
# A column that gives way on a narrow terminal keeps at least this much.
LEAST = 12


@dataclass(frozen=True, slots=True)
class Column:
    """`gives_way`: cut first when a terminal is too narrow; its cells hold no colours.
    `drop`: left out when cutting is not enough, 1 before 2; 0 is never."""

    title: str
    is_right: bool = False
    gives_way: bool = False
    drop: int = 0


@dataclass
class Table:
    """Rows under headings, aligned. Into a pipe or a file nothing is cut."""

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
        shown = list(range(len(widths)))
        if room is not None:
            shown = self._fitting(widths, room)
        titles = [dim(column.title) for column in self.columns]
        return [self._line(row, widths, shown) for row in (titles, *self.rows)]

    def _fitting(self, widths: list[int], room: int) -> list[int]:
        """The columns to show, after some gave way (in `widths`) and some were dropped."""
        shown = list(range(len(widths)))
        while True:
            over = sum(widths[index] for index in shown) + len(GAP) * (len(shown) - 1) - room
            least = {
                index: min(widths[index], max(LEAST, width(self.columns[index].title)))
                for index in shown
                if self.columns[index].gives_way
            }
            if over <= sum(widths[index] - least[index] for index in least):
                break
            droppable = [index for index in shown if self.columns[index].drop]
            if not droppable:
                break
            shown.remove(min(droppable, key=lambda index: self.columns[index].drop))
        while over > 0:
            widest = max(least, key=lambda index: widths[index] - least[index], default=None)
            if widest is None or widths[widest] == least[widest]:
                break
            widths[widest] -= 1
            over -= 1
        return shown

    def _line(self, cells: Sequence[str], widths: Sequence[int], shown: Sequence[int]) -> str:
        parts = []
        for index in shown:
            column, cell = self.columns[index], cells[index]
            if column.gives_way and width(cell) > widths[index]:
                cell = cut(cell, widths[index])
            parts.append(padded(cell, widths[index], is_right=column.is_right))
        return GAP.join(parts).rstrip()


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


def report_each(what: str, names: Iterable[str], done: str, *, as_json: bool) -> None:
    """The answer of a command that did the same to each of these."""
    if as_json:
        emit_json({what: [{"name": name, "done": done} for name in names]})
        return
    for name in names:
        say(f"{one_line(name)}  {one_line(done)}")


def remark(text: str) -> None:
    """A line about the answer, for people: stderr, so that a pipe gets data only."""
    click.echo(text, err=True)


def complain(text: str) -> None:
    """An error about one of several things; the command continues with the others."""
    remark(f"winch: {one_line(text)}")
