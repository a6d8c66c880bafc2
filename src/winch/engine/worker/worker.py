"""One worker: its slots, and the services that fill and empty them.

It runs in a child process under a supervisor, or embedded in an application. Either way another part
beats its session's heart; the worker claims, runs and finishes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
import time
from collections.abc import Callable, Mapping

from winch.core.errors import ConfigError, StorageError
from winch.core.policy.labels import meets
from winch.core.policy.queue_settings import QueueSettings
from winch.core.values.ids import random_id
from winch.engine.base import operation
from winch.engine.base.log import log
from winch.engine.base.loops import LoopEnded, Loops, log_ended
from winch.engine.base.service import Backoff, Service
from winch.engine.client.needs import Needs, publish_needs
from winch.engine.maintenance.queue_settings import QueueRules
from winch.engine.maintenance.spool_forwarder import Forwarder
from winch.engine.observe.throughput import RateWriter, Tally
from winch.engine.observe.usage import UsageWriter
from winch.engine.tasks.gates import declared, has_gates
from winch.engine.tasks.runtime import Runtime
from winch.engine.worker.announce import WorkerStarted
from winch.engine.worker.attempt import Attempt, Interrupt
from winch.engine.worker.config import WorkerConfig, worker_name
from winch.engine.worker.executor import Executor
from winch.engine.worker.fetcher import Fetcher, FetchSettings, GiveUps
from winch.engine.worker.finisher import Finisher
from winch.engine.worker.held_jobs import HeldJobs
from winch.engine.worker.monitors import Cancels, Notes, Watch
from winch.engine.worker.outcomes import Recorder
from winch.engine.worker.queues.discovery import NewQueues, known_queues
from winch.engine.worker.queues.order import QueueOrder, pushes_only
from winch.engine.worker.recycling import Recycling
from winch.engine.worker.room import Reserved
from winch.engine.worker.running.parts import Parts
from winch.engine.worker.running.process import IsolatedProcesses, IsolationFailed
from winch.engine.worker.running.threads import Threads
from winch.engine.worker.slots import Slots
from winch.engine.worker.started_jobs import StartedJobs, StartedPlaces
from winch.storage.params import Declared, NewSession
from winch.storage.protocol import Driver

# The last part of a drain's grace is for handlers that are interrupted: a quarter of it, within these.
LEAST_CLEAN_UP, MOST_CLEAN_UP = 0.4, 5.0


class Worker:
    """Claims jobs, runs `concurrency` of them at once, and finishes them."""

    def __init__(
        self,
        driver: Driver,
        runtime: Runtime,
        config: WorkerConfig,
        *,
        started: StartedJobs | None = None,
        on_session: Callable[[str], None] = lambda _: None,
        rng: random.Random | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        random_bytes: Callable[[int], bytes] = os.urandom,
        threads: Threads | None = None,
    ) -> None:
        """`started`: the page on which a supervisor reads which jobs have started. The clock, the
        randomness and the threads are arguments so that tests can bring their own."""
        self._driver = driver
        self._runtime = runtime
        self._config = config
        self._pushes = pushes_only(config.order.named, runtime.pushed)
        self._tasks = () if self._pushes else self._runnable()  # before there is anything to close
        self._on_session = on_session
        self._rng = rng or random.Random()  # noqa: S311  # jitter and queue order, not secrets
        self._monotonic = monotonic
        self._random_bytes = random_bytes
        self._threads = threads or Threads(config.concurrency, asyncio.get_running_loop())
        # Burst: nothing left; else to be replaced, see why_retiring.
        self.drained: asyncio.Event = asyncio.Event()
        self._recycling = Recycling(
            config.max_jobs,
            config.max_memory,
            config.max_lifetime,
            rng=self._rng,
            now=monotonic(),
            on_retire=self.drained.set,
        )
        self._processes = (
            None
            if config.process_command is None or config.process_store is None
            else IsolatedProcesses(
                config.process_command, config.process_store, config.max_jobs, config.max_memory
            )
        )
        self.tally: Tally = Tally(os.urandom(8).hex(), worker_name())
        runtime.counted = self.tally.enqueued
        # A started job has a place on its supervisor's page until the store knows of its end.
        places = None if started is None else StartedPlaces(started, config.kill_after)
        self._jobs = HeldJobs(
            places, self._recycling, too_old=config.lease.total_seconds() / 2, monotonic=monotonic
        )
        self._executor = Executor(
            runtime,
            self._threads,
            monotonic,
            self._rng,
            lambda: driver,
            self._processes,
            counts_jobs=self._recycling.counts_jobs,
        )
        self._finisher = Finisher(driver, runtime, places, self.tally, slots=config.concurrency)
        recorder = Recorder(self._finisher, self._jobs, runtime.events, self.tally)
        self._slots = Slots(
            driver,
            runtime,
            Parts(self._jobs, self._executor, recorder),
            self._threads,
            config.concurrency,
            is_burst=config.burst,
            on_drained=self.drained.set,
            on_broken=self.broke,
        )
        self._services: list[Service] = []
        self._loops = Loops(self.broke)
        self._is_quiet = False
        self._end_by = float("inf")
        self._is_sooner = asyncio.Event()
        self._is_ending = False
        self.broken: LoopEnded | IsolationFailed | None = None

    # -- life --------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Make the app's resources, begin a session and start all services."""
        await self._runtime.start()
        await self._choose_queues()
        await self._new_session()
        await self._declare_limits()
        config, tasks = self._config, self._runtime.tasks
        self._fetcher = Fetcher(
            self._driver,
            FetchSettings(
                self.order,
                None if self._pushes else self._tasks,
                config.poll,
                is_gated=self._pushes or any(has_gates(tasks.get(name).options) for name in self._tasks),
                # Not with a lease so short that a claim that waited would look too old.
                waits_in_store=config.poll <= self._jobs.too_old / 4 and not config.queue_limits,
                at_once=None if any(task.options.collect for task in tasks) else config.concurrency,
            ),
            self._slots,
            monotonic=self._monotonic,
            random_bytes=self._random_bytes,
            bounds=self._slots.bounds(config.queue_limits),
        )
        self._fetcher.quiet(self._is_quiet)
        self._slots.fetch_from(self._fetcher)
        self._finisher.claim_with(self._fetcher.finish_and_claim)
        self._services = [
            self._fetcher,
            GiveUps(
                self._fetcher,
                every=config.heartbeat,
                lease=config.lease.total_seconds(),
                in_use=self._slots.tokens,
            ),
            Watch(self._jobs, config.kill_after, self._slots.release_hoarded),
            Cancels(self._driver, self._jobs),
            Notes(self._driver, self._jobs),
        ]
        if self._slots.weights.differ:
            self._services.append(
                Reserved(
                    self._driver,
                    self._slots.weights,
                    config.poll,
                    session=lambda: self.session,
                    on_free=self._fetcher.slot_freed,
                )
            )
        if not isinstance(config.order, QueueOrder):
            self._services.append(
                NewQueues(
                    self._driver,
                    self._runtime,
                    lambda known: config.order_among(known, self._rng).names,
                    self.order.names,
                    self.retire if config.is_replaced else None,
                )
            )
        rules = QueueRules(self._driver, self._set_for_queues)
        try:
            await rules.run_once()  # before the first claim, so that no job is judged without them
        except StorageError as error:
            log.warning("the settings of queues are not read yet: %s", error)
        self._services.append(rules)
        self._services.append(RateWriter(self._driver, self.tally))
        if config.supervisor:
            self._services.append(
                UsageWriter(
                    self._driver, lambda: self._jobs.session, config.max_memory, lambda: self._is_quiet
                )
            )
        if config.spool is not None:
            # Before the first claim: a burst would be over before it has seen the spooled jobs.
            forwarder = Forwarder(self._driver, config.spool)
            try:
                await forwarder.run_once()
            except StorageError as error:
                log.warning("the spool is not forwarded yet: %s", error)
            self._services.append(forwarder)
        self._fetching = self._loops.serve(self._fetcher)
        for service in self._services[1:]:
            self._loops.serve(service)
        self._finishing = self._loops.start("finisher", self._finisher.run())
        for slot in range(config.concurrency):
            self._loops.start(f"slot {slot}", self._slots.run(slot))

    def started(self) -> WorkerStarted:
        """What this worker does from now on, for the line that announces it."""
        tasks = self._runtime.tasks
        return WorkerStarted(
            queues=self.order.names,
            tasks=len(self._tasks),
            slots=self._config.concurrency,
            uses={
                task.options.queue: task.name
                for task in tasks
                if task.options.queue not in self._runtime.pushed
            },
            pushes=self._pushes,
        )

    async def _choose_queues(self) -> None:
        """Settle which queues `*` stands for."""
        known: set[str] = set()
        if not isinstance(self._config.order, QueueOrder):
            known = await known_queues(self._driver, self._runtime)
        self.order: QueueOrder = self._config.order_among(known, self._rng)

    def _runnable(self) -> tuple[str, ...]:
        """The tasks that this worker can run: it has the labels and the slots that they need. It claims
        no others."""
        tasks, labels = self._runtime.tasks, self._config.labels
        own = [task for task in tasks if task.has_code]
        fitting = [task for task in own if task.options.slots <= self._config.concurrency]
        names = tuple(task.name for task in fitting if meets(labels, task.options.needs))
        if own and not names:
            raise ConfigError(
                "every task of the app needs labels or slots that this worker does not have"
            )
        return names

    async def _declare_limits(self) -> None:
        """Publish the limits and the needs of this code: the last worker to start wins."""
        tasks = self._runtime.tasks
        needs = {task.name: Needs(task.options.needs, task.options.slots) for task in tasks}
        await operation.arun(self._driver, publish_needs(self._driver, needs))
        specs = declared(tasks.get(name) for name in tasks.names)
        if specs:
            await self._driver.arun(self._driver.set_limits(specs, by=None))

    async def _new_session(self) -> None:
        session = NewSession(
            id=random_id(self._random_bytes(16)),
            worker=worker_name(),
            host=socket.gethostname(),
            pid=os.getpid(),
            release=self._config.release,
            queues=self.order.names,
            tasks=self._tasks,
            slots=self._config.concurrency,
            lease=self._config.lease,
            schedules=self._declared(),
            supervisor=self._config.supervisor,
            labels=dict(self._config.labels),
            queue_limits=dict(self._config.queue_limits),
        )
        await self._driver.arun(self._driver.start_session(session))
        self._jobs.session = self._executor.worker = session.id
        self._on_session(session.id)

    def _set_for_queues(self, settings: Mapping[str, QueueSettings]) -> None:
        self._executor.chooser.settings = settings

    def _declared(self) -> tuple[Declared, ...]:
        """The schedules of the app's code."""
        return self._runtime.schedules.declared()

    async def session_lost(self, session: str) -> None:
        """The store no longer honours this session: drop what it claimed, and start anew."""
        if session != self.session or self._is_ending:  # a beat crossed our own end of the session
            return
        log.warning(
            "session %s is no longer live: other workers have its jobs. Ending %d running handlers "
            "and starting a new session",
            session,
            len(self._jobs.attempts),
        )
        self._slots.drop()
        self._jobs.interrupt_all(Interrupt.LOST)
        if self._services:  # it may be lost while this worker still starts
            self._fetcher.given_up.clear()
        if self._jobs.is_draining:
            return
        backoff = Backoff("session")
        while True:
            try:
                await self._new_session()
            except StorageError as error:
                await asyncio.sleep(backoff.failed(error))
            else:
                return

    def quiet(self, is_quiet: bool) -> None:
        self._is_quiet = is_quiet
        if self._services:
            self._fetcher.quiet(is_quiet)
        for service in self._services:
            if isinstance(service, UsageWriter):
                service.end_idling()  # people look at once

    async def drain(self, grace: float) -> int:
        """Stop claiming, let running jobs end, release the rest, all within `grace` seconds. What still
        runs in the last part of them is interrupted, so that it can clean up before they are over.

        Returns how many claims are left to the lease, because the store did not answer in time.
        """
        began = self._monotonic()
        self.end_by(began + grace)
        self._jobs.is_draining = True
        self._fetcher.stop()
        # The fetcher may be in the middle of a claim: its answer is waited for, so nothing is left.
        await asyncio.wait([self._fetching], timeout=max(min(grace, 30.0), 5.0))
        self._slots.release_unstarted()
        await self._until_due(began)
        self._jobs.interrupt_all(Interrupt.STOP)
        await self._until_ended(max(self._end_by - self._monotonic(), LEAST_CLEAN_UP))
        for attempt in self.attempts:
            self._jobs.give_up(attempt)
        await self._until_ended(1.0)
        await self._flush(max(5.0, min(self._end_by - self._monotonic(), 30.0)))
        left = self._finisher.pending + len(self._jobs.attempts)
        await self._end(left)
        return left

    def end_by(self, moment: float) -> None:
        """Have the drain end at this moment; a later one changes nothing."""
        self._end_by = min(self._end_by, moment)
        self._is_sooner.set()

    def broke(self, ended: LoopEnded | IsolationFailed) -> None:
        """A loop has ended that should not have, or no isolated job can run: this worker claims nothing
        more and wants to be drained."""
        if self.broken is None:
            self.broken = ended
            self._slots.close()
            log_ended(ended, "This worker takes no more jobs and stops")
            self.drained.set()

    def abandon(self) -> None:
        """Its process is gone, as far as its world is concerned: its loops may end as they like."""
        self._loops.forget()

    def retire(self, why: str) -> None:
        """Claim nothing more and have this worker replaced; what runs may end."""
        self._recycling.retire(why)

    @property
    def why_retiring(self) -> str | None:
        return self._recycling.why

    def time_needed(self, otherwise: float) -> float:
        """How long the running jobs may take by their own timeouts; `otherwise` for those without."""
        now, more = self._monotonic(), 2 * self._config.kill_after
        return max(
            (
                otherwise if attempt.deadline is None else attempt.deadline - now + more
                for attempt in self.attempts
            ),
            default=0.0,
        )

    async def _until_due(self, began: float) -> None:
        """Wait until all has ended, or until handlers have to be asked to end. A second request to stop
        may move that closer."""
        ended = asyncio.ensure_future(self._slots.all_ended.wait())
        while not ended.done():
            clean_up = min(MOST_CLEAN_UP, (self._end_by - began) / 4)
            left = self._end_by - clean_up - self._monotonic()
            if left <= 0:
                break
            self._is_sooner.clear()
            sooner = asyncio.ensure_future(self._is_sooner.wait())
            await asyncio.wait([ended, sooner], timeout=left, return_when=asyncio.FIRST_COMPLETED)
            sooner.cancel()
        ended.cancel()

    async def _until_ended(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(max(seconds, 0.0)):
                await self._slots.all_ended.wait()
        except TimeoutError:
            pass

    async def _flush(self, seconds: float) -> None:
        if self._finishing.done():  # it broke; what the jobs came to is worth one more try
            self._finishing = self._loops.start("finisher", self._finisher.run())
        flushed = asyncio.ensure_future(self._finisher.flushed())
        await asyncio.wait(
            [flushed, self._finishing], timeout=seconds, return_when=asyncio.FIRST_COMPLETED
        )
        flushed.cancel()
        if self._finisher.pending:
            log.error(
                "the store did not answer in time; %d outcomes are not written", self._finisher.pending
            )

    async def _end(self, left: int) -> None:
        self._is_ending = True
        if not left:
            try:
                async with asyncio.timeout(5.0):
                    await self._driver.arun(self._driver.end_session(self.session))
            except (StorageError, TimeoutError) as error:
                log.warning("the session was not ended; its lease ends by itself: %s", error)
        for service in self._services:
            service.stop()
            if isinstance(service, RateWriter):
                with contextlib.suppress(StorageError, TimeoutError):  # numbers, not jobs
                    async with asyncio.timeout(2.0):
                        await service.run_once()
        await self._loops.stop()
        self._threads.close()
        if self._processes is not None:
            await self._processes.close()
        await self._runtime.stop()

    # -- running jobs ------------------------------------------------------------------------------

    @property
    def session(self) -> str:
        return self._jobs.session

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        return self._jobs.running

    def lease_over(self) -> None:
        """The store has been away for a lease: what must not run twice stops."""
        self._jobs.lease_over()
