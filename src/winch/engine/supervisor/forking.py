"""What a process that a handler forks must not inherit from its worker.

asyncio notes a signal by a byte on a socket, which a forked process shares with its parent. So a SIGTERM
for a forked process, `Process.terminate()` or the end of a `Pool`, would stop the worker instead.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Collection, Iterable


class _Masks(threading.local):
    before: Collection[int] | None = None


class ForkGuard:
    """From now until `close` forked processes have the default handlers of these signals."""

    def __init__(self, signals: Iterable[signal.Signals]) -> None:
        self._signals = frozenset(signals)
        self._is_open = True
        self._masks = _Masks()  # of each thread: several may fork at once
        os.register_at_fork(
            before=self._before,
            after_in_parent=self._after_in_parent,
            after_in_child=self._after_in_child,
        )

    def close(self) -> None:
        self._is_open = False  # a hook at fork cannot be taken back

    def _before(self) -> None:
        if self._is_open:
            # A signal may reach the forked process before its first line of Python: it waits until the
            # handlers are those of an ordinary process.
            self._masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, self._signals)

    def _after_in_parent(self) -> None:
        before, self._masks.before = self._masks.before, None
        if before is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _after_in_child(self) -> None:
        if self._masks.before is not None:
            self._is_open = False
            signal.set_wakeup_fd(-1)
            for number in self._signals:
                signal.signal(number, signal.SIG_DFL)
            self._after_in_parent()
