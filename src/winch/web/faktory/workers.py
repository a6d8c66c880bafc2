"""Workers of Faktory as workers of Winch: they are listed, and can be quieted and stopped.

A worker that fetches has a session that its heartbeats extend. Its jobs have sessions of their own.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Literal

import msgspec

from winch.core.values.ids import random_id
from winch.engine.base import operation
from winch.engine.client.worker_commands import CommandAnswer, WorkerCommand, store_answer
from winch.storage.params import NewSession
from winch.web.faktory.reservations import RELEASE

if TYPE_CHECKING:
    from winch.app import App

# Clients send a heartbeat every 15 seconds; Faktory forgets a worker after 60.
LEASE = timedelta(seconds=60)
MOST_WORKERS = 10_000
Order = Literal["", "quiet", "terminate"]
ORDERS: dict[str, Order] = {"quiet": "quiet", "stop": "terminate"}


@dataclass(slots=True)
class Presence:
    """What this gateway knows of a worker. Another gateway may have a presence of the same worker."""

    session: str
    queues: frozenset[str]
    order: Order = ""


class FaktoryWorkers:
    """The workers that fetch through this gateway."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._present: dict[str, Presence] = {}

    async def serves(self, worker: str, host: str, pid: int, queues: tuple[str, ...]) -> None:
        """Note that a worker fetches from these queues."""
        known = self._present.get(worker)
        if known is not None and known.queues >= set(queues):
            return
        driver = self._app.driver
        served = frozenset(queues) | (known.queues if known else frozenset())
        session = random_id(os.urandom(16))
        new = NewSession(
            id=session,
            worker=worker,
            host=host,
            pid=pid,
            release=RELEASE,
            queues=tuple(sorted(served)),
            tasks=(),
            slots=0,
            lease=LEASE,
            supervisor=session,
        )
        await driver.arun(driver.start_session(new))
        self._present[worker] = Presence(session, served, known.order if known else "")
        while len(self._present) > MOST_WORKERS:
            self._present.pop(next(iter(self._present)))
        if known is not None:
            await driver.arun(driver.end_session(known.session))

    async def beat(self, worker: str) -> Order:
        """A heartbeat; returns what an operator wants of the worker."""
        known = self._present.get(worker)
        if known is None:  # it has not fetched here: nothing to extend
            return ""
        driver = self._app.driver
        [pulse] = await driver.arun(driver.beat([known.session]))
        if not pulse.is_live:
            del self._present[worker]  # its next FETCH starts a new session
            return known.order
        for key, body in pulse.commands:
            command = msgspec.json.decode(body, type=WorkerCommand)
            if command.do in ORDERS:
                known.order = ORDERS[command.do]
                answer = CommandAnswer(state="done", text=f"sent with its heartbeat: {known.order}")
            else:
                answer = CommandAnswer(
                    state="failed", text=f"a worker of Faktory does not know {command.do!r}"
                )
            await operation.arun(driver, store_answer(driver, key, answer))
        return known.order

    async def end(self) -> None:
        """End the sessions: the gateway stops."""
        driver = self._app.driver
        for known in self._present.values():
            await driver.arun(driver.end_session(known.session))
