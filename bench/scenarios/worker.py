"""What a worker process weighs, and how long the import takes."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

from bench.catalog import Contender, on_store
from bench.measure import Bench, prepared, wait_empty
from bench.scenario import Scenario, Values

MIB = 2**20
STEP, JOBS = 100_000, 1_000_000
PROBE = """
import sys, time
started = time.perf_counter()
import winch
winch.App
print((time.perf_counter() - started) * 1000)
"""


def _memory(bench: Bench, contender: Contender) -> Values:
    """The largest process of an idle worker, and of one that runs a hundred jobs at once."""
    launcher = bench.launcher(contender)
    found = {}
    with prepared(bench, contender) as (producer, url):
        with launcher.workers(url) as workers:
            producer.ask("paced", count=10, gap=0.01)
            workers.wait_for(10)
            time.sleep(1)
            found["idle_mib"] = workers.memory() / MIB
        with launcher.workers(url, 1, BENCH_SLOTS="100", BENCH_JOB_MS="2000") as workers:
            producer.ask("fill", count=200)
            workers.wait_for(100)
            time.sleep(0.5)
            found["running_mib"] = workers.memory() / MIB
            workers.wait_for(200)
    return found


def _million(bench: Bench, contender: Contender) -> Values:
    """The same process after 100,000 jobs and after a million."""
    sizes = []
    with (
        prepared(bench, contender) as (producer, url),
        bench.launcher(contender).workers(url, BENCH_PAD="100") as workers,
    ):
        for done in range(STEP, JOBS + 1, STEP):
            producer.ask("fill", count=STEP)
            workers.wait_for(done)
            wait_empty(producer, workers.tally())
            sizes.append(workers.memory() / MIB)
    return {"growth": sizes[-1] / sizes[0], "early_mib": sizes[0], "late_mib": sizes[-1]}


def _import(bench: Bench, contender: Contender) -> Values:
    """`import winch` and its App in a fresh interpreter, in milliseconds."""
    command = [sys.executable, "-c", PROBE]
    runs = [
        float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        for _ in range(15)
    ]
    return {"ms": statistics.median(runs)}


SCENARIOS = [
    Scenario("import", "none", _import, quick=()),
    Scenario(
        "worker memory", "pg", _memory, tuple(peer.name for peer in on_store("pg") if not peer.is_node)
    ),
    Scenario("worker memory, 1 million jobs", "pg", _million, rounds=1),
]
