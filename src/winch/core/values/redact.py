"""Secrets in arguments and texts, masked before anything is shown."""

from __future__ import annotations

import json
import re
from typing import Any

from winch.core import envelope
from winch.core.values import codec

MASK = "***"
_TOO_DEEP = f"it is nested deeper than {codec.MAX_DEPTH} levels"
_SURROGATE = re.compile("[\ud800-\udfff]")
_KEYS = re.compile(r"password|passwd|secret|token|key|authorization|cookie", re.IGNORECASE)
# user:password@ in a URL, wherever it stands, also where the text was cut within the password. All
# repeats are bounded: a payload of many letters would otherwise be looked at once for each of them, and
# a page with it would never be done.
_URL_PASSWORD = re.compile(
    r"([a-z][a-z0-9+.-]{0,30}://[^\s:/@?#]{0,256}):[^\s/@…]{1,1024}(?=[@…])", re.IGNORECASE
)
_WORDS = ("password", "passwd", "secret", "token", "key", "authorization", "cookie")
# password=…, "token": "…", Authorization: Bearer … in free text.
_ASSIGNED = re.compile(
    r"""(\b[\w-]{0,64}(?:password|passwd|secret|token|api[_-]?key|authorization|cookie)"""
    r"""["']?\s{0,8}[=:]\s{0,8})"""
    r"""(?:"[^"]{0,4096}"|'[^']{0,4096}'|(?:(?:bearer|basic)\s+)?[^\s,;&)}\]]+)""",
    re.IGNORECASE,
)


def mask(value: Any) -> Any:
    """The same data with the values of sensitive keys, and passwords in URLs, replaced by ***."""
    if isinstance(value, dict):
        return {
            key: MASK if _KEYS.search(str(key)) and item is not None else mask(item)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [mask(item) for item in value]
    return mask_text(value) if isinstance(value, str) else value


def mask_text(text: str) -> str:
    """The text without secrets that are recognisable by their form, such as passwords in URLs."""
    # Most texts hold none of the words, and a plain search is a hundred times faster than a pattern.
    if "://" in text:
        text = _URL_PASSWORD.sub(rf"\1:{MASK}", text)
    lower = text.lower()
    if any(word in lower for word in _WORDS):
        text = _ASSIGNED.sub(rf"\1{MASK}", text)
    return text


def stored_text(text: str, limit: int) -> str:
    """A text made safe to store, such as an error's: masked, and cut to `limit` bytes."""
    return codec.clean_text(mask_text(codec.clean_text(text, limit)), limit)


def shown(stored: str | None, *, reveal: bool = False) -> Any:
    """A stored JSON text as data to show: `<encrypted>` for what is, and secrets masked otherwise."""
    if stored is None:
        return None
    if envelope.read(stored) is not None:
        return envelope.MARK
    found, reason = read(stored)
    if reason is not None:
        return f"<unreadable: {reason}>"
    return found if reveal else mask(found)


def read(stored: str) -> tuple[Any, str | None]:
    """A stored text as data, or why it cannot be shown. A program that writes to the store by itself may
    have written anything. What is no JSON is shown as text."""
    try:
        found = json.loads(stored)
    except RecursionError:
        return None, _TOO_DEEP
    except ValueError:
        found = stored
    return found, _flaw(found)


def _flaw(value: Any) -> str | None:
    """What makes JSON out of the question: deep nesting, lone surrogates, integers past 64 bits."""
    waiting = [(value, 1)]
    while waiting:
        one, depth = waiting.pop()
        if isinstance(one, dict | list) and depth > codec.MAX_DEPTH:
            return _TOO_DEEP
        if isinstance(one, dict):
            waiting += [(key, depth + 1) for key in one]
            waiting += [(item, depth + 1) for item in one.values()]
        elif isinstance(one, list):
            waiting += [(item, depth + 1) for item in one]
        elif isinstance(one, str) and not one.isascii() and _SURROGATE.search(one):
            return "it holds a lone surrogate, which is not valid Unicode"
        elif isinstance(one, int) and not -(2**63) <= one < 2**63:
            return "it holds an integer past 64 bits"
    return None
