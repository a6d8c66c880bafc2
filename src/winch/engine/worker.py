"""One worker: slots, and the services that fill and empty them.

It runs in a child process under a supervisor, or embedded in an application. Either way somebody
else beats its session's heart; this part claims, runs and finishes.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from winch.core.errors import StorageError
from winch.core.ids import random_id
from winch.core.job import Claim
from winch.core.outcome import Settled
from winch.engine.attempt import Attempt, Interrupt
from winch.engine.board import Board
from winch.engine.events import JobEvent, kind_of
from winch.engine.executor import Executor, Plan
from winch.engine.fetcher import Fetcher, GiveUps
from winch.engine.finisher import Finisher
from winch.engine.isolation import Cells, Crash
from winch.engine.log import log
from winch.engine.maintenance.forwarder import Forwarder
from winch.engine.order import QueueOrder
from winch.engine.prefetch import HOARD_LIMIT, Prefetch
from winch.engine.runtime import Runtime
from winch.engine.service import Backoff, Service
from winch.engine.spool import Spool
from winch.engine.threads import Threads
from winch.storage.params import Answer, ClaimRef, Finish, NewSession
from winch.storage.protocol import Driver

# How long an interrupted handler gets to end before it is given up, and a blocked loop is killed.
HARD_AFTER = 10.0
WATCH_EVERY = 0.05
CANCELS_EVERY = 1.0
NOTES_EVERY = 0.5


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """How one worker runs. Seconds on the monotonic clock."""

    order: QueueOrder
    concurrency: int
    lease: timedelta
    heartbeat: float
    poll: float
    release: str
    burst: bool = False
    cell_command: tuple[str, ...] | None = None
    spool: Spool | None = None


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
    ) -> None:
        self._driver = driver
        self._runtime = runtime
        self._config = config
        self._board = board
        self._on_session = on_session
        self._rng = rng or random.Random()  # noqa: S311  # jitter and queue order, not secrets
        self._threads = Threads(config.concurrency, asyncio.get_running_loop())
        self._cells = None if config.cell_command is None else Cells(config.cell_command)
        self._executor = Executor(
            runtime, self._threads, time.monotonic, self._rng, lambda: driver, self._cells
        )
        self._finisher = Finisher(driver)
        self._prefetch = Prefetch(config.concurrency)
        self._waiting: deque[tuple[float, Claim]] = deque()  # (when it came, the claim)
        self._idle_runners: deque[asyncio.Future[None]] = deque()
        self._attempts: dict[int, Attempt] = {}
        self._services: list[Service] = []
        self._runners: list[asyncio.Task[None]] = []
        self._all_ended = asyncio.Event()
        self._all_ended.set()
        self._is_draining = False
        self.session: str = ""
        self.drained: asyncio.Event = (
            asyncio.Event()
        )  # burst: nothing left; stuck: a thread was given up
        self.is_stuck: bool = False

    # -- life --------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Make the app's resources, begin a session and start all services."""
        await self._runtime.start()
        await self._new_session()
        config = self._config
        self._fetcher = Fetcher(
            self._driver,
            config.order,
            self._runtime.tasks.names,
            poll=config.poll,
            session=lambda: self.session,
            room=self._room,
            measured=self._prefetch.claimed,
            deliver=self._deliver,
            on_idle=self._found_nothing,
        )
        self._services = [
            self._fetcher,
            GiveUps(
                self._driver,
                every=config.heartbeat,
                lease=config.lease.total_seconds(),
                session=lambda: self.session,
                lost=self._fetcher.given_up,
                in_use=self._tokens_in_use,
            ),
            Watch(self._watch),
            Cancels(self._driver, self),
            Notes(self._driver, self),
        ]
        if config.spool is not None:
            # Before the first claim: a burst would be over before it has seen the spooled jobs.
            forwarder = Forwarder(self._driver, config.spool)
            try:
                await forwarder.run_once()
            except StorageError as error:
                log.warning("the spool is not forwarded yet: %s", error)
            self._services.append(forwarder)
        self._runners = [
            asyncio.create_task(service.run(), name=f"winch {service.name}")
            for service in self._services
        ]
        self._finishing = asyncio.create_task(self._finisher.run(), name="winch finisher")
        self._slots = [
            asyncio.create_task(self._run_slot(slot), name=f"winch slot {slot}")
            for slot in range(config.concurrency)
        ]

    async def _new_session(self) -> None:
        session = NewSession(
            id=random_id(os.urandom(16)),
            worker=f"{socket.gethostname()}-{os.getpid()}",
            host=socket.gethostname(),
            pid=os.getpid(),
            release=self._config.release,
            queues=self._config.order.names,
            tasks=self._runtime.tasks.names,
            slots=self._config.concurrency,
            lease=self._config.lease,
        )
        await self._driver.arun(self._driver.start_session(session))
        self.session = session.id
        self._on_session(session.id)

    async def session_lost(self, session: str) -> None:
        """The store no longer honours this session: drop what it claimed, and start anew."""
        if session != self.session:
            return
        log.warning(
            "session %s is no longer live: its jobs were given to others. Ending %d running handlers "
            "and starting a new session",
            session,
            len(self._attempts),
        )
        self._waiting.clear()
        for attempt in list(self._attempts.values()):
            attempt.interrupt(Interrupt.LOST, time.monotonic())
        self._fetcher.given_up.clear()
        backoff = Backoff("session")
        while True:
            try:
                await self._new_session()
            except StorageError as error:
                await asyncio.sleep(backoff.failed(error))
            else:
                return

    def quiet(self, is_quiet: bool) -> None:
        self._fetcher.quiet(is_quiet)

    async def drain(self, grace: float) -> int:
        """Stop claiming, let running jobs end within `grace` seconds, release the rest.

        Returns how many claims are left to the lease, because the store could not be told in time.
        """
        deadline = time.monotonic() + grace
        self._is_draining = True
        self._fetcher.stop()
        # The fetcher may be in the middle of a claim: its answer is waited for, so nothing is left.
        await asyncio.wait(self._runners[:1], timeout=max(grace, 5.0))
        self._give_back_unstarted()
        await self._until_ended(deadline - time.monotonic())
        self.interrupt_all()
        await self._until_ended(min(5.0, max(grace, 1.0)))
        for attempt in list(self._attempts.values()):
            self._give_up(attempt)
        await self._until_ended(1.0)
        await self._flush(max(5.0, deadline - time.monotonic()))
        left = self._finisher.pending + len(self._attempts)
        await self._end(left)
        return left

    async def _until_ended(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(max(seconds, 0.0)):
                await self._all_ended.wait()
        except TimeoutError:
            pass

    async def _flush(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._finisher.flushed()
        except TimeoutError:
            log.error(
                "the store did not answer in time; %d outcomes are not written", self._finisher.pending
            )

    async def _end(self, left: int) -> None:
        if not left:
            try:
                async with asyncio.timeout(5.0):
                    await self._driver.arun(self._driver.end_session(self.session))
            except (StorageError, TimeoutError) as error:
                log.warning("the session was not ended; its lease ends by itself: %s", error)
        for service in self._services:
            service.stop()
        for runner in (*self._runners, *self._slots, self._finishing):
            runner.cancel()
        await asyncio.gather(*self._runners, *self._slots, self._finishing, return_exceptions=True)
        self._threads.close()
        if self._cells is not None:
            await self._cells.close()
        await self._runtime.stop()

    # -- slots -------------------------------------------------------------------------------------

    def _room(self) -> int:
        """How many jobs to claim now: for the free slots, and ahead where jobs are short."""
        if self.is_stuck:
            return 0
        ahead = self._prefetch.ahead()
        room = self._config.concurrency + ahead - len(self._attempts) - len(self._waiting)
        # With something waiting already, small claims are not worth their round trip.
        return 0 if self._waiting and room < ahead // 2 else max(room, 0)

    def _give_back_unstarted(self) -> None:
        self._finisher.release([ClaimRef(claim.id, claim.token) for _, claim in self._waiting])
        self._waiting.clear()
        if not self._attempts:
            self._all_ended.set()

    def _tokens_in_use(self) -> set[str]:
        tokens = {claim.token for _, claim in self._waiting}
        tokens |= {attempt.claim.token for attempt in self._attempts.values()}
        tokens |= self._finisher.tokens
        if self._fetcher.in_flight is not None:
            tokens.add(self._fetcher.in_flight)
        return tokens

    def _deliver(self, claims: Sequence[Claim]) -> None:
        if self._is_draining:  # the claim was on its way when the stop came
            self._finisher.release([ClaimRef(claim.id, claim.token) for claim in claims])
            return
        now = time.monotonic()
        self._waiting.extend((now, claim) for claim in claims)
        self._all_ended.clear()
        for _ in range(min(len(claims), len(self._idle_runners))):
            waiter = self._idle_runners.popleft()
            if not waiter.done():
                waiter.set_result(None)

    async def _run_slot(self, slot: int) -> None:
        while True:
            while not self._waiting:
                waiter = asyncio.get_running_loop().create_future()
                self._idle_runners.append(waiter)
                await waiter
            began = time.monotonic()
            _, claim = self._waiting.popleft()
            try:
                await self._run_job(claim, slot, began)
            except Exception:
                log.exception("job %s: the worker itself failed; the job is released", claim.id)
                self._finisher.release([ClaimRef(claim.id, claim.token)])
            self._prefetch.ended(time.monotonic() - began)
            if not self._attempts and not self._waiting:
                self._all_ended.set()
            self._fetcher.slot_freed()

    async def _run_job(self, claim: Claim, slot: int, began: float) -> None:
        plan = self._executor.plan(claim)
        if not isinstance(plan, Plan):
            self._finish(claim, plan, began)
            return
        limit = None if plan.timeout is None else plan.timeout.total_seconds()
        attempt = Attempt(claim, slot, None if limit is None else began + limit)
        self._attempts[slot] = attempt
        if self._board is not None and not plan.is_alone:
            # The supervisor kills a child whose loop is blocked past this moment.
            last = None if attempt.deadline is None else attempt.deadline + 2 * HARD_AFTER
            self._board.start(slot, claim.id, claim.token, last)
        self._tell("started", claim)
        try:
            ended = await self._executor.run(attempt, plan)
        finally:
            del self._attempts[slot]
            if self._board is not None:
                self._board.end(slot)
        if attempt.is_finished:
            self._tell("completed", claim, duration=timedelta(seconds=time.monotonic() - began))
        elif isinstance(ended, Crash):
            log.error("job %s (%s): its process died: %s", claim.id, claim.task, ended.cause)
            self._finisher.crash(ClaimRef(claim.id, claim.token), ended.cause)
            self._tell("crashed", claim, reason=ended.cause)
        elif ended is not None:
            self._finish(claim, ended, began)
        elif attempt.interrupted is Interrupt.STOP:
            self._finisher.release([ClaimRef(claim.id, claim.token)])

    def _finish(self, claim: Claim, settled: Settled, began: float) -> None:
        if settled.error is not None:
            log.warning(
                "job %s (%s) attempt %d failed: %s: %s; it is %s now%s",
                claim.id,
                claim.task,
                claim.attempt,
                settled.error.type,
                settled.error.message,
                settled.to,
                f", due in {settled.delay.total_seconds():.1f}s" if settled.delay else "",
            )
        self._tell(
            kind_of(settled.to, settled.what),
            claim,
            duration=timedelta(seconds=time.monotonic() - began),
            error=settled.error,
            reason=settled.reason,
        )
        self._finisher.finish(
            Finish(
                id=claim.id,
                token=claim.token,
                to=settled.to,
                what=settled.what,
                delay=settled.delay,
                counts=settled.counts,
                result=settled.result,
                error=settled.error,
                reason=settled.reason,
                log=settled.log,
            )
        )

    def _tell(self, kind: str, claim: Claim, **facts: Any) -> None:
        events = self._runtime.events
        if events.wants(kind):
            event = JobEvent(
                kind=kind,
                job_id=claim.id,
                task=claim.task,
                queue=claim.queue,
                attempt=claim.attempt,
                **facts,
            )
            events.tell(event)

    # -- watching ----------------------------------------------------------------------------------

    def _found_nothing(self) -> None:
        if (
            self._config.burst
            and not self._attempts
            and not self._waiting
            and not self._finisher.pending
        ):
            self.drained.set()

    def _watch(self) -> None:
        """Show a pulse; interrupt what is past its deadline; give up what does not end."""
        now = time.monotonic()
        if self._board is not None:
            self._board.pulse()
        if self._waiting and now - self._waiting[0][0] > HOARD_LIMIT:
            self._give_back_unstarted()
            self._prefetch.hoarded()
        for attempt in list(self._attempts.values()):
            if attempt.interrupted is not None:
                if now - attempt.interrupted_at > HARD_AFTER:
                    self._give_up(attempt)
            elif attempt.deadline is not None and now >= attempt.deadline:
                attempt.interrupt(Interrupt.TIMEOUT, now)

    def _give_up(self, attempt: Attempt) -> None:
        """A handler that does not end: settle its job without it."""
        if attempt.is_given_up or attempt.handler is None:
            return
        if not attempt.handler.give_up():
            attempt.interrupt(Interrupt.STOP, time.monotonic())  # a coroutine can only be asked again
            return
        attempt.is_given_up = True
        log.error(
            "job %s (%s) did not end when asked to; given up", attempt.claim.id, attempt.claim.task
        )
        if attempt.handler.leaves_a_thread:
            log.error("a thread is left behind; this worker takes no more jobs and is replaced")
            self.is_stuck = True
            self.drained.set()

    def cancel_requested(self, ref: ClaimRef) -> None:
        for attempt in self._attempts.values():
            is_it = (attempt.claim.id, attempt.claim.token) == (ref.id, ref.token)
            if is_it and not attempt.is_stopping:
                attempt.interrupt(Interrupt.CANCEL, time.monotonic())

    def claim_lost(self, attempt: Attempt) -> None:
        """The store refused a report of this attempt: its job is somebody else's now."""
        if self._attempts.get(attempt.slot) is attempt and not attempt.is_stopping:
            attempt.interrupt(Interrupt.LOST, time.monotonic())

    def interrupt_all(self) -> None:
        """Ask every running handler to end now; what they held is released."""
        for attempt in list(self._attempts.values()):
            attempt.interrupt(Interrupt.STOP, time.monotonic())

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        return tuple(self._attempts.values())

    @property
    def has_jobs(self) -> bool:
        return bool(self._attempts)


class Watch(Service):
    """The worker's pulse and its deadlines: one small pass many times a second."""

    name = "watch"

    def __init__(self, look: Callable[[], None]) -> None:
        super().__init__()
        self._look = look

    async def run_once(self) -> float:
        self._look()
        return WATCH_EVERY


class Cancels(Service):
    """Hears of cancels requested for running jobs."""

    name = "cancels"

    def __init__(self, driver: Driver, worker: Worker) -> None:
        super().__init__()
        self._driver = driver
        self._worker = worker

    async def run_once(self) -> float:
        if self._worker.has_jobs:
            for ref in await self._driver.arun(self._driver.cancels([self._worker.session])):
                self._worker.cancel_requested(ref)
        return CANCELS_EVERY


class Notes(Service):
    """Tells the store what running handlers report, twice a second."""

    name = "notes"

    def __init__(self, driver: Driver, worker: Worker) -> None:
        super().__init__()
        self._driver = driver
        self._worker = worker

    async def run_once(self) -> float:
        for attempt in self._worker.attempts:
            note = attempt.reports.take()
            if note is not None:
                ref = ClaimRef(attempt.claim.id, attempt.claim.token)
                if await self._driver.arun(self._driver.note(ref, note)) is Answer.LOST:
                    self._worker.claim_lost(attempt)
        return NOTES_EVERY
