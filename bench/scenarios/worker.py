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
STEP, PARTS = 100_000, 10
PROBE = """
import time
started = time.perf_counter()
import winch
between = time.perf_counter()
winch.App
print((between - started) * 1000, (time.perf_counter() - started) * 1000)
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
    return found


def _million(bench: Bench, contender: Contender) -> Values:
    """The same process after 100,000 jobs and after a million."""
    sizes, step = [], bench.lengths.sized(STEP)
    with (
        prepared(bench, contender) as (producer, url),
        bench.launcher(contender).workers(url, BENCH_PAD="100") as workers,
    ):
        for done in range(step, PARTS * step + 1, step):
            producer.ask("fill", count=step)
            workers.wait_for(done)
            wait_empty(producer, workers.tally())
            sizes.append(workers.memory() / MIB)
    return {"growth": sizes[-1] / sizes[0], "early_mib": sizes[0], "late_mib": sizes[-1]}


def _import(bench: Bench, contender: Contender) -> Values:
    """`import winch`, and the same with the first use of `winch.App`, in a fresh interpreter."""
    command = [sys.executable, "-c", PROBE]
    runs = [
        [*map(float, subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())]
        for _ in range(15)
    ]
    return {
        "ms": statistics.median(run[0] for run in runs),
        "with_app_ms": statistics.median(run[1] for run in runs),
    }


SCENARIOS = [
    Scenario("import", "none", _import, quick=()),
    Scenario(
        "worker memory", "pg", _memory, tuple(peer.name for peer in on_store("pg") if not peer.is_node)
    ),
    Scenario("worker memory, 1 million jobs", "pg", _million, rounds=1),
]
