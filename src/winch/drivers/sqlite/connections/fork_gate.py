"""The gate that a fork shuts: from before the fork until after it no other thread enters SQLite.

SQLite has mutexes for the whole process. A child that is forked while another thread opens, reads or
closes a database inherits one of them locked, and waits for it for ever.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import TYPE_CHECKING, Protocol

from winch.core.errors import StorageUnavailable

if TYPE_CHECKING:
    from winch.drivers.sqlite.connections.file_lock import OpenFile


class Forked(Protocol):
    """What closes before a fork and opens again after it."""

    def before_fork(self, taken: list[OpenFile]) -> None: ...

    def after_fork_in_parent(self) -> None: ...

    def after_fork_in_child(self) -> None: ...


class ForkGate:
    """One for the process. Threads that fork at the same time take turns."""

    def __init__(self) -> None:
        self._turn = threading.RLock()
        self._depth = 0
        self._open = threading.Event()
        self._open.set()
        self.forker: int | None = None
        """The thread that forks right now; it alone may pass."""

    def is_shut(self) -> bool:
        """Whether this thread has to wait."""
        return self.forker is not None and self.forker != threading.get_ident()

    def wait(self, timeout: float) -> None:
        """Return once the fork is over; raises StorageUnavailable after `timeout` seconds."""
        if not self._open.wait(timeout):
            raise StorageUnavailable(
                f"this process has been busy forking for more than {timeout:g} seconds; try again"
            )

    def shut(self) -> bool:
        """Before a fork. False inside of another fork of this thread: the gate is shut already."""
        self._turn.acquire()
        self._depth += 1
        if self._depth == 1:
            self._open.clear()
            self.forker = threading.get_ident()
        return self._depth == 1

    def is_last(self) -> bool:
        """After a fork: whether `reopen` will open the gate."""
        return self._depth == 1

    def reopen(self) -> None:
        """After the fork, in the parent. The child makes a new gate."""
        self._depth -= 1
        if self._depth == 0:
            self.forker = None
            self._open.set()
        self._turn.release()


gate: ForkGate = ForkGate()
_all: weakref.WeakSet[Forked] = weakref.WeakSet()
_adding = threading.Lock()
_forking: list[Forked] = []  # those of the fork that is under way


def add(one: Forked) -> None:
    """Have this closed before each fork, for as long as it lives."""
    with _adding:
        _all.add(one)


def _before_fork() -> None:
    if not gate.shut():
        return
    with _adding:
        _forking.extend(_all)
    taken: list[OpenFile] = []
    for connections in _forking:
        connections.before_fork(taken)


def _after_fork_in_parent() -> None:
    if gate.is_last():
        for connections in _forking:
            connections.after_fork_in_parent()
        _forking.clear()
    gate.reopen()


def _after_fork_in_child() -> None:
    global _adding, gate  # other threads of the parent may have been at them
    _adding, gate = threading.Lock(), ForkGate()
    for connections in _forking:
        connections.after_fork_in_child()
    _forking.clear()


os.register_at_fork(
    before=_before_fork,
    after_in_parent=_after_fork_in_parent,
    after_in_child=_after_fork_in_child,
)
