"""What must not grow: a claim's cost with a long backlog, a long history, or a snapshot held open."""

from __future__ import annotations

import functools
import statistics

import psycopg

from bench.catalog import Contender
from bench.contender import Producer
from bench.measure import Bench, beside, prepared, rate_between, timeline, wait_empty
from bench.scenario import Scenario, Values

SMALL, LARGE, HUGE = 10_000, 1_000_000, 10_000_000
KEPT = 5_000_000
TURNS, CLAIMS, CLAIM = 9, 10, 100
HELD_JOBS, PART = 400_000, 25_000


def compared(small: Producer, large: Producer) -> tuple[float, float, float]:
    """Medians of claims of 100 jobs in both stores, and how much longer they take in the second.

    In turn, because a machine that others use, too, changes its speed within a minute. What was claimed
    in a turn goes back after it.
    """
    few, many, ratios = [], [], []
    for _ in range(TURNS):
        few.append(_claim_ms(small))
        many.append(_claim_ms(large))
        ratios.append(many[-1] / few[-1])
    return statistics.median(few), statistics.median(many), statistics.median(ratios)


def _claim_ms(producer: Producer) -> float:
    return float(statistics.median(producer.ask("claims", count=CLAIMS, limit=CLAIM)["ms"]))


def _backlog(large: int, bench: Bench, contender: Contender) -> Values:
    """Claims in a store with 10,000 jobs queued, and in one with a hundred times more."""
    large = max(2 * SMALL, bench.lengths.sized(large))
    with prepared(bench, contender) as (much, _), beside(bench, contender) as (little, _):
        much.ask("fill", count=large)
        little.ask("fill", count=SMALL)
        bench.stores.settle(contender.store)
        few, many, growth = compared(little, much)
    return {"growth": growth, "few_ms": few, "many_ms": many}


def _kept(bench: Bench, contender: Contender) -> Values:
    """Claims in an empty store, and in one where five million jobs have been completed and kept."""
    launcher, wanted = bench.launcher(contender), bench.lengths.sized(KEPT)
    with prepared(bench, contender) as (full, url), beside(bench, contender) as (empty, _):
        with launcher.workers(url, BENCH_PAD="100") as workers:
            done = 0
            while done < wanted:
                step = min(250_000, wanted - done)
                full.ask("fill", count=step)
                done += step
                workers.wait_for(done)
            wait_empty(full, workers.tally())
        for producer in (full, empty):
            producer.ask("fill", count=SMALL)
        bench.stores.settle(contender.store)
        without, kept, growth = compared(empty, full)
    return {"growth": growth, "empty_ms": without, "kept_ms": kept}


def _snapshot(bench: Bench, contender: Contender) -> Values:
    """A drain while another session holds a snapshot from before it, so that nothing can be vacuumed."""
    launcher = bench.launcher(contender)
    jobs, part = bench.lengths.sized(HELD_JOBS), bench.lengths.sized(PART)
    with prepared(bench, contender) as (producer, url):
        producer.ask("fill", count=jobs)
        bench.stores.settle(contender.store)
        with psycopg.connect(url) as holder:
            holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            holder.execute("SELECT 1")
            with launcher.workers(url, BENCH_PAD="100") as workers:
                points = timeline(workers, jobs)
                first = workers.tally().first
                end = wait_empty(producer, workers.tally())
            holder.rollback()
    early = rate_between(points, 0, part)
    late = rate_between(points, jobs - part, jobs)
    return {
        "rate": jobs / ((end - first) / 1e9),
        "first_rate": early,
        "last_rate": late,
        "last_of_first": late / early,
    }


SCENARIOS = [
    *(
        Scenario(f"{store} backlog", store, functools.partial(_backlog, LARGE))
        for store in ("pg", "sqlite", "redis")
    ),
    Scenario("pg 5 million kept", "pg", _kept, rounds=1),
    Scenario("pg snapshot held", "pg", _snapshot, ("awa-pg", "graphile-worker", "pgqueuer")),
]

# Asked for by name (`--only 'pg backlog of 10 million'`): it takes several minutes to fill.
ON_REQUEST = [Scenario("pg backlog of 10 million", "pg", functools.partial(_backlog, HUGE), rounds=1)]
