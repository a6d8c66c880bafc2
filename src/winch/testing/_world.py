"""`virtual(app)`: the real engine on a store in memory, in a time that passes on request."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from contextvars import copy_context
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from winch.app import App
from winch.core.errors import ConfigError, StorageError, did_you_mean
from winch.core.job import JobRecord
from winch.core.lifecycle import JobState
from winch.core.values.duration import Duration, format_duration, parse_duration
from winch.engine.base import operation
from winch.engine.base.operation import Sleep
from winch.engine.client.client import Surroundings
from winch.engine.client.job import Job
from winch.engine.worker.queues.order import queues_of
from winch.storage.params import Event, JobFilter
from winch.testing._crew import Crew, EveryQueue
from winch.testing._life import CRASH_POINTS, CrashPoint, Life
from winch.testing._loop import NEVER, Outlook, VirtualClock, VirtualLoop, has_running_loop
from winch.testing._store import VirtualStore
from winch.testing.flaky import FlakyStorage

T = TypeVar("T")

START = datetime(2026, 1, 1, tzinfo=UTC)
ALL = 1_000_000
RESTART_PAUSE = 5.0
LONG = 366 * 86400.0

# The services whose passes count: while a dead worker's lease runs out, and while the store is down and
# they try again and again.
NO_SESSION: frozenset[str] = frozenset()
RESCUING = frozenset({"heart", "rescuer"})
TALKATIVE = RESCUING | {"fetcher", "promoter", "ticker", "give-ups", "pruner"}


def virtual(
    app: App,
    *,
    seed: int = 0,
    start: datetime = START,
    queues: Sequence[str] | None = None,
    concurrency: int | None = None,
) -> World:
    """A world in which the app's jobs run on the real engine, in memory and in virtual time.

        with virtual(app) as world:
            job = charge.using(delay="2h").enqueue(7)
            world.advance("2h")
            assert job.refresh().state == "completed"

    Nothing runs until `advance`, `run_once` or `run_all` is called. Time begins at `start`. All that is
    drawn at random, ids, jitter and the `random` module, follows from `seed`. The worker serves all
    queues unless some are named. At the end of the block the app has its own store and clock again.
    """
    return World(app, seed=seed, start=start, queues=queues, concurrency=concurrency)


class World:
    """What `virtual(app)` gives: one worker, its store, and the time they live in."""

    def __init__(
        self,
        app: App,
        *,
        seed: int = 0,
        start: datetime = START,
        queues: Sequence[str] | None = None,
        concurrency: int | None = None,
    ) -> None:
        if start.tzinfo is None:
            raise ConfigError(f"start must be a datetime with a time zone, got {start!r}")
        self._app = app
        self._seed = seed
        self._queues = None if queues is None else queues_of(queues, random.Random(seed))
        self._concurrency = concurrency
        self._rng = random.Random(seed)
        self._clock = VirtualClock(start.astimezone(UTC), self.advance)
        self._store = VirtualStore(self._clock, self._is_served)
        self._flaky = FlakyStorage(self._store)
        self._crew: Crew | None = None
        self._dead: list[Crew] = []
        self._armed: Counter[str] = Counter()
        self._crash_place: int | None = None
        self.places: int = 0
        self._down_until = 0.0
        self._staffing: asyncio.Task[None] | None = None
        self._is_closing = False

    # -- the block ---------------------------------------------------------------------------------

    def __enter__(self) -> World:
        settings = self._app.settings
        if self._concurrency is not None:
            import msgspec

            settings = msgspec.structs.replace(settings, concurrency=self._concurrency)
        self._settings = settings
        self._helper: ThreadPoolExecutor | None = None
        self._loop = VirtualLoop(self._clock)
        self._loop.outlook = self._outlook
        self._outside = copy_context()
        self._block = ExitStack()
        self._block.callback(random.setstate, random.getstate())
        random.seed(self._seed)
        surroundings = Surroundings(
            clock=self._clock,
            random_bytes=self._rng.randbytes,
            run=functools.partial(operation.run, wait=self._pause),
            arun=functools.partial(operation.arun, wait=self._apause),
        )
        self._block.enter_context(self._app.standing_in(self._flaky.driver, surroundings))
        try:
            self._drive(lambda: self._loop.run_until_complete(self._staff()))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._flaky.heal()
        self._armed.clear()
        self._crash_place = None  # the end of the world is no place to crash at
        try:
            self._drive(lambda: self._loop.run_until_complete(self._close()))
        finally:
            self._drive(self._loop.close)
            self._block.close()
            if self._helper is not None:
                self._helper.shutdown()

    async def __aenter__(self) -> World:
        return self.__enter__()

    async def __aexit__(self, *error: object) -> None:
        self.__exit__(*error)

    async def _close(self) -> None:
        self._is_closing = True
        if self._staffing is not None:
            await self._staffing
        if self._crew is not None:
            await self._crew.stop()
        for crew in self._dead:
            await crew.bury()
        await self._loop.shutdown_asyncgens()
        await self._loop.shutdown_default_executor()

    # -- time --------------------------------------------------------------------------------------

    @property
    def now(self) -> datetime:
        """What time it is here."""
        return self._clock.now()

    @property
    def clock(self) -> VirtualClock:
        """The clock of this world; `clock.advance("1d")` is `world.advance("1d")`."""
        return self._clock

    def advance(self, by: Duration) -> None:
        """Let this much time pass and run everything that comes due in it, each thing at its moment."""
        horizon = self._clock.monotonic() + parse_duration(by, "advance").total_seconds()
        self._drive(lambda: self._loop.run_to(horizon))

    def advance_to(self, moment: datetime) -> None:
        """`advance` until it is this moment."""
        if moment < self.now:
            raise ConfigError(f"time cannot go back: it is {self.now}, past {moment}")
        self.advance(moment - self.now)

    def run_once(self) -> int:
        """Run what can run now, while time stands still; returns how many attempts came to an end."""
        before = self._store.finished_attempts
        self.advance(timedelta(0))
        return self._store.finished_attempts - before

    def run_all(self, within: Duration = "366d") -> int:
        """Run every job to its end, retries and delayed ones too, in as much time as that takes.

        Left alone are jobs that no worker would claim: of a paused queue, of an unknown task. Raises
        AssertionError when some are not done `within` this time. Returns how many attempts ended.
        """
        before = self._store.finished_attempts
        limit = parse_duration(within, "within")
        horizon = self._clock.monotonic() + limit.total_seconds()
        self._drive(lambda: self._loop.run_to(horizon, lambda: not self._store.unfinished()))
        left = self._store.unfinished()
        if left:
            some = "".join(f"\n  {job.id} {job.task} {job.state}" for job in left[:10])
            raise AssertionError(
                f"{len(left)} jobs are not done after {format_duration(limit)} of virtual time:{some}"
            )
        return self._store.finished_attempts - before

    # -- looking -----------------------------------------------------------------------------------

    def jobs(
        self,
        *,
        state: JobState | str | None = None,
        task: str | None = None,
        queue: str | None = None,
    ) -> list[Job[Any]]:
        """The jobs in this world that match, oldest first. Works also while the store is down."""
        states = () if state is None else (JobState(state),)
        which = JobFilter(states=states, task=task, queue=queue, limit=ALL)
        found = self._store.run(self._store.list_jobs(which)).jobs
        return [Job(self._app.client, record.id, record) for record in reversed(found)]

    @property
    def events(self) -> list[Event]:
        """Every change of every job so far, in order."""
        return self._store.run(self._store.events(limit=ALL))

    # -- faults ------------------------------------------------------------------------------------

    def crash(self, *, at: CrashPoint, times: int = 1) -> None:
        """Kill the worker, as `kill -9` would, when it next reaches this point. A new worker starts.

        - "claim": the store has given it a job, and the worker never learns of it.
        - "handler": at the handler's first await, or at its end if it has none.
        - "before finish": the handler is done, and the store does not know it.
        - "after finish": the store knows it, and the worker never gets the answer.

        The claim lasts until the end of the lease; then the job is rescued.
        """
        if at not in CRASH_POINTS:
            raise ConfigError(
                f"no crash point {at!r}{did_you_mean(at, CRASH_POINTS)}; there are: "
                f"{', '.join(CRASH_POINTS)}"
            )
        self._armed[at] += times
        if at == "handler" and self._crew is not None:
            self._crew.crash_in_handlers()

    def crash_at(self, place: int) -> None:
        """Let the worker vanish, as by kill -9, at the place of this number; a new one starts.

        Places are counted from 1 as the world runs: before and after each call of the store that does
        something, and each moment at which a running handler waits. `world.places` is how many there
        were, so that a test can try them all, each in a world of its own.
        """
        if place < 1:
            raise ConfigError(f"places are counted from 1, got {place}")
        self._crash_place = place
        if self._crew is not None:
            self._crew.crash_in_handlers()

    def _passes(self) -> bool:
        self.places += 1
        return self.places == self._crash_place

    def crash_worker(self) -> None:
        """Let the worker vanish now, as by kill -9; a new one starts. What it ran is rescued when its
        lease is over. Called by a handler, it ends that handler at its next await."""
        if self._crew is not None:
            self._crew.life.end()

    def lose_reply(self, verb: str, times: int = 1) -> None:
        """The next calls of this verb (enqueue, claim, finish, …) take effect; their answer is lost."""
        self._flaky.fail_after(self._known(verb), times)

    def refuse(self, verb: str, times: int = 1) -> None:
        """The next calls of this verb do nothing and fail."""
        self._flaky.fail_before(self._known(verb), times)

    def store_down(self, how_long: Duration) -> None:
        """The store is out of reach for this long, for the worker and for the test's own calls."""
        self._flaky.down()
        seconds = parse_duration(how_long, "how_long").total_seconds()
        self._down_until = max(self._down_until, self._clock.monotonic() + seconds)
        self._outside.copy().run(self._loop.call_at, self._down_until, self._store_up)

    def jump_clock(self, by: timedelta) -> None:
        """Set the wall clock of the store and of every process forward or back; no time passes by it."""
        self._clock.jump(by)

    def _store_up(self) -> None:
        if self._clock.monotonic() >= self._down_until:  # not when a longer outage began meanwhile
            self._flaky.up()

    def _known(self, verb: str) -> str:
        if not callable(getattr(self._store, verb, None)) or verb.startswith("_"):
            raise ConfigError(f"the store has no verb {verb!r}; some are: enqueue, claim, finish, beat")
        return verb

    # -- the worker --------------------------------------------------------------------------------

    async def _staff(self) -> None:
        """Start a worker, however often that takes: the store may be down."""
        while True:
            life = Life(self._loop, self._takes, self._worker_died)
            context = self._outside.copy()
            life.begin_in(context)
            life.passes = self._passes
            crew = self._crew = context.run(self._new_crew, life)
            if self._armed["handler"] or self._crash_place is not None:
                crew.crash_in_handlers()
            try:
                await self._loop.create_task(crew.start(), context=context)
            except StorageError:
                self._crew = None
                self._dead.append(crew)
                await asyncio.sleep(RESTART_PAUSE)
            else:
                return

    def _new_crew(self, life: Life) -> Crew:
        return Crew(
            self._flaky.driver,
            self._app.runtime,
            self._settings,
            life,
            order=self._queues or EveryQueue(self._all_queues, self._rng),
            clock=self._clock,
            rng=self._rng,
        )

    def _worker_died(self) -> None:
        if self._crew is not None:
            self._dead.append(self._crew)
            self._crew = None
        # In a context outside of the dead worker's life: its successor must not be born dead.
        self._loop.call_soon(self._replace, context=self._outside.copy())

    def _replace(self) -> None:
        if not self._is_closing:
            self._staffing = self._loop.create_task(self._staff())

    def _takes(self, point: CrashPoint) -> bool:
        if not self._armed[point]:
            return False
        self._armed[point] -= 1
        return True

    def _all_queues(self) -> list[str]:
        named = {task.options.queue for task in self._app.tasks} | self._store.queues_in_use
        return sorted(named | {"default"})

    def _is_served(self, job: JobRecord) -> bool:
        is_queue = self._queues is None or self._queues.serves(job.queue)
        return is_queue and job.task in self._app.tasks

    # -- driving -----------------------------------------------------------------------------------

    def _outlook(self) -> Outlook:
        """How long the worker would only poll, and find nothing."""
        crew = self._crew
        if crew is None or any(attempt.is_stopping for attempt in crew.worker.attempts):
            return Outlook(0.0)
        attempts = crew.worker.attempts
        limits = (NEVER if attempt.deadline is None else attempt.deadline for attempt in attempts)
        deadline = min(limits, default=NEVER)
        if self._flaky.is_down:
            return Outlook(deadline, TALKATIVE)
        due = self._store.next_due(
            running={(attempt.claim.id, attempt.claim.token) for attempt in attempts},
            session=crew.worker.session,
            is_full=len(attempts) >= self._settings.concurrency,
        )
        if due is None:
            return Outlook(0.0)
        until = min(self._clock.seconds_at(due), deadline)
        return Outlook(until, RESCUING if self._store.has_leftovers(crew.worker.session) else NO_SESSION)

    def _drive(self, run: Callable[[], T]) -> T:
        """Let the world's loop run; here, or in a thread where this one runs a loop of its own."""
        if self._loop.is_running():
            raise RuntimeError(
                "this is called by a handler that runs in the virtual world; only the test "
                "itself can move its time"
            )
        if not has_running_loop():
            return self._seen_through(run)
        if self._helper is None:
            # One and the same thread for the whole block: handlers may have things that stay in one.
            self._helper = ThreadPoolExecutor(1, "winch-virtual")
        return self._helper.submit(copy_context().run, self._seen_through, run).result()

    def _seen_through(self, run: Callable[[], T]) -> T:
        result = run()
        if not self._is_closing and self._crew is not None and self._crew.worker.broken is not None:
            raise self._crew.worker.broken
        return result

    def _pause(self, pause: Sleep) -> None:
        """How `job.result()` and an enqueue that meets an outage wait here: time passes."""
        if self._loop.is_running():
            raise RuntimeError(
                "a plain function runs on the world's loop and cannot wait there for another job or for "
                "the store; make the handler `async def` and use the awaitable form"
            )
        if pause.most <= pause.seconds:
            self.advance(timedelta(seconds=pause.seconds))
            return
        before, most = self._store.ended, min(pause.most, LONG)
        horizon = self._clock.monotonic() + most
        self._drive(lambda: self._loop.run_to(horizon, lambda: self._store.ended != before))
        if most == LONG and self._store.ended == before:
            raise RuntimeError("a year has passed and no job has ended: this one never will")

    async def _apause(self, pause: Sleep) -> None:
        if asyncio.get_running_loop() is not self._loop:
            self._pause(pause)
        elif pause.most <= pause.seconds:
            await asyncio.sleep(pause.seconds)
        else:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if pause.most == NEVER else pause.most):
                    await self._store.until_some_job_ends()
