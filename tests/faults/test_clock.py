"""Wall clocks that are wrong, or are moved while jobs run."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest

from lab.history import read
from lab.history.lines import Started
from tests.faults.apps import LEASE
from tests.faults.clocks import MovableClock
from tests.faults.stage import Stage
from tests.servers import Databases

pytestmark = [pytest.mark.servers, pytest.mark.faults, pytest.mark.scenario]

HOURS = 2 * 3600


def skewed_pids(stage: Stage) -> set[int]:
    """The processes whose lines show a wall clock hours away from ours."""
    offset = time.time() - time.monotonic()
    return {
        line.pid
        for line in read(stage.recorder.folder)
        if isinstance(line, Started) and abs(line.wall - line.mono - offset) > HOURS - 60
    }


def test_a_wrong_clock_of_a_worker_changes_nothing(postgres_server: Databases) -> None:
    """The store's clock is the server's: one worker is two hours ahead, the other two behind."""
    with Stage("a worker's clock off by 2 h", "postgres", postgres_server) as stage:
        ahead, behind = MovableClock(stage.folder, "a"), MovableClock(stage.folder, "b")
        ahead.set(HOURS)
        workers = [stage.fleet.worker(concurrency=2, env=clock.env) for clock in (ahead, behind)]
        for worker in workers:
            stage.ready(worker)
        stage.until_entitled()
        jobs = stage.enqueue("slow", LEASE + 1, times=2) + stage.enqueue("aslow", LEASE + 1, times=2)
        stage.until_started(jobs)
        behind.set(-HOURS)  # while they run
        jobs += stage.enqueue("fail_then_ok", times=4)
        jobs += stage.enqueue("quick", times=4, delay="1s")
        stage.until_final()
        quick = stage.enqueue("quick", times=20)
        stage.until_final()
        skewed = skewed_pids(stage)
        stage.recorder.nemesis("skew", list(skewed), count=len(skewed), note="by 2 hours")
        verdict = stage.judge()
        assert len(skewed) == 2
        assert verdict.counters["rescued"] == 0
        assert verdict.counters["runs"] == len(jobs) + 4 + len(quick)


def test_a_step_of_the_hosts_clock_counts_against_no_job(postgres_server: Databases) -> None:
    """SQLite's clock is the host's, the same for all: moving it ends no lease of a live worker."""
    with Stage("the host's clock moved by 2 h", "sqlite", postgres_server) as stage:
        host = MovableClock(stage.folder, "host")
        workers = [stage.fleet.worker(concurrency=4, env=host.env) for _ in range(2)]
        for worker in workers:
            stage.ready(worker)
        stage.until_entitled()
        jobs = stage.enqueue("slow", LEASE + 1, times=4) + stage.enqueue("aslow", 2 * LEASE, times=4)
        stage.until_started(jobs)
        for offset in (HOURS, 0):
            host.set(offset)
            late = [session.id for session in stage.sessions() if session.ended_at is None]
            beats = {session.id: session.beats for session in stage.sessions()}
            stage.until(
                lambda: all(
                    s.beats >= beats[s.id] + 3  # noqa: B023
                    for s in stage.sessions()
                    if s.id in late  # noqa: B023
                ),
                20,
                "three beats by the new time",
            )
            jobs += stage.enqueue("quick", times=8)
        stage.until_final()
        stage.recorder.nemesis("skew", [pid for w in workers for pid in w.all_pids()], note="host")
        # The host's clock is the store's: it went forth and back, and that is all that may be seen.
        verdict = stage.verdict(takeover_limit=None, clock_tolerance=timedelta(hours=3))
        left = [violation for violation in verdict.violations if "went back by" not in violation.words]
        assert not left, f"{verdict}\n{stage.fleet.logs()}"
        assert verdict.counters["rescued"] == 0
        assert verdict.counters["runs"] == len(jobs)
        stage.measured(f"runs {verdict.counters['runs']}, rescued 0")
