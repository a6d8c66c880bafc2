"""Send a batch of jobs, and pack the next one while the server stores it.

Saves: the time in which the server waits for the next request of a producer that enqueues batch after
batch. A verb's first statement is written when the verb is made, so this work, too, falls into the wait
for the batch before. docs/performance.md has the gain. Equals: running the verb when its answer is
wanted (`storage.verbs.Unhurried`).

Between the two halves the caller's own code runs: the iterable that gives the next calls. So the time
limit of the answer begins when it is wanted, and the pool's last place is never held meanwhile.
"""

from __future__ import annotations

import os
from typing import Generic, TypeVar

from winch.drivers.postgres.connections import libpq
from winch.drivers.postgres.connections.libpq import OwnConnection, Progress, Written, script
from winch.drivers.postgres.connections.pool import SyncPool
from winch.drivers.postgres.statements import Rows
from winch.storage.verbs import Verb

T = TypeVar("T")


class SentInHalves(Generic[T]):
    """A verb whose first statement is on its way while its caller does something else."""

    def __init__(self, pool: SyncPool, verb: Verb[T]) -> None:
        self._pool = pool
        self._verb = verb
        self._progress = Progress()
        self._steps = script(verb, self._progress)
        first = next(self._steps, None)
        self._written: Written | None = None if first is None else libpq.write(first)
        self._link: OwnConnection | None = None
        self._failed: Exception | None = None
        self._pid = os.getpid()

    def send(self) -> None:
        """Send the statement, where the pool has a connection to spare. Else `answer` runs the verb."""
        if self._written is None:
            return
        link = self._pool.spare()
        if link is None:
            return
        try:
            libpq.send(link, self._written, self._pool.deadline())
        except Exception as error:
            self._failed = error
        except BaseException:  # the caller is interrupted and never asks for the answer
            self._pool.give_up(link)
            raise
        self._link = link

    def answer(self) -> T:
        link, self._link = self._link, None
        written, failed = self._written, self._failed
        # A forked child has no part in what was sent.
        if link is None or written is None or self._pid != os.getpid():
            return self._pool.run(self._verb)

        def first_rows(link: OwnConnection, deadline: float) -> Rows:
            if failed is not None:
                raise failed
            return libpq.receive(link, written, deadline)

        return self._pool.finish(link, self._verb, self._steps, self._progress, first_rows)
