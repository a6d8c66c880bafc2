"""Limits on texts from outside: how long one may be, and how large a number in it may be."""

from __future__ import annotations

from winch.core.errors import ConfigError

# Every store and JSON keep a whole number of so many digits exactly.
MAX_DIGITS = 18
MAX_INT = 10**MAX_DIGITS - 1
_SHOWN = 40


def check_length(text: str, most: int, name: str) -> str:
    """The text; raises ConfigError when it has more than `most` characters."""
    if len(text) > most:
        raise ConfigError(
            f"{name} must have at most {most:,} characters, got {len(text):,}: {text[:_SHOWN]!r}…"
        )
    return text


def parse_int(text: str, name: str, *, least: int = 0, most: int = MAX_INT) -> int:
    """A whole number in decimal digits; raises ConfigError outside of `least` and `most`."""
    digits = text.strip()
    if is_int(digits):
        number = int(digits)
        if least <= number <= most:
            return number
    shown = text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
    upto = f"from {least} to {most}" if most != MAX_INT else f"of at least {least}"
    raise ConfigError(f"{name} must be a whole number {upto}, got {shown!r}")


def is_int(text: str) -> bool:
    """Whether the text is a whole number of at most 18 digits: an optional minus and ASCII digits."""
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdecimal() and len(digits) <= MAX_DIGITS
