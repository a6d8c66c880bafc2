"""One worker: slots, and the services that fill and empty them.

It runs in a child process under a supervisor, or embedded in an application. Either way somebody
else beats its session's heart; this part claims, runs and finishes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

from winch.core.errors import StorageError
from winch.core.fingerprint import fingerprint
from winch.core.ids import random_id
from winch.core.job import Claim
from winch.core.lifecycle import JobState
from winch.core.outcome import Settled
from winch.engine.attempt import Attempt, Interrupt
from winch.engine.board import Board
from winch.engine.events import JobEvent, kind_of
from winch.engine.executor import Executor, Plan
from winch.engine.fetcher import Fetcher, GiveUps
from winch.engine.finisher import Finisher
from winch.engine.isolation import Cells, CellStore, Crash
from winch.engine.limits import Limits
from winch.engine.log import log
from winch.engine.maintenance.forwarder import Forwarder
from winch.engine.order import QueueOrder
from winch.engine.places import Places
from winch.engine.prefetch import HOARD_LIMIT, Prefetch
from winch.engine.rates import RateWriter, Tally
from winch.engine.runtime import Runtime
from winch.engine.service import Backoff, Service
from winch.engine.spool import Spool
from winch.engine.task import Task
from winch.engine.threads import Threads
from winch.engine.watching import Cancels, Notes, Watch
from winch.storage.params import ClaimRef, Finish, NewSession
from winch.storage.protocol import Driver

# How often a call that collects looks for more jobs within its waiting time.
GATHER_EVERY = 0.01
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
    cell_store: CellStore | None = None
    # How long an interrupted handler gets to end before it is given up, and a blocked loop is killed.
    kill_after: float = 10.0
    max_jobs: int | None = None
    max_memory: int | None = None
    max_lifetime: float | None = None
    spool: Spool | None = None


class _Waiting(NamedTuple):
    """A claimed job that has not started: when its claim was sent, and when it came."""

    claim: Claim
    sent: float
    came: float


@dataclass(slots=True)
class _Gathering:
    """The jobs that a collecting call has so far."""

    task: str
    most: int
    found: list[_Waiting]

    @property
    def room(self) -> int:
        return self.most - len(self.found)


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
        self._finisher = Finisher(driver, self._places.written)
        self._prefetch = Prefetch(config.concurrency)
        self._waiting: deque[_Waiting] = deque()
        self._tally = Tally(os.urandom(8).hex())
        self._idle_runners: deque[asyncio.Future[None]] = deque()
        self._attempts: dict[int, Attempt] = {}
        self._services: list[Service] = []
        self._runners: list[asyncio.Task[None]] = []
        self._all_ended = asyncio.Event()
        self._all_ended.set()
        self._is_draining = False
        self._is_quiet = False
        self._is_talkative = log.isEnabledFor(logging.DEBUG)
        self._end_by = float("inf")
        self._is_sooner = asyncio.Event()
        self._busy = 0
        self._gathering: dict[int, _Gathering] = {}
        self._limits = Limits(
            config.max_jobs, config.max_memory, config.max_lifetime, rng=self._rng, now=self._monotonic()
        )
        self._too_old = config.lease.total_seconds() / 2
        self._is_ending = False
        self.session = ""
        self.drained = asyncio.Event()  # burst: nothing left; else to be replaced, see why_retiring
        self.why_retiring: str | None = None
        self.is_stuck = False

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
        if self._driver.capabilities.keeps_books:
            self._services.append(RateWriter(self._driver, self._tally))
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
            id=random_id(self._entropy(16)),
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
        if session != self.session or self._is_ending:  # a beat crossed our own end of the session
            return
        log.warning(
            "session %s is no longer live: its jobs were given to others. Ending %d running handlers "
            "and starting a new session",
            session,
            len(self._attempts),
        )
        self._waiting.clear()
        for gathering in self._gathering.values():
            gathering.found.clear()
        for attempt in list(self._attempts.values()):
            attempt.interrupt(Interrupt.LOST, self._monotonic())
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
        """Stop claiming, let running jobs end within `grace` seconds, release the rest.

        Returns how many claims are left to the lease, because the store could not be told in time.
        """
        self.end_by(self._monotonic() + grace)
        self._is_draining = True
        self._fetcher.stop()
        # The fetcher may be in the middle of a claim: its answer is waited for, so nothing is left.
        await asyncio.wait(self._runners[:1], timeout=max(min(grace, 30.0), 5.0))
        self._give_back_unstarted()
        await self._until_due()
        self.interrupt_all()
        await self._until_ended(min(5.0, max(grace, 1.0)))
        for attempt in list(self._attempts.values()):
            self._give_up(attempt)
        await self._until_ended(1.0)
        await self._flush(max(5.0, min(self._end_by - self._monotonic(), 30.0)))
        left = self._finisher.pending + len(self._attempts)
        await self._end(left)
        return left

    def end_by(self, moment: float) -> None:
        """Have the drain interrupt what still runs at this moment; a later one changes nothing."""
        self._end_by = min(self._end_by, moment)
        self._is_sooner.set()

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
                for attempt in self._attempts.values()
            ),
            default=0.0,
        )

    async def _until_due(self) -> None:
        """Wait until all has ended, or until the drain's last moment, which may move closer."""
        ended = asyncio.ensure_future(self._all_ended.wait())
        while not ended.done() and (left := self._end_by - self._monotonic()) > 0:
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
        try:
            async with asyncio.timeout(seconds):
                await self._finisher.flushed()
        except TimeoutError:
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
        if self.why_retiring is not None:
            return 0
        # The supervisor takes back what a child without a pulse holds: no claim without a pulse.
        self._places.pulse()
        ahead = self._prefetch.ahead()
        room = self._config.concurrency + ahead - self._busy - len(self._waiting)
        room = min(room, self._limits.cap(room + len(self._waiting)) - len(self._waiting))
        # With something waiting already, small claims are not worth their round trip.
        return 0 if self._waiting and room < ahead // 2 else max(room, 0)

    def _give_back_unstarted(self) -> None:
        self._finisher.release([ref_of(waiting.claim) for waiting in self._waiting])
        self._waiting.clear()
        if self._is_empty:
            self._all_ended.set()

    def _tokens_in_use(self) -> set[str]:
        tokens = {waiting.claim.token for waiting in self._waiting}
        tokens |= {attempt.claim.token for attempt in self._attempts.values()}
        tokens |= self._finisher.tokens
        for gathering in self._gathering.values():
            tokens |= {waiting.claim.token for waiting in gathering.found}
        return tokens | self._fetcher.in_flight

    @property
    def _is_empty(self) -> bool:
        return not self._attempts and not self._waiting and not self._gathering

    def _deliver(self, claims: Sequence[Claim], sent: float) -> None:
        if not claims:
            return
        if self._is_draining:  # the claim was on its way when the stop came
            self._finisher.release([ref_of(claim) for claim in claims])
            return
        now = self._monotonic()
        self._waiting.extend(_Waiting(claim, sent, now) for claim in claims)
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
            began = self._monotonic()
            waiting = self._waiting.popleft()
            claim = waiting.claim
            self._busy += 1
            try:
                if self._is_old(waiting, began):
                    self._finisher.release([ref_of(claim)])
                elif (task := self._collecting(claim)) is not None:
                    await self._run_together(waiting, task, slot)
                else:
                    await self._run_job(claim, began)
            except Exception:
                log.exception("job %s: the worker itself failed; the job is released", claim.id)
                self._finisher.release([ref_of(claim)])
            self._busy -= 1
            self._prefetch.ended(self._monotonic() - began)
            if self._is_empty:
                self._all_ended.set()
            self._fetcher.slot_freed()

    def _is_old(self, waiting: _Waiting, now: float) -> bool:
        """This process stood still: the supervisor may have given the job to others."""
        return now - waiting.sent > self._too_old

    # -- collecting calls --------------------------------------------------------------------------

    def _collecting(self, claim: Claim) -> Task[Any, Any] | None:
        """The task, if its jobs are run many in one call. A suspect runs alone, as any does."""
        if claim.is_suspect or claim.task not in self._runtime.tasks:
            return None
        task = self._runtime.tasks.get(claim.task)
        return None if task.options.collect is None else task

    async def _run_together(self, first: _Waiting, task: Task[Any, Any], slot: int) -> None:
        """One slot, one call, as many jobs as there are within the task's waiting time."""
        for gathering in self._gathering.values():
            if gathering.task == task.name and gathering.room > 0:
                gathering.found.append(first)  # another slot waits for just this
                return
        most = min(task.options.collect or 1, max(self._places.free - self._config.concurrency, 1))
        most = self._limits.cap(most)
        gathering = self._gathering[slot] = _Gathering(task.name, most, [first])
        try:
            # Un-started claims grow old: within a part of the lease, however long the task would wait.
            await self._gather(
                gathering, min(task.options.collect_wait.total_seconds(), self._too_old / 2)
            )
        finally:
            del self._gathering[slot]
        began = self._monotonic()
        attempts: list[Attempt] = []
        plans: list[Plan] = []
        for waiting in gathering.found:
            if self._is_draining or self._is_old(waiting, began):
                self._finisher.release([ref_of(waiting.claim)])
                continue
            plan = self._executor.plan(waiting.claim)
            if isinstance(plan, Plan):
                attempts.append(Attempt(waiting.claim, self._places.take(), None))
                plans.append(plan)
            else:
                self._finish(waiting.claim, plan, began)
        if attempts:
            await self._call_together(attempts, plans, began)

    async def _call_together(
        self, attempts: Sequence[Attempt], plans: Sequence[Plan], began: float
    ) -> None:
        timeouts = [plan.timeout.total_seconds() for plan in plans if plan.timeout is not None]
        for attempt in attempts:
            attempt.deadline = began + min(timeouts) if timeouts else None
            attempt.is_together = True
            self._attempts[attempt.place] = attempt
            self._places.show(attempt)
            self._tell("started", attempt.claim)
        self._retire_if(self._limits.started(len(attempts)))
        try:
            ended = await self._executor.run_together(attempts, plans)
        finally:
            for attempt in attempts:
                del self._attempts[attempt.place]
                self._places.ended(attempt)
        for attempt, settled in zip(attempts, ended, strict=True):
            self._record(attempt, settled, began)

    async def _gather(self, gathering: _Gathering, wait: float) -> None:
        """Add jobs of this task until there are enough, or the waiting time is over."""
        until = self._monotonic() + wait
        while gathering.room > 0 and not self._is_draining and self.why_retiring is None:
            here = [
                waiting
                for waiting in self._waiting
                if waiting.claim.task == gathering.task and not waiting.claim.is_suspect
            ][: gathering.room]
            if here:
                for waiting in here:
                    self._waiting.remove(waiting)
                gathering.found += here
                continue
            sent = self._monotonic()
            try:
                claims = await self._fetcher.more(gathering.task, gathering.room)
            except StorageError as error:
                log.warning("%s goes on with %d jobs: %s", gathering.task, len(gathering.found), error)
                return
            # What cannot join waits for a slot: a suspect, which runs alone, and what came in too late.
            joining = [claim for claim in claims if not claim.is_suspect][: max(gathering.room, 0)]
            now = self._monotonic()
            gathering.found += [_Waiting(claim, sent, now) for claim in joining]
            self._deliver([claim for claim in claims if claim not in joining], sent)
            if not claims:
                left = until - self._monotonic()
                if left <= 0:
                    return
                await asyncio.sleep(min(left, GATHER_EVERY))

    async def _run_job(self, claim: Claim, began: float) -> None:
        plan = self._executor.plan(claim)
        if not isinstance(plan, Plan):
            self._finish(claim, plan, began)
            return
        limit = None if plan.timeout is None else plan.timeout.total_seconds()
        beat = plan.task.options.heartbeat
        attempt = Attempt(
            claim,
            self._places.take(),
            None if limit is None else began + limit,
            None if beat is None else beat.total_seconds(),
            monotonic=self._monotonic,
        )
        self._attempts[attempt.place] = attempt
        attempt.is_alone = plan.is_alone
        self._places.show(attempt)
        self._retire_if(self._limits.started(1))
        self._tell("started", claim)
        try:
            ended = await self._executor.run(attempt, plan)
        finally:
            del self._attempts[attempt.place]
            self._places.ended(attempt)
        self._record(attempt, ended, began)

    def _record(self, attempt: Attempt, ended: Settled | Crash | None, began: float) -> None:
        claim = attempt.claim
        if attempt.is_finished:
            self._tell("completed", claim, duration=timedelta(seconds=self._monotonic() - began))
            self._tally.ended(claim, "completed", self._monotonic() - began)
            self._places.written([ref_of(claim)])
        elif isinstance(ended, Crash):
            log.error("job %s (%s): its process died: %s", claim.id, claim.task, ended.cause)
            self._finisher.crash(ref_of(claim), ended.cause)
            self._tell("crashed", claim, reason=ended.cause)
            self._tally.ended(claim, "crashed", self._monotonic() - began)
        elif ended is not None:
            self._finish(claim, ended, began)
        elif attempt.interrupted is Interrupt.STOP:
            self._finisher.release([ref_of(claim)])
        else:
            self._places.written([ref_of(claim)])  # nobody is told: it is somebody else's by now

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
        self._tally.ended(claim, _outcome(settled), self._monotonic() - began)
        self._tell(
            kind_of(settled.to, settled.what),
            claim,
            duration=timedelta(seconds=self._monotonic() - began),
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
                fingerprint=(
                    fingerprint(claim.task, settled.error)
                    if settled.to is JobState.DEAD and settled.error is not None
                    else None
                ),
            )
        )

    def _tell(self, kind: str, claim: Claim, **facts: Any) -> None:
        if self._is_talkative:
            took = facts.get("duration")
            took = "" if took is None else f" after {took.total_seconds():.3f}s"
            log.debug("job %s (%s) attempt %d: %s%s", claim.id, claim.task, claim.attempt, kind, took)
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
        if self._config.burst and self._is_empty and not self._finisher.pending:
            self.drained.set()

    def _watch(self) -> None:
        """Show a pulse; interrupt what is past its deadline; give up what does not end."""
        now = self._monotonic()
        self._places.pulse()
        if self._waiting and now - self._waiting[0].came > HOARD_LIMIT:
            self._give_back_unstarted()
            self._prefetch.hoarded()
        self._retire_if(self._limits.look(now))
        for attempt in list(self._attempts.values()):
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
        for attempt in self._attempts.values():
            is_it = (attempt.claim.id, attempt.claim.token) == (ref.id, ref.token)
            if is_it and attempt.is_together:
                attempt.is_unasked = True  # the others in the call go on
            elif is_it and not attempt.is_stopping:
                attempt.interrupt(Interrupt.CANCEL, self._monotonic())

    def claim_lost(self, attempt: Attempt) -> None:
        """The store refused a report of this attempt: its job is somebody else's now."""
        if self._attempts.get(attempt.place) is attempt and not attempt.is_stopping:
            attempt.interrupt(Interrupt.LOST, self._monotonic())

    def interrupt_all(self) -> None:
        """Ask every running handler to end now; what they held is released."""
        for attempt in list(self._attempts.values()):
            attempt.interrupt(Interrupt.STOP, self._monotonic())

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        return tuple(self._attempts.values())

    @property
    def has_jobs(self) -> bool:
        return bool(self._attempts)


def _outcome(settled: Settled) -> str:
    """The word under which an attempt's end is counted."""
    if settled.to.is_final:
        return str(settled.to)
    return "snoozed" if settled.what == "snoozed" else "failed"


def ref_of(claim: Claim) -> ClaimRef:
    return ClaimRef(claim.id, claim.token)
