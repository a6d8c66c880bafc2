"""Stored text made safe and short for a terminal: nothing that is shown may steer it."""

from __future__ import annotations

import re
import unicodedata
from datetime import UTC, datetime, timedelta

import click

from winch.core.lifecycle import JobState
from winch.core.values.duration import format_duration, rounded

# Each state also has its word, so colour alone carries no information.
STATE_COLOURS: dict[str, str] = {
    JobState.SCHEDULED: "cyan",
    JobState.BLOCKED: "magenta",
    JobState.READY: "blue",
    JobState.RUNNING: "bright_blue",
    JobState.RETRYING: "yellow",
    JobState.COMPLETED: "green",
    JobState.CANCELLED: "bright_black",
    JobState.DEAD: "red",
}
_STYLES = re.compile(r"\x1b\[[0-9;]*m")


def one_line(text: str) -> str:
    """The text with every control character, escape and direction mark spelled out."""
    return text if text.isprintable() else "".join(map(_spelled, text))


def lines(text: str) -> list[str]:
    """Each line of the text, safe on its own."""
    return [one_line(line.expandtabs(4)) for line in text.split("\n")]


def _spelled(char: str) -> str:
    return char if char.isprintable() else char.encode("unicode_escape").decode()


def width(text: str) -> int:
    """How many columns a terminal gives the text; our own colours take none."""
    plain = _STYLES.sub("", text)
    if plain.isascii():
        return len(plain)
    return sum(_columns(char) for char in plain)


def _columns(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def cut(text: str, columns: int) -> str:
    """The text in at most this many columns. Takes plain text: a cut style would never end."""
    if width(text) <= columns:
        return text
    taken = 0
    for index, char in enumerate(text):
        taken += _columns(char)
        if taken > columns - 1:
            return text[:index] + "…"
    return text


def padded(text: str, columns: int, *, is_right: bool = False) -> str:
    space = " " * max(columns - width(text), 0)
    return space + text if is_right else text + space


def state(word: str, like: str | None = None) -> str:
    """A state's word in its colour (click drops colours where the output is no terminal)."""
    return click.style(word, fg=STATE_COLOURS.get(like or word))


def dim(value: str) -> str:
    return click.style(value, fg="bright_black")


def bold(value: str) -> str:
    return click.style(value, bold=True)


span = rounded


def now() -> datetime:
    return datetime.now(UTC)


def ago(moment: datetime | None, at: datetime) -> str:
    """`5s ago`, `in 3m 5s`, or a dash."""
    if moment is None:
        return "-"
    passed = at - moment
    if abs(passed) < timedelta(seconds=1):
        return "now"
    span_text = format_duration(timedelta(seconds=int(abs(passed).total_seconds())))
    return f"{span_text} ago" if passed > timedelta(0) else f"in {span_text}"


def stamp(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def count(number: int, noun: str, plural: str | None = None) -> str:
    """`1 job`, `1,204 jobs`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"
