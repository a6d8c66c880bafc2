"""The measurements that scenarios are made of. Each begins with an empty store and leaves nothing."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bench.contender import Failed, Launcher, Producer, Tally, Workers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bench.catalog import Contender
    from bench.environments import Environment
    from bench.stores import Stores

EMPTY_SECONDS = 60.0
TIMES_TOO_LONG = 20
GROWTH = 1.15  # a little more than the rate asks for, so that a run is not too short by a hair
PAYLOAD = "100"


@dataclass(frozen=True)
class Lengths:
    """How long things run, in seconds, and how many samples of latency are taken."""

    enqueue: float = 5.0
    drain: float = 5.0
    samples: int = 600
    scale: float = 1.0  # of the fixed sizes; a result needs 1

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
        return url if contender.name == "winch" else url.partition("?")[0]


@contextmanager
def prepared(bench: Bench, contender: Contender, **variables: str) -> Iterator[tuple[Producer, str]]:
    """A producer on an empty store with its tables made."""
    with _producer(bench, contender, bench.url_for(contender), **variables) as producer:
        yield producer


@contextmanager
def beside(bench: Bench, contender: Contender) -> Iterator[tuple[Producer, str]]:
    """The same on one more store, with the one before it still there: to compare the two in turn."""
    with _producer(bench, contender, bench.stores.beside(contender.store)) as producer:
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
    """How jobs are run in a drain."""

    kind: str = "async"
    processes: int = 1
    pad: int = 100
    job_ms: float = 0.0
    fails: bool = False
    slots: int = 0
    jobs: int = 0  # a fixed number; 0: as many as fill the time


def drain_rate(bench: Bench, contender: Contender, drain: Drain) -> dict[str, float]:
    """Jobs run to their end per second, from the first start until the store holds no unfinished job."""
    key = (contender.name, contender.store, repr(drain))
    jobs = drain.jobs or bench.jobs.get(key) or _first_jobs(bench, contender, drain)
    wanted = bench.lengths.drain
    while True:
        found = drain_once(bench, contender, drain, jobs)
        if drain.jobs or found["seconds"] >= wanted * 0.9:
            bench.jobs[key] = math.ceil(found["rate"] * wanted * GROWTH)
            return found
        # Too short to mean anything: again, with more jobs. Never more than eight times as many, because
        # a very short run says little about the rate.
        jobs = min(jobs * 8, math.ceil(found["rate"] * wanted * GROWTH))


def _first_jobs(bench: Bench, contender: Contender, drain: Drain) -> int:
    rate = contender.guess * drain.processes
    if drain.kind == "isolated":
        rate = min(rate, 1000)
    if drain.job_ms:
        rate = min(rate, int(1000 * (drain.slots or 10) / drain.job_ms))
    return max(200, int(rate * bench.lengths.drain * GROWTH))


def drain_once(bench: Bench, contender: Contender, drain: Drain, jobs: int) -> dict[str, float]:
    launcher, store = bench.launcher(contender), contender.store
    url = bench.url_for(contender)
    variables = {
        "BENCH_KIND": drain.kind,
        "BENCH_PAD": str(drain.pad),
        "BENCH_JOB_MS": str(drain.job_ms),
        "BENCH_FAIL": "1" if drain.fails else "0",
        "BENCH_SLOTS": str(drain.slots),
    }
    runs = jobs + math.ceil(jobs / 100) if drain.fails else jobs
    with launcher.producer(url, **variables) as producer:
        producer.ask("setup")
        producer.ask("fill", count=jobs)
        bench.stores.settle(store)
        with launcher.workers(url, drain.processes, **variables) as workers:
            start = workers.wait_for(1)
            begun = start.first or start.at
            before, cpu = bench.stores.cost(store), workers.cpu_seconds()
            # A drain that crawls along is a figure of its own; nobody waits for its end.
            done = workers.wait_for(runs, within=TIMES_TOO_LONG * bench.lengths.drain)
            end = wait_empty(producer, done)
            cost, cpu = bench.stores.cost(store) - before, workers.cpu_seconds() - cpu
            memory = workers.memory()
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
    return found


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
    "latency",
    "percentile",
    "prepared",
    "rate_between",
    "timeline",
]
