"""Time handed in as an argument, never read here. The system clock comes from app.py."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """Wall time for ids and the memory store; monotonic seconds for local deadlines."""

    def now(self) -> datetime: ...

    def time(self) -> float:
        """`now` in seconds since the epoch, for frequent callers."""
        ...

    def monotonic(self) -> float: ...


class FixedClock:
    """A clock that moves only on request."""

    def __init__(self, start: datetime) -> None:
        self._now = start
        self._monotonic = 0.0

    def now(self) -> datetime:
        return self._now

    def time(self) -> float:
        return self._now.timestamp()

    def monotonic(self) -> float:
        return self._monotonic

    def advance(self, by: timedelta) -> None:
        self._now += by
        self._monotonic += by.total_seconds()
