"""Flow control with very many keys, with large payloads, and over the primaries of a cluster."""

from __future__ import annotations

import functools
import time

from bench.catalog import Contender
from bench.contender import Failed, Tally
from bench.measure import Bench, Drain, beside, drain_rate, fill, prepared, wait_empty
from bench.scenario import Scenario, Values
from bench.scenarios.gated import KINDS, STORES, name_of
from bench.scenarios.growth import compared

KEYED = {"keyed limit": "keyed", "fifo": "fifo"}
FEW_JOBS, FEW_KEYS = 10_000, 2000
FIFO_SHARE = 0.2  # of the cold keys: to store them takes longest
DONE_KEYS = 10_000
CLEAN_SECONDS = 20.0
LARGE, LARGE_JOBS = 100_000, 2000  # bytes of a payload; far more of them than a worker may hold
WARM_JOBS = 2000
MIB = 2**20
PRIMARIES = (3, 6)
CLUSTER_KINDS = ("plain", "fifo", "keyed limit")


def _cold(kind: str, bench: Bench, contender: Contender) -> Values:
    """Claims where every job has a key of its own, beside claims where few keys have five jobs each."""
    gate = KEYED[kind]
    cold = {"BENCH_GATE": gate, "BENCH_KEYS": "0"}
    few = {"BENCH_GATE": gate, "BENCH_KEYS": str(FEW_KEYS)}
    with (
        prepared(bench, contender, **cold) as (much, _),
        beside(bench, contender, **few) as (little, _),
    ):
        share = 1 if kind == "keyed limit" else FIFO_SHARE
        jobs = max(2 * FEW_JOBS, bench.lengths.sized(int(bench.lengths.cold_keys * share)))
        seconds = fill(much, jobs)
        fill(little, FEW_JOBS)
        bench.stores.settle(contender.store)
        few_ms, many_ms, growth = compared(little, much)
    return {"growth": growth, "few_ms": few_ms, "many_ms": many_ms, "stored_rate": jobs / seconds}


def _left(kind: str, bench: Bench, contender: Contender) -> Values:
    """What the store still keeps about keys whose only job is done, as a share of the keys."""
    keys = bench.lengths.sized(DONE_KEYS)
    gate, seen = KEYED[kind], 0

    def look(_: Tally) -> None:
        nonlocal seen
        seen = seen or bench.stores.gates_kept(url)

    with prepared(bench, contender, BENCH_GATE=gate, BENCH_KEYS="0") as (producer, url):
        fill(producer, keys)
        bench.stores.settle(contender.store)
        launcher = bench.launcher(contender)
        with launcher.workers(url, BENCH_PAD="100", BENCH_GATE=gate, BENCH_KEYS="0") as workers:
            wait_empty(producer, workers.wait_for(keys, look))
            if not seen:
                raise Failed("no gate was seen in the store while jobs ran: Stores.gates_kept")
            deadline = time.monotonic() + CLEAN_SECONDS
            while (left := bench.stores.gates_kept(url)) > keys / 100 and time.monotonic() < deadline:
                time.sleep(0.5)
    return {"left": left / keys, "keys": keys}


def _payloads(bench: Bench, contender: Contender) -> Values:
    """What a worker grows by while it runs short jobs with large payloads, which it claims ahead."""
    peak = 0

    def look(_: Tally) -> None:
        nonlocal peak
        peak = max(peak, workers.memory())

    small = {"BENCH_GATE": "limit", "BENCH_LIMIT": "1000"}
    with prepared(bench, contender, **small) as (producer, url):
        launcher = bench.launcher(contender)
        with (
            launcher.producer(url, **small, BENCH_PAD=str(LARGE)) as large,
            launcher.workers(url, 1, BENCH_PAD="100", **small) as workers,
        ):
            fill(producer, WARM_JOBS)
            wait_empty(producer, workers.wait_for(WARM_JOBS))
            before = workers.memory()
            fill(large, LARGE_JOBS)
            wait_empty(large, workers.wait_for(WARM_JOBS + LARGE_JOBS, look))
    return {
        "grown_mib": max(peak - before, 0) / MIB,
        "stored_mib": LARGE * LARGE_JOBS / MIB,
        "before_mib": before / MIB,
    }


def _cluster(name: str, bench: Bench, contender: Contender) -> Values:
    """A drain, with the CPU that the busiest primary spends on a job."""
    [kind] = [kind for kind in KINDS if kind.name == name]
    drain: Drain = kind.drain
    return drain_rate(bench, contender, drain, wanted=bench.lengths.gated, guess=kind.guess)


SCENARIOS = [
    *(
        Scenario(name_of(store, f"cold keys, {kind}"), store, functools.partial(_cold, kind), rounds=1)
        for store in STORES
        for kind in KEYED
    ),
    *(
        Scenario(name_of(store, f"keys left, {kind}"), store, functools.partial(_left, kind), rounds=1)
        for store in STORES
        for kind in KEYED
    ),
    *(Scenario(name_of(store, "large payloads"), store, _payloads, rounds=1) for store in STORES),
    *(
        Scenario(
            name_of(f"cluster-{primaries}", kind),
            f"cluster-{primaries}",
            functools.partial(_cluster, kind),
            family="gated cluster",
        )
        for kind in CLUSTER_KINDS
        for primaries in PRIMARIES
    ),
]
