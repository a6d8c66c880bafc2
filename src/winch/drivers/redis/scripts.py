"""The scripts: lua/<verb>.lua with the parts that its header names, and the requests that run them.

A header's `-- flags:` become the script's own (allow-oom: a worker can finish when memory is full;
no-writes: a replica could run it), its `-- parts:` are put before it. One with `none` reads its own
arguments.
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

from winch.drivers.redis.keys import prelude

_FOLDER = "lua"
_FLAGS = re.compile(r"^-- flags: *(.*)$", re.MULTILINE)
_PARTS = re.compile(r"^-- parts: *(.*)$", re.MULTILINE)
# What a change of a job may come to is told in several parts: its gates may open for others.
_TOGETHER = {"record": ("rates", "scopes", "gates", "record", "admit")}
_encode = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True, slots=True)
class Script:
    name: str
    text: bytes
    sha: bytes
    is_read: bool

    @classmethod
    def of(cls, name: str, body: str) -> Script:
        flags = _said(_FLAGS, name, body)
        names = [one for part in _said(_PARTS, name, body) for one in _TOGETHER.get(part, (part,))]
        parts = []
        if names != ["none"]:
            parts = [_text("parts/base.lua"), *(_text(f"parts/{part}.lua") for part in names)]
        source = "\n".join([*parts, body])
        text = "\n".join([f"#!lua flags={','.join(flags)}", prelude(source), source]).encode()
        digest = hashlib.sha1(text, usedforsecurity=False).hexdigest()
        return cls(name, text, digest.encode(), "no-writes" in flags)


def _said(line: re.Pattern[str], name: str, body: str) -> list[str]:
    found = line.search(body)
    if found is None:
        raise ValueError(f"{name}.lua has no line {line.pattern}")
    return found[1].split()


def _text(path: str) -> str:
    return resources.files(__package__).joinpath(_FOLDER, path).read_text("utf-8")


@cache
def script(name: str) -> Script:
    return Script.of(name, _text(f"{name}.lua"))


def names() -> list[str]:
    """Every script there is."""
    folder = resources.files(__package__).joinpath(_FOLDER)
    return sorted(file.name.removesuffix(".lua") for file in folder.iterdir() if file.is_file())


@dataclass(frozen=True, slots=True)
class Call:
    """One call of one script, or one command. `confirmations`: replicas that must have it (WAIT)."""

    request: bytes
    full: Callable[[], bytes] | None = None
    """With the text of the script, for a server that does not have it."""
    is_read: bool = False
    confirmations: int = 0


def packed(*words: str | bytes | int) -> bytes:
    """A command as the server reads it."""
    data: bytes = hiredis.pack_command(words)  # type: ignore[arg-type]  # the stub: tuples of one
    return data


def bare(key: bytes, name: str, *args: str | bytes | int) -> Call:
    """A call of a script that has no parts and reads its own arguments."""
    found = script(name)
    return Call(
        packed(b"EVALSHA", found.sha, b"1", key, *args),
        partial(packed, b"EVAL", found.text, b"1", key, *args),
    )


def call(
    key: bytes, name: str, args: dict[str, Any], blobs: Sequence[bytes] = (), *, confirmations: int = 0
) -> Call:
    """`key` is the store's key `meta`, which tells the slot and what all others begin with. `blobs` are
    further arguments: Redis reads no binary values out of msgpack."""
    found = script(name)
    blob = _encode(args)
    return Call(
        packed(b"EVALSHA", found.sha, b"1", key, blob, *blobs),
        partial(packed, b"EVAL", found.text, b"1", key, blob, *blobs),
        found.is_read,
        confirmations,
    )


def command(*words: str | bytes | int) -> Call:
    return Call(packed(*words), is_read=True)
