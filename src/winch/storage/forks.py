"""What objects do in a child that `os.fork()` has made: they forget what was the parent's.

The child has a copy of every lock, but of the parent's threads only the one that forked. A lock that
another thread held at that moment stays locked in the child for ever, so its owner makes a new one.
"""

from __future__ import annotations

import os
import threading
import weakref
from types import TracebackType
from typing import Protocol


class Forkable(Protocol):
    """Something with locks, threads or connections of one process."""

    def after_fork_in_child(self) -> None:
        """Make new locks, and drop threads and connections without closing them."""
        ...


_all: weakref.WeakSet[Forkable] = weakref.WeakSet()


def forget_in_children(thing: Forkable) -> None:
    """Call its `after_fork_in_child` in every forked child, for as long as it exists."""
    _all.add(thing)


class ProcessLock:
    """A lock that is free in a forked child, even if a thread of the parent held it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        forget_in_children(self)

    def after_fork_in_child(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lock.release()


def _after_fork_in_child() -> None:
    for thing in list(_all):
        thing.after_fork_in_child()


os.register_at_fork(after_in_child=_after_fork_in_child)
