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

import msgspec

from winch.core.job import Claim, from_micros, to_micros
from winch.engine.operation import Operation
from winch.engine.service import Service
from winch.storage.params import Line, Lines
from winch.storage.protocol import Driver

FLUSH_EVERY = 5.0
# After a pause the first ends are told soon; looking costs nothing.
LOOK_EVERY = 1.0
# Upper bounds in seconds; what is longer falls into one more bucket.
BOUNDS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
    900.0, 3600.0,
)  # fmt: skip
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


class Rate(msgspec.Struct, omit_defaults=True):
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
    run: dict[int, int] = {}
    wait: dict[int, int] = {}
    run_seconds: float = 0.0
    wait_seconds: float = 0.0

    def add(self, other: Rate) -> None:
        for name in OUTCOMES:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.timeouts += other.timeouts
        self.enqueued += other.enqueued
        for place, number in other.run.items():
            self.run[place] = self.run.get(place, 0) + number
        for place, number in other.wait.items():
            self.wait[place] = self.wait.get(place, 0) + number
        self.run_seconds += other.run_seconds
        self.wait_seconds += other.wait_seconds

    def less(self, before: Rate) -> Rate:
        """What was added since `before`."""
        return Rate(
            **{name: getattr(self, name) - getattr(before, name) for name in _COUNTS},
            run={place: number - before.run.get(place, 0) for place, number in self.run.items()},
            wait={place: number - before.wait.get(place, 0) for place, number in self.wait.items()},
            run_seconds=self.run_seconds - before.run_seconds,
            wait_seconds=self.wait_seconds - before.wait_seconds,
        )

    @property
    def ended(self) -> int:
        """Attempts that came to an end."""
        return self.completed + self.failed + self.dead + self.cancelled + self.crashed

    @property
    def broken(self) -> int:
        return self.failed + self.dead + self.crashed


OUTCOMES = ("completed", "failed", "dead", "cancelled", "snoozed", "crashed")
_COUNTS = (*OUTCOMES, "timeouts", "enqueued")
Rates = dict[str, dict[str, Rate]]  # queue -> task -> rate


def percentile(buckets: dict[int, int], share: float) -> float | None:
    """The time that this share stays under, as well as the buckets tell; None without any."""
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
        "task",
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

    def rate(self) -> Rate:
        return Rate(
            **self.outcomes,
            run={place: number for place, number in enumerate(self.run) if number},
            wait={place: number for place, number in enumerate(self.wait) if number},
            run_seconds=self.run_seconds,
            wait_seconds=self.wait_seconds,
        )


class Tally:
    """What one process has done. What ends between two flushes counts for the time of the later one, by
    the store's clock as its claims told it: a job's end costs a microsecond, and no look at a clock."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._cells: dict[tuple[str, str], _Cell] = {}
        self._recent: _Cell | None = None
        self.enqueued: Counter[tuple[str, str]] = Counter()
        """Jobs that this process has stored, by queue and task; the client counts them."""
        self._last: tuple[Claim, float] | None = None
        self._totals: dict[tuple[Span, int], Rates] = {}
        self._changed: set[tuple[Span, int]] = set()
        self.on_rates: Callable[[Rates], None] = lambda _: None
        """Told what was added, whenever it is added to the totals."""

    def timed_out(self, claim: Claim) -> None:
        """Note that the end just noted was a timeout's."""
        outcomes = self._cells[claim.queue, claim.task].outcomes
        outcomes["timeouts"] = outcomes.get("timeouts", 0) + 1

    def ended(self, claim: Claim, outcome: str, seconds: float) -> None:
        """Note the end of an attempt that ran for so long. `outcome` is one of OUTCOMES."""
        cell = self._recent
        if cell is None or cell.task != claim.task or cell.queue != claim.queue:
            cell = self._recent = self._cell_of(claim)
        if cell.run_at is not claim.run_at or cell.claimed_at is not claim.claimed_at:
            cell.run_at, cell.claimed_at = claim.run_at, claim.claimed_at
            cell.waited = (claim.claimed_at - claim.run_at).total_seconds()
            cell.bucket = bisect_left(BOUNDS, cell.waited)
        cell.outcomes[outcome] = cell.outcomes.get(outcome, 0) + 1
        cell.run[0 if seconds <= _SHORTEST else bisect_left(BOUNDS, seconds)] += 1
        cell.wait[cell.bucket] += 1
        cell.run_seconds += seconds
        cell.wait_seconds += cell.waited
        self._last = (claim, seconds)

    def _cell_of(self, claim: Claim) -> _Cell:
        place = (claim.queue, claim.task)
        cell = self._cells.get(place)
        if cell is None:
            cell = self._cells[place] = _Cell(claim.queue, claim.task)
        return cell

    def _gather(self) -> None:
        """Add what has ended since the last time to the minute and the hour."""
        if self._last is None:
            return
        claim, seconds = self._last
        now = to_micros(claim.claimed_at) // _MICROS + int(seconds)
        added: Rates = {}
        for (queue, task), cell in self._cells.items():
            added.setdefault(queue, {})[task] = cell.rate()
        for stored in list(self.enqueued):  # threads go on counting
            queue, task = stored
            added.setdefault(queue, {}).setdefault(task, Rate()).enqueued += self.enqueued.pop(stored)
        for span in SPANS:
            place = (span, now // span.seconds)
            self._changed.add(place)
            into = self._totals.setdefault(place, {})
            for queue, tasks in added.items():
                for task, rate in tasks.items():
                    into.setdefault(queue, {}).setdefault(task, Rate()).add(rate)
        self.on_rates(added)
        self._cells.clear()
        self._recent = None
        self._last = None

    def lines(self) -> list[Line]:
        """What has changed since the last `written`."""
        self._gather()
        return [
            Line(
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

    def __init__(self, driver: Driver, tally: Tally) -> None:
        super().__init__()
        self._driver = driver
        self._tally = tally

    async def run_once(self) -> float:
        lines = self._tally.lines()
        if lines:
            await self._driver.arun(self._driver.write_lines(lines))
            self._tally.written()
            return FLUSH_EVERY
        return LOOK_EVERY


# -- reading -----------------------------------------------------------------------------------------


@dataclass
class Series:
    """Rates over time: one entry for each span from `start` (in spans since the epoch) on."""

    span: Span
    start: int
    rates: list[Rates] = field(default_factory=list)

    @property
    def times(self) -> list[int]:
        """The beginning of each span, in seconds since the epoch."""
        return [(self.start + n) * self.span.seconds for n in range(len(self.rates))]

    def merged(self, wanted: Callable[[str, str], bool] = lambda *_: True) -> list[Rate]:
        """One rate for each span, of the queues and tasks that are wanted."""
        return [
            _sum(
                rate
                for queue, tasks in one.items()
                for task, rate in tasks.items()
                if wanted(queue, task)
            )
            for one in self.rates
        ]

    def total(self, wanted: Callable[[str, str], bool] = lambda *_: True) -> Rate:
        return _sum(self.merged(wanted))

    def by_task(self) -> dict[str, Rate]:
        found: dict[str, Rate] = {}
        for one in self.rates:
            for tasks in one.values():
                for task, rate in tasks.items():
                    found.setdefault(task, Rate()).add(rate)
        return found


def _sum(rates: Iterable[Rate]) -> Rate:
    total = Rate()
    for rate in rates:
        total.add(rate)
    return total


def read(driver: Driver, span: Span, now: int, count: int) -> Operation[Series]:
    """The last `count` spans up to the one that holds `now` (seconds since the epoch)."""
    last = now // span.seconds
    series = Series(span, last - count + 1, [{} for _ in range(count)])
    if not driver.capabilities.keeps_books:
        return series
    after = f"{series.start:010}"
    while True:
        which = Lines(book=span.book, after=after, before=f"{last + 1:010}", limit=2000)
        lines: list[Line] = yield driver.read_lines(which)
        for line in lines:
            place = int(line.key[:10]) - series.start
            into = series.rates[place]
            for queue, tasks in msgspec.json.decode(line.body, type=Rates).items():
                for task, rate in tasks.items():
                    into.setdefault(queue, {}).setdefault(task, Rate()).add(rate)
        if len(lines) < 2000:
            return series
        after = lines[-1].key


def label(seconds: int) -> str:
    """A moment of a series for people, UTC."""
    return f"{from_micros(seconds * _MICROS):%Y-%m-%d %H:%M}"
