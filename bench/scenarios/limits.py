"""The raw limit: what the store itself does with bare SQL of the same shape, and nothing else.

Two tables as Winch has them in principle, one live and one for what is kept: claim 500 by an UPDATE
under SKIP LOCKED, then delete them and insert them into the other table in one statement. No fences, no
sessions, no sort key per queue, no handlers: an upper bound for the same work, not a job system.
"""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from urllib.parse import urlsplit

import psycopg

from bench.catalog import RAW, Contender
from bench.measure import Bench
from bench.scenario import Scenario, Values

BATCH = 500
PAD = "x" * 100

PG_TABLES = """
CREATE TABLE job (id bigint PRIMARY KEY, state int NOT NULL DEFAULT 0, token text, args text NOT NULL);
CREATE INDEX ON job (id) WHERE state = 0;
CREATE TABLE done (id bigint PRIMARY KEY, token text, args text NOT NULL);
"""
PG_CLAIM = """
UPDATE job SET state = 1, token = %s WHERE ctid = ANY(ARRAY(
  SELECT ctid FROM job WHERE state = 0 ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED)) RETURNING id, args
"""
PG_FINISH = """
WITH gone AS (DELETE FROM job WHERE id = ANY(%s) AND token = %s RETURNING id, token, args)
INSERT INTO done SELECT * FROM gone
"""
PG_INSERT = "INSERT INTO job (id, args) SELECT i, %s FROM generate_series(%s::bigint, %s::bigint) AS i"


def _postgres(bench: Bench, contender: Contender) -> Values:
    url = bench.stores.fresh("pg")
    jobs = int(100_000 * bench.lengths.drain)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(PG_TABLES)
        started = time.perf_counter()
        for first in range(0, jobs, 1000):
            connection.execute(PG_INSERT, (PAD, first, first + 999))
        bulk = jobs / (time.perf_counter() - started)
        bench.stores.settle("pg")
        before = bench.stores.cost("pg")
        started, done = time.perf_counter(), 0
        while taken := connection.execute(PG_CLAIM, (f"{done}", BATCH)).fetchall():
            connection.execute(PG_FINISH, ([row[0] for row in taken], f"{done}"))
            done += len(taken)
        seconds = time.perf_counter() - started
        cost = bench.stores.cost("pg") - before
        single = _singles(lambda n: connection.execute(PG_INSERT, (PAD, n, n)), jobs, bench)
    return {
        "rate": done / seconds,
        "server_us": cost.seconds / done * 1e6,
        "wal_bytes": cost.wal / done,
        "bulk_rate": bulk,
        "single_rate": single,
    }


def _sqlite(bench: Bench, contender: Contender) -> Values:
    path = urlsplit(bench.stores.fresh("sqlite")).path
    jobs = int(100_000 * bench.lengths.drain)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.executescript(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;"
            "CREATE TABLE job (id INTEGER PRIMARY KEY, state INT DEFAULT 0, token TEXT, args TEXT);"
            "CREATE INDEX ready ON job (id) WHERE state = 0;"
            "CREATE TABLE done (id INTEGER PRIMARY KEY, token TEXT, args TEXT);"
        )
        insert = "INSERT INTO job (id, args) VALUES (?, ?)"
        started = time.perf_counter()
        for first in range(0, jobs, 1000):
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(insert, [(n, PAD) for n in range(first, first + 1000)])
            connection.execute("COMMIT")
        bulk = jobs / (time.perf_counter() - started)
        started, done = time.perf_counter(), 0
        while taken := connection.execute(
            "UPDATE job SET state = 1, token = ? WHERE id IN "
            "(SELECT id FROM job WHERE state = 0 ORDER BY id LIMIT ?) RETURNING id, args",
            (f"{done}", BATCH),
        ).fetchall():
            token = f"{done}"
            connection.execute("BEGIN IMMEDIATE")
            ids = [(row[0], token) for row in taken]
            connection.executemany(
                "INSERT INTO done SELECT id, token, args FROM job WHERE id = ? AND token = ?", ids
            )
            connection.executemany("DELETE FROM job WHERE id = ? AND token = ?", ids)
            connection.execute("COMMIT")
            done += len(taken)
        rate = done / (time.perf_counter() - started)
        single = _singles(lambda n: connection.execute(insert, (n, PAD)), jobs, bench)
    return {"rate": rate, "bulk_rate": bulk, "single_rate": single}


def _singles(insert: object, first: int, bench: Bench) -> float:
    assert callable(insert)
    started = now = time.perf_counter()
    n = first
    while now - started < bench.lengths.enqueue:
        insert(n)
        n += 1
        now = time.perf_counter()
    return (n - first) / (now - started)


SCENARIOS = [
    Scenario("pg raw limit", "pg", _postgres, (RAW.name,), (RAW.name,), with_winch=False),
    Scenario("sqlite raw limit", "sqlite", _sqlite, (RAW.name,), (RAW.name,), with_winch=False),
]
