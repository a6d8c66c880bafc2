"""A long run under faults of all kinds, watching for what grows and should not.

    python -m lab.soak --store sqlite --minutes 10

The standard load goes on for minutes; every few seconds one of the store's faults strikes. One worker
and the HTTP server are never touched: their memory and their descriptors, the store's connections and
its size are looked at every few seconds. After a warm-up of a third of the time they must stay where
they are. Then all is healed and the history is judged as always.
"""

from __future__ import annotations

import argparse
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import psutil

from lab import load
from lab.faults import FAULTS, Fault
from lab.judge import judge
from lab.results import RESULTS
from lab.run import Run
from lab.stores import STORES, Cluster, Postgres, Redis, Sqlite, Store

KEPT = RESULTS / "soak.jsonl"
EVERY = 5.0
STRIKES = {
    "sqlite": ("F1", "F2", "F28"),
    "postgres": ("F1", "F2", "F5", "F7", "F8", "F28"),
    "redis": ("F1", "F2", "F14", "F28"),
    "redis+cluster": ("F1", "F2", "F28"),
}
# What a healthy process may still gain after its warm-up.
MEMORY_MB, DESCRIPTORS, CONNECTIONS = 30, 12, 15


class Sample(msgspec.Struct, frozen=True):
    memory: float
    descriptors: int
    connections: int
    size: float


class Soaked(msgspec.Struct, kw_only=True):
    store: str
    minutes: float
    seed: int
    jobs: int
    strikes: int
    first: Sample
    last: Sample
    violations: int


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m lab.soak",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--store", choices=list(STRIKES), default="sqlite")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--keep", action="store_true", help=f"add what was seen to {KEPT.name}")
    args = parser.parse_args(argv)
    print(f"soak on {args.store}, {args.minutes:g} min, seed {args.seed}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="winch-lab-"))
    wrong = ["it broke off"]
    try:
        soaked, wrong = soak(args.store, args.minutes, args.seed, folder)
    finally:
        if wrong:
            print(f"the logs and the recorded lines are kept in {folder}", flush=True)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    print(msgspec.json.encode(soaked).decode())
    for words in wrong:
        print(f"WRONG: {words}")
    if args.keep:
        KEPT.parent.mkdir(exist_ok=True)
        with KEPT.open("ab") as file:
            file.write(msgspec.json.encode(soaked) + b"\n")
    return 1 if wrong else 0


def soak(store: str, minutes: float, seed: int, folder: Path) -> tuple[Soaked, list[str]]:
    seconds = minutes * 60
    kinds = [FAULTS[name] for name in STRIKES[store]]
    with STORES[store](folder) as place:
        if any(kind.needs_proxy for kind in kinds):
            place.put_proxy()
        # A third of the load of a short run: nothing is to pile up.
        jobs = int(load.JOBS * seconds / load.SECONDS / 3)
        run = Run(place, folder, seed, seconds=seconds, jobs=jobs)
        try:
            return _soak(run, kinds, minutes)
        finally:
            run.close()


def _soak(run: Run, kinds: Sequence[type[Fault]], minutes: float) -> tuple[Soaked, list[str]]:
    run.prepare()
    faults = [kind(run, random.Random(f"{run.seed}/{kind.name}")) for kind in kinds]
    for fault in faults:
        fault.prepare()
    run.begin()
    watched = run.workers.pop(0)  # no fault strikes a worker outside of the list
    run.start_worker()
    for fault in faults:
        fault.begin()
    samples: list[Sample] = []
    until = time.monotonic() + run.seconds
    due, strikes = time.monotonic(), 0
    while time.monotonic() < until:
        time.sleep(run.rng.uniform(1, 4))
        run.rng.choice(faults).strike()
        strikes += 1
        for worker in list(run.workers):  # a strike of one fault may leave its worker to another
            if worker.process.poll() is not None:
                run.replace(worker)
        if time.monotonic() >= due:
            # Not the processes of single jobs: whether there is one just now is no leak.
            pids = [watched.pid, *watched.children(), run.over_http[0].pid]
            samples.append(look(pids, run.store))
            due = time.monotonic() + EVERY
    for fault in faults:
        fault.heal()
    run.workers.append(watched)
    run.heal()
    for fault in faults:
        fault.healed()
    windows = run.drain()
    run.end_workers()
    result = judge(
        run, faults, windows, {"store": run.store.name, "fault": "soak", "title": "", "seed": run.seed}
    )
    wrong = [words for words in result.violations if "did nothing" not in words]
    third = len(samples) // 3
    first, last = middle(samples[third : 2 * third]), middle(samples[2 * third :])
    for name, most in (
        ("memory", MEMORY_MB),
        ("descriptors", DESCRIPTORS),
        ("connections", CONNECTIONS),
    ):
        grown = getattr(last, name) - getattr(first, name)
        if grown > most:
            wrong.append(f"{name} grew by {grown:g} after the warm-up")
    soaked = Soaked(
        store=run.store.name,
        minutes=minutes,
        seed=run.seed,
        jobs=result.counters.get("acked", 0),
        strikes=strikes,
        first=first,
        last=last,
        violations=len(wrong),
    )
    return soaked, wrong


def look(pids: Sequence[int], store: Store) -> Sample:
    memory = descriptors = 0
    for pid in pids:
        process = psutil.Process(pid)
        memory += process.memory_info().rss
        descriptors += process.num_fds()
    connections, size = of_store(store)
    return Sample(round(memory / (1 << 20), 1), descriptors, connections, round(size / (1 << 20), 2))


def of_store(store: Store) -> tuple[int, int]:
    """How many clients are connected, and how many bytes the store takes."""
    if isinstance(store, Postgres):
        import psycopg

        try:
            with psycopg.connect(store.url, autocommit=True) as conn:
                row = conn.execute(
                    "SELECT count(*), pg_database_size(current_database()) FROM pg_stat_activity "
                    "WHERE datname = current_database()"
                ).fetchone()
        except psycopg.OperationalError:
            return 0, 0
        return (int(row[0]), int(row[1])) if row else (0, 0)
    if isinstance(store, Redis | Cluster):
        servers = [store.server] if isinstance(store, Redis) else store.cluster.nodes
        infos = [server.info("everything") for server in servers]
        clients, size = ("connected_clients", "used_memory")
        return sum(int(one[clients]) for one in infos), sum(int(one[size]) for one in infos)
    assert isinstance(store, Sqlite)
    files = store.path.parent.glob(f"{store.path.name}*")
    return 0, sum(file.stat().st_size for file in files if file.is_file())


def middle(samples: Sequence[Sample]) -> Sample:
    if not samples:
        return Sample(0, 0, 0, 0)
    return Sample(
        statistics.median(s.memory for s in samples),
        int(statistics.median(s.descriptors for s in samples)),
        int(statistics.median(s.connections for s in samples)),
        statistics.median(s.size for s in samples),
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
