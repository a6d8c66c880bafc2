"""What the tour prints, in colours that click drops where the output is no terminal."""

from __future__ import annotations

import click

STATE_COLOURS = {
    "scheduled": "cyan",
    "running": "bright_blue",
    "retrying": "yellow",
    "completed": "green",
    "cancelled": "bright_black",
    "dead": "red",
}


def say(text: str = "") -> None:
    click.echo(text)


def bold(text: str) -> str:
    return click.style(text, bold=True)


def dim(text: str) -> str:
    return click.style(text, fg="bright_black")


def state(word: str) -> str:
    return click.style(word, fg=STATE_COLOURS.get(word))


def one_line(text: str) -> str:
    """The text on one line, without characters that could steer the terminal."""
    return "".join(char for char in " ".join(text.split()) if char.isprintable())


def count(number: int, noun: str, plural: str | None = None) -> str:
    """`1 row`, `2 rows`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"
