"""A worker inside the application's own process: the same engine without a supervisor.

Its heart beats in a thread of its own, so that a blocked event loop does not lose the lease; only
code that holds the GIL can. For more safety run `winch worker`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Sequence
from typing import Protocol

from winch.core.errors import ConfigError, StorageError
from winch.core.policy.labels import check_labels
from winch.core.policy.queue_limits import parse_limits, parse_rates
from winch.core.policy.queue_limits import queue_limits as bounds_of
from winch.core.values.duration import parse_duration
from winch.engine.base import operation
from winch.engine.base.log import log
from winch.engine.base.loops import Loops, threads_watched
from winch.engine.base.service import Service
from winch.engine.base.settings import Settings
from winch.engine.client.spool import Spool
from winch.engine.maintenance.promoter import Promoter
from winch.engine.maintenance.pruner import Pruner
from winch.engine.maintenance.rescuer import Rescuer
from winch.engine.maintenance.ticker import Ticker
from winch.engine.supervisor.commands import StacksWithoutLoop, WorkerCommands
from winch.engine.supervisor.forking import ForkGuard
from winch.engine.supervisor.heartbeat import Heart, Leases
from winch.engine.supervisor.worker_options import WorkerOptions
from winch.engine.tasks.runtime import Runtime
from winch.engine.worker.config import WorkerConfig
from winch.engine.worker.queues.order import queues_of
from winch.engine.worker.running.process import ProcessStore
from winch.engine.worker.stacks import stacks_text
from winch.engine.worker.worker import Worker
from winch.storage.protocol import Driver


class Host(Protocol):
    """What an embedded worker needs of its app."""

    @property
    def settings(self) -> Settings: ...

    @property
    def driver(self) -> Driver: ...

    @property
    def runtime(self) -> Runtime: ...

    @property
    def spool(self) -> Spool | None: ...


class EmbeddedWorker:
    """`async with app.worker(): …` runs jobs until the block ends.

    A worker that loses one of its loops gives its jobs back at once, and the block raises at its end.
    """

    def __init__(
        self, host: Host, options: WorkerOptions, process_command: tuple[str, ...] | None
    ) -> None:
        """`options`: those that need no supervisor. Others have no effect here."""
        settings = host.settings
        queues, grace = options.get("queues", ("default",)), options.get("grace")
        limits, rates = options.get("queue_limits"), options.get("queue_rates")
        self._driver = host.driver
        self._runtime = host.runtime
        self._settings = settings
        self._is_up = False
        ending = settings.grace if grace is None else parse_duration(grace, "grace")
        self._grace = ending.total_seconds()
        self._config = WorkerConfig(
            order=queues_of(queues, random.Random()),  # noqa: S311  # order, not a secret
            concurrency=options.get("concurrency") or settings.concurrency,
            lease=settings.lease,
            heartbeat=settings.heartbeat.total_seconds(),
            poll=settings.poll.total_seconds(),
            burst=bool(options.get("burst")),
            process_command=process_command,
            process_store=ProcessStore(settings.url, settings.schema),
            kill_after=settings.kill_after.total_seconds(),
            spool=host.spool,
            supervisor=os.urandom(8).hex(),
            labels=check_labels(options.get("labels") or {}, "labels"),
            queue_limits=bounds_of(
                settings.queue_limits if limits is None else parse_limits(limits, "queue_limits"),
                settings.queue_rates if rates is None else parse_rates(rates, "queue_rates"),
            ),
        )
        if process_command is None:
            alone = [task.name for task in host.runtime.tasks if task.options.isolate is not None]
            if alone:
                raise ConfigError(
                    f"task {alone[0]} runs in a process of its own, which has to import the app: define "
                    "the app at the top of an importable module, or use `winch worker -A module:app`"
                )

    async def __aenter__(self) -> Worker:
        settings = self._settings
        self._loop = asyncio.get_running_loop()
        lease = settings.lease.total_seconds()
        self._heart = Heart(self._driver, lease, time.monotonic)
        self._stopped = threading.Event()
        self.worker: Worker = Worker(
            self._driver, self._runtime, self._config, on_session=self._heart.add
        )
        # Before the worker starts: between its session and its first claim it asks the store several
        # things, and a slow store would let its lease run out meanwhile.
        self._beating = threading.Thread(target=self._beat, name="winch-heart", daemon=True)
        self._loops = Loops(self.worker.broke)
        self._commands = WorkerCommands(self._driver, self._loops, _Control(self, self._grace))
        self._blocked = StacksWithoutLoop(
            self._driver, lambda: stacks_text(self.worker.attempts, is_blocked=True)
        )
        self._halted = asyncio.Event()
        self._halting: asyncio.Task[int] | None = None
        self._ending = asyncio.Lock()
        self._left: int | None = None
        self._watched = threads_watched(self.worker.broke)
        self._watched.__enter__()
        self._beating.start()
        try:
            await self.worker.start()
        except BaseException:
            self._stopped.set()
            self._watched.__exit__(None, None, None)
            raise
        self._services: list[Service] = [
            Promoter(self._driver, settings.poll.total_seconds()),
            Ticker(
                self._driver,
                settings.poll.total_seconds(),
                misfire_deadline=settings.misfire_deadline,
            ),
            Rescuer(
                self._driver,
                settings.sweep.total_seconds(),
                self._heart.proven_at,
                self.worker.tally,
                self._runtime.events,
            ),
            Pruner(self._driver),
            Leases(self._heart, min(self._config.heartbeat, lease / 10), self.worker.lease_over),
        ]
        for service in self._services:
            self._loops.serve(service)
        self._guarding = asyncio.create_task(self._guard(), name="winch guard")
        self._is_up = True
        return self.worker

    async def __aexit__(self, *error: object) -> None:
        await self.stop(self._grace)

    async def stop(self, grace: float) -> int:
        """Drain and end; returns how many claims are left to their lease. Raises what broke it, if it
        has stopped by itself."""
        left = await self._end(grace)
        self._guarding.cancel()
        if self.worker.broken is not None:
            raise self.worker.broken
        return left

    async def _guard(self) -> None:
        """Stop at once when a loop has ended, whatever the block still does: others run the jobs."""
        await self.worker.drained.wait()
        if self.worker.broken is not None:
            await self._end(self._grace)

    def halt(self, grace: float) -> None:
        """Stop by a command, whatever the block still does."""
        self.worker.quiet(True)
        self._halted.set()
        self.worker.end_by(time.monotonic() + grace)
        if self._halting is None:
            self._halting = asyncio.create_task(self._end(grace), name="winch halt")

    @property
    def is_halted(self) -> bool:
        """Whether a command has ended it."""
        return self._halted.is_set()

    async def _end(self, grace: float) -> int:
        self.worker.end_by(time.monotonic() + grace)  # where another call waits for longer
        async with self._ending:
            if self._left is None:
                self._left = await self.worker.drain(grace)
                await self._commands.flush()
                self._stopped.set()
                for service in self._services:
                    service.stop()
                await self._loops.stop()
                await asyncio.to_thread(self._beating.join, 5.0)
                self._watched.__exit__(None, None, None)
        return self._left

    async def run_until_stopped(self) -> None:
        """Run until SIGTERM or SIGINT, or until drained in burst mode."""
        asked = asyncio.Event()
        loop = asyncio.get_running_loop()
        handled = []
        guard = ForkGuard([signal.SIGTERM, signal.SIGINT])
        for number in (signal.SIGTERM, signal.SIGINT):
            with contextlib.suppress(
                ValueError, NotImplementedError, RuntimeError
            ):  # not the main thread
                loop.add_signal_handler(number, asked.set)
                handled.append(number)
        try:
            worker = await self.__aenter__()
            ends = (asked, worker.drained, self._halted)
            waits = [asyncio.create_task(event.wait()) for event in ends]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()
            if self._halting is not None:
                sooner = asyncio.create_task(asked.wait())
                await asyncio.wait([sooner, self._halting], return_when=asyncio.FIRST_COMPLETED)
                sooner.cancel()
            await self.stop(self._grace)
        finally:
            await self._driver.aclose()
            guard.close()
            for number in handled:
                loop.remove_signal_handler(number)

    def _beat(self) -> None:
        pause = self._config.heartbeat
        while not self._stopped.wait(pause):
            try:
                lost = operation.run(self._driver, self._heart.beat())
            except StorageError as error:
                log.warning("heartbeat: the store is out of reach: %s", error)
                continue
            for session in lost:
                self._loop.call_soon_threadsafe(self._renew, session)
            if not self._is_up:
                continue
            self._blocked.beaten(self._heart.commands)
            if self._heart.commands:
                self._loop.call_soon_threadsafe(self._commands.received, self._heart.commands)

    def _renew(self, session: str) -> None:
        self._loops.start("session", self.worker.session_lost(session), may_return=lambda: True)


class _Control:
    """What commands do to an embedded worker."""

    def __init__(self, embedded: EmbeddedWorker, grace: float) -> None:
        self._embedded = embedded
        self._grace = grace

    @property
    def grace(self) -> float:
        return self._grace

    def stop(self, grace: float) -> None:
        self._embedded.halt(grace)

    def quiet(self, is_quiet: bool) -> None:
        self._embedded.worker.quiet(is_quiet or self._embedded.is_halted)

    async def stacks(self, session: str) -> str:
        return stacks_text(self._embedded.worker.attempts)

    def configure(self, changed: Sequence[str]) -> str:
        raise ConfigError(
            "this worker runs inside an application and has no successor; change it there, or run "
            "`winch worker`"
        )


def process_command(app_spec: str | None) -> tuple[str, ...] | None:
    """How to start an isolated process for this app; None when no name imports the app."""
    if app_spec is None:
        return None
    return (sys.executable, "-m", "winch", "isolated-child", "--app", app_spec)
