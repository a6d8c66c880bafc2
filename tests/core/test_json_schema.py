"""Schemas of arguments: what fits, what does not and why, and which schemas are refused."""

from __future__ import annotations

from typing import Any

import pytest

from winch import ConfigError
from winch.core.values.json_schema import check_schema, misfit

SIZE = {
    "type": "object",
    "required": ["width"],
    "additionalProperties": False,
    "properties": {
        "width": {"type": "integer", "minimum": 1, "maximum": 100},
        "mode": {"enum": ["fit", "fill", None]},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 3}, "maxItems": 2},
        "at": {"anyOf": [{"type": "string"}, {"type": "number", "exclusiveMinimum": 0}]},
        "exact": {"const": 1},
    },
}


@pytest.mark.parametrize(
    "value",
    [{"width": 1}, {"width": 100.0}, {"width": 5, "mode": None}, {"width": 5, "tags": []},
     {"width": 5, "tags": ["a", "abc"]}, {"width": 5, "at": "now"}, {"width": 5, "at": 0.5},
     {"width": 5, "exact": 1}],
)  # fmt: skip
def test_values_that_fit_a_schema(value: Any) -> None:
    check_schema(SIZE, "s")
    assert misfit(SIZE, value, "args") is None


@pytest.mark.parametrize(
    "value, why",
    [
        ([], "args must be object, got array"),
        ({}, "args needs 'width'"),
        ({"width": "secret"}, "args.width must be integer, got string"),
        ({"width": True}, "args.width must be integer, got boolean"),
        ({"width": 1.5}, "args.width must be integer, got number"),
        ({"width": 0}, "args.width: must be at least 1"),
        ({"width": 101}, "args.width: must be at most 100"),
        ({"width": 1, "colour": 1}, "args has no 'colour'"),
        ({"width": 1, "mode": "secret"}, "args.mode must be one of 'fit', 'fill', None"),
        ({"width": 1, "tags": ["abcd"]}, "args.tags[0]: its greatest length is 3"),
        ({"width": 1, "tags": ["a", "b", "c"]}, "args.tags: its greatest number of items is 2"),
        ({"width": 1, "at": 0}, "args.at must be string, got integer"),
        ({"width": 1, "exact": True}, "args.exact must be 1"),
    ],
)
def test_values_that_do_not_fit_a_schema_get_a_reason(value: Any, why: str) -> None:
    found = misfit(SIZE, value, "args")
    assert found == why
    assert "secret" not in found


def _deep(levels: int) -> dict[str, Any]:
    return {"items": _deep(levels - 1)} if levels else {}


@pytest.mark.parametrize(
    "schema",
    [[], "x", {"type": "text"}, {"type": 5}, {"type": [["null"]]}, {"anyOf": []}, {"anyOf": 5},
     {"required": 5}, {"enum": []}, {"pattern": "a+"}, {"$ref": "#"}, {"minimum": "1"},
     {"minimum": True},
     {"enum": "ab"}, {"required": "ab"}, {"required": [1]}, {"properties": []},
     {"properties": {"a": {"not": {}}}}, {"anyOf": [{"oneOf": []}]}, {"items": 1}, _deep(20),
     {"properties": {f"p{n}": {} for n in range(2000)}}],
)  # fmt: skip
def test_a_schema_that_promises_more_than_is_checked_is_refused(schema: Any) -> None:
    with pytest.raises(ConfigError):
        check_schema(schema, "s")
