from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from winch.core.errors import ConfigError
from winch.core.values.duration import format_duration, parse_duration, rounded


@pytest.mark.parametrize(
    "text, expected",
    [
        ("250ms", timedelta(milliseconds=250)),
        ("30s", timedelta(seconds=30)),
        ("5m", timedelta(minutes=5)),
        ("2h", timedelta(hours=2)),
        ("1d", timedelta(days=1)),
        ("2w", timedelta(weeks=2)),
        ("7us", timedelta(microseconds=7)),
        ("1h30m", timedelta(minutes=90)),
        ("1h 30m", timedelta(minutes=90)),
        ("1.5h", timedelta(minutes=90)),
        ("0s", timedelta(0)),
    ],
)
def test_text_with_units_is_understood(text: str, expected: timedelta) -> None:
    assert parse_duration(text) == expected


@pytest.mark.parametrize("value", ["", "5", "s", "5x", "5 minutes", "-5s", "5s!", "1e3s", "5S"])
def test_unclear_text_is_refused_by_name(value: str) -> None:
    with pytest.raises(ConfigError, match="lease"):
        parse_duration(value, "lease")


@pytest.mark.parametrize("value", [5, 5.0, None, True, b"5s"])
def test_a_bare_number_is_refused(value: object) -> None:
    with pytest.raises(ConfigError, match="timedelta or text with a unit"):
        parse_duration(value)  # type: ignore[arg-type]  # what a caller without types may pass


def test_a_negative_timedelta_is_refused() -> None:
    with pytest.raises(ConfigError, match="must not be negative"):
        parse_duration(timedelta(seconds=-1))


def test_a_duration_past_counting_is_refused() -> None:
    with pytest.raises(ConfigError, match="too long"):
        parse_duration("9999999999w")


@pytest.mark.parametrize(
    "value, expected",
    [
        (timedelta(0), "0s"),
        (timedelta(milliseconds=250), "250ms"),
        (timedelta(minutes=3, seconds=5), "3m 5s"),
        (timedelta(days=1, hours=2, minutes=3), "1d 2h"),
        (timedelta(hours=1, seconds=5), "1h"),
        (timedelta(seconds=-90), "-1m 30s"),
        (timedelta(microseconds=1500), "1ms 500us"),
    ],
)
def test_people_read_the_two_largest_units(value: timedelta, expected: str) -> None:
    assert format_duration(value) == expected


@settings(max_examples=30)
@given(st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=1000)))
def test_a_formatted_duration_parses_back_to_at_most_the_value(value: timedelta) -> None:
    again = parse_duration(format_duration(value))
    assert again <= value
    assert format_duration(again) == format_duration(value)


@pytest.mark.parametrize(
    "seconds, expected",
    [(0, "0ms"), (0.00383, "4ms"), (1.25, "1.2s"), (59.9, "59s"), (185.7, "3m 5s"), (-3, "0ms")],
)
def test_a_rounded_duration_is_as_exact_as_people_read_it(seconds: float, expected: str) -> None:
    assert rounded(timedelta(seconds=seconds)) == expected
