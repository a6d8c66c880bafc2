"""Reads of the store that all open pages share for a while."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

# A read that took long is shared for so many times as long: open pages must not keep the store busy.
TIMES = 5
# No request waits for a read that took this long the last time, as long as its answer is not too old: it
# is read again meanwhile. In seconds.
SLOW, OLDEST = 0.05, 15.0
MOST = 200


@dataclass(frozen=True)
class _Answer:
    """What was read, at `read_at`; it is shared until `until`. `is_slow`: it took long."""

    value: Any
    read_at: float
    until: float
    is_slow: bool


class SharedReads:
    """The latest answers by name. Not for threads: it belongs to one event loop."""

    def __init__(self) -> None:
        self._answers: dict[str, _Answer] = {}
        self._reading: dict[str, asyncio.Task[Any]] = {}

    async def get(self, name: str, read: Callable[[], Awaitable[Any]], seconds: float) -> Any:
        """What `read` returns, read again after so many seconds at the earliest. Callers that come while
        it is read share one read."""
        kept, now = self._answers.get(name), time.monotonic()
        if kept is not None and now <= kept.until:
            return kept.value
        reading = self._reading.get(name)
        if reading is None:
            reading = asyncio.create_task(self._read(name, read, seconds), name=f"winch read {name}")
            self._reading[name] = reading
            reading.add_done_callback(lambda done: self._ended(name, done))
        if kept is not None and kept.is_slow and now - kept.read_at <= OLDEST:
            return kept.value
        # A caller that is cancelled must not take the answer from the others.
        return await asyncio.shield(reading)

    async def _read(self, name: str, read: Callable[[], Awaitable[Any]], seconds: float) -> Any:
        own, began = asyncio.current_task(), time.monotonic()
        value = await read()
        now = time.monotonic()
        if self._reading.get(name) is not own:
            return value  # forgotten meanwhile: it may be of before the change
        if len(self._answers) >= MOST:
            self._answers = {key: one for key, one in self._answers.items() if one.until > now}
        spent = now - began
        self._answers[name] = _Answer(value, now, now + max(seconds, TIMES * spent), spent > SLOW)
        return value

    def _ended(self, name: str, reading: asyncio.Task[Any]) -> None:
        if self._reading.get(name) is reading:
            del self._reading[name]
        if not reading.cancelled() and reading.exception() is not None:
            self._answers.pop(name, None)  # the next caller gets the error

    def forget(self) -> None:
        """Something has changed: the next look is at the store."""
        self._answers.clear()
        self._reading.clear()

    def close(self) -> None:
        for reading in self._reading.values():
            reading.cancel()
