"""A worker after its stop signal: no new claims, no job lost, none left leased, no attempt spent."""

from __future__ import annotations

import time

import pytest

from tests.faults.fleet import Worker
from tests.faults.stage import STORES, Stage
from tests.servers import Databases
from winch.core.lifecycle import JobState

pytestmark = [
    pytest.mark.servers,
    pytest.mark.faults,
    pytest.mark.scenario,
    pytest.mark.parametrize("store", STORES),
]


def test_jobs_that_end_within_the_grace_are_finished(store: str, postgres_server: Databases) -> None:
    with Stage("SIGTERM, within grace", store, postgres_server) as stage:
        worker = stage.worker(processes=2, concurrency=2, grace="10s")
        running = stage.enqueue("slow", 1.5, times=2) + stage.enqueue("aslow", 1.5, times=2)
        stage.until_started(running)
        waiting = stage.enqueue("quick", times=8)
        began = time.monotonic()
        worker.term()
        late = stage.enqueue("quick", times=2)
        assert worker.wait(15) == 0
        took = time.monotonic() - began
        assert worker.is_gone()
        assert {job.state for job in stage.jobs(running)} == {JobState.COMPLETED}
        left = stage.jobs(waiting + late)
        assert {(job.state, job.attempt) for job in left} == {(JobState.READY, 0)}
        stage.worker()
        stage.until_final()
        verdict = stage.judge()
        assert verdict.counters["term"] == 1
        assert verdict.counters["runs"] == len(running + waiting + late)
        stage.measured(f"TERM to exit {took:.2f} s, of which the jobs needed up to 1.5 s")


def test_jobs_past_the_grace_are_released_with_no_attempt_spent(
    store: str, postgres_server: Databases
) -> None:
    with Stage("SIGTERM, past grace", store, postgres_server) as stage:
        worker = stage.worker(concurrency=4, grace="1s")
        jobs = stage.enqueue("slow", 60.0, times=2) + stage.enqueue("aslow", 60.0, times=2)
        stage.until_started(jobs)
        began = time.monotonic()
        worker.term()
        assert worker.wait(10) == 0
        took = time.monotonic() - began
        assert {(job.state, job.attempt) for job in stage.jobs(jobs)} == {(JobState.READY, 0)}
        assert len(stage.events("released")) == len(jobs)
        for job in jobs:
            stage.app.jobs.cancel(job)
        stage.judge()
        # The last 0.4 s of this grace are for the handlers that are interrupted.
        assert 0.6 <= took < 5.0
        stage.measured(f"TERM to exit {took:.2f} s with a grace of 1 s")


def until_gone(worker: Worker) -> None:
    """One signal after the other to its last moment: they must not take its exit code away."""
    while worker.process.poll() is None:
        worker.term_again()
        time.sleep(0.002)


def test_a_second_signal_stops_at_once(store: str, postgres_server: Databases) -> None:
    with Stage("SIGTERM twice", store, postgres_server) as stage:
        worker = stage.worker(concurrency=4, grace="60s")
        jobs = stage.enqueue("slow", 60.0, times=2) + stage.enqueue("aslow", 60.0, times=2)
        stage.until_started(jobs)
        worker.term()
        stage.until(lambda: "stopping" in worker.text(), 5, "the first signal to be heard")
        began = time.monotonic()
        worker.term_again()
        until_gone(worker)
        assert worker.wait(10) == 0
        took = time.monotonic() - began
        assert {(job.state, job.attempt) for job in stage.jobs(jobs)} == {(JobState.READY, 0)}
        for job in jobs:
            stage.app.jobs.cancel(job)
        stage.judge()
        assert took < 5.0
        stage.measured(f"second TERM to exit {took:.2f} s")


def test_workers_replaced_one_after_another_lose_and_repeat_nothing(
    store: str, postgres_server: Databases
) -> None:
    with Stage("rolling restart under load", store, postgres_server) as stage:
        jobs = []
        old = stage.worker(concurrency=4)
        for _ in range(3):
            jobs += stage.enqueue("slow", 0.1, times=25)
            new = stage.fleet.worker(concurrency=4)
            old.term()
            jobs += stage.enqueue("fail_then_ok", times=2)
            assert old.wait(15) == 0
            stage.ready(new)
            old = new
        stage.until_final(60)
        verdict = stage.judge()
        assert verdict.counters["term"] == 3
        assert verdict.counters["runs"] == len(jobs) + 6  # those that fail once
