"""Loads a driver's SQL: `sql/<verb>.sql`, one file per verb, statements with named parameters.

A file is made of sections. Each begins with a comment line that names it, `-- claim: …` for the
verb itself or `-- finish.archive: …` for a further statement of it; the comment lines that follow say
why. Comments are for readers: they are kept in `SqlText.header` and not sent to the store.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

_SECTION = re.compile(r"-- ([a-z_]+(?:\.[a-z_]+)?):")
# A name after one colon; two colons are a PostgreSQL cast. Quoted text is matched first, to be kept.
_NAME = re.compile(r"('(?:[^']|'')*')|(?<![:\w]):([a-z_]+)")


@dataclass(frozen=True, slots=True)
class SqlText:
    """One statement: its text with the store's own placeholders, and its parameters' names in order."""

    name: str
    text: str
    names: tuple[str, ...]
    header: str

    def bind(self, values: Mapping[str, Any]) -> tuple[Any, ...]:
        """The parameters in the order of their numbers, for stores that number placeholders."""
        return tuple(map(values.__getitem__, self.names))


def load(package: str, placeholder: Callable[[str, int], str]) -> dict[str, SqlText]:
    """Every statement in the package's `sql` folder by its name.

    `placeholder(name, number)` is the text that stands for a parameter in this store; the number
    counts the names of one statement from 1, and a name used twice keeps its number.
    """
    found: dict[str, SqlText] = {}
    for file in sorted(resources.files(package).joinpath("sql").iterdir(), key=lambda f: f.name):
        if file.name.endswith(".sql"):
            found.update(parse(file.read_text(encoding="utf-8"), file.name, placeholder))
    return found


def parse(text: str, file: str, placeholder: Callable[[str, int], str]) -> dict[str, SqlText]:
    """The statements of one file; raises ValueError for a section that is not the file's verb's."""
    verb = file.removesuffix(".sql")
    found: dict[str, SqlText] = {}
    for name, header, body in _sections(text, file):
        if name.partition(".")[0] != verb or name in found:
            raise ValueError(f"{file} holds a section {name!r}; expected {verb} or {verb}.<part>, once")
        found[name] = _statement(name, header, body, placeholder)
    return found


def _sections(text: str, file: str) -> list[tuple[str, str, str]]:
    sections: list[tuple[str, list[str], list[str]]] = []
    for line in text.splitlines():
        if match := _SECTION.match(line):
            sections.append((match[1], [line], []))
        elif not sections:
            if line.strip():
                raise ValueError(f"{file} must begin with a comment line like '-- verb: what it does'")
        elif line.lstrip().startswith("--"):
            sections[-1][1].append(line)
        elif line.strip():
            sections[-1][2].append(line.partition(" -- ")[0].rstrip())
    return [(name, "\n".join(header), "\n".join(body)) for name, header, body in sections]


def _statement(name: str, header: str, body: str, placeholder: Callable[[str, int], str]) -> SqlText:
    names: list[str] = []

    def replace(match: re.Match[str]) -> str:
        if match[1] is not None:
            return match[1]
        if match[2] not in names:
            names.append(match[2])
        return placeholder(match[2], names.index(match[2]) + 1)

    text = _NAME.sub(replace, body).strip().removesuffix(";")
    return SqlText(name, text, tuple(names), header)
