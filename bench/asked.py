"""The lines of docs/benchmarks.md as code, but for flow control (bench/asked_gated.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bench.specs import STORE_NAMES, Bound, NeverBehind, Own, Spec, Versus

SPECS: Sequence[Spec] = (
    Versus("PG drain", "PG drain, graphile-worker", "pg drain", "graphile-worker", 1.5, 2.5),
    Versus("PG drain", "PG drain, pgqueuer", "pg drain", "pgqueuer", 3, 5),
    Own(
        "PG drain, 2 processes",
        "PG drain, 2 processes, own scaling",
        "pg drain, 2 processes",
        "pg drain",
        1.4,
        1.7,
    ),
    Versus(
        "PG drain, 2 processes",
        "PG drain, 2 processes",
        "pg drain, 2 processes",
        "graphile-worker",
        1.1,
        1.5,
    ),
    Versus("PG bulk enqueue / single", "PG bulk enqueue", "pg bulk", "graphile-worker", 2.5, 4),
    Versus("PG bulk enqueue / single", "PG single enqueue", "pg single", "pgqueuer", 1.3, 1.5),
    Bound(
        "PG, snapshot held open, 400k jobs",
        "PG, snapshot held open: last 25k against first",
        "pg snapshot held",
        "last_of_first",
        0.8,
        0.95,
        "of the first",
        is_least=True,
    ),
    Versus(
        "PG, snapshot held open, 400k jobs",
        "PG, snapshot held open: drain",
        "pg snapshot held",
        "awa-pg",
        5,
        8,
    ),
    Bound(
        "PG, 5 million completed kept",
        "PG, 5 million kept: cost of a claim",
        "pg 5 million kept",
        "growth",
        1.5,
        1.1,
        "times an empty store's",
    ),
    Bound("PG latency p50 / p99", "PG latency p50", "pg latency", "p50_ms", 1.2, 0.9, "ms", "pgqueuer"),
    Bound("PG latency p50 / p99", "PG latency p99", "pg latency", "p99_ms", 3, 2, "ms", "pgqueuer"),
    Versus("Redis drain", "Redis drain", "redis drain", "bullmq", 4, 8),
    Versus("Redis bulk / single", "Redis bulk enqueue", "redis bulk", "flexiq", 4, 8),
    Versus("Redis bulk / single", "Redis single enqueue", "redis single", "huey", 1.1, 1.3),
    Versus(
        "Redis latency p50 / p99",
        "Redis latency p50",
        "redis latency",
        "huey",
        1,
        0.5,
        "p50_ms",
        "ms",
        less_is_better=True,
        aim_of_winch=True,
    ),
    Versus(
        "Redis latency p50 / p99",
        "Redis latency p99",
        "redis latency",
        "huey",
        1,
        1.0,
        "p99_ms",
        "ms",
        less_is_better=True,
        aim_of_winch=True,
    ),
    Versus("SQLite (FULL) drain / single", "SQLite (FULL) drain", "sqlite drain", "huey", 10, 25),
    Versus(
        "SQLite (FULL) drain / single",
        "SQLite (FULL) single enqueue",
        "sqlite single",
        "huey",
        0.95,
        1.2,
    ),
    Versus(
        "SQLite (NORMAL, by option) single / bulk",
        "SQLite (NORMAL) single enqueue",
        "sqlite-normal single",
        "flexiq",
        2,
        4,
    ),
    Versus(
        "SQLite (NORMAL, by option) single / bulk",
        "SQLite (NORMAL) bulk enqueue",
        "sqlite-normal bulk",
        "flexiq",
        3,
        6,
    ),
    Bound(
        "SQLite latency p50 / p99",
        "SQLite latency p50",
        "sqlite latency",
        "p50_ms",
        2,
        1,
        "ms",
        "flexiq",
    ),
    Bound(
        "SQLite latency p50 / p99",
        "SQLite latency p99",
        "sqlite latency",
        "p99_ms",
        6,
        3,
        "ms",
        "flexiq",
    ),
    *(
        Versus(
            "sync (thread) tasks, any store",
            f"sync tasks, {STORE_NAMES[store]}",
            f"{store} drain, sync",
            "dramatiq",
            10,
            20,
            peer_scenario="redis drain, sync",
        )
        for store in ("pg", "sqlite", "redis")
    ),
    *(
        Versus(
            "isolated process tasks",
            f"isolated tasks, {STORE_NAMES[store]}",
            f"{store} drain, isolated",
            "rq",
            20,
            50,
            peer_scenario="redis drain, isolated",
        )
        for store in ("pg", "sqlite", "redis")
    ),
    Bound(
        "worker memory, idle / 100 running",
        "worker memory, idle",
        "worker memory",
        "idle_mib",
        60,
        45,
        "MiB",
    ),
    Bound(
        "worker memory, idle / 100 running",
        "worker memory, 100 running",
        "worker memory",
        "running_mib",
        80,
        60,
        "MiB",
    ),
    Bound(
        "worker memory, idle / 100 running",
        "worker memory, growth over 1 million jobs",
        "worker memory, 1 million jobs",
        "growth",
        1.1,
        1.02,
        "times after 100,000",
    ),
    *(
        Bound(
            "100x more jobs queued (10k → 1 million)",
            f"{STORE_NAMES[store]}: claim with 100x more queued",
            f"{store} backlog",
            "growth",
            1.3,
            1.1,
            "times with 10k",
        )
        for store in ("pg", "sqlite", "redis")
    ),
    Bound("import winch", "import winch", "import", "ms", 60, 40, "ms"),
    Versus(
        "drain beside bare SQL",
        "PG drain, bare SQL of the same shape",
        "pg drain",
        "raw limit",
        0.5,
        1,
        peer_scenario="pg raw limit",
    ),
    Bound(
        "PG latency under load",
        "PG latency p99 at 1,000 jobs/s",
        "pg latency at 1,000 jobs/s",
        "p99_ms",
        15,
        15,
        "ms",
    ),
    Bound(
        "PG latency under load",
        "PG latency p99, 50 ms jobs, 2 processes",
        "pg latency, 50 ms jobs, 2 processes",
        "p99_ms",
        100,
        100,
        "ms",
    ),
    *(
        NeverBehind(f"{store} {what}")
        for store in ("pg", "redis", "sqlite")
        for what in ("drain", "bulk", "single")
    ),
    *(NeverBehind(f"sqlite-normal {what}") for what in ("bulk", "single")),
)


# What would bring a line to its aim, for the page; lines that are there need none.
CLOSING: Mapping[str, str] = {
    "PG drain": (
        "The server is the limit: it writes each job's row anew in a claim and moves it in a "
        "finish. A narrow table of ready jobs beside an append-only archive wrote half the WAL in a "
        "prototype."
    ),
    "PG drain, 2 processes": (
        "The same. On two cores one worker and its server keep both busy (CPU per job of both, times "
        "the rate), so a second worker has no core left; more cores than that show how it scales."
    ),
    "PG bulk enqueue / single": (
        "Bulk: COPY instead of INSERT over arrays. Single: a round trip and a sync of the WAL are "
        "the floor, the rest is Python around the statement."
    ),
    "PG, snapshot held open, 400k jobs": (
        "A live table that is truncated by turns instead of deleted from."
    ),
    "PG, 5 million completed kept": "Nothing in a claim reads the archive; what differs is the cache.",
    "PG latency p50 / p99": (
        "One sync of the WAL, one round trip and the server's word are the floor: bare libpq takes "
        "0.75 ms for the same where a sync after an idle moment takes 0.3 ms. The rest is Python that "
        "runs with cold caches on both sides."
    ),
    "Redis drain": "Fewer keys and less Lua for a plain job.",
    "Redis bulk / single": (
        "Bulk: another layout, most of the server's time goes into one hash of all jobs. Single: "
        "less Python around the command."
    ),
    "Redis latency p50 / p99": "A worker waits inside the store already; what is left is Python.",
    "SQLite (FULL) drain / single": (
        "Drain: half of a job is SQLite, whose rows and indexes are written three times (stored, "
        "claimed, archived); an archive that is the same row would save one. Single: every system "
        "writes two pages and waits for the same sync of the disk, which is more than half of it."
    ),
    "SQLite (NORMAL, by option) single / bulk": (
        "Single: half is SQLite, with nine calls for its locks and ours. Bulk: drawing an id, "
        "checking and encoding a call cost as much as storing it."
    ),
    "SQLite latency p50 / p99": (
        "The syncs of the enqueue and of the claim are the floor; one after an idle moment takes "
        "several times as long as one of many. A job that is stored as claimed, as on PostgreSQL, would "
        "need no claim."
    ),
    "sync (thread) tasks, any store": "The interpreter's lock changes hands for every job.",
    "isolated process tasks": "Several jobs on their way to one child at a time.",
    "worker memory, idle / 100 running": (
        "Most of it are modules of the interpreter and of the driver."
    ),
    "100x more jobs queued (10k → 1 million)": (
        "Deeper indexes: one more page for each search. On Redis a claimed job is looked up in one hash "
        "of all jobs and one set of all that are ready; of a million no cache holds either, which is "
        "about 2 µs more for a job. Many small hashes, by the time that ids begin with, would stay in "
        "the cache."
    ),
    "import winch": "Nothing is imported that is not used at once.",
    "drain beside bare SQL": "Fences, sessions and sort keys are what the rest pays for.",
    "PG latency under load": "The limit is the aim.",
}
