"""The files that pages are made of: their bytes, types and tags."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import resources

TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".txt": "text/plain"}


@cache
def static_file(name: str) -> tuple[bytes, str, str] | None:
    """A file of the package: its bytes, its type and a tag that changes with it."""
    folder = resources.files("winch.web").joinpath("static")
    known = {file.name: file for file in folder.iterdir()}
    suffix = "." + name.rpartition(".")[2]
    if name not in known or suffix not in TYPES:
        return None
    body = known[name].read_bytes()
    return body, TYPES[suffix], hashlib.sha256(body).hexdigest()[:16]


def asset_tag(name: str) -> str:
    """The tag of a file, for its address: an address with a tag may be kept for good."""
    found = static_file(name)
    return "" if found is None else found[2]


@cache
def licences() -> str:
    """The licences of the files that come from other projects."""
    found = static_file("licences.txt")
    return "" if found is None else found[0].decode()
