"""The values in a store's URL that mean the same for every server."""

from __future__ import annotations

import re

from winch.core.errors import ConfigError

DEFAULT_SCHEMA = "winch"
DEFAULT_TIMEOUT = 10.0
DEFAULT_POOL = 8

_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,62}")


def schema_name(name: str) -> str:
    """The name itself, if it is one that may stand in a statement or a key."""
    if not _SCHEMA.fullmatch(name):
        raise ConfigError(
            "schema must be 1 to 63 lower-case letters, digits and underscores, beginning with a letter "
            f"or an underscore, got {name!r}"
        )
    return name


def seconds(text: str) -> float:
    try:
        found = float(text.removesuffix("s") or DEFAULT_TIMEOUT)
    except ValueError:
        found = 0.0
    if not 0.1 <= found <= 3600:
        raise ConfigError(f"timeout in the URL must be seconds such as 10s, got {text!r}")
    return found


def whole(name: str, text: str, default: int, allowed: range) -> int:
    if text and not (text.isdecimal() and int(text) in allowed):
        raise ConfigError(
            f"{name} in the URL must be a number from {allowed[0]} to {allowed[-1]}, got {text!r}"
        )
    return int(text) if text else default


def switch(name: str, text: str) -> bool:
    if text not in ("", "on", "off"):
        raise ConfigError(f"{name} in the URL must be on or off, got {text!r}")
    return text != "off"
