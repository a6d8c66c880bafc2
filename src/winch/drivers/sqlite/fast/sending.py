"""A bulk of jobs that a thread stores while its caller writes the next one.

Storing a thousand plain jobs is one statement, during which SQLite does not hold the interpreter lock,
and making the next thousand is Python that needs no store. So `enqueue_many` hands each chunk to the
thread that writes for async callers and goes on; it waits for a chunk's answer before it sends the next.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypeVar

from winch.drivers.sqlite.connections.pool import Connections
from winch.drivers.sqlite.connections.writer import Writer
from winch.drivers.sqlite.fast.plain_bulk import PlainBulk
from winch.storage.verbs import Verb

T = TypeVar("T")
# With fewer jobs in one statement the hand-over to a thread costs more than is done meanwhile.
SENT_FROM = 200


def is_worth_sending(verb: Verb[Any]) -> bool:
    return isinstance(verb.lone, PlainBulk) and verb.lone.count >= SENT_FROM


class PendingCommit(Generic[T]):
    """See Sending in storage/verbs.py. `run` carries a verb out in this thread."""

    def __init__(
        self, run: Callable[[Verb[T]], T], writer: Writer, connections: Connections, verb: Verb[T]
    ) -> None:
        self._writer = writer
        self._connections = connections
        self._verb = verb
        self._answer: Callable[[], T] = partial(run, verb)

    def send(self) -> None:
        if self._connections.lock().is_mine:  # the thread would wait for this one's own transaction
            return
        try:
            call = self._writer.send(self._verb)
        except RuntimeError:  # no thread can be started any more: the interpreter is ending
            return
        self._answer = partial(self._writer.result, call)

    def answer(self) -> T:
        return self._answer()
