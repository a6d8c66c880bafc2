"""Sizes as people write them: bytes as a number, or text such as "64KB", "512MB", "1.5GB"."""

from __future__ import annotations

import re

from winch.core.errors import ConfigError
from winch.core.values.bounds import check_length

# Powers of two, as the kernel and process monitors count memory.
_UNITS = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}
_SIZE = re.compile(r"([0-9]{1,20}(?:\.[0-9]{1,20})?) ?([KMGT]?)I?B?", re.IGNORECASE)
MAX_CHARS = 64


def parse_size(value: int | str, name: str = "size") -> int:
    """The size in bytes; raises ConfigError naming `name` for anything unclear or not positive."""
    if isinstance(value, int) and not isinstance(value, bool):
        size = value
    else:
        given = check_length(value, MAX_CHARS, name).strip() if isinstance(value, str) else ""
        found = _SIZE.fullmatch(given)
        if found is None or (not found[2] and "." in found[1]):
            raise ConfigError(f"{name} must look like '64KB', '512MB' or '2GB', got {value!r}")
        size = int(float(found[1]) * _UNITS[found[2].upper() + "B"])
    if size < 1:
        raise ConfigError(f"{name} must be at least one byte, got {value!r}")
    return size


def format_size(size: int) -> str:
    """Short text for people: "512MB", "1.5GB"."""
    for unit in ("TB", "GB", "MB", "KB"):
        if size >= _UNITS[unit]:
            return f"{size / _UNITS[unit]:.1f}".removesuffix(".0") + unit
    return f"{size}B"
