"""One seed's world: a whole fleet on the memory store, in virtual time.

Everything follows from the seed: what is enqueued and when, how long each call of the store takes on its
way there and back, so in which order the calls of several workers meet, which answers are lost, when a
worker is cut off for longer than its lease, and at which call of the store one dies. Then all is healed,
everything must end, and the history is judged by the same rules as that of real processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextvars import copy_context
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from typing import Any, TypeVar, cast

from lab.history import History, Verdict, check
from lab.history.lines import Ended, Line, Nemesis, Replied, Sent, Stamp, Started
from winch import App, Context, Limit, Retry, batch
from winch.core.errors import EnqueueUncertain, StorageError, StorageUnavailable
from winch.core.values.ids import random_id
from winch.engine.base import operation
from winch.engine.base.operation import Sleep
from winch.engine.base.settings import Loaded, load
from winch.engine.client.client import Surroundings
from winch.engine.worker import monitors
from winch.engine.worker.queues.order import QueueOrder
from winch.storage.params import JobFilter, NewJob
from winch.storage.protocol import Driver
from winch.storage.verbs import Sending, Unhurried, Verb
from winch.testing._crew import Crew
from winch.testing._life import Life, life_of
from winch.testing._loop import NEVER, Outlook, VirtualClock, VirtualLoop
from winch.testing._store import VirtualStore
from winch.testing._world import RESCUING

T = TypeVar("T")
START = datetime(2026, 1, 1, tzinfo=UTC)
LEASE, HEARTBEAT, SWEEP, POLL = 6.0, 1.5, 1.5, 3.0
TROUBLE = 15.0
# A worker looks at its deadlines twenty times a second; there is nothing in that to explore.
WATCH = 0.5
HORIZON = 3000.0
SCHEDULE = "often"


class Wire:
    """One client's way to the store: slow, with lost answers and cuts; it may kill its process."""

    def __init__(self, inner: Driver, sim: Simulation, number: int, life: Life | None = None) -> None:
        self._inner = inner
        self._sim = sim
        self._number = number
        self.life = life
        self.cut_until = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    @property
    def driver(self) -> Driver:
        return cast(Driver, self)

    def enqueue(self, jobs: Sequence[NewJob], **how: Any) -> Any:
        self._sim.sent([job.id for job in jobs], self._number)
        return self._inner.enqueue(jobs, **how)

    def enqueue_after(self, jobs: Sequence[NewJob], *args: Any, **how: Any) -> Any:
        self._sim.sent([job.id for job in jobs], self._number)
        return self._inner.enqueue_after(jobs, *args, **how)

    def run(self, verb: Verb[T]) -> T:
        return self._inner.run(verb)

    def sending(self, verb: Verb[T]) -> Sending[T]:
        return Unhurried(self.run, verb)

    async def arun(self, verb: Verb[T]) -> T:
        sim = self._sim
        await self._travel()
        await self._place(verb)
        answer = await self._inner.arun(verb)
        await self._place(verb)
        if sim.happens(sim.p_lost):
            sim.count["reply lost"] += 1
            await self._travel()
            raise StorageUnavailable(f"the answer to {verb.name} was lost", maybe_applied=True)
        await self._travel()
        return answer

    async def _travel(self) -> None:
        sim = self._sim
        if sim.is_troubled:
            await asyncio.sleep(sim.rng.choice(sim.latencies))
        if (left := self.cut_until - sim.clock.monotonic()) > 0:
            await asyncio.sleep(left)

    async def _place(self, verb: Verb[Any]) -> None:
        """A place to die at: before and after each call."""
        if self.life is None:
            return
        sim = self._sim
        sim.places += 1
        if (sim.is_troubled and sim.places == sim.deadly) or sim.happens(sim.p_crash):
            sim.killed(self._number, verb.name)
            self.life.end()
            await self.life.never()


class Simulation:
    """One seed's world."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.clock = VirtualClock(START, lambda _: None)
        self.store = VirtualStore(self.clock, lambda _: True)
        self.lines: list[Line] = []
        self.count: Counter[str] = Counter()
        self.places = 0
        self.app = _make(self)
        self.drawn: list[str] = []
        self.is_troubled = True
        self._crews: dict[int, Crew] = {}
        self._wires: dict[int, Wire] = {}
        self._dead: list[Crew] = []
        self._started: set[int] = set()
        self._numbers = iter(range(1000, 100_000))
        self._is_closing = False
        # What kind of trouble this seed has.
        rng = self.rng
        self.workers = rng.choice([1, 2, 2, 3])
        self.p_crash = rng.choice([0, 0, 0.001, 0.005])
        self.p_lost = rng.choice([0, 0, 0.01, 0.05])
        self.p_cut = rng.choice([0, 0, 0.3])
        self.deadly = rng.choice([0, rng.randrange(1, 40), rng.randrange(1, 400)])
        self.latencies = rng.choice([(0.0,), (0.0, 0.001, 0.02), (0.0, 0.1, 0.5, 2.0)])

    # -- what is written down ----------------------------------------------------------------------

    def stamp(self, pid: int) -> Stamp:
        return {"pid": pid, "mono": self.clock.monotonic(), "wall": self.clock.now().timestamp()}

    def sent(self, ids: Sequence[str], number: int) -> None:
        self.lines.append(Sent(**self.stamp(number), call=self.rng.randbytes(6).hex(), ids=tuple(ids)))
        self.drawn += ids

    def killed(self, number: int, verb: str) -> None:
        self.count["killed"] += 1
        self.lines.append(Nemesis(**self.stamp(number), action="kill", pids=(number,), note=verb))

    @contextlib.contextmanager
    def seen(self, ctx: Context) -> Iterator[None]:
        life = life_of(copy_context())
        number = next((n for n, crew in self._crews.items() if crew.life is life), 0)
        run = self.rng.randbytes(6).hex()
        job, token = ctx.job_id, ctx._claim.token
        self.lines.append(
            Started(**self.stamp(number), run=run, job=job, token=token, attempt=ctx.attempt)
        )
        try:
            yield
        except BaseException as error:
            if life is None or not life.is_thawed:
                error_type = type(error).__name__
                ended = Ended(
                    **self.stamp(number), run=run, job=job, token=token, is_ok=False, error=error_type
                )
                self.lines.append(ended)
            raise
        if life is None or not life.is_thawed:
            self.lines.append(Ended(**self.stamp(number), run=run, job=job, token=token, is_ok=True))

    # -- trouble -----------------------------------------------------------------------------------

    def happens(self, chance: float) -> bool:
        return self.is_troubled and chance > 0 and self.rng.random() < chance

    async def _cut_off(self) -> None:
        """Now and then a worker is cut off from the store for longer than its lease."""
        while self.is_troubled:
            await asyncio.sleep(self.rng.uniform(1, 5))
            if self.happens(self.p_cut) and self._wires:
                number = self.rng.choice(sorted(self._wires))
                if number in self._crews:
                    until = round(self.clock.monotonic() + self.rng.uniform(1, 2.5) * LEASE, 3)
                    self._wires[number].cut_until = until
                    self.count["cut off"] += 1
                    self.lines.append(Nemesis(**self.stamp(number), action="stop", pids=(number,)))

    async def _heal(self) -> None:
        await asyncio.sleep(TROUBLE)
        self.is_troubled = False

    # -- workers -----------------------------------------------------------------------------------

    async def _staff(self) -> None:
        while not self._is_closing:
            number = next(self._numbers)
            life = Life(self.loop, lambda _: False, functools.partial(self._died, number))
            context = self._outside.copy()
            life.begin_in(context)
            wire = self._wires[number] = Wire(self.store, self, number, life)
            crew = context.run(self._new_crew, life, wire)
            self._crews[number] = crew
            try:
                await self.loop.create_task(crew.start(), context=context)
            except StorageError:
                self._crews.pop(number, None)
                self._dead.append(crew)
                await asyncio.sleep(1.0)
            else:
                self._started.add(number)
                return

    def _new_crew(self, life: Life, wire: Wire) -> Crew:
        order = QueueOrder({"default": None}, self.rng)
        settings = self.app.settings
        return Crew(
            wire.driver, self.app.runtime, settings, life, order=order, clock=self.clock, rng=self.rng
        )

    def _died(self, number: int) -> None:
        crew = self._crews.pop(number, None)
        if crew is not None:
            self._dead.append(crew)
        if not self._is_closing:
            pause = self.rng.choice([0.0, 0.5, 5.0])
            self.loop.call_later(pause, self._replace, context=self._outside.copy())

    def _replace(self) -> None:
        if not self._is_closing:
            self._tasks.append(self.loop.create_task(self._staff()))

    # -- the load ----------------------------------------------------------------------------------

    async def _produce(self) -> None:
        kinds: list[Callable[[], Any]] = [
            self._plain,
            self._plain,
            self._later,
            self._unique,
            self._fifo,
        ]
        kinds += [self._limited, self._stumble, self._batch, self._durable]
        for _ in range(self.rng.randrange(4, 12)):
            await asyncio.sleep(self.rng.choice([0.0, 0.0, 0.1, 1.0, 2.0]))
            await self.rng.choice(kinds)()

    def _length(self) -> float:
        return self.rng.choice([0.0, 0.01, 0.5, 3.0])

    async def _call(self, task: str, *args: object, **using: Any) -> None:
        drawn = random_id(self.rng.randbytes(16))
        call = self.rng.randbytes(6).hex()
        for _ in range(6):
            self.lines.append(Sent(**self.stamp(1), call=call, ids=(drawn,)))
            try:
                job = await self.app.tasks.get(task).using(id=drawn, **using).aenqueue(*args)
            except (StorageError, EnqueueUncertain):
                self.lines.append(Replied(**self.stamp(1), call=call, outcome="unknown", ids=(drawn,)))
                continue
            if job.id == drawn:
                replied = Replied(
                    **self.stamp(1), call=call, outcome="acked", ids=(drawn,), new=(job.is_new,)
                )
                self.lines.append(replied)
            return

    async def _plain(self) -> None:
        await self._call("work", self._length())

    async def _later(self) -> None:
        await self._call("work", self._length(), delay=f"{self.rng.randrange(1, 8)}s")

    async def _unique(self) -> None:
        await self._call("work", self._length(), unique=f"key:{self.rng.randrange(2)}")

    async def _fifo(self) -> None:
        await self._call("work", self._length(), fifo=f"acct:{self.rng.randrange(2)}")

    async def _limited(self) -> None:
        await self._call("limited", self._length())

    async def _stumble(self) -> None:
        await self._call("stumble")

    async def _durable(self) -> None:
        await self._call("durable", self._length())

    async def _batch(self) -> None:
        self.drawn.clear()
        lengths = [self._length() for _ in range(self.rng.randrange(0, 4))]
        task, done = self.app.tasks.get("work"), self.app.tasks.get("all_done")
        try:
            async with batch("sim", on_complete=done.bind()) as members:
                for length in lengths:
                    await members.aenqueue(task.bind(length))
        except (StorageError, EnqueueUncertain):
            return
        replied = Replied(
            **self.stamp(1), call=self.rng.randbytes(6).hex(), outcome="acked", ids=tuple(self.drawn)
        )
        self.lines.append(replied)

    # -- the course --------------------------------------------------------------------------------

    def run(self) -> Verdict:
        self.loop = VirtualLoop(self.clock)
        self.loop.outlook = self._outlook
        self._outside = copy_context()
        self._tasks: list[asyncio.Task[Any]] = []
        producer = Wire(self.store, self, 1)
        surroundings = Surroundings(
            clock=self.clock,
            random_bytes=self.rng.randbytes,
            run=operation.run,
            arun=functools.partial(operation.arun, wait=_apause),
        )
        state, watch = random.getstate(), monitors.WATCH_EVERY
        random.seed(self.seed)
        monitors.WATCH_EVERY = WATCH
        try:
            with self.app.standing_in(producer.driver, surroundings):
                return self._live()
        finally:
            random.setstate(state)
            monitors.WATCH_EVERY = watch
            self.loop.close()

    def _live(self) -> Verdict:
        has_schedule = self.rng.random() < 0.3
        if has_schedule:
            every = self.rng.choice(["2s", "5s"])
            self.app.schedules.add(SCHEDULE, task="tick", every=every, misfire="all")
        self.loop.run_until_complete(self._begin())
        # Once no work is left, trouble is over: it would meet only idle workers.
        self.loop.run_to(TROUBLE + 1, lambda: not has_schedule and not self._left())
        self.is_troubled = False
        windows: dict[str, tuple[datetime, ...]] = {}
        if has_schedule:
            self.app.schedules.pause(SCHEDULE)
            one = self.app.schedules.get(SCHEDULE)
            last = one.last_window
            found = (
                () if last is None else takewhile(lambda w: w <= last, one.timing.after(one.created_at))
            )
            windows = {SCHEDULE: tuple(found)}
        horizon = self.clock.monotonic() + HORIZON
        self.loop.run_to(horizon, lambda: not self._left())
        history = self._history(windows)
        verdict = check(history)
        self.loop.run_until_complete(self._close())
        return verdict

    def _left(self) -> bool:
        """Whether work is left: producers that retry, and jobs."""
        return bool(self.store._state.live) or not self._tasks[self.workers].done()

    def _outlook(self) -> Outlook:
        """How long the workers would only poll, and find nothing."""
        attempts = [attempt for crew in self._crews.values() for attempt in crew.worker.attempts]
        if not self._crews or any(attempt.is_stopping for attempt in attempts):
            return Outlook(0.0)
        due = self.store.next_due(
            running={(attempt.claim.id, attempt.claim.token) for attempt in attempts},
            session="",
            is_full=len(attempts) >= self.app.settings.concurrency * len(self._crews),
        )
        if due is None:
            return Outlook(0.0)
        limits = [attempt.deadline for attempt in attempts if attempt.deadline is not None]
        until = min(self.clock.seconds_at(due), *limits, NEVER)
        return Outlook(until, RESCUING)

    async def _begin(self) -> None:
        for _ in range(self.workers):
            self._tasks.append(self.loop.create_task(self._staff()))
        # The producer comes first: see `_left`.
        for coroutine in (self._produce(), self._cut_off(), self._heal()):
            self._tasks.append(self.loop.create_task(coroutine))

    async def _close(self) -> None:
        self._is_closing = True
        for number, crew in list(self._crews.items()):
            if number in self._started:
                await crew.stop()
            else:  # it was just being started: there is nothing to give back yet
                crew.life.end()
        for crew in self._dead:
            await crew.bury()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _history(self, windows: dict[str, tuple[datetime, ...]]) -> History:
        driver: Driver = self.store
        runs = driver.run(driver.schedule_runs(SCHEDULE, limit=1000)) if windows else []
        skipped = {run.window for run in runs if run.kind.value != "enqueued"}
        events = driver.run(driver.events(limit=1_000_000))
        sessions = driver.run(driver.sessions(is_ended_too=True))
        return History(
            events=tuple(events),
            jobs=tuple(driver.run(driver.list_jobs(JobFilter(limit=1_000_000))).jobs),
            sessions=tuple(sessions),
            lines=tuple(self.lines),
            offset=START.timestamp(),
            runs=tuple(runs),
            windows={name: tuple(w for w in all_ if w not in skipped) for name, all_ in windows.items()},
            clock_tolerance=timedelta(hours=1),
        )


async def _apause(pause: Sleep) -> None:
    await asyncio.sleep(min(pause.seconds, 60))


# -- the application -----------------------------------------------------------------------------------


def _make(sim: Simulation) -> App:
    """An app for this world alone: a client caches state, and each run starts without a cache."""
    made = App(
        "memory://",
        lease=timedelta(seconds=LEASE),
        heartbeat=timedelta(seconds=HEARTBEAT),
        sweep=timedelta(seconds=SWEEP),
        poll=timedelta(seconds=POLL),
        concurrency=3,
    )
    made._loaded = _settings(made)

    @made.task(name="work")
    async def work(ctx: Context, seconds: float) -> None:
        with sim.seen(ctx):
            await asyncio.sleep(seconds)

    @made.task(name="limited", limit=Limit(1))
    async def limited(ctx: Context, seconds: float) -> None:
        with sim.seen(ctx):
            await asyncio.sleep(seconds)

    @made.task(name="stumble", retry=Retry.fixed("2s"))
    async def stumble(ctx: Context) -> None:
        with sim.seen(ctx):
            if ctx.attempt == 1:
                raise RuntimeError("the first attempt fails")

    @made.task(name="all_done")
    async def all_done(ctx: Context) -> None:
        with sim.seen(ctx):
            pass

    @made.task(name="tick")
    async def tick(ctx: Context) -> None:
        with sim.seen(ctx):
            pass

    @made.task(name="durable")
    async def durable(ctx: Context, seconds: float) -> None:
        with sim.seen(ctx):
            await ctx.step(_step, 1, name="one")
            await ctx.sleep(f"{1 + int(seconds)}s")
            await ctx.step(_step, 2, name="two")

    return made


@functools.cache
def _settings_once(settings: tuple[tuple[str, object], ...]) -> Loaded:
    return load(code=dict(settings))


def _settings(made: App) -> Loaded:
    """Read from the files once, not for each of thousands of seeds."""
    return _settings_once(tuple(made._code.items()))


async def _step(number: int) -> int:
    return number
