"""Reads of the store that all open pages share for a while."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

# A read that took long is shared for so many times as long: open pages must not keep the store busy.
TIMES = 5
MOST = 200


class SharedReads:
    """The latest answers by name. Not for threads: it belongs to one event loop."""

    def __init__(self) -> None:
        self._answers: dict[str, tuple[float, Any]] = {}

    async def get(self, name: str, read: Callable[[], Awaitable[Any]], seconds: float) -> Any:
        """What `read` returns, read again after so many seconds at the earliest."""
        until, answer = self._answers.get(name, (0.0, None))
        began = time.monotonic()
        if began <= until:
            return answer
        answer = await read()
        now = time.monotonic()
        if len(self._answers) >= MOST:
            self._answers = {key: one for key, one in self._answers.items() if one[0] > now}
        self._answers[name] = (now + max(seconds, TIMES * (now - began)), answer)
        return answer

    def forget(self) -> None:
        """Something has changed: the next look is at the store."""
        self._answers.clear()
