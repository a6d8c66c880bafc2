"""What millions of kept jobs cost: claims with an empty archive and with a full one, and dropping a day.

    python scripts/archive_cost.py                      a temporary server, 5 million jobs
    python scripts/archive_cost.py --jobs 200000        quicker
    python scripts/archive_cost.py --url postgresql://… a database of your own; drops the schema it makes

Fills the archive in SQL with jobs as a finish leaves them, spread over a week, and times claim and
finish in batches before and after, on one connection. The cost is the CPU time of the server's process
where that can be read (the server runs here, on Linux), else wall time; the median of the batches.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

# The harness is not installed with the package; it is found next to this script.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import psycopg

from tests.servers import PostgresServer, find_postgres
from winch.core.lifecycle import JobState
from winch.core.values.ids import job_id, random_id
from winch.drivers.postgres.driver import PostgresDriver
from winch.storage.params import ClaimParams, Finish, NewJob, NewSession

SCHEMA = "winch_archive_cost"
BATCH = 500
FILL = """
INSERT INTO winch_archive_cost.archive (
    id, created_at, run_at, finished_at, fence, version, priority, attempt, crashes, rescues, drop_on,
    is_suspect, is_given_id, state, queue, task, args, session, ended_token, claimed_at, result
)
SELECT
    gen_random_uuid(), at, at, at, 0, 1, 0, 1, 0, 0,
    winch_archive_cost.drop_on('completed', NULL, at), false, false, 'completed', 'default',
    'bench.noop', '{"n": ' || n || '}', gen_random_uuid(), gen_random_uuid(), at, 'null'
FROM generate_series(%(first)s::bigint, %(last)s::bigint) AS n
CROSS JOIN LATERAL (SELECT now() - make_interval(secs => n %% 604000) AS at) AS given
"""

SIZE = """
SELECT pg_size_pretty(sum(pg_total_relation_size(inhrelid))::bigint)
FROM pg_inherits
WHERE inhparent = 'winch_archive_cost.archive'::regclass
"""
OLDEST_DAY = """
SELECT tableoid::regclass::text, count(*)
FROM winch_archive_cost.archive
GROUP BY tableoid, drop_on
ORDER BY drop_on
LIMIT 1
"""


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=5_000_000)
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument("--url")
    options = parser.parse_args(argv)
    with database(options.url) as url:
        driver = PostgresDriver.from_url(url, schema=SCHEMA)
        with psycopg.connect(url, autocommit=True) as conn:
            conn.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")
            driver.migrate()
            try:
                measure(driver, conn, options.jobs, options.batches)
            finally:
                driver.close()
                conn.execute(f"DROP SCHEMA {SCHEMA} CASCADE")
    return 0


@contextmanager
def database(url: str | None) -> Iterator[str]:
    if url is not None:
        yield url
    else:
        with PostgresServer(fsync=True, bin_folder=find_postgres(None)) as server:
            yield server.url


def measure(driver: PostgresDriver, conn: psycopg.Connection[Any], jobs: int, batches: int) -> None:
    session = random_id(os.urandom(16))
    driver.run(driver.start_session(NewSession(
        id=session, worker="archive-cost", host="", pid=os.getpid(), release="", queues=("default",),
        tasks=("bench.noop",), slots=1, lease=timedelta(hours=1),
    )))  # fmt: skip
    cycles(driver, session, 5)
    empty = cycles(driver, session, batches)
    step = 250_000
    started = time.perf_counter()
    for first in range(1, jobs + 1, step):
        conn.execute(FILL, {"first": first, "last": min(first + step - 1, jobs)})
    filled = time.perf_counter() - started
    conn.execute(f"VACUUM ANALYZE {SCHEMA}.archive")
    conn.execute(
        f"VACUUM ANALYZE {SCHEMA}.job"
    )  # as it is between two peaks: the planner thinks it empty
    conn.execute("CHECKPOINT")
    cycles(driver, session, 5)
    full = cycles(driver, session, batches)
    kept = conn.execute(SIZE).fetchone()
    print(f"{jobs:,} kept jobs, {kept[0] if kept else '?'}, filled in {filled:.0f} s; µs per job:")
    for name in ("claim", "finish"):
        before, after = empty[name], full[name]
        print(f"  {name:6}  empty {before:6.2f}  full {after:6.2f}  ratio {after / before:.2f}")
    name, count = conn.execute(OLDEST_DAY).fetchone() or ("archive_default", 0)
    started = time.perf_counter()
    conn.execute(f"DROP TABLE {name}")
    took = (time.perf_counter() - started) * 1000
    print(f"  dropping a day of {count:,} jobs: one statement (DROP TABLE), {took:.0f} ms")


def cycles(driver: PostgresDriver, session: str, batches: int) -> dict[str, float]:
    """Enqueue, claim and finish batch after batch; µs per job of claim and finish, medians."""
    spent: dict[str, list[float]] = {"claim": [], "finish": []}
    for _ in range(batches):
        ticks = range(start := time.time_ns() * 4096 // 1_000_000, start + BATCH)
        ids = [job_id(tick, os.urandom(8)) for tick in ticks]
        driver.run(driver.enqueue([NewJob(id=i, task="bench.noop", args='{"n": 12345}') for i in ids]))
        pid = driver._pool._idle[
            -1
        ].connection.info.backend_pid  # the one connection that a single caller has
        params = ClaimParams(
            session=session, token=random_id(os.urandom(16)), queues=("default",), limit=BATCH, gated=0
        )
        began = busy(pid)
        claims = driver.run(driver.claim(params))
        between = busy(pid)
        done = [
            Finish(id=claim.id, token=claim.token, to=JobState.COMPLETED, what="completed")
            for claim in claims
        ]
        driver.run(driver.finish(done))
        ended = busy(pid)
        spent["claim"].append((between - began) * 1e6 / BATCH)
        spent["finish"].append((ended - between) * 1e6 / BATCH)
    return {name: statistics.median(values) for name, values in spent.items()}


def busy(pid: int) -> float:
    """Seconds of CPU that the server's process has used; wall time where that cannot be read."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
    except OSError:
        return time.perf_counter()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
