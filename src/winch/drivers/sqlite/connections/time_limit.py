"""The end of a transaction that holds the file for too long.

While a handler is inside `ctx.transaction()` nothing else writes: no job is stored or taken, and no
heartbeat arrives. A handler that sleeps in there would stop the whole file, so its time is limited, and
when it is over the transaction is rolled back under it.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable


class TimeLimit:
    """Rolls back and calls `free` after `seconds`, unless `is_kept` is asked before."""

    def __init__(self, conn: sqlite3.Connection, seconds: float, free: Callable[[], None]) -> None:
        self._conn = conn
        self._free = free
        self._guard = threading.Lock()
        self._is_settled = False
        self.is_broken: bool = False
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True
        self._timer.start()

    def is_kept(self) -> bool:
        """Settle it: True when there was time left, and from now on nothing is rolled back."""
        with self._guard:
            self._is_settled = True
            self._timer.cancel()
            return not self.is_broken

    def _end(self) -> None:
        with self._guard:
            if self._is_settled:
                return
            self.is_broken = True
            # Outside of a transaction each statement would commit by itself: none may run any more.
            self._conn.set_authorizer(_only_rollback)
            self._conn.interrupt()
            self._conn.rollback()
            self._free()


def _only_rollback(action: int, detail: str | None, *_: object) -> int:
    is_rollback = action == sqlite3.SQLITE_TRANSACTION and detail == "ROLLBACK"
    return sqlite3.SQLITE_OK if is_rollback else sqlite3.SQLITE_DENY
