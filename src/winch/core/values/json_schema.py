"""JSON Schema, as far as the arguments of a task need it: checked once when it is given, then applied.

A keyword that is not checked here is refused, so that no schema promises more than it holds. `pattern`
is one of them: a regular expression from elsewhere can keep a server busy for ever.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

from winch.core.errors import ConfigError, InvalidPayload

MOST_DEPTH = 16
MOST_PARTS = 1000
# Words for people; they promise nothing about a value.
_WORDS = frozenset(
    {"$schema", "$id", "$comment", "title", "description", "default", "examples", "deprecated", "format"}
)


def _is_integer(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value) and value.is_integer()
    return isinstance(value, int) and not isinstance(value, bool)


_TYPES: Mapping[str, Callable[[object], bool]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "integer": _is_integer,
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "string": lambda value: isinstance(value, str),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}
# keyword -> (the values that it is about, what makes a value wrong, the words for it)
_BOUNDS: Mapping[str, tuple[str, Callable[[Any, Any], bool], str]] = {
    "minimum": ("number", lambda value, bound: value < bound, "must be at least"),
    "maximum": ("number", lambda value, bound: value > bound, "must be at most"),
    "exclusiveMinimum": ("number", lambda value, bound: value <= bound, "must be more than"),
    "exclusiveMaximum": ("number", lambda value, bound: value >= bound, "must be less than"),
    "minLength": ("string", lambda value, bound: len(value) < bound, "its least length is"),
    "maxLength": ("string", lambda value, bound: len(value) > bound, "its greatest length is"),
    "minItems": ("array", lambda value, bound: len(value) < bound, "its least number of items is"),
    "maxItems": ("array", lambda value, bound: len(value) > bound, "its greatest number of items is"),
}
_PARTS = frozenset({"properties", "required", "additionalProperties", "items", "anyOf", "type", "enum"})
_KNOWN = _WORDS | _PARTS | _BOUNDS.keys() | {"const"}

Schema = Mapping[str, Any]


def check_schema(schema: object, what: str) -> None:
    """Raise ConfigError for what is no schema, or has a keyword that is not checked."""
    left = [MOST_PARTS]
    _check(schema, what, 1, left)


def _check(schema: object, what: str, depth: int, left: list[int]) -> None:
    left[0] -= 1
    if depth > MOST_DEPTH or left[0] < 0:
        raise ConfigError(f"{what}: the schema is too large: {MOST_PARTS} parts, {MOST_DEPTH} levels")
    if not isinstance(schema, Mapping):
        raise ConfigError(f"{what}: a schema must be an object, got {type(schema).__name__}")
    for name, value in schema.items():
        if name not in _KNOWN:
            raise ConfigError(f"{what}: the keyword {name!r} of JSON Schema is not supported")
        if name in _BOUNDS and not (isinstance(value, int | float) and not isinstance(value, bool)):
            raise ConfigError(f"{what}: {name} must be a number")
    kinds = schema.get("type", list(_TYPES))
    if not _are_names([kinds] if isinstance(kinds, str) else kinds, _TYPES):
        raise ConfigError(f"{what}: type must be one or some of {', '.join(_TYPES)}")
    for name in ("enum", "anyOf"):
        if name in schema and not (_is_list(schema[name]) and schema[name]):
            raise ConfigError(f"{what}: {name} must be a list of at least one")
    if not _are_names(schema.get("required", [])):
        raise ConfigError(f"{what}: required must be a list of names")
    if not isinstance(schema.get("properties", {}), Mapping):
        raise ConfigError(f"{what}: properties must be an object")
    for name, part in schema.get("properties", {}).items():
        _check(part, f"{what}.{name}", depth + 1, left)
    for part in schema.get("anyOf", ()):
        _check(part, what, depth + 1, left)
    for name in ("items", "additionalProperties"):
        part = schema.get(name, True)
        if not isinstance(part, bool):
            _check(part, f"{what}[]", depth + 1, left)


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _are_names(value: object, known: Container[str] | None = None) -> bool:
    """Whether it is a list of texts, all of them known."""
    return (
        isinstance(value, Sequence)
        and not isinstance(value, str)
        and all(isinstance(name, str) and (known is None or name in known) for name in value)
    )


def refuse_misfit(schema: Schema, value: object, what: str) -> None:
    """Raise InvalidPayload with the reason unless the value fits the schema. The reason names no value:
    it may be secret."""
    why = misfit(schema, value, what)
    if why is not None:
        raise InvalidPayload(why)


def misfit(schema: Schema, value: object, what: str) -> str | None:
    """Why the value does not fit; None where it does."""
    kinds = schema.get("type")
    if kinds is not None:
        names = [kinds] if isinstance(kinds, str) else list(kinds)
        if not any(_TYPES[name](value) for name in names):
            return f"{what} must be {' or '.join(names)}, got {_name(value)}"
    if "enum" in schema and not any(_is_same(value, one) for one in schema["enum"]):
        return f"{what} must be one of {', '.join(map(repr, schema['enum']))}"
    if "const" in schema and not _is_same(value, schema["const"]):
        return f"{what} must be {schema['const']!r}"
    for keyword, (kind, is_wrong, words) in _BOUNDS.items():
        bound = schema.get(keyword)
        if bound is not None and _TYPES[kind](value) and is_wrong(value, bound):
            return f"{what}: {words} {bound}"
    if "anyOf" in schema and all(misfit(part, value, what) for part in schema["anyOf"]):
        return misfit(schema["anyOf"][0], value, what) or f"{what} fits none of its alternatives"
    if isinstance(value, dict):
        return _object_misfit(schema, value, what)
    items = schema.get("items")
    if isinstance(value, list) and items is not None and items is not True:
        for place, item in enumerate(value):
            if items is False or (why := misfit(items, item, f"{what}[{place}]")) is not None:
                return f"{what} must be empty" if items is False else why
    return None


def _object_misfit(schema: Schema, value: dict[str, Any], what: str) -> str | None:
    properties = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in value:
            return f"{what} needs {name!r}"
    more = schema.get("additionalProperties", True)
    for name, item in value.items():
        part = properties.get(name, more)
        if part is False:
            return f"{what} has no {name!r}"
        if part is not True and (why := misfit(part, item, f"{what}.{name}")) is not None:
            return why
    return None


def _is_same(value: object, other: object) -> bool:
    """JSON's equality: true is not 1."""
    return value == other and isinstance(value, bool) == isinstance(other, bool)


def _name(value: object) -> str:
    return next((name for name, fits in _TYPES.items() if fits(value)), type(value).__name__)
