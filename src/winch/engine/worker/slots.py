"""The slots of a worker: `concurrency` runners over the jobs it has claimed.

A job that has waited here too long goes back to the store. `room.py` has how many to claim ahead, and
what heavy jobs need.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from winch.core.errors import StorageError
from winch.core.flow import INPUTS_HEADER
from winch.core.gates.uses import traits_of
from winch.core.job import Claim
from winch.core.outcome import Failed
from winch.core.policy.queue_limits import QueueLimit
from winch.core.policy.retry import DEFAULT_RETRY
from winch.engine.base.failure import describe
from winch.engine.base.log import log
from winch.engine.tasks.runtime import Runtime
from winch.engine.worker.fetcher import Fetcher
from winch.engine.worker.held_jobs import Waiting, ref_of
from winch.engine.worker.interrupts import OnLoop
from winch.engine.worker.queues.bounds import QueueBounds
from winch.engine.worker.room import Prefetch, Weights, weight_of
from winch.engine.worker.running.choose import JobPlan, Way, is_as_usual
from winch.engine.worker.running.collecting import Collecting
from winch.engine.worker.running.inline import Begun, Inline
from winch.engine.worker.running.parts import Parts
from winch.engine.worker.running.process import IsolationFailed
from winch.engine.worker.running.threads import ThreadRows, Threads
from winch.storage.fast import is_fast
from winch.storage.params import Promoted
from winch.storage.protocol import Driver
from winch.storage.verbs import Verb

# A slot whose jobs never wait lets the loop turn after so many seconds: claims and finishes must move.
TURN_EVERY = 0.001
# How often, and how long each time, a burst that is about to end waits for another process that has
# locked the last jobs to make them ready.
LOCKED_TRIES = 100
LOCKED_PAUSE = 0.01
# After its last job it waits at most this many seconds for a job that comes due or a gate that opens.
READY_SOON = 1.0
# How long such a burst waits for the last outcomes to be stored before it claims once more.
FLUSH_WAIT = 0.5
# A claim takes at most this many: with as many again waiting, the slots work while the store does.
MOST_AT_ONCE = 500
# A claimed job that has not started within this many seconds is given back.
HOARD_LIMIT = 0.1


class Slots:
    """Runs claimed jobs, and takes more of them from the fetcher (its `JobTaker`)."""

    def __init__(
        self,
        driver: Driver,
        runtime: Runtime,
        parts: Parts,
        threads: Threads,
        concurrency: int,
        *,
        is_burst: bool,
        on_drained: Callable[[], None],
        on_broken: Callable[[IsolationFailed], None],
    ) -> None:
        """`on_drained`: a burst has nothing left to run. `on_broken`: no isolated job can run."""
        self._driver = driver
        self._runtime = runtime
        self._jobs = parts.jobs
        self._executor = parts.executor
        self._recorder = parts.recorder
        self._finisher = parts.recorder.finisher
        self._concurrency = concurrency
        self._is_burst = is_burst
        self._on_drained = on_drained
        self._on_broken = on_broken
        self._hands_over = is_fast()
        self._prefetch = Prefetch(concurrency)
        self.weights: Weights = Weights(concurrency, (task.options.slots for task in runtime.tasks))
        self._inline = Inline(parts)
        self._rows = ThreadRows(parts, threads, self._ran_in_row)
        self._collecting = Collecting(parts, concurrency, self._claim_more, self.deliver)
        self._idle: deque[asyncio.Future[None]] = deque()
        self._busy = 0
        self._deliveries = 0
        self._looked_after = -1  # how many deliveries had come when a burst last looked for more
        self._waits_until = 0.0  # when such a burst no longer waits
        self._is_last_claim = False  # whether it has claimed once more after its last look
        self._is_closed = False
        self._for_free_slot: Waiting | None = None  # the last one that came
        self._fetcher: Fetcher | None = None
        self.all_ended: asyncio.Event = asyncio.Event()
        self.all_ended.set()

    def fetch_from(self, fetcher: Fetcher) -> None:
        """The fetcher that claims for these slots."""
        self._fetcher = fetcher

    def bounds(self, limits: Mapping[str, QueueLimit]) -> QueueBounds | None:
        """What these limits of queues leave for a claim; None where there are none."""
        return QueueBounds(limits, self._claims, self._jobs.monotonic) if limits else None

    def _claims(self) -> list[Claim]:
        """All claims that wait or run here."""
        with self._jobs.lock:
            here = [item[0] for item in self._jobs.waiting]
            here += [attempt.claim for attempt in self._jobs.running]
        return here + self._collecting.claims()

    def close(self) -> None:
        """Claim nothing more."""
        self._is_closed = True

    # -- what the fetcher needs --------------------------------------------------------------------

    @property
    def session(self) -> str:
        return self._jobs.session

    @property
    def is_empty(self) -> bool:
        return not self._busy and not self._jobs.waiting

    def free(self) -> int:
        # Ends that are on their way to the store may claim the next jobs of their gates.
        taken = self._busy + len(self._jobs.waiting) + self._finisher.continuing + self._extra()
        return max(self._concurrency - taken, 0)

    def _extra(self) -> int:
        """What heavy jobs take beyond one slot each: those that run, and those that wait."""
        if not self.weights.differ:
            return 0
        with self._jobs.lock:
            return self.weights.extra + self.weights.waiting(self._jobs.waiting)

    def answered(self, seconds: float) -> None:
        self._prefetch.claimed(seconds)

    def room(self, asked: int = 0) -> int:
        """How many jobs to claim now: for the free slots, and ahead where jobs are short. `asked` are
        those that another claim may bring, which is not answered yet."""
        return self._room(asked, is_alone=True)

    def space(self, asked: int = 0) -> int:
        """The same for a claim that costs no round trip of its own."""
        return 0 if self._jobs.is_draining else self._room(asked, is_alone=False)

    def _room(self, asked: int, *, is_alone: bool) -> int:
        waiting, recycling = len(self._jobs.waiting), self._jobs.recycling
        if recycling.why is not None or self._is_closed:
            return 0
        # The supervisor releases what a child without a pulse holds: no claim without a pulse.
        if self._jobs.places is not None:
            self._jobs.places.pulse()
        # A claim without a free slot may take one job under a scope or a slow rate, or the worker would
        # wait for the bell while such jobs are ready. While that one waits here, no other claim does.
        ahead = 0 if waiting and self._holds_for_free_slot() else self._prefetch.ahead()
        free = self._concurrency - self._busy - waiting - self._extra()
        if self.weights.differ and not self.weights.may_claim(free):
            return 0
        room = free + min(ahead, self._prefetch.most() - asked)
        if recycling.counts_jobs:
            room = min(room, recycling.cap(room + waiting) - waiting)
        # With something waiting already, small claims are not worth their round trip.
        if is_alone and waiting and room < min(ahead // 2, MOST_AT_ONCE):
            return 0
        return max(min(room, MOST_AT_ONCE), 0)

    def _holds_for_free_slot(self) -> bool:
        """Whether a job waits here that was to be claimed for a free slot."""
        if self._for_free_slot is None:
            return False
        with self._jobs.lock:
            is_here = any(item is self._for_free_slot for item in self._jobs.waiting)
        if not is_here:
            self._for_free_slot = None
        return is_here

    def deliver(self, claims: Sequence[Claim], sent: float) -> None:
        if not claims:
            return
        if self._jobs.is_draining:  # the claim was on its way when the stop came
            self._finisher.release([ref_of(claim) for claim in claims])
            return
        self._deliveries += 1
        self._prefetch.brought(claims)
        now = self._jobs.monotonic()
        if self._runtime.middleware:
            self._runtime.run_hooks("claimed", claims, now - sent)
        planned = self._planned(claims, sent, now)
        if not planned:
            return
        self._jobs.waiting.extend(planned)
        self.all_ended.clear()
        self._wake_slot()
        if not self._hands_over:
            for _ in claims[1:]:
                self._wake_slot()

    def _planned(self, claims: Sequence[Claim], sent: float, now: float) -> list[Waiting]:
        """The jobs with their plans. Plain jobs, and jobs that only have gates, have the usual plan of
        their task. The chooser makes one for any other job, and for every job where hooks or subscribers
        have to learn of each."""
        runtime, chooser = self._runtime, self._executor.chooser
        usual = {} if runtime.middleware or runtime.events.is_heard else chooser.usual
        settings = chooser.settings
        items: list[Waiting] = []
        for claim in claims:
            plan = usual.get(claim.task)
            if (
                plan is not None
                and (claim.options is None or is_as_usual(claim.options))
                and not claim.is_suspect
                and claim.expires_at is None
                and claim.version == plan.version
                and INPUTS_HEADER not in claim.headers
                and claim.queue not in settings
            ):
                item: Waiting = (claim, sent, now, plan)
            else:
                try:
                    item = (claim, sent, now, chooser.plan(claim))
                except Exception as error:
                    self._failed(claim, error)
                    continue
            if claim.options is not None:
                traits = traits_of(claim.options)
                if traits.for_free_slot or (claim.attempt > 1 and traits.retries_for_free_slot):
                    self._for_free_slot = item
            items.append(item)
        return items

    async def found_nothing(self) -> bool:
        """Whether to claim once more: jobs may have come due that no promoter has looked at yet, and the
        last jobs of a burst may have been all that others waited for. A burst is over when there was
        nothing to claim after a look at both, and no job becomes ready within a second."""
        if not self._is_burst or not self.is_empty:
            return False
        if self._finisher.pending:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FLUSH_WAIT):
                    await self._finisher.flushed()
            return True
        deliveries = self._deliveries
        if self._looked_after == deliveries:
            if await self._becomes_ready():
                self._is_last_claim = False
                return True
            if not self._is_last_claim:
                # The worker's own promoter may have made jobs ready after the last claim.
                self._is_last_claim = True
                return True
            self._on_drained()
            return False
        self._is_last_claim = False
        self._waits_until = self._jobs.monotonic() + READY_SOON
        await self._until_none_is_left(lambda: self._driver.promote(limit=MOST_AT_ONCE))
        await self._until_none_is_left(self._driver.unblock)
        self._looked_after = deliveries
        return True

    async def _until_none_is_left(self, verb: Callable[[], Verb[Promoted]]) -> None:
        """Carry out a verb that passes over locked jobs until it has passed over none: the process that
        locked them may not have committed yet, and a claim would miss them."""
        for _ in range(LOCKED_TRIES):
            found = await self._driver.arun(verb())
            is_due = found.next_at is not None and found.next_at <= found.now
            if not found.is_more and not is_due:
                return
            await asyncio.sleep(LOCKED_PAUSE)

    async def _becomes_ready(self) -> bool:
        """Whether jobs have become ready: waits for those that come due, or whose gate opens, in a
        moment. The time counts from the last delivery, so other queues cannot keep a burst up."""
        while self._jobs.monotonic() <= self._waits_until:
            due = await self._driver.arun(self._driver.promote(limit=MOST_AT_ONCE))
            opened = await self._driver.arun(self._driver.admit(limit=MOST_AT_ONCE))
            if due.count or opened.count:
                return True
            seconds = [
                (found.next_at - found.now).total_seconds() for found in (due, opened) if found.next_at
            ]
            if not seconds or self._jobs.monotonic() + min(seconds) > self._waits_until:
                return False
            await asyncio.sleep(max(min(seconds), LOCKED_PAUSE))
        return False

    # -- giving back -------------------------------------------------------------------------------

    def release_unstarted(self) -> None:
        self._finisher.release(self._jobs.drop_waiting())
        if self.is_empty:
            self.all_ended.set()

    def release_hoarded(self, now: float) -> None:
        """Release jobs that have waited here for too long: other workers may be free."""
        with contextlib.suppress(IndexError):
            first = self._jobs.waiting[0]
            if now - first[2] > HOARD_LIMIT:
                self.weights.reserve(first)
                self.release_unstarted()
                self._prefetch.hoarded()

    def drop(self) -> None:
        """Forget all that have not started: the store has given them to others."""
        self._jobs.drop_waiting()
        self._collecting.drop()

    def tokens(self) -> set[str]:
        """The tokens of all claims whose end the store does not know."""
        return self._jobs.tokens() | self._finisher.tokens | self._collecting.tokens()

    # -- running -----------------------------------------------------------------------------------

    def _wake_slot(self) -> None:
        """Wake one slot: it wakes the next when its job waits. Jobs that are over as soon as they have
        begun need no second one, and the loop turns in between."""
        while self._idle:
            waiter = self._idle.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    async def run(self, slot: int) -> None:
        """One slot: job after job."""
        jobs = self._jobs
        waiting, monotonic = jobs.waiting, jobs.monotonic
        on_loop = OnLoop(asyncio.current_task())
        turned_at = now = monotonic()
        while True:
            if not waiting or (self.weights.differ and not self._next_fits()):
                waiter = asyncio.get_running_loop().create_future()
                self._idle.append(waiter)
                await waiter
                turned_at = now = monotonic()
            elif now - turned_at >= TURN_EVERY:
                await asyncio.sleep(0)
                turned_at = now = monotonic()
            if self.weights.differ and waiting and not self._next_fits():
                continue  # another slot was quicker
            self._busy += 1
            ran, begun = 0, None
            if self._next_is_inline():
                began = now
                now, ran, begun = self._inline.run(on_loop, now, turned_at + TURN_EVERY)
                if ran:
                    self._prefetch.ended_in_place((now - began) / ran, ran)
                if jobs.recycling.counts_jobs:
                    jobs.recycling.started(ran if begun is None else ran + 1)
            if begun is not None:
                now = await self._see_through(begun.attempt.claim, self._go_on(begun, now))
            elif not ran:
                now = await self._run_next(now, slot)
            if on_loop.runner.cancelling():  # by a handler itself, which has ended since
                await on_loop.absorb()
            self._busy -= 1
            if not waiting and not self._busy:
                self.all_ended.set()
                if self._is_burst and self._fetcher is not None:
                    self._fetcher.look_up()  # a burst ends with its last job, not at the next poll
            if self._fetcher is not None:
                self._fetcher.job_ended()

    def _next_fits(self) -> bool:
        """Whether there are as many free slots as the next job takes. If not, those behind it wait."""
        try:
            return self.weights.fits(self._jobs.waiting[0], self._busy)
        except IndexError:  # a thread was quicker
            return False

    def _next_is_inline(self) -> bool:
        """Whether the next job is one of a row of coroutines."""
        try:
            plan = self._jobs.waiting[0][3]
        except IndexError:  # a thread was quicker
            return False
        return isinstance(plan, JobPlan) and plan.way is Way.INLINE

    async def _run_next(self, now: float, slot: int) -> float:
        """Run the next job in its way; the time when it is over."""
        try:
            item = self._jobs.waiting.popleft()
        except IndexError:  # another slot was quicker
            return now
        extra = weight_of(item) - 1 if self.weights.differ else 0
        if extra and not self.weights.fits(item, self._busy - 1):  # a thread has taken the one before
            self._jobs.waiting.appendleft(item)
            return now
        rest = None
        try:
            rest = self._start(item, now, slot)
        except Exception as error:
            self._failed(item[0], error)
        if rest is not None:
            self.weights.extra += extra
            try:
                return await self._see_through(item[0], rest)
            finally:
                self.weights.extra -= extra
        ended = self._jobs.monotonic()
        self._prefetch.ended_in_place(ended - now)
        return ended

    def _start(self, item: Waiting, now: float, slot: int) -> Coroutine[Any, Any, None] | None:
        """The rest of this job; None where it is over without a call of its handler."""
        claim, sent, _, plan = item
        if now - sent > self._jobs.too_old:
            # This process stood still: the supervisor may have given the job to others.
            self._finisher.release([ref_of(claim)])
            return None
        if not isinstance(plan, JobPlan):
            self._recorder.finish(claim, plan, now)
            return None
        match plan.way:
            case Way.COLLECTING:
                return self._run_together(item, plan, now, slot)
            case Way.THREAD_ROWS:
                return self._run_rows(item, plan, now)
            case _:
                return self._run_job(claim, plan, now)

    async def _go_on(self, begun: Begun, began: float) -> None:
        await self._inline.go_on(begun, began)
        self._prefetch.ended(self._jobs.monotonic() - began)

    async def _run_together(self, item: Waiting, plan: JobPlan, began: float, slot: int) -> None:
        await self._collecting.run(item, plan.task, slot)
        self._prefetch.ended(self._jobs.monotonic() - began)

    async def _run_rows(self, item: Waiting, plan: JobPlan, now: float) -> None:
        if not await self._rows.run(item, plan):
            await self._run_job(item[0], plan, now)

    async def _run_job(self, claim: Claim, plan: JobPlan, began: float) -> None:
        attempt = self._jobs.begin(claim, plan, began)
        self._jobs.recycling.started(1)
        self._recorder.publish("started", claim)
        try:
            ended = await self._executor.run(attempt, plan)
        finally:
            self._jobs.end(attempt)
        self._recorder.record(attempt, ended, began)
        self._prefetch.ended(self._jobs.monotonic() - began)

    async def _see_through(self, claim: Claim, rest: Coroutine[Any, Any, None]) -> float:
        """Wait for the end of a job that waits; meanwhile another slot takes the next one."""
        if self._jobs.waiting:
            self._wake_slot()
        try:
            await rest
        except Exception as error:
            self._failed(claim, error)
        return self._jobs.monotonic()

    def _failed(self, claim: Claim, error: Exception) -> None:
        """A job could not be run to an end. Where the store or the isolated processes are to blame it
        goes back. Else its attempt failed: given back, it would be claimed and fail again at once."""
        if isinstance(error, IsolationFailed):  # the next job would fare no better
            self._finisher.release([ref_of(claim)])
            self._on_broken(error)
            return
        if isinstance(error, StorageError):
            log.warning("job %s is released: %s", claim.id, error)
            self._finisher.release([ref_of(claim)])
            return
        log.exception(
            "job %s: the worker itself failed; the job's attempt failed", claim.id, exc_info=error
        )
        settled = self._executor.settler.unrun(claim, Failed(describe(error), DEFAULT_RETRY))
        self._recorder.finish(claim, settled, self._jobs.monotonic())

    def _ran_in_row(self, seconds: float) -> None:
        """A job of a row has ended; its slot continues with the next."""
        self._prefetch.ended(seconds)
        if self._fetcher is not None:
            self._fetcher.job_ended()

    async def _claim_more(self, task: str, room: int) -> list[Claim]:
        return [] if self._fetcher is None else await self._fetcher.more(task, room)
