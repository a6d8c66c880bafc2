"""The slots of a worker: `concurrency` runners over the jobs it has claimed, and how many to claim.

Short jobs are over before the next claim is answered, so a worker that claims only for free slots
mostly waits for the store. Long jobs need nothing ahead: a job that is claimed early waits here instead
of running elsewhere. So the number follows what is measured, job time and round trip, and a job that
has waited here too long goes back to the store.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from winch.core.flow import INPUTS_HEADER
from winch.core.job import Claim
from winch.engine.base.log import log
from winch.engine.tasks.runtime import Runtime
from winch.engine.worker.fetcher import Fetcher
from winch.engine.worker.held_jobs import Waiting, ref_of
from winch.engine.worker.interrupts import OnLoop
from winch.engine.worker.running.choose import JobPlan, Way
from winch.engine.worker.running.collecting import Collecting
from winch.engine.worker.running.inline import Begun, Inline
from winch.engine.worker.running.parts import Parts
from winch.engine.worker.running.process import IsolationFailed
from winch.engine.worker.running.threads import ThreadRows, Threads
from winch.storage.fast import is_fast
from winch.storage.protocol import Driver

# A slot whose jobs never wait lets the loop turn after so many seconds: claims and finishes must move.
TURN_EVERY = 0.001
# How often, and how long, a burst that is about to end waits for processes that look at what jobs wait
# for.
UNBLOCK_TRIES = 100
UNBLOCK_PAUSE = 0.01
# It waits for a gate that opens within this many seconds: a rate lets the next jobs through then.
OPENS_SOON = 1.0
# How long such a burst waits for the last outcomes to be stored before it claims once more.
FLUSH_WAIT = 0.5
MOST = 1000
# A claim takes at most this many: with as many again waiting, the slots work while the store does.
MOST_AT_ONCE = 500
# Never more than the slots will start within this many seconds.
HORIZON = 0.05
# More jobs a second than this are claimed ahead for so many seconds, however quick the store is: a claim
# of a few jobs costs nearly as much as one of hundreds.
MANY, MANY_HORIZON = 2000, 0.005
# A claimed job that has not started within this many seconds is given back.
HOARD_LIMIT = 0.1
_WEIGHT = 0.1


class Prefetch:
    """Running averages of a job's time in its slot and of a claim's round trip, in seconds."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._job_time: float | None = None
        self._round_trip = 0.001

    def ended(self, seconds: float, jobs: int = 1) -> None:
        """So many jobs took this long each, and each counts: a worker that begins on a full queue runs
        hundreds at a time, and knows after the first of these how many to claim."""
        if self._job_time is None:
            self._job_time = seconds
        else:
            weight = _WEIGHT if jobs == 1 else 1 - (1 - _WEIGHT) ** jobs
            self._job_time += weight * (seconds - self._job_time)

    def ended_in_place(self, seconds: float, jobs: int = 1) -> None:
        """So many jobs kept all slots from running for this long each: they never waited."""
        self.ended(seconds * self._slots, jobs)

    def claimed(self, seconds: float) -> None:
        """A claim took this long to be answered."""
        self._round_trip += _WEIGHT * (seconds - self._round_trip)

    def hoarded(self) -> None:
        """Jobs waited too long: forget what made them look short."""
        self._job_time = None

    def ahead(self) -> int:
        """How many to claim beyond the free slots; none until a job's time is known."""
        if self._job_time is None:
            return 0
        rate = self._slots / max(self._job_time, 1e-6)
        horizon = min(2 * self._round_trip, HORIZON)
        if rate > MANY:
            horizon = max(horizon, MANY_HORIZON)
        return int(min(rate * horizon, MOST))


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
        self._inline = Inline(parts)
        self._rows = ThreadRows(parts, threads, self._ran_in_row)
        self._collecting = Collecting(parts, concurrency, self._claim_more, self.deliver)
        self._idle: deque[asyncio.Future[None]] = deque()
        self._busy = 0
        self._has_looked = False  # since the last jobs came
        self._is_closed = False
        self._fetcher: Fetcher | None = None
        self.all_ended: asyncio.Event = asyncio.Event()
        self.all_ended.set()

    def fetch_from(self, fetcher: Fetcher) -> None:
        """The fetcher that claims for these slots."""
        self._fetcher = fetcher

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
        return max(self._concurrency - self._busy - len(self._jobs.waiting), 0)

    def answered(self, seconds: float) -> None:
        self._prefetch.claimed(seconds)

    def room(self) -> int:
        """How many jobs to claim now: for the free slots, and ahead where jobs are short."""
        return self._room(is_alone=True)

    def space(self) -> int:
        """The same for a claim that costs no round trip of its own."""
        return 0 if self._jobs.is_draining else self._room(is_alone=False)

    def _room(self, *, is_alone: bool) -> int:
        waiting, recycling = len(self._jobs.waiting), self._jobs.recycling
        if recycling.why is not None or self._is_closed:
            return 0
        # The supervisor releases what a child without a pulse holds: no claim without a pulse.
        if self._jobs.places is not None:
            self._jobs.places.pulse()
        ahead = self._prefetch.ahead()
        room = self._concurrency + ahead - self._busy - waiting
        if recycling.counts_jobs:
            room = min(room, recycling.cap(room + waiting) - waiting)
        # With something waiting already, small claims are not worth their round trip.
        if is_alone and waiting and room < min(ahead // 2, MOST_AT_ONCE):
            return 0
        return max(min(room, MOST_AT_ONCE), 0)

    def deliver(self, claims: Sequence[Claim], sent: float) -> None:
        if not claims:
            return
        if self._jobs.is_draining:  # the claim was on its way when the stop came
            self._finisher.release([ref_of(claim) for claim in claims])
            return
        self._has_looked = False
        now = self._jobs.monotonic()
        for middleware in self._runtime.middleware:
            middleware.claimed(claims, now - sent)
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
        """The jobs with their plans. Plain jobs have the usual plan of their task; the chooser makes one
        for any other job, and for every job where hooks or subscribers have to learn of each."""
        runtime, chooser = self._runtime, self._executor.chooser
        usual = {} if runtime.middleware or runtime.events.is_heard else chooser.usual
        settings = chooser.settings
        items: list[Waiting] = []
        for claim in claims:
            plan = usual.get(claim.task)
            if (
                plan is not None
                and claim.options is None
                and not claim.is_suspect
                and claim.expires_at is None
                and claim.version == plan.version
                and INPUTS_HEADER not in claim.headers
                and claim.queue not in settings
            ):
                items.append((claim, sent, now, plan))
                continue
            try:
                items.append((claim, sent, now, chooser.plan(claim)))
            except Exception as error:
                self._failed(claim, error)
        return items

    async def found_nothing(self) -> bool:
        """Whether to claim once more: jobs may have come due that no promoter has looked at yet, and the
        last jobs of a burst may have been all that others waited for. A burst is over when there was
        nothing to claim after a look at both, and no gate opens within a second."""
        if not self._is_burst or not self.is_empty:
            return False
        if self._finisher.pending:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FLUSH_WAIT):
                    await self._finisher.flushed()
            return True
        if self._has_looked:
            if await self._opens_soon():
                return True
            self._on_drained()
            return False
        await self._driver.arun(self._driver.promote(limit=MOST_AT_ONCE))
        for _ in range(UNBLOCK_TRIES):
            found = await self._driver.arun(self._driver.unblock())
            if not found.is_more:
                break
            await asyncio.sleep(UNBLOCK_PAUSE)
        self._has_looked = True
        return True

    async def _opens_soon(self) -> bool:
        """Whether a gate has let jobs through; waits for one that opens in a moment."""
        found = await self._driver.arun(self._driver.admit(limit=MOST_AT_ONCE))
        if found.count or found.next_at is None:
            return found.count > 0
        seconds = (found.next_at - found.now).total_seconds()
        if not 0 < seconds <= OPENS_SOON:
            return False
        await asyncio.sleep(seconds)
        await self._driver.arun(self._driver.admit(limit=MOST_AT_ONCE))
        return True

    # -- giving back -------------------------------------------------------------------------------

    def release_unstarted(self) -> None:
        self._finisher.release(self._jobs.drop_waiting())
        if self.is_empty:
            self.all_ended.set()

    def release_hoarded(self, now: float) -> None:
        """Release jobs that have waited here for too long: other workers may be free."""
        with contextlib.suppress(IndexError):
            if now - self._jobs.waiting[0][2] > HOARD_LIMIT:
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
            if not waiting:
                waiter = asyncio.get_running_loop().create_future()
                self._idle.append(waiter)
                await waiter
                turned_at = now = monotonic()
            elif now - turned_at >= TURN_EVERY:
                await asyncio.sleep(0)
                turned_at = now = monotonic()
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
            if self._fetcher is not None and self._fetcher.is_waiting:
                self._fetcher.slot_freed()

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
        rest = None
        try:
            rest = self._start(item, now, slot)
        except Exception as error:
            self._failed(item[0], error)
        if rest is not None:
            return await self._see_through(item[0], rest)
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
        self._recorder.tell("started", claim)
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
        self._finisher.release([ref_of(claim)])
        if isinstance(error, IsolationFailed):  # the next job would fare no better
            self._on_broken(error)
        else:
            log.exception("job %s: the worker itself failed; the job is released", claim.id)

    def _ran_in_row(self, seconds: float) -> None:
        """A job of a row has ended; its slot continues with the next."""
        self._prefetch.ended(seconds)
        if self._fetcher is not None and self._fetcher.is_waiting:
            self._fetcher.slot_freed()

    async def _claim_more(self, task: str, room: int) -> list[Claim]:
        return [] if self._fetcher is None else await self._fetcher.more(task, room)
