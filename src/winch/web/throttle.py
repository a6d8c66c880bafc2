"""Wrong tokens are counted per source; after too many, the answer to another wrong one is to wait."""

from __future__ import annotations

import time
from collections import deque

from winch.web.problems import Problem

MOST = 20
WINDOW = 60.0
MOST_SOURCES = 10_000


class Throttle:
    """A source with MOST failures within WINDOW seconds is refused until the oldest is past."""

    def __init__(self) -> None:
        self._failures: dict[str, deque[float]] = {}

    def failed(self, source: str) -> None:
        """Count a wrong token; raises the problem `too-many` for a source that has had its share."""
        if source not in self._failures and len(self._failures) >= MOST_SOURCES:
            self._failures.pop(next(iter(self._failures)))
        times = self._failures.setdefault(source, deque())
        now = time.monotonic()
        while times and now - times[0] > WINDOW:
            times.popleft()
        if len(times) >= MOST:
            wait = max(1, round(WINDOW - (now - times[0])))
            raise Problem(
                "too-many", "too many wrong tokens from here", headers={"retry-after": str(wait)}
            )
        times.append(now)
