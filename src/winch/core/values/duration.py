"""Durations as people write them: `timedelta`, or text such as "250ms", "30s", "5m", "2h", "1d".

A bare number is refused on purpose: it could mean seconds or milliseconds.
"""

from __future__ import annotations

import re
from datetime import timedelta

from winch.core.errors import ConfigError
from winch.core.values.bounds import check_length

Duration = timedelta | str

_UNITS = {
    "us": timedelta(microseconds=1),
    "ms": timedelta(milliseconds=1),
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
    "w": timedelta(weeks=1),
}
_PART = re.compile(r"([0-9]{1,20}(?:\.[0-9]{1,20})?)(us|ms|s|m|h|d|w)")
# Longer than any duration that a person writes; a program sends at most 40 characters.
MAX_CHARS = 64


def parse_duration(value: Duration, name: str = "duration") -> timedelta:
    """The duration as a timedelta; raises ConfigError naming `name` for anything unclear or negative."""
    if isinstance(value, timedelta):
        parsed = value
    elif isinstance(value, str):
        parsed = _parse_text(value, name)
    else:
        raise ConfigError(
            f"{name} must be a timedelta or text with a unit like '30s' or '5m', got {value!r}"
        )
    if parsed < timedelta(0):
        raise ConfigError(f"{name} must not be negative, got {value!r}")
    return parsed


def _parse_text(text: str, name: str) -> timedelta:
    squeezed = check_length(text, MAX_CHARS, name).replace(" ", "")
    parts = _PART.findall(squeezed)
    if not parts or "".join(n + unit for n, unit in parts) != squeezed:
        raise ConfigError(
            f"{name} must look like '250ms', '30s', '5m', '2h', '1d' or '1h30m', got {text!r}"
        )
    try:
        return sum((float(n) * _UNITS[unit] for n, unit in parts), timedelta(0))
    except OverflowError:
        raise ConfigError(f"{name} is too long, got {text!r}") from None


_PER = {"s": 1.0, "m": 60.0, "h": 3600.0}


def parse_rate(text: str, name: str = "rate") -> float:
    """So many a second, from text such as "100/s", "30/m" or "5/h"."""
    given = check_length(text, MAX_CHARS, name) if isinstance(text, str) else ""
    number, slash, unit = given.replace(" ", "").partition("/")
    try:
        per_second = float(number) / _PER[unit]
    except (ValueError, KeyError):
        per_second = 0.0
    if not slash or not 0 < per_second < float("inf"):
        raise ConfigError(f"{name} must look like '100/s', '30/m' or '5/h', got {text!r}")
    return per_second


def format_duration(value: timedelta) -> str:
    """Short text for people: the two largest units, "1d 2h", "3m 5s", "250ms"."""
    micros = round(value.total_seconds() * 1_000_000)
    sign = "-" if micros < 0 else ""
    micros = abs(micros)
    if micros == 0:
        return "0s"
    parts = []
    for unit in ("d", "h", "m", "s", "ms", "us"):
        size = round(_UNITS[unit].total_seconds() * 1_000_000)
        count, micros = divmod(micros, size)
        if count:
            parts.append(f"{count}{unit}")
        elif parts:
            break
        if len(parts) == 2:
            break
    return sign + " ".join(parts)


def rounded(value: timedelta) -> str:
    """Text for people, as exact as they read it: "1d 2h", "3m 5s", "1.2s", "250ms"."""
    seconds = max(value.total_seconds(), 0.0)
    if seconds >= 10:
        return format_duration(timedelta(seconds=int(seconds)))
    if seconds >= 1:
        return f"{seconds:.1f}s"
    return f"{seconds * 1000:.0f}ms"
