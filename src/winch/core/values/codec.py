"""Arguments and results to JSON text and back, with the message a user sees when it fails.

JSON only. What is stored must come back the same from every store and in every language, so what
JSON or a store cannot hold faithfully is refused before it is stored: NaN and infinities, NUL
characters, lone surrogates, integers past 64 bits, nesting past 64 levels.
"""

from __future__ import annotations

import datetime as dt
import json
import math
from collections import Counter
from typing import Any

import msgspec

from winch.core.errors import InvalidPayload, PayloadTooLarge

MAX_DEPTH = 64
MAX_ARGS_BYTES = 256 * 1024
MAX_RESULT_BYTES = 1024 * 1024
MAX_ERROR_BYTES = 64 * 1024
MAX_HEAD_BYTES = 64 * 1024
MAX_NAME_CHARS = 256

_NO_LIMIT = 1 << 62
_INT_MIN, _INT_MAX = -(2**63), 2**63 - 1
_encode = msgspec.json.Encoder().encode


def to_json(value: object) -> str:
    """JSON text of what Winch made itself and need not check."""
    return _encode(value).decode()


def dumps(value: object, *, what: str = "value", limit: int = MAX_ARGS_BYTES) -> str:
    """The value as JSON text; raises InvalidPayload or PayloadTooLarge with the place and the reason."""
    try:
        plain = msgspec.to_builtins(value, str_keys=True, enc_hook=enc_hook)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidPayload(f"{what} cannot be stored as JSON: {error}") from error
    check_tree(plain, what)
    try:
        raw = msgspec.json.encode(plain)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidPayload(f"{what} cannot be stored as JSON: {error}") from error
    if len(raw) > limit:
        raise PayloadTooLarge(
            f"{what} is {len(raw):,} bytes as JSON; the limit is {limit:,}. "
            "Store the data elsewhere and pass a reference to it"
        )
    return raw.decode()


def check_kept(value: object, stored: object, what: str, *, has_type: bool = True) -> None:
    """Raise InvalidPayload where something in `value` comes back as another type: `stored` is the value
    as the reader gets it. JSON has no bytes, sets or moments. An annotation brings them back; without
    one they would silently become texts and lists. `has_type`: there is a place for an annotation."""
    for kinds, name, instead in _CHANGING:
        if isinstance(value, kinds):
            if not isinstance(stored, kinds):
                raise InvalidPayload(
                    f"{what} holds {name}, which JSON does not have and which would come back as "
                    f"{type(stored).__name__}; {'annotate its type, or ' if has_type else ''}"
                    f"pass {instead}"
                )
            return
    if isinstance(value, dict) and isinstance(stored, dict):
        for item, kept in zip(value.values(), stored.values(), strict=False):
            check_kept(item, kept, what, has_type=has_type)
    elif isinstance(value, list | tuple) and isinstance(stored, list | tuple):
        for item, kept in zip(value, stored, strict=False):
            check_kept(item, kept, what, has_type=has_type)


_CHANGING: tuple[tuple[tuple[type, ...], str, str], ...] = (
    ((bytes, bytearray, memoryview), "bytes", "text, such as base64"),
    ((set, frozenset), "a set", "a list"),
    ((dt.date, dt.time), "a date or time", "its text, from isoformat()"),
    ((dt.timedelta,), "a timedelta", "a number of seconds"),
)


def holds_changing(value: object) -> bool:
    """Whether something in this value has a type that JSON does not have."""
    if isinstance(value, dict):
        return any(map(holds_changing, value.values()))
    if isinstance(value, list | tuple):
        return any(map(holds_changing, value))
    return any(isinstance(value, kinds) for kinds, _, _ in _CHANGING)


class Truncated(msgspec.Struct, frozen=True, tag_field="winch", tag="truncated"):
    """What is stored of a result over the limit: its size and the beginning of its JSON text."""

    bytes: int
    head: str


_truncated = msgspec.json.Decoder(Truncated)


def dumps_result(value: object, *, limit: int = MAX_RESULT_BYTES) -> str:
    """A result as JSON text; one over the limit as `Truncated`. Raises InvalidPayload as `dumps` does.

    The work is done when its result is looked at: to fail then would only do it again.
    """
    kind = type(value)
    if kind is bool or (kind is int and _INT_MIN <= value <= _INT_MAX):  # type: ignore[operator]
        return _encode(value).decode()
    text = dumps(value, what="the result", limit=_NO_LIMIT)
    raw = text.encode()
    if len(raw) <= limit:
        return text
    head = raw[: min(MAX_HEAD_BYTES, limit // 2)].decode("utf-8", "ignore")
    return msgspec.json.encode(Truncated(len(raw), head)).decode()


def truncated(text: str) -> Truncated | None:
    """What is left of a result that was over the limit; None for a whole one."""
    if not text.startswith('{"winch":"truncated"'):
        return None
    try:
        return _truncated.decode(text)
    except msgspec.DecodeError:
        return None


def loads(text: str, type_: Any = Any, *, what: str = "value") -> Any:
    """The value back, checked against `type_`; raises InvalidPayload with the place and the reason."""
    try:
        return msgspec.json.decode(text, type=type_, dec_hook=dec_hook)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise InvalidPayload(f"{what} is malformed: {error}") from error


def loads_strict(text: str, *, what: str = "value") -> Any:
    """JSON typed by a person or another program: also refuses duplicate keys, NaN and deep nesting."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            ((twice, _),) = Counter(key for key, _ in pairs).most_common(1)
            raise InvalidPayload(f"{what} has the key {twice!r} twice")
        return found

    def no_constant(name: str) -> Any:
        raise InvalidPayload(f"{what} holds {name}, which JSON does not have")

    try:
        value = json.loads(text, object_pairs_hook=unique, parse_constant=no_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidPayload(f"{what} is not valid JSON: {error}") from error
    check_tree(value, what)
    return value


def check_tree(value: object, what: str, depth: int = 1) -> None:
    """Refuse what JSON or a store cannot hold faithfully. `value` consists of builtin types."""
    kind = type(value)
    if kind is str:
        _check_text(value, what)  # type: ignore[arg-type]  # kind is str
    elif kind is int:
        if not _INT_MIN <= value <= _INT_MAX:  # type: ignore[operator]  # kind is int
            raise InvalidPayload(
                f"{what} holds an integer past 64 bits, which JSON readers do not keep exactly; "
                "pass it as text"
            )
    elif kind is float:
        if not math.isfinite(value):  # type: ignore[arg-type]  # kind is float
            raise InvalidPayload(f"{what} holds {value}, which JSON does not have; pass None or text")
    elif kind is dict or kind is list:
        if depth > MAX_DEPTH:
            raise InvalidPayload(f"{what} is nested deeper than {MAX_DEPTH} levels")
        if kind is dict:
            for key, item in value.items():  # type: ignore[attr-defined]  # kind is dict
                _check_text(key, f"a key in {what}")
                check_tree(item, what, depth + 1)
        else:
            for item in value:  # type: ignore[attr-defined]  # kind is list
                check_tree(item, what, depth + 1)


def _check_text(text: str, what: str) -> None:
    if text.isascii():
        if "\0" in text:
            raise InvalidPayload(f"{what} holds a NUL character, which PostgreSQL cannot store")
        return
    if "\0" in text:
        raise InvalidPayload(f"{what} holds a NUL character, which PostgreSQL cannot store")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidPayload(f"{what} holds a lone surrogate, which is not valid Unicode") from None


def clean_text(text: str, limit: int) -> str:
    """Text made safe to store: NUL and lone surrogates replaced, cut with a marker at `limit` bytes.

    For texts from outside, such as error messages: one odd byte in one of them must not fail the
    batch it is written with.
    """
    raw = text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace")
    if len(raw) <= limit:
        return raw.decode()
    head = raw[: max(limit - 40, 0)].decode("utf-8", "ignore")
    return f"{head}… [cut, {len(raw):,} bytes in all]"


def enc_hook(value: Any) -> Any:
    """What msgspec asks for a value of a type it does not know."""
    dump = getattr(value, "model_dump", None)  # pydantic, when the application has it
    if callable(dump) and hasattr(type(value), "model_validate"):
        return dump(mode="json")
    raise TypeError(
        f"{type(value).__module__}.{type(value).__qualname__} is not a type that JSON can hold; "
        "pass plain data, a dataclass or a msgspec.Struct"
    )


def dec_hook(type_: type, value: Any) -> Any:
    """What msgspec asks to build a value of a type it does not know."""
    if type_ is object:  # any value is one
        return value
    validate = getattr(type_, "model_validate", None)
    if callable(validate):
        return validate(value)
    raise TypeError(f"{type_!r} cannot be made from JSON")
