"""What a server does beside answering: it promotes, ticks, rescues and prunes as a worker does, so
that workers in other languages need no Python process beside them; it keeps the schedules of its app's
code active, so that workers can be scaled to zero; and it samples the queues.

A sweeper must have proof that the store could be reached for a whole lease before it calls any worker
lost. A supervisor has its own beats; a server has none, so it writes a line of its own at the same pace
and takes the store's time from a promote that follows it.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import time
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from winch.core.errors import StorageError
from winch.core.values.ids import random_id
from winch.core.version import __version__
from winch.engine.base import operation
from winch.engine.base.log import log
from winch.engine.base.service import Service
from winch.engine.maintenance.promoter import Promoter
from winch.engine.maintenance.pruner import Pruner
from winch.engine.maintenance.rescuer import Rescuer
from winch.engine.maintenance.ticker import Ticker
from winch.engine.observe.alerts import alerts_of
from winch.engine.observe.heartbeat_file import keep_heartbeat_file
from winch.engine.observe.queue_samples import lines_of, sample_of
from winch.engine.observe.throughput import RateWriter, Tally
from winch.engine.supervisor.heartbeat import Heart
from winch.storage.kv_records import KvRecord
from winch.storage.params import Declared, NewSession

if TYPE_CHECKING:
    from winch.app import App
    from winch.engine.base.settings import Settings
    from winch.storage.protocol import Driver

SAMPLE_EVERY = 10.0
# All jobs of all queues are counted: where that takes long it is done less often.
SAMPLE_SHARE = 20.0
# The first pages of a new server do not wait for its first sample.
SAMPLE_DELAY = 3.0


class Proof(Service):
    """Since when the store has answered this server's writes without a gap."""

    name = "proof"

    def __init__(self, driver: Driver, lease: float, every: float) -> None:
        super().__init__()
        self._driver = driver
        self._lease = lease
        self._every = every
        self._key = secrets.token_hex(8)
        self._since: float | None = None
        self._last = 0.0
        self._store_time: datetime | None = None

    async def run_once(self) -> float:
        sent = time.monotonic()
        line = KvRecord(book="server", key=self._key, body="{}", keep=timedelta(minutes=10))
        try:
            await self._driver.arun(self._driver.kv_put([line]))
            promoted = await self._driver.arun(self._driver.promote(limit=100))
        except BaseException:
            self._since = None
            raise
        answered = time.monotonic()
        has_jumped = False
        if self._store_time is not None:
            passed = (promoted.now - self._store_time).total_seconds()
            has_jumped = abs(passed - (answered - self._last)) > self._lease / 3
        if self._since is None or sent - self._last > self._lease or has_jumped:
            self._since = answered
        self._last, self._store_time = answered, promoted.now
        return self._every

    def proven_at(self) -> datetime | None:
        """As `Heart.proven_at`: the store's time of the last answer, after a whole lease of answers."""
        now = time.monotonic()
        if self._since is None or now - self._last > self._lease:
            return None
        return self._store_time if now - self._since >= self._lease else None


class Declaration(Service):
    """Keeps the schedules of the app's code active while this server runs.

    With workers scaled to zero nothing else declares them, no job would come, and nothing would start a
    worker again. The session serves no queue, so that it counts as no worker.
    """

    name = "declaration"

    def __init__(self, driver: Driver, schedules: tuple[Declared, ...], settings: Settings) -> None:
        super().__init__()
        self._driver = driver
        self._schedules = schedules
        self._lease = settings.lease
        self._every = settings.heartbeat.total_seconds()
        self._heart = Heart(driver, settings.lease.total_seconds(), time.monotonic)
        self._session: str | None = None

    async def run_once(self) -> float:
        lost = await operation.arun(self._driver, self._heart.beat())
        if self._session is None or lost:
            await self._begin()
        return self._every

    async def _begin(self) -> None:
        session = NewSession(
            id=random_id(os.urandom(16)),
            worker=f"{socket.gethostname()}-{os.getpid()}",
            host=socket.gethostname(),
            pid=os.getpid(),
            release=__version__,
            queues=(),
            tasks=(),
            slots=0,
            lease=self._lease,
            schedules=self._schedules,
        )
        await self._driver.arun(self._driver.start_session(session))
        self._session = session.id
        self._heart.add(session.id)

    async def end(self) -> None:
        """Take the declaration back; where the store is out of reach, the lease ends it."""
        if self._session is None:
            return
        try:
            async with asyncio.timeout(5.0):
                await self._driver.arun(self._driver.end_session(self._session))
        except (StorageError, TimeoutError) as error:
            log.warning("the session was not ended; its lease ends by itself: %s", error)


class Sampler(Service):
    """Notes how long the queues are, for the chart of the backlog."""

    name = "sampler"
    is_vital = False

    def __init__(self, driver: Driver, *, delay: float = 0.0) -> None:
        super().__init__()
        self._driver = driver
        self._delay = delay

    async def run_once(self) -> float:
        if self._delay:
            delay, self._delay = self._delay, 0.0
            return self.unasked(delay)
        began = time.monotonic()
        queues = await self._driver.arun(self._driver.queues())
        spent = time.monotonic() - began
        sessions = await self._driver.arun(self._driver.sessions())
        workers = [session for session in sessions if session.is_worker]
        now = time.time()
        await self._driver.arun(self._driver.kv_put(lines_of(sample_of(queues, workers, now), now)))
        return max(SAMPLE_EVERY, SAMPLE_SHARE * spent)


class Upkeep:
    """The services of one server: `async with Upkeep(app): …`."""

    def __init__(self, app: App, *, is_read_only: bool) -> None:
        self._app = app
        self._is_read_only = is_read_only

    async def __aenter__(self) -> None:
        driver, settings = self._app.driver, self._app.settings
        self._services: list[Service] = []
        self._declaration: Declaration | None = None
        # A read-only server may run on a role that cannot write; it leaves the upkeep to others.
        if not self._is_read_only:
            lease = settings.lease.total_seconds()
            poll, deadline = settings.poll.total_seconds(), settings.misfire_deadline
            ticker = Ticker(driver, poll, misfire_deadline=deadline)
            self._app.runtime.missed = ticker.missed
            tally = Tally(secrets.token_hex(8))
            proof = Proof(driver, lease, settings.heartbeat.total_seconds())
            self._services = [
                proof,
                Promoter(driver, settings.poll.total_seconds()),
                ticker,
                Rescuer(
                    driver,
                    settings.sweep.total_seconds(),
                    proof.proven_at,
                    tally,
                    self._app.runtime.events,
                ),
                RateWriter(driver, tally),
                Pruner(driver),
                Sampler(driver, delay=SAMPLE_DELAY),
                alerts_of(driver, settings),
            ]
            schedules = self._app.runtime.schedules
            if schedules:
                self._declaration = Declaration(driver, schedules.declared(), settings)
                self._services.append(self._declaration)
        self._runners = [
            asyncio.create_task(service.run(), name=f"winch {service.name}")
            for service in self._services
        ]
        self._runners.append(asyncio.create_task(keep_heartbeat_file(), name="winch heartbeat file"))

    async def __aexit__(self, *_: object) -> None:
        for service in self._services:
            service.stop()
        for runner in self._runners:
            runner.cancel()
        await asyncio.gather(*self._runners, return_exceptions=True)
        if self._declaration is not None:
            await self._declaration.end()
