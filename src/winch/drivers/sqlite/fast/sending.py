"""Store a batch of jobs in a thread, and pack the next one meanwhile.

Saves: the time that SQLite takes to store a thousand plain jobs, which is one statement, during which it
does not hold the interpreter lock. `enqueue_many` leaves each batch to the thread that writes for async
callers, and waits for its answer before it sends the next one. docs/performance.md has the gain. Equals:
running the verb when its answer is wanted (`storage.verbs.Unhurried`).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Generic, TypeVar

from winch.drivers.sqlite.connections.pool import Connections
from winch.drivers.sqlite.connections.writer import QueuedWrite, Writer
from winch.storage.verbs import Verb

T = TypeVar("T")


class SentToThread(Generic[T]):
    """A verb that the thread carries out. `run` carries it out in this thread."""

    def __init__(
        self, run: Callable[[Verb[T]], T], writer: Writer, connections: Connections, verb: Verb[T]
    ) -> None:
        self._run = run
        self._writer = writer
        self._connections = connections
        self._verb = verb
        self._sent: QueuedWrite | None = None
        self._pid = os.getpid()

    def send(self) -> None:
        file = self._connections.file
        # Several statements would each wait for the interpreter lock. And a thread must not wait for the
        # transaction that this one is in.
        if self._verb.is_alone and file is not None and file.is_ready and not file.is_mine:
            self._sent = self._writer.send(self._verb)

    def answer(self) -> T:
        if self._sent is None or self._pid != os.getpid():  # a forked child has no such thread
            return self._run(self._verb)
        result: T = self._writer.result(self._sent)
        return result
