"""Help for testing applications: virtual time, inline runs, assertions, faults; and for drivers, the
conformance suite (`winch.testing.conformance`).

The names are imported when they are first used: pytest loads this package in every project that has
Winch installed, and most of its runs need nothing of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from winch.core.lazy import lazy

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
    "FlakyStorage": "winch.testing.flaky",
    "World": "winch.testing._world",
    "assert_enqueued": "winch.testing._assertions",
    "assert_not_enqueued": "winch.testing._assertions",
    "inline": "winch.testing._inline",
    "virtual": "winch.testing._world",
}

__getattr__ = lazy(__name__, _HOMES)


def __dir__() -> list[str]:
    return __all__
