"""What very many keys cost that have one job each: claims, and what is left of them.

    python scripts/cold_keys.py                       a million jobs, every store, both kinds of keys
    python scripts/cold_keys.py 100000 sqlite redis   fewer, on these stores

Claims of 100 jobs are timed in a store with so many keys and, in turn with them, in a store with
2,000 keys of five jobs each. What was claimed goes back after each turn. Then all jobs run to their end,
and the script counts what the store still keeps about gates. It prints wall time: the ratio holds on a
busy machine, the times do not.
"""

from __future__ import annotations

import os
import re
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

# The harness is not installed with the package; it is found next to this script.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import psycopg

from bench.stores import GATE_KEYS
from tests.redis_servers import RedisCluster, RedisServer
from tests.servers import PostgresServer
from winch.core.gates.places import lone_place
from winch.core.gates.uses import FIFO, LIMIT, GateUse, with_gates
from winch.core.job import Claim
from winch.core.lifecycle import JobState
from winch.core.values.ids import job_id, random_id, with_place
from winch.drivers.connect import redis_class
from winch.drivers.postgres.driver import PostgresDriver
from winch.drivers.sqlite.driver import SqliteDriver
from winch.storage.params import ClaimParams, ClaimRef, Finish, NewJob, NewSession

STORES = ("sqlite", "postgres", "redis", "redis+cluster")
KINDS = ("keyed limit", "fifo")
FEW_KEYS, FEW_JOBS = 2000, 10_000
CLAIM, CLAIMS, TURNS = 100, 10, 9
CHUNK, BATCH = 1000, 500
SWEEPS = 20


@dataclass(frozen=True)
class ColdKeys:
    """`growth`: the median of how much longer a claim takes than with few keys. `kept`: what the store
    had of gates while jobs ran, `left`: what it has in the end."""

    few_ms: float
    many_ms: float
    growth: float
    kept: int
    left: int


@dataclass(frozen=True)
class Opened:
    """Two empty stores, and a look at what the second keeps about gates."""

    few: Any
    many: Any
    kept: Callable[[], int]


@contextmanager
def opened(store: str) -> Iterator[Opened]:
    """A server of its own, with two stores."""
    if store == "sqlite":
        with tempfile.TemporaryDirectory(prefix="winch-cold-") as folder:
            many = Path(folder, "many.db")
            yield Opened(
                SqliteDriver(Path(folder, "few.db")), SqliteDriver(many), lambda: _in_sqlite(many)
            )
    elif store == "postgres":
        with PostgresServer(fsync=False) as server:
            few, many_keys = (PostgresDriver.from_url(server.url, schema=f"cold_{n}") for n in range(2))
            yield Opened(few, many_keys, lambda: _in_postgres(server.url))
    else:
        with RedisServer() if store == "redis" else RedisCluster(replicas=0) as one:
            nodes = [one] if isinstance(one, RedisServer) else list(one.nodes)
            driver = redis_class(one.url)
            yield Opened(
                driver.from_url(f"{one.url}?schema=few"),
                driver.from_url(f"{one.url}?schema=many"),
                lambda: sum(map(_in_redis, nodes)),
            )


def _in_sqlite(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        text = "SELECT (SELECT count(*) FROM winch_gate) + (SELECT count(*) FROM winch_permit)"
        return int(connection.execute(text).fetchone()[0])


def _in_postgres(url: str) -> int:
    with psycopg.connect(url) as connection:
        text = "SELECT (SELECT count(*) FROM cold_1.gate) + (SELECT count(*) FROM cold_1.permit)"
        row = connection.execute(text).fetchone()
        return 0 if row is None else int(row[0])


def _in_redis(node: RedisServer) -> int:
    sizes = {b"hash": "HLEN", b"zset": "ZCARD", b"set": "SCARD", b"list": "LLEN"}
    at, found = b"0", 0
    while True:
        at, keys = node.ask("SCAN", at.decode(), "COUNT", 10_000)
        for key in keys:
            if b"many" in key and re.search(GATE_KEYS, key):
                kind = node.ask("TYPE", key.decode())
                found += int(node.ask(sizes[kind], key.decode())) if kind in sizes else 1
        if at == b"0":
            return found


def new_job(kind: str, key: int) -> NewJob:
    """A job of this key, with an id as the client draws it."""
    use = (
        GateUse(f"limit:job=k{key}", LIMIT, "limit:job", n=2)
        if kind == "keyed limit"
        else GateUse(f"fifo:k{key}", FIFO)
    )
    options = with_gates(None, (use,))
    drawn, place = job_id(time.time_ns() * 4096 // 1_000_000, os.urandom(8)), lone_place(options)
    return NewJob(
        id=drawn if place is None else with_place(drawn, place),
        task="job",
        args='{"n":1}',
        options=options,
        fifo=None if kind == "keyed limit" else f"k{key}",
    )


def _fill(driver: Any, kind: str, jobs: int, keys: int) -> str:
    """So many jobs of so many keys; the session that may claim them."""
    driver.migrate()
    session = random_id(os.urandom(16))
    driver.run(
        driver.start_session(
            NewSession(
                id=session,
                worker="cold",
                host="h",
                pid=os.getpid(),
                release="1",
                queues=("default",),
                tasks=("job",),
                slots=CLAIM,
                lease=timedelta(hours=3),
            )
        )
    )
    for at in range(0, jobs, CHUNK):
        some = [new_job(kind, n % keys) for n in range(at, min(at + CHUNK, jobs))]
        driver.run(driver.enqueue(some))
    return session


def _claim(driver: Any, session: str, limit: int) -> list[Claim]:
    params = ClaimParams(
        session=session,
        token=random_id(os.urandom(16)),
        queues=("default",),
        limit=limit,
        tasks=("job",),
    )
    found: list[Claim] = driver.run(driver.claim(params))
    return found


def _claim_ms(driver: Any, session: str) -> float:
    took, claims = [], []
    for _ in range(CLAIMS):
        began = time.perf_counter()
        found = _claim(driver, session, CLAIM)
        seconds = time.perf_counter() - began
        if len(found) < CLAIM // 2:
            raise RuntimeError(f"claimed {len(found)} of {CLAIM} jobs")
        # Over the shards of a cluster a claim may bring fewer.
        took.append(seconds * 1000 * CLAIM / len(found))
        claims += found
    driver.run(driver.release([ClaimRef(one.id, one.token) for one in claims]))
    return min(took)  # what others do on the machine makes claims longer, never shorter


def measure(store: Opened, kind: str, jobs: int) -> ColdKeys:
    """Time the claims, run all jobs to their end, and count what is left."""
    few, many = _fill(store.few, kind, FEW_JOBS, FEW_KEYS), _fill(store.many, kind, jobs, jobs)
    pairs = [(_claim_ms(store.few, few), _claim_ms(store.many, many)) for _ in range(TURNS)]
    kept, done = 0, 0
    while claims := _claim(store.many, many, BATCH):
        kept = kept or store.kept()
        ends = [
            Finish(id=one.id, token=one.token, to=JobState.COMPLETED, what="completed", is_gated=True)
            for one in claims
        ]
        store.many.run(store.many.finish(ends))
        done += len(claims)
    if done != jobs:
        raise RuntimeError(f"{done} of {jobs} jobs ran")
    left = store.kept()
    for _ in range(SWEEPS):  # as workers make them, a minute apart
        if not left:
            break
        store.many.run(store.many.admit(is_sweep=True))
        left = store.kept()
    return ColdKeys(
        statistics.median(few_ms for few_ms, _ in pairs),
        statistics.median(many_ms for _, many_ms in pairs),
        statistics.median(many_ms / few_ms for few_ms, many_ms in pairs),
        kept,
        left,
    )


def main(words: Sequence[str]) -> int:
    jobs = int(words[0]) if words else 1_000_000
    for store in words[1:] or STORES:
        for kind in KINDS:
            with opened(store) as found:
                seen = measure(found, kind, jobs)
                found.few.close()
                found.many.close()
            print(
                f"{store}, {kind}, {jobs:,} keys: a claim of {CLAIM} takes {seen.few_ms:.2f} ms with few"
                f" keys, {seen.many_ms:.2f} ms with many: {seen.growth:.2f}x (at most 1.3x);"
                f" gates kept while jobs ran {seen.kept:,}, in the end {seen.left:,}",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
