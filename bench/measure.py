"""The measurements that scenarios are made of. Each begins with an empty store and leaves nothing."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bench.catalog import BEFORE, WINCH
from bench.contender import Failed, Launcher, Producer, Tally, Workers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bench.catalog import Contender
    from bench.environments import Environment
    from bench.stores import Stores

EMPTY_SECONDS = 60.0
TIMES_TOO_LONG = 20
SHORT = (
    3.0  # seconds; a shorter run under flow control is a look, which may take longer than it asks for
)
GROWTH = 1.15  # a little more than the rate asks for, so that a run is not too short by a hair
PAYLOAD = "100"
FILL = 50_000  # jobs in one request to a producer, which has to answer in time
WHOLE_BATCHES = 100  # batches and chords divide this


@dataclass(frozen=True)
class Lengths:
    """How long things run, in seconds, and how many samples of latency are taken."""

    enqueue: float = 5.0
    drain: float = 5.0
    samples: int = 600
    scale: float = 1.0  # of the fixed sizes; a result needs 1
    gated: float = 2.5  # a drain under flow control: there are many of them
    cold_keys: int = 1_000_000

    def sized(self, jobs: int) -> int:
        return max(1000, int(jobs * self.scale))


@dataclass
class Bench:
    """One run: its stores, its environments, its lengths, and what it has learnt about rates."""

    stores: Stores
    environments: dict[str, Environment]
    lengths: Lengths = field(default_factory=Lengths)
    jobs: dict[tuple[str, ...], int] = field(default_factory=dict)

    def launcher(self, contender: Contender) -> Launcher:
        return Launcher(contender, self.environments[contender.name])

    def url_for(self, contender: Contender) -> str:
        url = self.stores.fresh(contender.store)
        # Only Winch knows what its option means; a peer gets the plain path.
        return url if contender.name in (WINCH.name, BEFORE.name) else url.partition("?")[0]


@contextmanager
def prepared(bench: Bench, contender: Contender, **variables: str) -> Iterator[tuple[Producer, str]]:
    """A producer on an empty store with its tables made."""
    with _producer(bench, contender, bench.url_for(contender), **variables) as producer:
        yield producer


@contextmanager
def beside(bench: Bench, contender: Contender, **variables: str) -> Iterator[tuple[Producer, str]]:
    """The same on one more store, with the one before it still there: to compare the two in turn."""
    url = bench.stores.beside(contender.store)
    with _producer(bench, contender, url, **variables) as producer:
        yield producer


@contextmanager
def _producer(
    bench: Bench, contender: Contender, url: str, **variables: str
) -> Iterator[tuple[Producer, str]]:
    with bench.launcher(contender).producer(url, BENCH_PAD=PAYLOAD, **variables) as producer:
        producer.ask("setup")
        yield producer, url


# --- enqueue ----------------------------------------------------------------------------------------


def enqueue_rate(bench: Bench, contender: Contender, verb: str, **request: int) -> dict[str, float]:
    """Jobs stored per second by one producer."""
    variables = {"BENCH_CALLERS": "1"} if verb == "concurrent" else {}
    with prepared(bench, contender, **variables) as (producer, _):
        bench.stores.settle(contender.store)
        before = bench.stores.cost(contender.store)
        answer = producer.ask(verb, seconds=bench.lengths.enqueue, **request)
        cost = bench.stores.cost(contender.store) - before
        count = answer["count"]
    found = {"rate": count / answer["seconds"]}
    if contender.store == "pg":
        found["wal_bytes"] = cost.wal / count
    if contender.store in ("pg", "redis"):
        found["server_us"] = cost.seconds / count * 1e6
    return found


# --- drain ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Drain:
    """How jobs are run in a drain. `gate` is the kind of flow control that they are under."""

    kind: str = "async"
    processes: int = 1
    pad: int = 100
    job_ms: float = 0.0
    fails: bool = False
    slots: int = 0
    jobs: int = 0  # a fixed number; 0: as many as fill the time
    gate: str = ""
    limit: int = 50
    rate: int = 1_000_000  # starts a second
    keys: int = 500  # 0: each job has a key of its own
    spans: bool = False  # every job notes when it began and ended

    @property
    def variables(self) -> dict[str, str]:
        """The same for an adapter."""
        gated = {
            "BENCH_GATE": self.gate,
            "BENCH_LIMIT": str(self.limit),
            "BENCH_RATE": str(self.rate),
            "BENCH_KEYS": str(self.keys),
            "BENCH_SPANS": "1" if self.spans else "0",
        }
        return {
            "BENCH_KIND": self.kind,
            "BENCH_PAD": str(self.pad),
            "BENCH_JOB_MS": str(self.job_ms),
            "BENCH_FAIL": "1" if self.fails else "0",
            "BENCH_SLOTS": str(self.slots),
            **(gated if self.gate else {}),
        }

    def runs(self, jobs: int) -> int:
        """How many attempts so many jobs take."""
        if self.gate == "retries":
            return 2 * jobs
        return jobs + math.ceil(jobs / 100) if self.fails else jobs


def drain_rate(
    bench: Bench,
    contender: Contender,
    drain: Drain,
    *,
    wanted: float = 0,
    guess: int = 0,
    look: Callable[[Workers], None] | None = None,
) -> dict[str, float]:
    """Jobs run to their end per second, from the first start until the store holds no unfinished job.

    `wanted`: how many seconds it takes at least; `guess`: a rate that sizes the first run.
    """
    key = (contender.name, contender.store, repr(drain))
    wanted = wanted or bench.lengths.drain
    first = max(200, int(guess * wanted * GROWTH)) if guess else 0
    jobs = drain.jobs or bench.jobs.get(key) or first or _first_jobs(bench, contender, drain)
    while True:
        found = drain_once(bench, contender, drain, jobs, look)
        enough = math.ceil(found["rate"] * wanted * GROWTH * 1000 / drain.runs(1000))
        if drain.jobs or found["seconds"] >= wanted * 0.9:
            bench.jobs[key] = enough
            return found
        # Too short to mean anything: again, with more jobs. Never more than eight times as many, because
        # a very short run gives no steady rate.
        jobs = min(jobs * 8, enough)


def _first_jobs(bench: Bench, contender: Contender, drain: Drain) -> int:
    rate = contender.guess * drain.processes
    if drain.kind == "isolated":
        rate = min(rate, 1000)
    if drain.job_ms:
        rate = min(rate, int(1000 * (drain.slots or 10) / drain.job_ms))
    return max(200, int(rate * bench.lengths.drain * GROWTH))


def drain_once(
    bench: Bench,
    contender: Contender,
    drain: Drain,
    jobs: int,
    look: Callable[[Workers], None] | None = None,
) -> dict[str, float]:
    """One drain of so many jobs. `look` sees the workers after the last job, before they stop."""
    launcher, store = bench.launcher(contender), contender.store
    url, variables = bench.url_for(contender), drain.variables
    if drain.gate:
        jobs = math.ceil(jobs / WHOLE_BATCHES) * WHOLE_BATCHES
    runs = drain.runs(jobs)
    with launcher.producer(url, **variables) as producer:
        producer.ask("setup")
        filled = fill(producer, jobs)
        bench.stores.settle(store)
        with launcher.workers(url, drain.processes, **variables) as workers:
            start = workers.wait_for(1)
            begun = start.first or start.at
            before, cpu = bench.stores.cost(store), workers.cpu_seconds()
            # A very slow drain is a figure of its own; the run does not wait for its end.
            within = max(bench.lengths.gated, SHORT) if drain.gate else bench.lengths.drain
            done = workers.wait_for(runs, within=TIMES_TOO_LONG * within)
            end = wait_empty(producer, done)
            cost, cpu = bench.stores.cost(store) - before, workers.cpu_seconds() - cpu
            memory = workers.memory()
            if look is not None:
                look(workers)
    seconds = (end - begun) / 1e9
    counted = max(1, jobs - start.count)
    found = {
        "rate": jobs / seconds,
        "seconds": seconds,
        "worker_us": cpu / counted * 1e6,
        "memory_mib": memory / 2**20,
    }
    if store == "pg":
        found["wal_bytes"] = cost.wal / counted
    if store in ("pg", "redis"):
        found["server_us"] = cost.seconds / counted * 1e6
    if cost.nodes:
        found["busiest_us"] = max(cost.nodes) / counted * 1e6
        found["nodes_us"] = sum(cost.nodes) / counted * 1e6
    if drain.gate:
        found["rate"] = runs / seconds
        found["stored_rate"] = jobs / filled
        found["whole_rate"] = runs / (seconds + filled)
    return found


def fill(producer: Producer, jobs: int) -> float:
    """Store so many jobs; returns the seconds that it took."""
    seconds = 0.0
    for first in range(0, jobs, FILL):
        seconds += float(producer.ask("fill", count=min(FILL, jobs - first))["seconds"])
    return seconds


def wait_empty(producer: Producer, done: Tally) -> int:
    """The moment at which the store held no unfinished job any more, in monotonic nanoseconds."""
    deadline = time.monotonic() + EMPTY_SECONDS
    is_first = True
    while True:
        answer = producer.ask("pending")
        if answer["count"] == 0:
            return done.at if is_first else max(done.at, int(answer["at"]))
        is_first = False
        if time.monotonic() > deadline:
            raise Failed(
                f"all jobs ran, but {answer['count']} were not finished {EMPTY_SECONDS:.0f} s later"
            )
        time.sleep(0.01)


def timeline(workers: Workers, jobs: int) -> list[tuple[int, int]]:
    """(nanoseconds, jobs begun) as the drain went."""
    points: list[tuple[int, int]] = []

    def look(tally: Tally) -> None:
        if tally.count and (not points or points[-1][1] != tally.count):
            points.append((tally.at, tally.count))

    workers.wait_for(jobs, look)
    return [(workers.tally().first, 0), *points]


# --- latency ----------------------------------------------------------------------------------------


def latency(
    bench: Bench,
    contender: Contender,
    *,
    gap: float,
    samples: int,
    look: Callable[[Workers], None] | None = None,
    processes: int = 1,
    **variables: str,
) -> dict[str, float]:
    """Milliseconds from the beginning of an enqueue to its job's start; a job every `gap` seconds."""
    launcher = bench.launcher(contender)
    with (
        prepared(bench, contender, **variables) as (producer, url),
        launcher.workers(url, processes, BENCH_PAD=PAYLOAD, **variables) as workers,
    ):
        warm = 20  # the worker's first jobs pay for its start
        producer.ask("paced", count=warm, gap=0.02)
        workers.wait_for(warm)
        time.sleep(0.3)
        before = {name: len(waits) for name, waits in workers.waits().items()}
        producer.ask("paced", count=samples, gap=gap)
        workers.wait_for(warm + samples)
        time.sleep(0.1)
        if look is not None:
            look(workers)
        waits = [
            wait for name, found in workers.waits().items() for wait in found[before.get(name, 0) :]
        ]
    if len(waits) < samples * 0.95:
        raise Failed(f"{len(waits)} of {samples} latencies arrived")
    return {"p50_ms": percentile(waits, 50) / 1e6, "p99_ms": percentile(waits, 99) / 1e6}


def percentile(values: Sequence[float], percent: float) -> float:
    """The value below which so many percent lie, between the two nearest."""
    if not values:
        raise ValueError("no values")
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def rate_between(points: Sequence[tuple[int, int]], first: int, last: int) -> float:
    """Jobs per second while the count went from `first` to `last`, from the points of a timeline."""

    def moment(count: int) -> float:
        before = points[0]
        for point in points:
            if point[1] >= count:
                if point[1] == before[1]:
                    return float(point[0])
                share = (count - before[1]) / (point[1] - before[1])
                return before[0] + share * (point[0] - before[0])
            before = point
        return float(points[-1][0])

    seconds = (moment(last) - moment(first)) / 1e9
    return (last - first) / seconds if seconds > 0 else math.inf


__all__ = [
    "Bench",
    "Drain",
    "Lengths",
    "drain_once",
    "drain_rate",
    "enqueue_rate",
    "fill",
    "latency",
    "percentile",
    "prepared",
    "rate_between",
    "timeline",
]
