from __future__ import annotations

import dataclasses
import enum
import math
import uuid
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from winch.core.errors import InvalidPayload, PayloadTooLarge
from winch.core.values.codec import MAX_ARGS_BYTES, MAX_DEPTH, clean_text, dumps, loads, loads_strict


@dataclasses.dataclass
class Point:
    x: int
    y: int


class Colour(enum.Enum):
    RED = "red"


class Order(msgspec.Struct):
    id: int
    lines: list[str] = []


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


STORABLE = [
    (None, "null"),
    (True, "true"),
    (2**63 - 1, "9223372036854775807"),
    (-(2**63), "-9223372036854775808"),
    (1.5, "1.5"),
    ("Grüße 日本 🚀", '"Grüße 日本 🚀"'),
    ("\x01\t\x7f", '"\\u0001\\t\x7f"'),
    ([1, "a", None], '[1,"a",null]'),
    ((1, 2), "[1,2]"),
    ({"b": 1, "a": 2}, '{"b":1,"a":2}'),
    ({1: "a"}, '{"1":"a"}'),
    (Point(1, 2), '{"x":1,"y":2}'),
    (Colour.RED, '"red"'),
    (Order(7, ["a"]), '{"id":7,"lines":["a"]}'),
    (datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), '"2026-01-02T03:04:05Z"'),
    (date(2026, 1, 2), '"2026-01-02"'),
    (uuid.UUID(int=7), '"00000000-0000-0000-0000-000000000007"'),
    (Decimal("1.10"), '"1.10"'),
    (nested(MAX_DEPTH), "[" * MAX_DEPTH + "]" * MAX_DEPTH),
]


@pytest.mark.parametrize("value, text", STORABLE)
def test_json_values_are_stored_compactly(value: object, text: str) -> None:
    assert dumps(value) == text


UNSTORABLE = [
    (math.nan, "nan"),
    (math.inf, "inf"),
    ([{"a": -math.inf}], "inf"),
    ("a\0b", "NUL"),
    ({"a\0": 1}, "a key in .* NUL"),
    ("é\0", "NUL"),
    ("\ud800", "surrogate"),
    ({"\udfff": 1}, "a key in .* surrogate"),
    (2**63, "64 bits"),
    ([-(2**63) - 1], "64 bits"),
    (10**100, "64 bits"),
    (nested(MAX_DEPTH + 1), "deeper than 64"),
    (nested(5000), "JSON|deeper"),
    (object(), "object is not a type that JSON can hold"),
    (lambda: None, "function is not a type"),
    ({"a": {1, object()}}, "not a type that JSON can hold"),
]


@pytest.mark.parametrize("value, message", UNSTORABLE, ids=[message for _, message in UNSTORABLE])
def test_values_that_a_store_cannot_keep_are_refused(value: object, message: str) -> None:
    with pytest.raises(InvalidPayload, match=message) as refused:
        dumps(value, what="argument to")
    assert "argument to" in str(refused.value)


def test_a_value_that_holds_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(InvalidPayload):
        dumps(loop)


def test_the_size_is_counted_in_bytes_of_json() -> None:
    fits = "é" * ((MAX_ARGS_BYTES - 2) // 2)
    assert len(dumps(fits).encode()) == MAX_ARGS_BYTES
    with pytest.raises(PayloadTooLarge, match=r"262,145 bytes as JSON; the limit is 262,144"):
        dumps(fits + "x", what="arguments")
    with pytest.raises(PayloadTooLarge):
        dumps([1, 2, 3], limit=6)
    assert dumps([1, 2, 3], limit=7) == "[1,2,3]"


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
    lambda children: (
        st.lists(children, max_size=3)
        | st.dictionaries(
            st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
            children,
            max_size=3,
        )
    ),
    max_leaves=8,
)


@settings(max_examples=40)
@given(JSON)
def test_stored_values_come_back_unchanged(value: object) -> None:
    text = dumps(value)
    assert loads(text) == value
    assert loads_strict(text) == value


def test_values_come_back_as_the_requested_type() -> None:
    assert loads('{"x":1,"y":2}', Point) == Point(1, 2)
    assert loads('{"id":7}', Order) == Order(7)


@pytest.mark.parametrize("text", ["", "{", '{"x":"a","y":2}', '{"x":1}', "[1,]", "nul"])
def test_an_error_about_malformed_text_includes_its_name(text: str) -> None:
    with pytest.raises(InvalidPayload, match="arguments"):
        loads(text, Point, what="arguments")


STRICT = [
    ('{"a":1,"a":2}', "the key 'a' twice"),
    ('[{"b":{"a":1,"a":1}}]', "the key 'a' twice"),
    ("NaN", "holds NaN"),
    ("[Infinity]", "holds Infinity"),
    ("-Infinity", "holds -Infinity"),
    ("1e999", "holds inf"),
    ('"\\u0000"', "NUL"),
    ('"\\ud800"', "surrogate"),
    ("9223372036854775808", "64 bits"),
    ("[" * 65 + "]" * 65, "deeper than 64"),
    ("[" * 100_000, "not valid JSON"),
    ("{'a':1}", "not valid JSON"),
    ("", "not valid JSON"),
    ("1 2", "not valid JSON"),
    ("1" * 5000, "not valid JSON|64 bits"),
]


@pytest.mark.parametrize("text, message", STRICT, ids=[text[:12] for text, _ in STRICT])
def test_json_from_outside_is_read_strictly(text: str, message: str) -> None:
    with pytest.raises(InvalidPayload, match=message):
        loads_strict(text, what="the request")


def test_arbitrary_text_is_made_safe_to_store() -> None:
    assert clean_text("plain", 100) == "plain"
    assert clean_text("a\0b", 100) == "a\N{REPLACEMENT CHARACTER}b"
    assert clean_text("a\ud800b", 100) == "a?b"


@settings(max_examples=40)
@given(st.text(st.characters(), max_size=300), st.integers(60, 200))
def test_cut_text_fits_its_limit_and_is_marked(text: str, limit: int) -> None:
    cut = clean_text(text, limit)
    raw = cut.encode()
    assert len(raw) <= limit
    assert "\0" not in cut
    if len(text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace")) > limit:
        assert "[cut, " in cut


class Pydantic:
    """The two methods by which a pydantic model is recognised."""

    def __init__(self, value: int) -> None:
        self.value = value

    def model_dump(self, *, mode: str) -> dict[str, Any]:
        assert mode == "json"
        return {"value": self.value}

    @classmethod
    def model_validate(cls, data: dict[str, Any]) -> Pydantic:
        return cls(data["value"])


def test_pydantic_models_go_through_their_own_methods() -> None:
    text = dumps({"order": Pydantic(7)})
    assert text == '{"order":{"value":7}}'
    back = loads(text, dict[str, Pydantic])
    assert back["order"].value == 7


def test_timedeltas_go_as_text() -> None:
    assert loads(dumps(timedelta(seconds=90)), timedelta) == timedelta(seconds=90)
