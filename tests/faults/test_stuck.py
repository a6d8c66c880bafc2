"""Handlers that do not end, and children that hang: timeouts end them, and no other job suffers."""

from __future__ import annotations

import os
import signal

import pytest

from tests.faults.apps import LEASE
from tests.faults.stage import ONE_STORE, Stage
from tests.servers import Databases
from winch.core.lifecycle import JobState

pytestmark = [
    pytest.mark.servers,
    pytest.mark.faults,
    pytest.mark.scenario,
    pytest.mark.parametrize("store", ONE_STORE),
]

SOON = {"WINCH_KILL_AFTER": "500ms"}


def test_a_stuck_thread_is_given_up_and_its_child_replaced_when_the_others_are_done(
    store: str, postgres_server: Databases
) -> None:
    with Stage("thread stuck in C", store, postgres_server) as stage:
        worker = stage.worker(concurrency=4, grace="1s", env=SOON)
        [child] = worker.children()
        neighbours = stage.enqueue("slow", 10.0, times=2)
        stage.until_started(neighbours)
        [job] = stage.enqueue("stuck", 60.0)
        stage.until_started([job])
        took = stage.until(lambda: stage.jobs([job])[0].state is JobState.DEAD, 10, "its end")
        # The successor works beside the old child, whose other jobs go on past the grace of a stop.
        [later] = stage.enqueue("where")
        stage.until(lambda: stage.jobs([later])[0].state is JobState.COMPLETED, 10, "the successor")
        assert {j.state for j in stage.jobs(neighbours)} == {JobState.RUNNING}
        stage.until_final()
        stage.until(lambda: child not in worker.children(), 10, "the end of the old child")

        [dead] = stage.jobs([job])
        assert dead.error is not None
        assert dead.error.type.endswith("JobTimeout")
        assert (dead.attempt, dead.crashes) == (1, 0)
        assert {(j.state, j.attempt) for j in stage.jobs(neighbours)} == {(JobState.COMPLETED, 1)}
        assert {line.pid for n in neighbours for line in stage.runs(n)} == {child}
        assert int(stage.jobs([later])[0].result or 0) not in (0, child)
        stage.recorder.nemesis("hold", [child], note="a thread")
        verdict = stage.judge()
        assert verdict.counters["runs"] == 4
        stage.measured(f"start to JobTimeout {took:.2f} s, with a timeout of 0.5 s and 0.5 s to end")


def test_a_blocked_loop_is_killed_and_only_the_late_job_is_charged(
    store: str, postgres_server: Databases
) -> None:
    with Stage("event loop blocked past a timeout", store, postgres_server) as stage:
        worker = stage.worker(concurrency=4, env=SOON)
        [child] = worker.children()
        neighbours = stage.enqueue("slow", 1.0) + stage.enqueue("aslow", 1.0)
        stage.until_started(neighbours)
        [job] = stage.enqueue("block", 60.0)
        stage.until_started([job])
        stage.recorder.nemesis("kill", [child], note="by its supervisor, to come")
        took = stage.until(lambda: child not in worker.children(), 10, "the end of the blocked child")
        stage.until_final()

        [dead] = stage.jobs([job])
        # The first time it took its process along; alone in a process it fails like any other.
        assert [entry.what for entry in dead.history] == ["crashed", "failed"]
        assert "timed out" in str(dead.history[0].error)
        assert dead.error is not None
        assert dead.error.type.endswith("JobTimeout")
        assert (dead.state, dead.attempt, dead.crashes) == (JobState.DEAD, 1, 1)
        for neighbour in stage.jobs(neighbours):
            assert (neighbour.state, neighbour.attempt) == (JobState.COMPLETED, 1)
            assert (neighbour.crashes, neighbour.history, neighbour.is_suspect) == (0, (), False)
        stage.judge()
        stage.measured(f"start to kill {took:.2f} s, with a timeout of 0.5 s and twice 0.5 s to end")


def test_unstarted_jobs_of_a_frozen_child_go_to_other_workers(
    store: str, postgres_server: Databases
) -> None:
    with Stage("SIGSTOP of a child that holds un-started jobs", store, postgres_server) as stage:
        sleeper = stage.worker(concurrency=6)
        sleeper.quiet()
        stage.until(lambda: stage.sessions()[0].beats >= 2, 10, "two beats")
        [frozen] = sleeper.children()
        # One claim takes them all; the first to start stops its process, so that the others do not.
        [first] = stage.enqueue("freeze")
        others = stage.enqueue("where", times=5)
        sleeper.wake()
        stage.until_started([first])
        assert {job.state for job in stage.jobs(others)} == {JobState.RUNNING}
        stage.worker(concurrency=6)
        stage.until(
            lambda: {job.state for job in stage.jobs(others)} == {JobState.COMPLETED},
            2 * LEASE + 5,
            "the un-started jobs, run by others",
        )
        # The one that had started is still its: the supervisor beats for it.
        assert stage.jobs([first])[0].state is JobState.RUNNING
        os.kill(frozen, signal.SIGCONT)
        stage.recorder.nemesis("continue", [frozen], count=0)
        stage.until_final()
        verdict = stage.judge()
        assert {line.pid for job in others for line in stage.runs(job)}.isdisjoint({frozen})
        assert {(j.attempt, j.crashes, j.rescues) for j in stage.jobs(others)} == {(1, 0, 0)}
        assert [line.pid for line in stage.runs(first)] == [frozen]
        assert verdict.counters["rescued"] == 0
        done = max(line.mono for job in others for line in stage.ends(job)) - stage.runs(first)[0].mono
        assert LEASE < done < 2 * LEASE
        stage.measured(f"stop to completed elsewhere {done:.2f} s, with a lease of {LEASE:g} s")


def test_a_child_that_stands_still_keeps_what_is_done_and_what_runs_elsewhere(
    store: str, postgres_server: Databases
) -> None:
    with Stage("event loop blocked for two leases", store, postgres_server) as stage:
        worker = stage.worker(concurrency=6)
        [child] = worker.children()
        isolated = stage.enqueue("alone_slow", 2 * LEASE + 1)
        stage.until_started(isolated)
        worker.quiet()
        beats = stage.sessions()[0].beats
        stage.until(lambda: stage.sessions()[0].beats >= beats + 2, 10, "two beats")
        # In one claim: the first is done before the second blocks the loop, but not written; the others
        # have not started.
        done = stage.enqueue("aquick")
        blocking = stage.enqueue("hold_loop", 2 * LEASE)
        others = stage.enqueue("where", times=3)
        worker.wake()
        stage.until_started(done + blocking)
        stage.recorder.nemesis("hold", [child], note="its event loop")
        stage.worker(concurrency=4)
        stage.until_final()
        verdict = stage.judge()
        assert verdict.counters["runs"] == 6
        assert verdict.counters["rescued"] == 0
        jobs = stage.jobs(isolated + done + blocking + others)
        assert {(job.state, job.attempt, job.crashes) for job in jobs} == {(JobState.COMPLETED, 1, 0)}
        assert {line.pid for line in stage.runs() if line.job in others}.isdisjoint({child})
