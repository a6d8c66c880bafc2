"""Over HTTP, with a token: enqueues one by one, on eight connections and in bulk; and work, job by job
beside batches of fifty in the same run."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from bench.catalog import Contender
from bench.contender import Failed
from bench.http_client import Connection, at_once, one_by_one
from bench.measure import Bench
from bench.scenario import Scenario, Values

BATCH, CONNECTIONS, BULK, TURNS = 50, 8, 1000, 4
JOB = {"task": "bench.add", "args": {"a": 1}}
QUEUE = "bench"
ENOUGH = 150_000  # more jobs than any system completes in a second over HTTP
ROOT = Path(__file__).resolve().parent.parent.parent
WINCH = [sys.executable, "-m", "winch"]


class Server:
    """A `winch serve` on an empty store, and a token for it."""

    def __init__(self, process: subprocess.Popen[str], port: int, token: str) -> None:
        self._process = psutil.Process(process.pid)
        self.port, self.token = port, token

    def connect(self) -> Connection:
        return Connection(self.port, self.token)

    def cpu_seconds(self) -> float:
        spent = self._process.cpu_times()
        return float(spent.user + spent.system)


@contextmanager
def serving(url: str) -> Iterator[Server]:
    env = {**os.environ, "WINCH_URL": url, "BENCH_URL": url, "PYTHONPATH": str(ROOT)}
    subprocess.run([*WINCH, "migrate"], env=env, check=True, capture_output=True)
    create = [*WINCH, "token", "create", "bench", "--role", "admin"]
    made = subprocess.run(create, env=env, check=True, capture_output=True, text=True)
    token = re.search(r"winch_\S+", made.stdout)
    command = [*WINCH, "-A", "bench.http_app:app", "serve", "--port", "0", "--auth"]
    process = subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert process.stdout is not None
        port = re.search(r":(\d+)/", process.stdout.readline())
        if token is None or port is None:
            raise Failed("the server did not start")
        yield Server(process, int(port[1]), token[0])
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=20)


def _run(bench: Bench, contender: Contender) -> Values:
    seconds = bench.lengths.enqueue
    with serving(bench.url_for(contender)) as server:
        connections = [server.connect() for _ in range(CONNECTIONS)]
        first = connections[0]
        one_by_one(first, "/jobs", JOB, 0.3)  # the first requests pay for the start
        spent = server.cpu_seconds()
        single, took = one_by_one(first, "/jobs", JOB, seconds)
        found = {"rate": single / took, "server_us": (server.cpu_seconds() - spent) / single * 1e6}
        eight, took = at_once(connections, "/jobs", JOB, seconds)
        found["eight_rate"] = eight / took
        bulk, took = one_by_one(first, "/jobs:bulk", {"jobs": [JOB] * BULK}, seconds / 5)
        found["bulk_rate"] = bulk * BULK / took
        waiting = single + eight + bulk * BULK
        one, many = [0, 0.0], [0, 0.0]
        session = first.post("/sessions", {"worker": "bench", "queues": [QUEUE], "slots": BATCH})["key"]
        for _ in range(TURNS):
            for kind, jobs in ((one, _one_by_one), (many, _by_batches)):
                while waiting < ENOUGH * seconds / TURNS:
                    first.post("/jobs:bulk", {"jobs": [JOB] * BULK})
                    waiting += BULK
                began = time.perf_counter()
                done = jobs(first, session, seconds / TURNS)
                kind[0] += done
                kind[1] += time.perf_counter() - began
                waiting -= done
        found["work_rate"] = one[0] / one[1]
        found["batch_rate"] = many[0] / many[1]
        found["batch_ratio"] = found["batch_rate"] / found["work_rate"]
        for connection in connections:
            connection.close()
    return found


def _one_by_one(connection: Connection, _: str, seconds: float) -> int:
    """Claim fifty, and complete each with a request of its own."""
    done, until = 0, time.perf_counter() + seconds
    while time.perf_counter() < until:
        jobs = connection.post(f"/queues/{QUEUE}/claim", {"max": BATCH})["jobs"]
        if not jobs:
            raise Failed("there are no jobs left")
        for job in jobs:
            connection.post(f"/jobs/{job['id']}/complete", {"token": job["token"], "result": 1})
        done += len(jobs)
    return done


def _by_batches(connection: Connection, session: str, seconds: float) -> int:
    """Complete fifty and claim the next fifty with one request."""
    done, until = 0, time.perf_counter() + seconds
    jobs = connection.post(f"/sessions/{session}/claim", {"max": BATCH})["jobs"]
    while jobs:
        outcomes = [
            {"id": job["id"], "token": job["token"], "outcome": "complete", "result": 1} for job in jobs
        ]
        done += len(jobs)
        if time.perf_counter() > until:
            connection.post(f"/sessions/{session}/finish", {"outcomes": outcomes})
            return done
        body = {"outcomes": outcomes, "claim": {"max": BATCH}}
        jobs = connection.post(f"/sessions/{session}/finish", body)["jobs"]
    raise Failed("there are no jobs left")


SCENARIOS = [Scenario(f"{store} http", store, _run, quick=()) for store in ("sqlite", "redis", "pg")]
