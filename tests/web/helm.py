"""Renders a Helm chart without Helm: the part of Go's template language that our chart uses, exactly.

Actions: if, else, end, with, range, define, variables, comments, pipes and parentheses; white space is
trimmed as Go does. What this does not know is an error, never left out. Where `helm` is installed, a
test compares the two.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

_ACTION = re.compile(r"{{(-?)(.*?)(-?)}}", re.DOTALL)
_WORD = re.compile(r"""\s*("(?:[^"\\]|\\.)*"|:=|\||\(|\)|[^\s|()"]+)""")


class TemplateError(Exception):
    """The chart refuses its values, or uses what this renderer does not support."""


@dataclass
class Node:
    """A piece of text, or an action with what it encloses."""

    kind: str
    words: str = ""
    inside: list[Node] = field(default_factory=list)
    otherwise: list[Node] = field(default_factory=list)


def _pieces(text: str) -> list[Node]:
    found: list[Node] = []
    at, is_trimmed = 0, False

    def add(words: str, is_trimmed_left: bool, is_trimmed_right: bool) -> None:
        words = words.lstrip() if is_trimmed_left else words
        found.append(Node("text", words.rstrip() if is_trimmed_right else words))

    for match in _ACTION.finditer(text):
        add(text[at : match.start()], is_trimmed, match[1] == "-")
        words = match[2].strip()
        if not words.startswith("/*"):
            found.append(Node("action", words))
        at, is_trimmed = match.end(), match[3] == "-"
    add(text[at:], is_trimmed, False)
    return found


def _tree(pieces: list[Node]) -> list[Node]:
    root = Node("root")
    open_nodes, into = [root], [root.inside]
    for piece in pieces:
        word = piece.words.split(maxsplit=1)[0] if piece.kind == "action" and piece.words else ""
        if word in ("if", "with", "range", "define"):
            node = Node(word, piece.words.removeprefix(word).strip())
            into[-1].append(node)
            open_nodes.append(node)
            into.append(node.inside)
        elif word == "else":
            if piece.words != "else":
                raise TemplateError(f"not known here: {piece.words!r}")
            into[-1] = open_nodes[-1].otherwise
        elif word == "end":
            open_nodes.pop()
            into.pop()
        else:
            into[-1].append(piece)
    if len(open_nodes) != 1:
        raise TemplateError(f"an {open_nodes[-1].kind} without its end")
    return root.inside


def _text(value: Any) -> str:
    """As Go prints a value."""
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _quoted(value: Any) -> str:
    return json.dumps(_text(value))


def _printf(shape: str, *values: Any) -> str:
    assert set(re.findall(r"%.", shape)) <= {"%v", "%s", "%d"}, shape
    return re.sub("%[vsd]", "%s", shape) % tuple(_text(value) for value in values)


def _refuse(message: str) -> str:
    raise TemplateError(message)


def _dict(*pairs: Any) -> dict[str, Any]:
    return dict(zip(pairs[::2], pairs[1::2], strict=True))


def _nindent(width: int, text: str) -> str:
    return "\n" + "\n".join(" " * width + line for line in text.split("\n"))


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": lambda *numbers: sum(int(number) for number in numbers),
    "and": lambda *values: next((value for value in values if not value), values[-1]),
    "default": lambda otherwise, value=None: value or otherwise,
    "dict": _dict,
    "fail": _refuse,
    "first": lambda values: values[0],
    "nindent": _nindent,
    "not": lambda value: not value,
    "or": lambda *values: next((value for value in values if value), values[-1]),
    "printf": _printf,
    "quote": _quoted,
    "toYaml": lambda value: yaml.safe_dump(value, sort_keys=True).rstrip("\n"),
}


class Chart:
    """A chart in a folder: `documents` are the objects that it makes of values."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._defined: dict[str, list[Node]] = {}
        self._files: dict[str, list[Node]] = {}
        for file in sorted((folder / "templates").iterdir()):
            nodes = _tree(_pieces(file.read_text()))
            self._defined |= {
                json.loads(node.words): node.inside for node in nodes if node.kind == "define"
            }
            if not file.name.startswith("_"):
                self._files[file.name] = nodes

    @property
    def values(self) -> dict[str, Any]:
        read: dict[str, Any] = yaml.safe_load((self.folder / "values.yaml").read_text())
        return read

    def rendered(self, values: dict[str, Any], name: str = "shop") -> dict[str, str]:
        """The text of each file."""
        scope = {"Values": values, "Release": {"Name": name, "Namespace": "prod"}}
        return {file: self._render(nodes, scope, {"$": scope}) for file, nodes in self._files.items()}

    def documents(self, values: dict[str, Any]) -> list[dict[str, Any]]:
        found = []
        for file, text in self.rendered(values).items():
            if file.endswith(".yaml"):
                found += [document for document in yaml.safe_load_all(text) if document]
        return found

    def _render(self, nodes: list[Node], dot: Any, names: dict[str, Any]) -> str:
        out = []
        for node in nodes:
            if node.kind == "text":
                out.append(node.words)
            elif node.kind == "action":
                out.append(self._act(node.words, dot, names))
            elif node.kind == "if":
                chosen = node.inside if self._value(node.words, dot, names) else node.otherwise
                out.append(self._render(chosen, dot, dict(names)))
            elif node.kind == "with":
                value = self._value(node.words, dot, names)
                chosen, inner = (node.inside, value) if value else (node.otherwise, dot)
                out.append(self._render(chosen, inner, dict(names)))
            elif node.kind == "range":
                items = self._value(node.words, dot, names) or []
                out += [self._render(node.inside, item, dict(names)) for item in items]
        return "".join(out)

    def _act(self, words: str, dot: Any, names: dict[str, Any]) -> str:
        if assigned := re.fullmatch(r"(\$\w+)\s*:=\s*(.+)", words, re.DOTALL):
            names[assigned[1]] = self._value(assigned[2], dot, names)
            return ""
        return _text(self._value(words, dot, names))

    def _value(self, words: str, dot: Any, names: dict[str, Any]) -> Any:
        found = _WORD.findall(words)
        if "".join(found) != re.sub(r'\s+(?=(?:[^"]*"[^"]*")*[^"]*$)', "", words):
            raise TemplateError(f"cannot be read: {words!r}")
        value, left = self._pipe(found, dot, names)
        if left:
            raise TemplateError(f"cannot be read from {left[0]!r} on: {words!r}")
        return value

    def _pipe(self, words: list[str], dot: Any, names: dict[str, Any]) -> tuple[Any, list[str]]:
        given: list[Any] = []
        while True:
            value, words = self._call(words, given, dot, names)
            if not words or words[0] != "|":
                return value, words
            given, words = [value], words[1:]

    def _call(
        self, words: list[str], given: list[Any], dot: Any, names: dict[str, Any]
    ) -> tuple[Any, list[str]]:
        name = words[0]
        if name == "include" or name in FUNCTIONS:
            operands, words = self._operands(words[1:], dot, names)
            if name == "include":
                template, scope = [*operands, *given]
                return self._render(self._defined[template], scope, {"$": scope}), words
            return FUNCTIONS[name](*operands, *given), words
        if given:
            raise TemplateError(f"not a function that is known here: {name!r}")
        [value, *more], words = self._operands(words, dot, names)
        if more:
            raise TemplateError(f"not a function that is known here: {name!r}")
        return value, words

    def _operands(
        self, words: list[str], dot: Any, names: dict[str, Any]
    ) -> tuple[list[Any], list[str]]:
        found: list[Any] = []
        while words and words[0] not in ("|", ")"):
            word, *words = words
            if word == "(":
                value, words = self._pipe(words, dot, names)
                if not words or words[0] != ")":
                    raise TemplateError("a parenthesis that is not closed")
                words = words[1:]
                if words and words[0].startswith("."):
                    value, words = _field(value, words[0]), words[1:]
                found.append(value)
            elif word.startswith('"'):
                found.append(json.loads(word))
            elif re.fullmatch(r"-?\d+", word):
                found.append(int(word))
            elif word.startswith("$"):
                name, dot_, path = word.partition(".")
                found.append(_field(names[name], dot_ + path))
            elif word.startswith("."):
                found.append(_field(dot, word))
            else:
                raise TemplateError(f"not a word that is known here: {word!r}")
        return found, words


def _field(value: Any, path: str) -> Any:
    """`.a.b` of a value; what is not there is nothing, but nothing has no fields."""
    for name in filter(None, path.split(".")):
        if not isinstance(value, dict):
            raise TemplateError(f"nil pointer: {path!r} of {value!r}")
        value = value.get(name)
    return value
