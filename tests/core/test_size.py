"""Sizes as people write them."""

from __future__ import annotations

from typing import Any

import pytest

from winch.core.errors import ConfigError
from winch.core.values.size import format_size, parse_size


@pytest.mark.parametrize(
    "text, size",
    [
        ("512MB", 512 << 20),
        ("512 mb", 512 << 20),
        ("1.5GB", 3 << 29),
        ("64K", 64 << 10),
        ("2GiB", 2 << 30),
        ("100", 100),
        (4096, 4096),
    ],
)
def test_sizes_with_units(text: Any, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "MB", "12 parsecs", "-5MB", "0", "1.5", True, None, 2.5])
def test_unclear_sizes_are_refused(text: Any) -> None:
    with pytest.raises(ConfigError, match="max_memory must"):
        parse_size(text, "max_memory")


def test_sizes_for_people() -> None:
    assert [format_size(n) for n in (5, 1024, 3 << 29, 512 << 20)] == ["5B", "1KB", "1.5GB", "512MB"]
