"""Under which words a job is found by its arguments: what `search=[…]` of a task declares.

A term is a hash over the argument's name and its value as text, so that its length is bounded and a
value that must not be seen is not. The text of a number is its digits: a search for 42 finds 42 and
"42" alike. Two values may in theory share a term; a search compares the arguments themselves.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence

from winch.core.errors import InvalidPayload
from winch.core.values import codec

BOOK = "search"
_BYTES = 12


def text_of(value: object) -> str:
    """A value as people type it into a search."""
    return value if isinstance(value, str) else json.dumps(value)


def term_of(name: str, text: str) -> str:
    """What jobs whose argument `name` reads `text` are found under."""
    digest = hashlib.blake2b(f"{name}\0{text}".encode("utf-8", "replace"), digest_size=_BYTES)
    return base64.urlsafe_b64encode(digest.digest()).decode()


def terms_of(args: str, names: Sequence[str]) -> tuple[str, ...]:
    """The terms of packed arguments. One that was left to its default is not stored and has none."""
    try:
        found = codec.loads(args)
    except InvalidPayload:
        return ()
    return tuple(term_of(name, text_of(found[name])) for name in names if name in found)


def key_of(term: str, job_id: str) -> str:
    """The key of the line that links a term to a job. Lines of one term sort by id."""
    return f"{term}:{job_id}"


def job_of(key: str) -> str:
    """The job that a line's key names."""
    return key.rpartition(":")[2]


def span_of(term: str, after: str | None) -> tuple[str, str]:
    """Between which keys the lines of a term lie, with ids before `after` only."""
    return f"{term}:", f"{term};" if after is None else key_of(term, after)
