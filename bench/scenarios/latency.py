"""From the beginning of an enqueue to the start of its job: with an idle worker, and under load."""

from __future__ import annotations

from bench.catalog import Contender, on_store
from bench.measure import Bench, latency
from bench.scenario import Scenario, Values

IDLE_GAP = 0.01
BEST = {"pg": ("pgqueuer", "graphile-worker"), "redis": ("huey", "flexiq"), "sqlite": ("flexiq", "huey")}


def _idle(bench: Bench, contender: Contender) -> Values:
    return latency(bench, contender, gap=IDLE_GAP, samples=bench.lengths.samples)


def _loaded(bench: Bench, contender: Contender) -> Values:
    return latency(bench, contender, gap=0.001, samples=int(1000 * bench.lengths.enqueue))


def _long_jobs(bench: Bench, contender: Contender) -> Values:
    """50 ms jobs at three quarters of one worker's slots, with a second worker beside it."""
    samples = int(150 * bench.lengths.enqueue)
    return latency(bench, contender, gap=1 / 150, samples=samples, processes=2, BENCH_JOB_MS="50")


def _names(store: str) -> tuple[str, ...]:
    return tuple(peer.name for peer in on_store(store))


SCENARIOS = [
    *(Scenario(f"{store} latency", store, _idle, _names(store), BEST[store]) for store in BEST),
    Scenario("pg latency at 1,000 jobs/s", "pg", _loaded, BEST["pg"]),
    Scenario("pg latency, 50 ms jobs, 2 processes", "pg", _long_jobs, ()),
]
