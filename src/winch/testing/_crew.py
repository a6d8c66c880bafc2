"""One virtual worker: the engine's own parts, put together as an embedded worker does it.

Three things differ. Its heart beats on the loop and not in a thread; plain functions run at once on
the loop, so that the order of everything is the same in each run; and a task's own process
(`isolate="process"`) is left out.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence

from winch.core.errors import StorageError
from winch.core.values.clock import Clock
from winch.engine.base import operation
from winch.engine.base.loops import Loops
from winch.engine.base.service import Service, polling
from winch.engine.base.settings import Settings
from winch.engine.maintenance.promoter import Promoter
from winch.engine.maintenance.pruner import Pruner
from winch.engine.maintenance.rescuer import Rescuer
from winch.engine.maintenance.ticker import Ticker
from winch.engine.supervisor.heartbeat import Heart
from winch.engine.tasks.events import Events
from winch.engine.tasks.runtime import Runtime
from winch.engine.worker.attempt import Interrupt
from winch.engine.worker.config import WorkerConfig
from winch.engine.worker.queues.order import QueueOrder, Queues
from winch.engine.worker.running.threads import ThreadCall, Threads
from winch.engine.worker.worker import Worker
from winch.storage.protocol import Driver
from winch.testing._life import CrashInHandler, Life, WorkerStorage

ROUNDS = 10


class InlineThreads(Threads):
    """No threads at all: a function is called where it is submitted."""

    makes_rows = False

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(0, loop)

    def start(self, call: ThreadCall) -> None:
        # A thread of a worker runs no loop. Django looks for one: it refuses queries beside it, and
        # opens other connections than those of the test.
        loop = asyncio._get_running_loop()
        asyncio._set_running_loop(None)
        try:
            call.execute()
        finally:
            asyncio._set_running_loop(loop)
        if call.done is not None:
            call.done.set_result(None)


def own_runtime(shared: Runtime) -> Runtime:
    """The same tasks, hooks and subscribers, with resources of its own."""
    own = Runtime()
    own.tasks, own.middleware = shared.tasks, shared.middleware
    own.events, own.lifespans = shared.events, shared.lifespans
    own.schedules, own.crash_rule = shared.schedules, shared.crash_rule
    own.keys = shared.keys
    return own


class EveryQueue(QueueOrder):
    """All queues that a task or a job names, whenever it comes to name it."""

    def __init__(self, find: Callable[[], Sequence[str]], rng: random.Random) -> None:
        super().__init__(dict.fromkeys(find()), rng)
        self._find = find
        self.strict = None

    def next(self) -> tuple[str, ...]:
        return tuple(self._find())


class Crew:
    """A worker with its services and its heart, and a life that can end at any moment."""

    def __init__(
        self,
        store: Driver,
        shared: Runtime,
        settings: Settings,
        life: Life,
        *,
        order: Queues,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self.life = life
        self._driver = WorkerStorage(store, life).driver
        self._shared = shared
        self._runtime = own_runtime(shared)
        self._heart = Heart(self._driver, settings.lease.total_seconds(), clock.monotonic)
        self._settings = settings
        self._clock = clock
        config = WorkerConfig(
            order=order,
            concurrency=settings.concurrency,
            lease=settings.lease,
            heartbeat=settings.heartbeat.total_seconds(),
            poll=settings.poll.total_seconds(),
            release="",
        )
        self.worker = Worker(
            self._driver,
            self._runtime,
            config,
            on_session=self._heart.add,
            rng=rng,
            monotonic=clock.monotonic,
            random_bytes=rng.randbytes,
            threads=InlineThreads(asyncio.get_running_loop()),
        )
        self._services: list[Service] = []
        self._loops = Loops(self.worker.broke)

    async def start(self) -> None:
        self._loops.start("heart", self._beat())
        await self.worker.start()
        settings = self._settings
        self._services = [
            Promoter(self._driver, settings.poll.total_seconds(), hair=0.0),
            Ticker(
                self._driver,
                settings.poll.total_seconds(),
                misfire_deadline=settings.misfire_deadline,
                hair=0.0,
            ),
            Rescuer(
                self._driver,
                settings.sweep.total_seconds(),
                self._heart.proven_at,
                self.worker.tally,
                self._runtime.events,
            ),
            Pruner(self._driver),
        ]
        for service in self._services:
            self._loops.serve(service)

    async def _beat(self) -> None:
        polling.set("heart")
        while True:
            await asyncio.sleep(self._settings.heartbeat.total_seconds())
            try:
                lost = await operation.arun(self._driver, self._heart.beat())
            except StorageError:
                continue
            for session in lost:
                await self.worker.session_lost(session)

    def crash_in_handlers(self) -> None:
        """From now on handlers are a place to die at."""
        self._runtime.middleware = [*self._shared.middleware, CrashInHandler(self.life)]

    async def stop(self) -> None:
        """Give back what it holds and end."""
        await self.worker.drain(0.0)
        await self._loops.stop()

    async def bury(self) -> None:
        """Clean up after a worker that was killed: its handlers end here, unheard."""
        self._runtime.events, self.life.is_thawed = Events(), True
        self.worker.abandon()
        self._loops.forget()
        for attempt in self.worker.attempts:
            attempt.interrupt(Interrupt.LOST, self._clock.monotonic())
        for _ in range(ROUNDS):  # a cancellation may be taken for the handler's own
            left = [task for task in self.life.tasks if not task.done()]
            for task in left:
                task.cancel()
            if left:
                await asyncio.wait(left, timeout=1.0)
        await self._runtime.stop()
