"""The clocks of the machine."""

from __future__ import annotations

import time
from datetime import UTC, datetime


class SystemClock:
    """The machine's clocks: wall time for ids, monotonic time for local deadlines."""

    # The functions themselves: every enqueue calls both.
    monotonic: staticmethod[[], float] = staticmethod(time.monotonic)
    time: staticmethod[[], float] = staticmethod(time.time)

    def now(self) -> datetime:
        return datetime.now(UTC)
