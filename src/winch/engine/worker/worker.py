"""One worker: slots, and the services that fill and empty them.

It runs in a child process under a supervisor, or embedded in an application. Either way somebody
else beats its session's heart; this part claims, runs and finishes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from winch.core.errors import StorageError
from winch.core.gates import holds_something
from winch.core.job import Claim
from winch.core.outcome import Settled
from winch.core.policy.queue_settings import QueueSettings
from winch.core.values.ids import random_id
from winch.engine.base.log import log
from winch.engine.base.loops import LoopEnded, Loops, tell
from winch.engine.base.service import Backoff, Service
from winch.engine.client.spool import Spool
from winch.engine.maintenance.queue_settings import QueueRules
from winch.engine.maintenance.spool_forwarder import Forwarder
from winch.engine.observe.store_ends import count_store_ends
from winch.engine.observe.throughput import RateWriter, Tally
from winch.engine.tasks.gates import declared, has_gates
from winch.engine.tasks.runtime import Runtime
from winch.engine.tasks.task import Task
from winch.engine.worker.announce import WorkerStarted
from winch.engine.worker.attempt import Attempt, Interrupt
from winch.engine.worker.executor import Call, Executor, Plan
from winch.engine.worker.fetcher import Fetcher, GiveUps
from winch.engine.worker.finisher import Finisher
from winch.engine.worker.interrupts import OnLoop, Paused
from winch.engine.worker.monitors import Cancels, Notes, Watch
from winch.engine.worker.new_queues import NewQueues, known_queues
from winch.engine.worker.outcomes import Recorder, ref_of
from winch.engine.worker.places import Places
from winch.engine.worker.prefetch import HOARD_LIMIT, MOST_AT_ONCE, Prefetch
from winch.engine.worker.queue_order import QueueOrder, Queues
from winch.engine.worker.recycling import Limits
from winch.engine.worker.running.collecting import Gatherings, Waiting
from winch.engine.worker.running.inline import Begun, Lane
from winch.engine.worker.running.process import CellFailed, Cells, CellStore
from winch.engine.worker.running.thread_pool import Threads
from winch.engine.worker.running.thread_rows import Rows
from winch.engine.worker.started_jobs import Board
from winch.storage.params import ClaimRef, Declared, Finish, NewSession
from winch.storage.protocol import Driver

# A slot whose jobs never wait lets the loop turn after so many seconds: claims and finishes must move.
TURN_EVERY = 0.001
# How often, and how long, a burst that is about to end waits for others who look at what jobs wait for.
UNBLOCK_TRIES = 100
# The last part of a drain's grace is for handlers that are asked to end: a quarter of it, within these.
LEAST_CLEAN_UP, MOST_CLEAN_UP = 0.4, 5.0
UNBLOCK_PAUSE = 0.01


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """How one worker runs. Seconds on the monotonic clock."""

    order: Queues
    concurrency: int
    lease: timedelta
    heartbeat: float
    poll: float
    release: str
    burst: bool = False
    cell_command: tuple[str, ...] | None = None
    cell_store: CellStore | None = None
    # How long an interrupted handler gets to end before it is given up, and a blocked loop is killed.
    kill_after: float = 10.0
    max_jobs: int | None = None
    max_memory: int | None = None
    max_lifetime: float | None = None
    spool: Spool | None = None
    # Whether a supervisor starts another worker in its place when this one retires.
    is_replaced: bool = False

    def order_among(self, known: Iterable[str], rng: random.Random) -> QueueOrder:
        """The order over the queues that are named, or over all that are known."""
        order = self.order
        return order if isinstance(order, QueueOrder) else order.among(known, rng)


class Worker:
    """`concurrency` runners over one deque of claimed jobs."""

    def __init__(
        self,
        driver: Driver,
        runtime: Runtime,
        config: WorkerConfig,
        *,
        board: Board | None = None,
        on_session: Callable[[str], None] = lambda _: None,
        rng: random.Random | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        entropy: Callable[[int], bytes] = os.urandom,
        threads: Threads | None = None,
    ) -> None:
        self._driver = driver
        self._runtime = runtime
        self._config = config
        self._on_session = on_session
        self._rng = rng or random.Random()  # noqa: S311  # jitter and queue order, not secrets
        # Handed in, so that tests can put a clock and a randomness of their own in their place.
        self._monotonic = monotonic
        self._entropy = entropy
        self._threads = threads or Threads(config.concurrency, asyncio.get_running_loop())
        self._cells = (
            None
            if config.cell_command is None or config.cell_store is None
            else Cells(config.cell_command, config.cell_store, config.max_jobs, config.max_memory)
        )
        self._executor = Executor(
            runtime, self._threads, monotonic, self._rng, lambda: driver, self._cells
        )
        # A started job has a place on the board until the store knows of its end.
        self._places = Places(board, config.kill_after)
        self.tally: Tally = Tally(os.urandom(8).hex())
        self._finisher = Finisher(
            driver,
            self._places.written,
            self._tell_settled,
            self._count_store_end,
            runtime.crash_rule,
        )
        runtime.counted = self.tally.enqueued
        self._recorder = Recorder(self._finisher, self._places, runtime.events, monotonic, self.tally)
        self._prefetch = Prefetch(config.concurrency)
        self._waiting: deque[Waiting] = deque()
        self._idle_runners: deque[asyncio.Future[None]] = deque()
        self._attempts: dict[int, Attempt] = {}
        self._services: list[Service] = []
        self._loops = Loops(self.broke)
        self._all_ended = asyncio.Event()
        self._all_ended.set()
        self._is_draining = False
        self._is_quiet = False
        self._has_looked = False  # since the last jobs came
        self._end_by = float("inf")
        self._is_sooner = asyncio.Event()
        self._busy = 0
        self._limits = Limits(
            config.max_jobs, config.max_memory, config.max_lifetime, rng=self._rng, now=self._monotonic()
        )
        self._too_old = config.lease.total_seconds() / 2
        self._is_ending = False
        self._rows = Rows(
            self._executor,
            self._recorder,
            self._places,
            self._threads,
            self._waiting,
            self._attempts,
            too_old=self._too_old,
            monotonic=monotonic,
            may_go_on=lambda: not self._is_draining,
            measured=self._ran_in_row,
        )
        self._lane = Lane(
            self._executor,
            self._recorder,
            self._places,
            self._finisher,
            self.tally,
            self._waiting,
            self._attempts,
            too_old=self._too_old,
            monotonic=monotonic,
        )
        self._gatherings = Gatherings(
            tasks=runtime.tasks,
            executor=self._executor,
            recorder=self._recorder,
            finisher=self._finisher,
            places=self._places,
            limits=self._limits,
            waiting=self._waiting,
            attempts=self._attempts,
            slots=config.concurrency,
            too_old=self._too_old,
            monotonic=monotonic,
            more=self._fetch_more,
            deliver=self._deliver,
            is_draining=lambda: self._is_draining,
            is_retiring=lambda: self.why_retiring is not None,
            retire_if=self._retire_if,
        )
        self.session: str = ""
        # Burst: nothing left; else to be replaced, see why_retiring.
        self.drained: asyncio.Event = asyncio.Event()
        self.why_retiring: str | None = None
        self.broken: LoopEnded | CellFailed | None = None
        self.is_stuck: bool = False

    # -- life --------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Make the app's resources, begin a session and start all services."""
        await self._runtime.start()
        await self._choose_queues()
        await self._new_session()
        await self._declare_limits()
        config = self._config
        self._fetcher = Fetcher(
            self._driver,
            self.order,
            self._runtime.tasks.names,
            poll=config.poll,
            session=lambda: self.session,
            room=self._room,
            free=lambda: max(config.concurrency - self._busy - len(self._waiting), 0),
            is_gated=any(
                has_gates(self._runtime.tasks.get(n).options) for n in self._runtime.tasks.names
            ),
            # Not with a lease so short that a claim that waited would look too old.
            waits_in_store=config.poll <= self._too_old / 4,
            measured=self._prefetch.claimed,
            deliver=self._deliver,
            on_idle=self._found_nothing,
            is_idle=lambda: self._is_empty,
            monotonic=self._monotonic,
            entropy=self._entropy,
        )
        self._fetcher.quiet(self._is_quiet)
        self._services = [
            self._fetcher,
            GiveUps(
                self._driver,
                every=config.heartbeat,
                lease=config.lease.total_seconds(),
                session=lambda: self.session,
                lost=self._fetcher.given_up,
                in_use=self._tokens_in_use,
                monotonic=self._monotonic,
            ),
            Watch(self._watch),
            Cancels(self._driver, self),
            Notes(self._driver, self),
        ]
        if not isinstance(config.order, QueueOrder):
            self._services.append(
                NewQueues(
                    self._driver,
                    self._runtime.tasks,
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
            self._loops.start(f"slot {slot}", self._run_slot(slot))

    def started(self) -> WorkerStarted:
        """What this worker does from now on, for the line that announces it."""
        tasks = self._runtime.tasks
        return WorkerStarted(
            queues=self.order.names,
            tasks=len(tasks.names),
            slots=self._config.concurrency,
            uses={task.options.queue: task.name for task in tasks},
        )

    async def _choose_queues(self) -> None:
        """Settle which queues `*` stands for."""
        known: set[str] = set()
        if not isinstance(self._config.order, QueueOrder):
            known = await known_queues(self._driver, self._runtime.tasks)
        self.order: QueueOrder = self._config.order_among(known, self._rng)

    async def _declare_limits(self) -> None:
        """Tell the store the numbers of this code's limits: the last worker to start is right."""
        tasks = self._runtime.tasks
        specs = declared(tasks.get(name) for name in tasks.names)
        if specs:
            await self._driver.arun(self._driver.set_limits(specs, by="code", is_live=False))

    async def _new_session(self) -> None:
        session = NewSession(
            id=random_id(self._entropy(16)),
            worker=f"{socket.gethostname()}-{os.getpid()}",
            host=socket.gethostname(),
            pid=os.getpid(),
            release=self._config.release,
            queues=self.order.names,
            tasks=self._runtime.tasks.names,
            slots=self._config.concurrency,
            lease=self._config.lease,
            schedules=self._declared(),
        )
        await self._driver.arun(self._driver.start_session(session))
        self.session = session.id
        self._on_session(session.id)

    def _set_for_queues(self, settings: Mapping[str, QueueSettings]) -> None:
        self._executor.settings = settings

    def _declared(self) -> tuple[Declared, ...]:
        """The schedules of the app's code."""
        return self._runtime.schedules.declared()

    async def session_lost(self, session: str) -> None:
        """The store no longer honours this session: drop what it claimed, and start anew."""
        if session != self.session or self._is_ending:  # a beat crossed our own end of the session
            return
        log.warning(
            "session %s is no longer live: its jobs were given to others. Ending %d running handlers "
            "and starting a new session",
            session,
            len(self._attempts),
        )
        with self._rows.lock:  # no thread takes a job between the two
            self._waiting.clear()
            self._gatherings.drop()
            running = self.attempts
        for attempt in running:
            attempt.interrupt(Interrupt.LOST, self._monotonic())
        if self._services:  # it may be lost while this worker still starts
            self._fetcher.given_up.clear()
        if self._is_draining:
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

    async def drain(self, grace: float) -> int:
        """Stop claiming, let running jobs end, release the rest, all within `grace` seconds. What still
        runs in the last part of them is asked to end, so that it can clean up before they are over.

        Returns how many claims are left to the lease, because the store could not be told in time.
        """
        began = self._monotonic()
        self.end_by(began + grace)
        self._is_draining = True
        self._fetcher.stop()
        # The fetcher may be in the middle of a claim: its answer is waited for, so nothing is left.
        await asyncio.wait([self._fetching], timeout=max(min(grace, 30.0), 5.0))
        self._give_back_unstarted()
        await self._until_due(began)
        self.interrupt_all()
        await self._until_ended(max(self._end_by - self._monotonic(), LEAST_CLEAN_UP))
        for attempt in self.attempts:
            self._give_up(attempt)
        await self._until_ended(1.0)
        await self._flush(max(5.0, min(self._end_by - self._monotonic(), 30.0)))
        left = self._finisher.pending + len(self._attempts)
        await self._end(left)
        return left

    def end_by(self, moment: float) -> None:
        """Have the drain end at this moment; a later one changes nothing."""
        self._end_by = min(self._end_by, moment)
        self._is_sooner.set()

    def broke(self, ended: LoopEnded | CellFailed) -> None:
        """A loop has ended that should not have, or no isolated job can run: this worker claims nothing
        more and wants to be drained."""
        if self.broken is None:
            self.broken = ended
            tell(ended, "This worker takes no more jobs and stops")
            self.drained.set()

    def abandon(self) -> None:
        """Its process is gone, as far as its world is concerned: its loops may end as they like."""
        self._loops.forget()

    def retire(self, why: str) -> None:
        """Claim nothing more and have this worker replaced; what runs may end."""
        if self.why_retiring is None:
            self.why_retiring = why
            log.info("to be replaced: %s", why)
            self.drained.set()

    def _retire_if(self, why: str | None) -> None:
        if why is not None:
            self.retire(why)

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
        ended = asyncio.ensure_future(self._all_ended.wait())
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
                await self._all_ended.wait()
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
        if self._cells is not None:
            await self._cells.close()
        await self._runtime.stop()

    # -- slots -------------------------------------------------------------------------------------

    def _room(self) -> int:
        """How many jobs to claim now: for the free slots, and ahead where jobs are short."""
        if self.why_retiring is not None or self.broken is not None:
            return 0
        # The supervisor takes back what a child without a pulse holds: no claim without a pulse.
        self._places.pulse()
        ahead = self._prefetch.ahead()
        room = self._config.concurrency + ahead - self._busy - len(self._waiting)
        room = min(room, self._limits.cap(room + len(self._waiting)) - len(self._waiting))
        # With something waiting already, small claims are not worth their round trip.
        if self._waiting and room < min(ahead // 2, MOST_AT_ONCE):
            return 0
        return max(min(room, MOST_AT_ONCE), 0)

    def _give_back_unstarted(self) -> None:
        with self._rows.lock:
            unstarted = [ref_of(claim) for claim, _, _ in self._waiting]
            self._waiting.clear()
        self._finisher.release(unstarted)
        if self._is_empty:
            self._all_ended.set()

    def _tokens_in_use(self) -> set[str]:
        with self._rows.lock:
            tokens = {claim.token for claim, _, _ in self._waiting}
            tokens |= {attempt.claim.token for attempt in self.attempts}
        return tokens | self._finisher.tokens | self._gatherings.tokens() | self._fetcher.in_flight

    @property
    def _is_empty(self) -> bool:
        return not self._busy and not self._waiting

    def _deliver(self, claims: Sequence[Claim], sent: float) -> None:
        if not claims:
            return
        if self._is_draining:  # the claim was on its way when the stop came
            self._finisher.release([ref_of(claim) for claim in claims])
            return
        self._has_looked = False
        now = self._monotonic()
        for middleware in self._runtime.middleware:
            middleware.claimed(claims, now - sent)
        self._waiting.extend([(claim, sent, now) for claim in claims])
        self._all_ended.clear()
        self._wake_slot()

    async def _count_store_end(self, job_id: str) -> None:
        await count_store_ends(self._driver, self.tally, self._runtime.events, dead=[job_id])

    def _tell_settled(self, outcomes: Sequence[Finish], seconds: float) -> None:
        for middleware in self._runtime.middleware:
            middleware.settled(outcomes, seconds)

    def _wake_slot(self) -> None:
        """Wake one slot: it wakes the next when its job waits. Jobs that are over as soon as they have
        begun need no second one, and the loop turns in between."""
        while self._idle_runners:
            waiter = self._idle_runners.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    async def _run_slot(self, slot: int) -> None:
        waiting, on_loop = self._waiting, OnLoop(asyncio.current_task())
        turned_at = now = self._monotonic()
        while True:
            if not waiting:
                await self._until_delivered()
                turned_at = now = self._monotonic()
            elif now - turned_at >= TURN_EVERY:
                await asyncio.sleep(0)
                turned_at = now = self._monotonic()
            self._busy += 1
            ran, begun = 0, None
            if self._lane.is_open and not self._limits.has_most:
                began = now
                now, ran, begun = self._lane.run(on_loop, now, turned_at + TURN_EVERY)
                if ran:
                    self._prefetch.ended_in_place((now - began) / ran, ran)
            if begun is not None:
                now = await self._see_through(begun.attempt.claim, self._go_on(begun, now))
            elif not ran:
                now = await self._run_next(now, on_loop, slot)
            if on_loop.is_cancelled:  # by a handler itself, which has ended since
                await on_loop.absorb()
            self._busy -= 1
            if not waiting and not self._busy:
                self._all_ended.set()
            if self._fetcher.is_waiting:
                self._fetcher.slot_freed()

    async def _run_next(self, now: float, on_loop: OnLoop, slot: int) -> float:
        """Run the next job, whatever it needs; the time when it is over."""
        try:
            item = self._waiting.popleft()
        except IndexError:  # somebody was quicker
            return now
        rest = None
        try:
            rest = self._start(item, now, on_loop, slot)
        except Exception as error:
            self._failed(item[0], error)
        if rest is not None:
            return await self._see_through(item[0], rest)
        ended = self._monotonic()
        self._prefetch.ended_in_place(ended - now)
        return ended

    async def _see_through(self, claim: Claim, rest: Coroutine[Any, Any, None]) -> float:
        """Wait for the end of a job that waits; meanwhile another slot takes the next one."""
        if self._waiting:
            self._wake_slot()
        try:
            await rest
        except Exception as error:
            self._failed(claim, error)
        return self._monotonic()

    def _failed(self, claim: Claim, error: Exception) -> None:
        self._finisher.release([ref_of(claim)])
        if isinstance(error, CellFailed):  # the next job would fare no better
            self.broke(error)
        else:
            log.exception("job %s: the worker itself failed; the job is released", claim.id)

    async def _until_delivered(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._idle_runners.append(waiter)
        await waiter

    def _start(
        self, item: Waiting, now: float, on_loop: OnLoop, slot: int
    ) -> Coroutine[Any, Any, None] | None:
        """Start one job. What is left to be waited for, if it is not over yet."""
        claim, sent, _ = item
        if now - sent > self._too_old:
            # This process stood still: the supervisor may have given the job to others.
            self._finisher.release([ref_of(claim)])
            return None
        plan = self._executor.plan(claim)
        if not isinstance(plan, Plan):
            self._recorder.finish(claim, plan, now)
            return None
        if plan.is_plain and not self._recorder.is_heard:
            call = self._executor.call_of(claim, plan)
            if call is not None and plan.task.is_async:
                return self._begin(claim, plan, call, now, on_loop)
            if call is not None and self._rows.can_run(plan) and not self._limits.has_most:
                return self._rows.run(item, plan, call)
        elif (task := self._gatherings.task_of(claim)) is not None:
            return self._run_together(item, task, now, slot)
        return self._run_job(claim, plan, now)

    def _begin(
        self, claim: Claim, plan: Plan, call: Call, now: float, on_loop: OnLoop
    ) -> Coroutine[Any, Any, None] | None:
        """Start a coroutine; most are over before they have waited for anything."""
        place = self._places.take()
        attempt = Attempt(claim, place, None if plan.seconds is None else now + plan.seconds)
        attempt.handler = on_loop
        self._attempts[place] = attempt
        self._places.show(attempt)
        if self._limits.has_most:
            self._retire_if(self._limits.started(1))
        ended: Settled | Paused | None = None
        try:
            ended = self._executor.begin(attempt, plan, call)
        finally:
            if not isinstance(ended, Paused):
                del self._attempts[place]
                self._places.ended(attempt)
        if isinstance(ended, Paused):
            return self._go_on(Begun(attempt, ended, plan), now)
        self._recorder.record(attempt, ended, now)
        return None

    async def _go_on(self, begun: Begun, began: float) -> None:
        attempt, paused, plan = begun
        try:
            ended = await self._executor.resume(attempt, plan, paused, began)
        finally:
            del self._attempts[attempt.place]
            self._places.ended(attempt)
        self._recorder.record(attempt, ended, began)
        self._prefetch.ended(self._monotonic() - began)

    async def _run_together(self, item: Waiting, task: Task[Any, Any], began: float, slot: int) -> None:
        await self._gatherings.run(item, task, slot)
        self._prefetch.ended(self._monotonic() - began)

    async def _fetch_more(self, task: str, room: int) -> list[Claim]:
        return await self._fetcher.more(task, room)

    def _ran_in_row(self, seconds: float) -> None:
        """A job of a row has ended; its slot goes on with the next."""
        self._prefetch.ended(seconds)
        if self._fetcher.is_waiting:
            self._fetcher.slot_freed()

    async def _run_job(self, claim: Claim, plan: Plan, began: float) -> None:
        beat = plan.task.options.heartbeat
        attempt = Attempt(
            claim,
            self._places.take(),
            None if plan.seconds is None else began + plan.seconds,
            None if beat is None else beat.total_seconds(),
            monotonic=self._monotonic,
        )
        if beat is not None:
            attempt.reports.sign()  # it counts from the start
        self._attempts[attempt.place] = attempt
        attempt.is_alone = plan.is_alone
        self._places.show(attempt)
        self._retire_if(self._limits.started(1))
        self._recorder.tell("started", claim)
        try:
            ended = await self._executor.run(attempt, plan)
        finally:
            del self._attempts[attempt.place]
            self._places.ended(attempt)
        self._recorder.record(attempt, ended, began)
        self._prefetch.ended(self._monotonic() - began)

    # -- watching ----------------------------------------------------------------------------------

    async def _found_nothing(self) -> bool:
        """Whether to claim once more: jobs may have come due that no promoter has looked at yet, and the
        last jobs of a burst may have been all that others waited for. A burst is over when there was
        nothing to claim after a look at both."""
        if not self._config.burst or not self._is_empty or self._finisher.pending:
            return False
        if self._has_looked:
            self.drained.set()
            return False
        await self._driver.arun(self._driver.promote(limit=MOST_AT_ONCE))
        for _ in range(UNBLOCK_TRIES):
            found = await self._driver.arun(self._driver.unblock())
            if not found.is_more:
                break
            await asyncio.sleep(UNBLOCK_PAUSE)
        self._has_looked = True
        return True

    def _watch(self) -> None:
        """Show a pulse; interrupt what is past its deadline; give up what does not end."""
        now = self._monotonic()
        self._places.pulse()
        with contextlib.suppress(IndexError):
            if now - self._waiting[0][2] > HOARD_LIMIT:
                self._give_back_unstarted()
                self._prefetch.hoarded()
        self._retire_if(self._limits.look(now))
        for attempt in self.attempts:
            if attempt.is_over:
                continue
            if attempt.interrupted is not None:
                if now - attempt.interrupted_at > self._config.kill_after:
                    self._give_up(attempt)
            elif (end := attempt.must_end_by) is not None and now >= end:
                attempt.is_silent = attempt.deadline is None or now < attempt.deadline
                attempt.interrupt(Interrupt.TIMEOUT, now)
            elif attempt.heartbeat is not None and not attempt.is_alone:
                self._places.show(attempt)  # its last moment moves with every sign of life

    def _give_up(self, attempt: Attempt) -> None:
        """A handler that does not end: settle its job without it."""
        if attempt.is_given_up or attempt.handler is None:
            return
        if not attempt.handler.give_up():
            attempt.interrupt(Interrupt.STOP, self._monotonic())  # a coroutine can only be asked again
            return
        attempt.is_given_up = True
        log.error(
            "job %s (%s) did not end when asked to; given up", attempt.claim.id, attempt.claim.task
        )
        if attempt.handler.leaves_a_thread:
            log.error("a thread is left behind; this worker takes no more jobs and is replaced")
            self.is_stuck = True
            self.retire("a thread is left behind")

    def cancel_requested(self, ref: ClaimRef) -> None:
        for attempt in self.attempts:
            is_it = (attempt.claim.id, attempt.claim.token) == (ref.id, ref.token)
            if is_it and attempt.is_together:
                attempt.is_unasked = True  # the others in the call go on
            elif is_it and not attempt.is_stopping:
                attempt.interrupt(Interrupt.CANCEL, self._monotonic())

    def claim_lost(self, attempt: Attempt) -> None:
        """The store refused a report of this attempt: its job is somebody else's now."""
        if self._attempts.get(attempt.place) is attempt and not attempt.is_stopping:
            attempt.interrupt(Interrupt.LOST, self._monotonic())

    def lease_over(self) -> None:
        """The store has been away for a lease. Others may run these jobs by now, and under a limit, a
        FIFO key or alone in a process that would be one too many: they stop, and are given back when
        the store is there again. Plain handlers go on, and their ends are sent then."""
        asked = [
            attempt
            for attempt in self.attempts
            if (holds_something(attempt.claim.options) or attempt.is_alone) and not attempt.is_stopping
        ]
        if asked:
            log.warning(
                "the store has been away for a lease: ending %d handlers that run under a limit, with a "
                "FIFO key, or in processes of their own",
                len(asked),
            )
        for attempt in asked:
            attempt.interrupt(Interrupt.STOP, self._monotonic())

    def interrupt_all(self) -> None:
        """Ask every running handler to end now; what they held is released."""
        for attempt in self.attempts:
            attempt.interrupt(Interrupt.STOP, self._monotonic())

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        return tuple(self._attempts.values())

    @property
    def has_jobs(self) -> bool:
        return bool(self._attempts)
