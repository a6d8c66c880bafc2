"""Unique: which key a job has, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from winch.core.errors import ConfigError
from winch.core.policy.retention import Retention, dead_limits
from winch.core.policy.unique import MAX_KEY_CHARS, Unique, key_of


@pytest.mark.parametrize(
    "fields, options, message",
    [
        ((), {"mode": "rejct"}, r"did you mean 'reject'\?"),
        ((), {"mode": "keep_last", "wait": "5s"}, 'wait and max_wait with mode="debounce"'),
        ((), {"mode": "debounce"}, "needs wait"),
        ((), {"wait": "1s"}, "wait and max_wait with"),
        ((), {"within": "1h", "mode": "replace"}, "within with mode"),
        ((), {"within": "1h", "until": "started"}, "not both"),
        ((), {"within": "0s"}, "longer than zero"),
        ((), {"until": "done"}, "until must be one of final, started"),
        (("a",), {"key": "k"}, "not both"),
        ((7,), {}, "names of arguments"),
        ((), {"key": ""}, "non-empty printable text"),
        ((), {"key": "a\n"}, "non-empty printable text"),
        ((), {"key": "x" * 257}, "at most 256 characters"),
    ],
)
def test_invalid_unique_rules_are_refused(fields: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Unique(*fields, **options)


def test_repr_shows_the_given_options() -> None:
    rule = Unique("a", mode="debounce", wait="5s", max_wait="1m")
    assert repr(rule) == "Unique('a', mode='debounce', wait='5s', max_wait='1m')"
    assert "within='1h'" in repr(Unique(within="60m"))


def test_a_key_of_values_does_not_depend_on_their_order() -> None:
    assert key_of("t", {"a": 1, "b": "x"}) == key_of("t", {"b": "x", "a": 1}) == 't:{"a":1,"b":"x"}'
    assert key_of("t", {"a": 1}) != key_of("u", {"a": 1})


def test_a_long_key_is_hashed() -> None:
    long = key_of("t", {"a": "x" * 10_000})
    assert len(long) < MAX_KEY_CHARS
    assert long != key_of("t", {"a": "x" * 10_001})


@pytest.mark.parametrize("options", [{}, {"count": -1}, {"bytes": True}, {"age": 5}])
def test_an_empty_retention_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Retention(**options)


@pytest.mark.parametrize("options", [None, "{", '{"dead_count":"x"}', "\ud800", "[]"])
def test_damaged_options_set_no_limits(options: str | None) -> None:
    assert dead_limits(options) == dead_limits("{}")
