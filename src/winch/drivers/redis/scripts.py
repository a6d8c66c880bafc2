"""The scripts: lua/<verb>.lua with the parts that its header names, and the requests that run them.

A header's `-- flags:` become the script's own (allow-oom: a worker can finish when memory is full;
no-writes: a replica could run it), its `-- parts:` are put before it. One with `none` reads its own
arguments, and has the names of its keys in address.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib import resources
from typing import Any

import hiredis
import msgspec

from winch.drivers.redis.keys import prelude, with_keys, with_parts

_FOLDER = "lua"
_FLAGS = re.compile(r"^-- flags: *(.*)$", re.MULTILINE)
_PARTS = re.compile(r"^-- parts: *(.*)$", re.MULTILINE)
# A change of a job may open its gates for others, so it needs several parts.
_TOGETHER = {"record": ("rates", "scopes", "gates", "record", "admit")}
# A statement begins at the beginning of a line and continues over lines that do not, and its own end.
_STATEMENT = re.compile(r"^(?!--)\S.*(?:\n(?:[ \t].*|end\b.*|}.*)?(?=\n|\Z))*", re.MULTILINE)
_FUNCTION = re.compile(r"local function |\w+ = function|local \w+ *(--|$)")
_LOCAL = re.compile(r"local ([\w, ]+) = ")
_encode = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True, slots=True)
class Script:
    name: str
    text: bytes
    sha: bytes
    is_read: bool

    @classmethod
    def of(cls, name: str, body: str, around: str | None = None) -> Script:
        """`around`: a text that runs the script, which stands in it as a function, more than once."""
        flags = _listed(_FLAGS, name, body)
        names = [one for part in _listed(_PARTS, name, body) for one in _TOGETHER.get(part, (part,))]
        parts: list[str] = []
        if names != ["none"]:
            texts = [_text("parts/base.lua"), *(_text(f"parts/{part}.lua") for part in names)]
            *parts, body = map(with_parts, [*texts, body])
        source = "\n".join([*parts, body])
        begin = prelude(source)
        if around is not None:
            flags = [*flags, "allow-cross-slot-keys"]
            once, each = _taken_apart("\n".join([begin, *parts]))
            source = around.replace("--ONCE--", once).replace("--EACH--", f"{each}\n{body}")
        elif parts:
            source = f"{begin}\n{source}"
        else:
            source = with_keys(body)
        text = "\n".join([f"#!lua flags={','.join(flags)}", source]).encode()
        digest = hashlib.sha1(text, usedforsecurity=False).hexdigest()
        return cls(name, text, digest.encode(), "no-writes" in flags)


def _taken_apart(text: str) -> tuple[str, str]:
    """What a script begins with, for one that is run more than once: what is made once (functions, names
    in capitals), and what is made anew for each run (keys, arguments, the time, what is collected)."""
    names: list[str] = []
    once: list[str] = []
    each: list[str] = []
    for statement in map(str.strip, _STATEMENT.findall(text)):
        found = _LOCAL.match(statement)
        if found is None:
            (once if _FUNCTION.match(statement) else each).append(statement)
        elif found[1].startswith("call,") or (
            found[1].isupper() and found[1] not in ("A", "B", "K", "P")
        ):
            once.append(statement)
        else:
            names.append(found[1])
            each.append(statement.removeprefix("local "))
    return "\n".join([f"local {', '.join(names)}", *once]), "\n".join(each)


def _listed(line: re.Pattern[str], name: str, body: str) -> list[str]:
    found = line.search(body)
    if found is None:
        raise ValueError(f"{name}.lua has no line {line.pattern}")
    return found[1].split()


def _text(path: str) -> str:
    return resources.files(__package__).joinpath(_FOLDER, path).read_text("utf-8")


@cache
def script(name: str) -> Script:
    return Script.of(name, _text(f"{name}.lua"))


@cache
def script_for_many(name: str) -> Script:
    """The script for several parts of a store that one node of a cluster has."""
    return Script.of(name, _text(f"{name}.lua"), _text("cluster/each.lua"))


def names() -> list[str]:
    """Every script there is."""
    folder = resources.files(__package__).joinpath(_FOLDER)
    return sorted(file.name.removesuffix(".lua") for file in folder.iterdir() if file.is_file())


@dataclass(frozen=True, slots=True)
class ScriptCall:
    """One call of one script, or one command. `confirmations`: replicas that must have it (WAIT)."""

    request: bytes
    full: Callable[[], bytes] | None = None
    """With the text of the script, for a server that does not have it."""
    is_read: bool = False
    confirmations: int = 0
    where: int = 0
    """In a cluster: the part of the store whose node is asked."""
    is_brief: bool = False
    """A node that cannot answer now is not asked again: the caller can do without."""


@dataclass(frozen=True, slots=True)
class RetryPause:
    """Nothing, for so long."""

    seconds: float


@dataclass(frozen=True, slots=True)
class ScriptBatch:
    """Calls to different nodes, sent together. Each is answered by its reply or its error."""

    calls: Sequence[ScriptCall]


def packed(*words: str | bytes | int) -> bytes:
    """A command as the server reads it."""
    data: bytes = hiredis.pack_command(words)  # type: ignore[arg-type]  # the stub: tuples of one
    return data


def call(
    key: bytes, name: str, args: dict[str, Any], blobs: Sequence[bytes] = (), *, confirmations: int = 0
) -> ScriptCall:
    """`key` is the store's key `meta`, which gives the slot and the prefix of all others. `blobs` are
    further arguments: Redis reads no binary values out of msgpack."""
    found = script(name)
    blob = _encode(args)
    return ScriptCall(
        packed(b"EVALSHA", found.sha, b"1", key, blob, *blobs),
        partial(packed, b"EVAL", found.text, b"1", key, blob, *blobs),
        found.is_read,
        confirmations,
    )


@dataclass(frozen=True, slots=True)
class PartCall:
    """A call of a script for one part of a store in a cluster, before the node of that part is known."""

    name: str
    args: dict[str, Any]
    blobs: Sequence[bytes] = ()
    confirmations: int = 0


def call_many(
    keys: Sequence[str],
    parts: Sequence[tuple[int, PartCall]],
    *,
    bell: int,
    budget: int | None = None,
    is_brief: bool = False,
) -> ScriptCall:
    """One call for parts of a store that one node has, all of one script; see lua/cluster/each.lua."""
    where, first = parts[0]
    found = script_for_many(first.name)
    is_alike = len(parts) > 1 and all(part.args == first.args for _, part in parts)
    arguments = {
        "parts": [
            (keys[number], False if is_alike else part.args, len(part.blobs), number)
            for number, part in parts
        ],
        "common": first.args if is_alike else False,
        "bell": keys[bell],
        "budget": False if budget is None else budget,
        "name": first.name,
    }
    words: list[str | bytes] = [
        keys[where],
        _encode(arguments),
        *(blob for _, part in parts for blob in part.blobs),
    ]
    return ScriptCall(
        packed(b"EVALSHA", found.sha, b"1", *words),
        partial(packed, b"EVAL", found.text, b"1", *words),
        found.is_read,
        first.confirmations,
        where,
        is_brief,
    )


def command(*words: str | bytes | int, where: int = 0, is_brief: bool = False) -> ScriptCall:
    return ScriptCall(packed(*words), is_read=True, where=where, is_brief=is_brief)
