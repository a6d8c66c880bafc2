"""How many jobs ended, how, and how long they waited and ran: by the minute and by the hour.

Each worker process adds up what it has done and writes its own totals into the store's books every few
seconds: one statement whatever the number of jobs, and a repeat changes nothing. Readers add up the
lines of all processes. A process that is killed takes the last few seconds with it, nothing else.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property

import msgspec

from winch.core.gates.uses import tenant_of
from winch.core.job import Claim, JobRecord, from_micros, to_micros
from winch.engine.base.operation import Operation
from winch.engine.base.service import Service
from winch.storage.kv_records import KvFilter, KvRecord
from winch.storage.protocol import Driver

FLUSH_EVERY = 5.0
# After a pause the first ends are reported soon; looking costs nothing.
LOOK_EVERY = 1.0
# Upper bounds in seconds; what is longer falls into one more bucket.
BOUNDS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
    900.0, 3600.0,
)  # fmt: skip
# So many ends are added up without waiting for the next flush: they take a megabyte.
MOST_ENDS = 5000
# A program may have very many tenants; beyond this number those of a task are counted as one.
MOST_TENANTS = 200
OTHER = "other"
# What is counted by no worker: attempts that were lost, and jobs that the store has ended.
NO_WORKER = "no worker"
_SHORTEST = BOUNDS[0]
_MICROS = 1_000_000


@dataclass(frozen=True)
class Span:
    """A resolution: the width of a bucket of time, and how long its lines are kept."""

    book: str
    seconds: int
    keep: timedelta


MINUTE = Span("rate.minute", 60, timedelta(hours=26))
HOUR = Span("rate.hour", 3600, timedelta(days=35))
SPANS = (MINUTE, HOUR)


class TaskRate(msgspec.Struct, omit_defaults=True):
    """What became of the jobs of one queue and task in one span of time."""

    completed: int = 0
    failed: int = 0
    dead: int = 0
    cancelled: int = 0
    snoozed: int = 0
    crashed: int = 0
    timeouts: int = 0
    """Those of the failed and the dead that took too long."""
    enqueued: int = 0
    """Jobs that the process has stored, in its handlers mostly."""
    lost: int = 0
    """Attempts that ended with their process or worker; how long they ran is not known."""
    given_up: int = 0
    """Jobs that the store ended as dead: they lost their process or worker too often."""
    run: dict[int, int] = {}
    wait: dict[int, int] = {}
    run_seconds: float = 0.0
    wait_seconds: float = 0.0
    tenants: dict[str, tuple[int, float]] = {}
    """How many attempts of each tenant started, and how long they had waited together."""
    spent: dict[str, float] = {}
    """How long the attempts of each tenant ran together, in seconds."""

    def add(self, other: TaskRate) -> None:
        # Spelled out: a chart of a month adds up fifty thousand of them, and a loop over the names took
        # three times as long.
        self.completed += other.completed
        self.failed += other.failed
        self.dead += other.dead
        self.cancelled += other.cancelled
        self.snoozed += other.snoozed
        self.crashed += other.crashed
        self.timeouts += other.timeouts
        self.enqueued += other.enqueued
        self.lost += other.lost
        self.given_up += other.given_up
        for place, number in other.run.items():
            self.run[place] = self.run.get(place, 0) + number
        for place, number in other.wait.items():
            self.wait[place] = self.wait.get(place, 0) + number
        self.run_seconds += other.run_seconds
        self.wait_seconds += other.wait_seconds
        for tenant, (number, seconds) in other.tenants.items():
            had = self.tenants.get(tenant, (0, 0.0))
            self.tenants[tenant] = (had[0] + number, had[1] + seconds)
        for tenant, seconds in other.spent.items():
            self.spent[tenant] = self.spent.get(tenant, 0.0) + seconds

    def less(self, before: TaskRate) -> TaskRate:
        """What was added since `before`."""
        return TaskRate(
            **{name: getattr(self, name) - getattr(before, name) for name in _COUNTS},
            run={place: number - before.run.get(place, 0) for place, number in self.run.items()},
            wait={place: number - before.wait.get(place, 0) for place, number in self.wait.items()},
            run_seconds=self.run_seconds - before.run_seconds,
            wait_seconds=self.wait_seconds - before.wait_seconds,
            tenants={
                tenant: (number - had[0], seconds - had[1])
                for tenant, (number, seconds) in self.tenants.items()
                for had in [before.tenants.get(tenant, (0, 0.0))]
            },
            spent={
                tenant: seconds - before.spent.get(tenant, 0.0) for tenant, seconds in self.spent.items()
            },
        )

    @property
    def ended(self) -> int:
        """Attempts that came to an end; one that sleeps, waits or snoozes continues later."""
        return self.completed + self.cancelled + self.broken

    @property
    def broken(self) -> int:
        """Attempts that ended badly."""
        return self.failed + self.dead + self.crashed + self.lost

    @property
    def started(self) -> int:
        """Attempts that were started, those that go on later too."""
        return sum(self.run.values()) + self.lost

    @property
    def deaths(self) -> int:
        """Jobs that died, of a failed attempt or by the store's decision."""
        return self.dead + self.given_up


OUTCOMES = ("completed", "failed", "dead", "cancelled", "snoozed", "crashed")
_COUNTS = (*OUTCOMES, "timeouts", "enqueued", "lost", "given_up")
Rates = dict[str, dict[str, TaskRate]]  # queue -> task -> rate


def percentile(buckets: dict[int, int], share: float) -> float | None:
    """The time that this share stays under, as precise as the buckets; None without any."""
    total = sum(buckets.values())
    if not total:
        return None
    left = share * total
    for place in sorted(buckets):
        number = buckets[place]
        if left <= number:
            low = BOUNDS[place - 1] if place else 0.0
            high = BOUNDS[place] if place < len(BOUNDS) else BOUNDS[-1] * 2
            return low + (high - low) * (left / number)
        left -= number
    return BOUNDS[-1]


class _Cell:
    """What became of one queue's jobs of one task since the last flush: kept as cheap as can be."""

    __slots__ = (
        "bucket",
        "claimed_at",
        "outcomes",
        "queue",
        "run",
        "run_at",
        "run_seconds",
        "spent",
        "task",
        "tenants",
        "wait",
        "wait_seconds",
        "waited",
    )

    def __init__(self, queue: str, task: str) -> None:
        self.queue = queue
        self.task = task
        # Of the last job: those of one claim often share the very moments, so how long they waited.
        self.run_at: datetime | None = None
        self.claimed_at: datetime | None = None
        self.waited = 0.0
        self.bucket = 0
        self.outcomes: dict[str, int] = {}
        self.run = [0] * (len(BOUNDS) + 1)
        self.wait = [0] * (len(BOUNDS) + 1)
        self.run_seconds = 0.0
        self.wait_seconds = 0.0
        self.tenants: dict[str, tuple[int, float]] = {}
        self.spent: dict[str, float] = {}

    def of_tenant(self, tenant: str, ran: float) -> None:
        """Note that the attempt just noted, which ran for so long, was this tenant's."""
        if tenant not in self.tenants and len(self.tenants) >= MOST_TENANTS:
            tenant = OTHER
        number, seconds = self.tenants.get(tenant, (0, 0.0))
        self.tenants[tenant] = (number + 1, seconds + self.waited)
        self.spent[tenant] = self.spent.get(tenant, 0.0) + ran

    def rate(self) -> TaskRate:
        return TaskRate(
            **self.outcomes,
            run={place: number for place, number in enumerate(self.run) if number},
            wait={place: number for place, number in enumerate(self.wait) if number},
            run_seconds=self.run_seconds,
            wait_seconds=self.wait_seconds,
            tenants=self.tenants,
            spent=self.spent,
        )


class AttemptEnd(msgspec.Struct, frozen=True, gc=False):
    """The end of one attempt, as it is counted. Not its claim: that would keep the arguments alive."""

    queue: str
    task: str
    run_at: datetime
    claimed_at: datetime
    options: str | None
    outcome: str
    """One of OUTCOMES."""
    seconds: float
    """How long it ran."""
    is_timeout: bool = False


class Tally:
    """What one process has done. A job's end is noted in `ends`, and added up before a flush or when
    there are many. What ends between two flushes counts for the time of the later one, by the store's
    clock as its claims returned it: no job's end looks at a clock."""

    def __init__(self, owner: str, worker: str = "") -> None:
        """`owner` names the lines of this process; `worker` is what pages call it."""
        self._owner = f"{owner}-{worker}" if worker else owner
        self._cells: dict[tuple[str, str], _Cell] = {}
        self.ends: list[AttemptEnd] = []
        """The ends that are not added up yet; the worker's event loop notes them."""
        self.enqueued: Counter[tuple[str, str]] = Counter()
        """Jobs that this process has stored, by queue and task; the client counts them."""
        self._last: AttemptEnd | None = None
        self._store_end: datetime | None = None
        self._totals: dict[tuple[Span, int], Rates] = {}
        self._changed: set[tuple[Span, int]] = set()
        self.on_rates: Callable[[Rates], None] = lambda _: None
        """Receives what was added, whenever it is added to the totals."""

    def ended(self, claim: Claim, outcome: str, seconds: float, *, is_timeout: bool = False) -> None:
        """Note the end of an attempt that ran for so long. `outcome` is one of OUTCOMES."""
        self.ends.append(
            AttemptEnd(
                claim.queue,
                claim.task,
                claim.run_at,
                claim.claimed_at,
                claim.options,
                outcome,
                seconds,
                is_timeout,
            )
        )

    def add_up(self) -> None:
        """Count the ends that were noted."""
        cell: _Cell | None = None
        for end in self.ends:
            if cell is None or cell.task != end.task or cell.queue != end.queue:
                cell = self._cell_of(end.queue, end.task)
            if cell.run_at is not end.run_at or cell.claimed_at is not end.claimed_at:
                cell.run_at, cell.claimed_at = end.run_at, end.claimed_at
                cell.waited = (end.claimed_at - end.run_at).total_seconds()
                cell.bucket = bisect_left(BOUNDS, cell.waited)
            cell.outcomes[end.outcome] = cell.outcomes.get(end.outcome, 0) + 1
            if end.is_timeout:
                cell.outcomes["timeouts"] = cell.outcomes.get("timeouts", 0) + 1
            cell.run[0 if end.seconds <= _SHORTEST else bisect_left(BOUNDS, end.seconds)] += 1
            cell.wait[cell.bucket] += 1
            cell.run_seconds += end.seconds
            cell.wait_seconds += cell.waited
            if end.options is not None and (tenant := tenant_of(end.options)) is not None:
                cell.of_tenant(tenant, end.seconds)
            self._last = end
        self.ends.clear()

    def lost(self, job: JobRecord) -> None:
        """Note that an attempt of this job ended with its process or worker."""
        self._add(job, "lost")

    def died(self, job: JobRecord) -> None:
        """Note that the store has ended this job as dead."""
        self._add(job, "given_up")

    def _add(self, job: JobRecord, name: str) -> None:
        outcomes = self._cell_of(job.queue, job.task).outcomes
        outcomes[name] = outcomes.get(name, 0) + 1
        self._store_end = job.finished_at or (job.history[-1].at if job.history else job.created_at)

    def _cell_of(self, queue: str, task: str) -> _Cell:
        cell = self._cells.get((queue, task))
        if cell is None:
            cell = self._cells[queue, task] = _Cell(queue, task)
        return cell

    def _now(self) -> int | None:
        """The time of the latest end by the store's clock, in seconds; None where nothing has ended."""
        times = []
        if self._last is not None:
            times.append(to_micros(self._last.claimed_at) // _MICROS + int(self._last.seconds))
        if self._store_end is not None:
            times.append(to_micros(self._store_end) // _MICROS)
        return max(times, default=None)

    def _gather(self) -> None:
        """Add what has ended since the last time to the minute and the hour."""
        self.add_up()
        now = self._now()
        if now is None:
            return
        added: Rates = {}
        for (queue, task), cell in self._cells.items():
            added.setdefault(queue, {})[task] = cell.rate()
        for stored in list(self.enqueued):  # threads go on counting
            queue, task = stored
            added.setdefault(queue, {}).setdefault(task, TaskRate()).enqueued += self.enqueued.pop(
                stored
            )
        for span in SPANS:
            place = (span, now // span.seconds)
            self._changed.add(place)
            into = self._totals.setdefault(place, {})
            for queue, tasks in added.items():
                for task, rate in tasks.items():
                    into.setdefault(queue, {}).setdefault(task, TaskRate()).add(rate)
        self.on_rates(added)
        self._cells.clear()
        self._last = None
        self._store_end = None

    def lines(self) -> list[KvRecord]:
        """What has changed since the last `written`."""
        self._gather()
        return [
            KvRecord(
                book=span.book,
                key=f"{number:010}-{self._owner}",
                body=msgspec.json.encode(self._totals[span, number]).decode(),
                keep=span.keep,
            )
            for span, number in sorted(self._changed, key=lambda place: (place[0].book, place[1]))
        ]

    def written(self) -> None:
        """The lines are in the store: forget spans that have gone by."""
        self._changed.clear()
        for span in SPANS:
            latest = max((number for kind, number in self._totals if kind is span), default=0)
            for place in [p for p in self._totals if p[0] is span and p[1] < latest - 1]:
                del self._totals[place]


class RateWriter(Service):
    """Writes the tally every few seconds, where there is something to write."""

    name = "rates"
    is_vital = False

    def __init__(self, driver: Driver, tally: Tally) -> None:
        super().__init__()
        self._driver = driver
        self._tally = tally

    async def run_once(self) -> float:
        lines = self._tally.lines()
        if lines:
            await self._driver.arun(self._driver.kv_put(lines))
            self._tally.written()
            return FLUSH_EVERY
        return self.unasked(LOOK_EVERY)


# -- reading -----------------------------------------------------------------------------------------


@dataclass
class Series:
    """Rates over time: one entry for each span from `start` (in spans since the epoch) on. Sums over all
    queues and tasks are made once, and shared: no caller changes them."""

    span: Span
    start: int
    rates: list[Rates] = field(default_factory=list)

    @cached_property
    def _all(self) -> list[TaskRate]:
        return [_sum(rate for tasks in one.values() for rate in tasks.values()) for one in self.rates]

    @cached_property
    def _tasks(self) -> dict[str, TaskRate]:
        found: dict[str, TaskRate] = {}
        for one in self.rates:
            for tasks in one.values():
                for task, rate in tasks.items():
                    found.setdefault(task, TaskRate()).add(rate)
        return found

    @property
    def times(self) -> list[int]:
        """The beginning of each span, in seconds since the epoch."""
        return [(self.start + n) * self.span.seconds for n in range(len(self.rates))]

    def merged(self, wanted: Callable[[str, str], bool] | None = None) -> list[TaskRate]:
        """One rate for each span, of the queues and tasks that are wanted."""
        if wanted is None:
            return self._all
        return [
            _sum(
                rate
                for queue, tasks in one.items()
                for task, rate in tasks.items()
                if wanted(queue, task)
            )
            for one in self.rates
        ]

    def total(self, wanted: Callable[[str, str], bool] | None = None) -> TaskRate:
        return _sum(self.merged(wanted))

    def by_task(self) -> dict[str, TaskRate]:
        return self._tasks


def _sum(rates: Iterable[TaskRate]) -> TaskRate:
    total = TaskRate()
    for rate in rates:
        total.add(rate)
    return total


def read(
    driver: Driver, span: Span, now: int, count: int, *, by_worker: bool = False
) -> Operation[Series]:
    """The last `count` spans up to the one that holds `now` (seconds since the epoch). With `by_worker`
    the workers stand in the place of the queues."""
    last = now // span.seconds
    series = Series(span, last - count + 1, [{} for _ in range(count)])
    after = f"{series.start:010}"
    while True:
        which = KvFilter(book=span.book, after=after, before=f"{last + 1:010}", limit=2000)
        lines: list[KvRecord] = yield driver.kv_list(which)
        for line in lines:
            place = int(line.key[:10]) - series.start
            into = series.rates[place]
            worker = _worker_of(line.key) if by_worker else None
            for queue, tasks in msgspec.json.decode(line.body, type=Rates).items():
                name = queue if worker is None else worker
                for task, rate in tasks.items():
                    there = into.setdefault(name, {}).setdefault(task, rate)
                    if there is not rate:
                        there.add(rate)
        if len(lines) < 2000:
            return series
        after = lines[-1].key


def _worker_of(key: str) -> str:
    """The worker whose line has this key; a line of a supervisor, a server or an older release names
    none."""
    return key.split("-", 2)[2] if key.count("-") >= 2 else NO_WORKER


def label(seconds: int) -> str:
    """A moment of a series for people, UTC."""
    return f"{from_micros(seconds * _MICROS):%Y-%m-%d %H:%M}"
