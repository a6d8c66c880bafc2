"""What is shown: escaped, masked, aligned."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from winch.cli.shared import text
from winch.cli.shared.output import Column, Table
from winch.core.values.redact import mask, mask_text

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    "given, shown",
    [
        ("plain ümläut 日本", "plain ümläut 日本"),
        ("\x1b]0;owned\x07", r"\x1b]0;owned\x07"),
        ("two\nlines\r", r"two\nlines\r"),
        ("right\u202eleft", r"right\u202eleft"),
        ("c1 \x9b31m", r"c1 \x9b31m"),
    ],
)
def test_control_characters_are_spelled_out(given: str, shown: str) -> None:
    assert text.one_line(given) == shown


def test_a_text_keeps_its_lines_but_nothing_else() -> None:
    assert text.lines("a\n\tb\x1b[2J") == ["a", r"    b\x1b[2J"]


def test_sensitive_keys_are_masked_at_any_depth() -> None:
    given = {"user": "ada", "Password": "x", "deep": [{"api_key": 1, "n": 2}], "auth_token": None}
    assert mask(given) == {
        "user": "ada",
        "Password": "***",
        "deep": [{"api_key": "***", "n": 2}],
        "auth_token": None,
    }


@pytest.mark.parametrize(
    "given, shown",
    [
        ("postgresql://u:pa:ss@db/shop", "postgresql://u:***@db/shop"),
        ("redis://:secret@h", "redis://:***@h"),
        ("login failed: password=hunter2, user=ada", "login failed: password=***, user=ada"),
        ("Authorization: Bearer abc.def", "Authorization: ***"),
        ('{"token": "abc", "n": 1}', '{"token": ***, "n": 1}'),
        ("KeyError: 'order'", "KeyError: 'order'"),
        ("https://example.org:8080/x", "https://example.org:8080/x"),
    ],
)
def test_secrets_in_free_text_are_masked_by_their_shape(given: str, shown: str) -> None:
    assert mask_text(given) == shown


@pytest.mark.parametrize(
    "span, shown",
    [
        (timedelta(milliseconds=12), "12ms"),
        (timedelta(seconds=1.25), "1.2s"),
        (timedelta(seconds=75.6), "1m 15s"),
        (timedelta(hours=30), "1d 6h"),
        (timedelta(seconds=-3), "0ms"),
    ],
)
def test_durations_are_short(span: timedelta, shown: str) -> None:
    assert text.span(span) == shown


def test_moments_are_shown_relative_to_now() -> None:
    assert text.ago(NOW - timedelta(seconds=65), NOW) == "1m 5s ago"
    assert text.ago(NOW + timedelta(hours=2), NOW) == "in 2h"
    assert text.ago(NOW, NOW) == "now"
    assert text.ago(None, NOW) == "-"


def test_table_gives_way_where_it_may_and_aligns_wide_characters() -> None:
    table = Table([Column("A"), Column("B", gives_way=True), Column("N", is_right=True)])
    table.add("日本", "x" * 40, "1")
    table.add("abc", "y", "22")
    lines = table.lines(30)
    assert [text.width(line) for line in lines] == [30, 30, 30]
    assert lines[1].endswith("…   1")
    assert table.lines(None)[1].count("x") == 40
