"""Help for testing applications: virtual time, inline runs, assertions, faults; and for drivers, the
conformance suite (`winch.testing.conformance`).

The names are imported when they are first used: pytest loads this package in every project that has
Winch installed, and most of its runs need nothing of it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from winch.testing._assertions import assert_enqueued, assert_not_enqueued
    from winch.testing._inline import inline
    from winch.testing._world import World, virtual
    from winch.testing.flaky import FlakyStorage

__all__ = [
    "FlakyStorage",
    "World",
    "assert_enqueued",
    "assert_not_enqueued",
    "inline",
    "virtual",
]

_HOMES = {
    "FlakyStorage": "flaky",
    "World": "_world",
    "assert_enqueued": "_assertions",
    "assert_not_enqueued": "_assertions",
    "inline": "_inline",
    "virtual": "_world",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return __all__
