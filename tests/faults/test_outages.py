"""The store goes away: killed, stopped for longer than a lease, or locked by another process."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import threading
import time

import pytest

from lab.history import read
from lab.history.lines import Replied
from tests.faults.apps import LEASE
from tests.faults.fleet import until
from tests.faults.stage import STORES, Stage
from tests.servers import Databases, PostgresServer
from winch.core.lifecycle import JobState

pytestmark = [pytest.mark.servers, pytest.mark.faults, pytest.mark.scenario]

OUTAGE = 2 * LEASE


def test_sqlite_held_for_two_leases_counts_against_no_job(postgres_server: Databases) -> None:
    with Stage("outage of two leases", "sqlite", postgres_server) as stage:
        workers = [stage.fleet.worker(concurrency=4) for _ in range(2)]
        for worker in workers:
            stage.ready(worker)
        stage.until_entitled()
        # Some handlers end while the store is held, some outlast it.
        jobs = stage.enqueue("slow", 2.0, times=4) + stage.enqueue("aslow", OUTAGE + 2, times=4)
        stage.until_started(jobs)
        holder = stage.fleet.helper(
            "-m", "tests.faults.hold_sqlite", str(stage.folder / "winch.db"), str(OUTAGE)
        )
        log = stage.folder / "helper-0.log"
        stage.until(lambda: "held" in log.read_text(), 10, "the lock")
        stage.recorder.nemesis("outage", note=f"held for {OUTAGE:g} s")
        stage.until(lambda: "over" in log.read_text(), OUTAGE + 10, "the end of the outage")
        assert holder.poll() is None
        over = time.monotonic()
        after = stage.enqueue("quick", times=4)
        stage.until(
            lambda: {job.state for job in stage.jobs(after)} == {JobState.COMPLETED},
            20,
            "new jobs to run",
        )
        resumed = time.monotonic() - over
        stage.until_final()
        verdict = stage.judge(takeover_limit=None)
        assert verdict.counters["rescued"] == 0
        assert verdict.counters["runs"] == len(jobs + after)
        stage.measured(f"new jobs done {resumed:.2f} s after the outage")


def test_postgres_stopped_for_two_leases_counts_against_no_job(postgres_server: Databases) -> None:
    with (
        PostgresServer() as server,
        Stage("outage of two leases", "postgres", server, server.new_database()) as stage,
    ):
        workers = [stage.fleet.worker(concurrency=4) for _ in range(2)]
        for worker in workers:
            stage.ready(worker)
        stage.until_entitled()
        jobs = stage.enqueue("slow", 2.0, times=4) + stage.enqueue("aslow", OUTAGE + 2, times=4)
        stage.until_started(jobs)
        server.stop("immediate")
        stage.recorder.nemesis("outage", note=f"stopped for {OUTAGE:g} s")
        time.sleep(OUTAGE)
        server.start()
        over = time.monotonic()
        after = stage.enqueue("quick", times=4)
        stage.until(
            lambda: {job.state for job in stage.jobs(after)} == {JobState.COMPLETED},
            20,
            "new jobs to run",
        )
        resumed = time.monotonic() - over
        stage.until_final()
        verdict = stage.judge(takeover_limit=None)
        assert verdict.counters["rescued"] == 0
        assert verdict.counters["runs"] == len(jobs + after)
        stage.measured(f"new jobs done {resumed:.2f} s after the outage")


def test_postgres_killed_and_restarted_loses_nothing(postgres_server: Databases) -> None:
    with (
        PostgresServer() as server,
        Stage("kill -9 of the database", "postgres", server, server.new_database()) as stage,
    ):
        workers = [stage.fleet.worker(concurrency=4) for _ in range(2)]
        producer = stage.fleet.helper("-m", "tests.faults.producer", "1")
        for worker in workers:
            stage.ready(worker)
        slow = stage.enqueue("slow", 1.0, times=4)
        stage.until_started(slow)
        recoveries = []
        for _ in range(2):
            enough = _acked(stage) + 100
            stage.until(lambda: _acked(stage) > enough, 60, "some load")  # noqa: B023
            server.kill9()
            stage.recorder.nemesis("outage", note="kill -9 of the server")
            server.start()
            began, before = time.monotonic(), len(stage.ends())
            stage.until(lambda: len(stage.ends()) > before, 60, "work to go on")  # noqa: B023
            recoveries.append(time.monotonic() - began)
        os.kill(producer.pid, signal.SIGKILL)
        stage.until_final(60)
        verdict = stage.judge(takeover_limit=None)
        assert verdict.counters["outage"] == 2
        # Work goes on soon, and no job lost an attempt: see the rule about work that stayed alive.
        assert max(recoveries) < 5.0
        shown = ", ".join(f"{seconds:.2f}" for seconds in recoveries)
        stage.measured(f"work went on after {shown} s; {verdict.counters['recovered']} recovered")


@pytest.mark.parametrize("store", STORES)
def test_a_store_survives_kills_in_the_middle_of_writes(store: str, postgres_server: Databases) -> None:
    seed = random.randrange(10**6)
    rng = random.Random(seed)
    with Stage(f"kill -9 in the middle of writes, seed {seed}", store, postgres_server) as stage:
        stage.worker(concurrency=8)  # stays, and sweeps
        for round_ in range(4):
            doomed = stage.fleet.worker(concurrency=8)
            producers = [
                stage.fleet.helper("-m", "tests.faults.producer", f"{seed}-{round_}-{number}")
                for number in range(2)
            ]
            stage.ready(doomed)
            enough = _acked(stage) + 50
            stage.until(lambda: _acked(stage) >= enough, 30, "some load")  # noqa: B023
            time.sleep(rng.uniform(0, 0.2))  # anywhere within a write
            victims = [process.pid for process in producers]
            stage.recorder.nemesis("kill", victims, note="producers")
            for pid in victims:
                os.kill(pid, signal.SIGKILL)
            doomed.kill_all()
            stage.until(doomed.is_gone, 10, "the end of the killed")
            assert _integrity(stage) == ["ok"]
        stage.until_final(60)
        verdict = stage.judge()
        assert verdict.counters["killed"] == 8
        assert verdict.counters["acked"] >= 200
        assert _integrity(stage) == ["ok"]


def _acked(stage: Stage) -> int:
    lines = read(stage.recorder.folder)
    return sum(1 for line in lines if isinstance(line, Replied) and line.outcome == "acked")


def _integrity(stage: Stage) -> list[str]:
    """SQLite's check of its file; a server recovers by itself, and the history shows the rest."""
    if stage.store != "sqlite":
        return ["ok"]
    found: list[str] = []

    def look() -> None:  # in a thread of its own: nothing of SQLite's is left in this one
        conn = sqlite3.connect(f"file:{stage.folder / 'winch.db'}?mode=ro", uri=True)
        found.extend(row[0] for row in conn.execute("PRAGMA integrity_check"))
        conn.close()

    thread = threading.Thread(target=look)
    thread.start()
    thread.join(30)
    until(lambda: bool(found), 1, "an integrity check")
    return found
