"""Workers that die, or stop for longer than their lease."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.history import read
from lab.history.lines import Answered, Nemesis
from tests.faults.apps import LEASE, SWEEP
from tests.faults.stage import STORES, Stage, show
from tests.servers import Databases
from winch.core.lifecycle import JobState

pytestmark = [
    pytest.mark.servers,
    pytest.mark.faults,
    pytest.mark.scenario,
    pytest.mark.parametrize("store", STORES),
]


def seconds_from(stage: Stage, action: str, kind: str) -> list[float]:
    """How long after the nemesis acted the store saw these events, on one clock."""
    acts = [line for line in read(stage.recorder.folder) if isinstance(line, Nemesis)]
    [act] = [line for line in acts if line.action == action]
    return [event.at.timestamp() - act.wall for event in stage.events(kind)]


def test_the_jobs_of_a_killed_child_run_again_at_once(store: str, postgres_server: Databases) -> None:
    with Stage("kill -9 of a child", store, postgres_server) as stage:
        worker = stage.worker(processes=2, concurrency=2)
        jobs = stage.enqueue("slow", 1.5, times=4)
        stage.until_started(jobs)
        victim = worker.children()[0]
        mine = {line.job for line in stage.runs() if line.pid == victim}
        worker.kill_child(victim)
        stage.until_final()
        taken = seconds_from(stage, "kill", "rescued")
        verdict = stage.judge()
        assert verdict.counters["rescued"] == len(mine) == 2
        assert max(taken) < 1.5
        # Neighbours lose nothing, and no job loses an attempt.
        assert verdict.counters["runs"] == len(jobs) + len(mine)
        assert {job.attempt for job in stage.jobs(jobs)} == {1}
        stage.measured(f"kill to rescued {show(taken)}")


def test_a_job_that_kills_its_child_runs_again(store: str, postgres_server: Databases) -> None:
    with Stage("SIGKILL by the job itself", store, postgres_server) as stage:
        stage.worker(concurrency=2)
        neighbours = stage.enqueue("slow", 1.0)
        stage.until_started(neighbours)
        marks = [stage.folder / name for name in ("a", "b")]
        jobs = [job for mark in marks for job in stage.enqueue("die_once", str(mark))]
        stage.until_final()
        verdict = stage.judge()
        assert 1 <= verdict.counters["killed"] <= len(jobs)
        assert all(Path(mark).exists() for mark in marks)
        assert {job.state for job in stage.jobs(neighbours + jobs)} == {JobState.COMPLETED}


def test_children_end_with_their_killed_supervisor(store: str, postgres_server: Databases) -> None:
    with Stage("kill -9 of the supervisor", store, postgres_server) as stage:
        other, doomed = stage.two_workers()
        jobs = stage.enqueue("slow", 4.0, times=4)
        stage.until_started(jobs)
        other.wake()
        doomed.kill_supervisor()
        took = stage.until(doomed.is_gone, LEASE, "the orphans' end")
        stage.until_final()
        verdict = stage.judge()
        assert verdict.counters["killed"] == 1
        assert verdict.counters["runs"] > len(jobs)
        assert {job.attempt for job in stage.jobs(jobs)} == {1}
        stage.measured(f"orphans gone after {took:.2f} s")


def test_the_jobs_of_a_killed_worker_are_taken_over(store: str, postgres_server: Databases) -> None:
    with Stage("kill -9 of supervisor and children", store, postgres_server) as stage:
        other, doomed = stage.two_workers()
        jobs = stage.enqueue("slow", 1.0, times=4)
        stage.until_started(jobs)
        other.wake()
        doomed.kill_all()
        stage.until_final()
        taken = seconds_from(stage, "kill", "rescued")
        verdict = stage.judge()
        assert verdict.counters["rescued"] == len(jobs)
        assert len(verdict.takeovers) == len(jobs)
        assert max(taken) < LEASE + 2 * SWEEP + 0.5
        assert {job.attempt for job in stage.jobs(jobs)} == {1}
        stage.measured(f"kill to rescued {show(taken)}")


def test_a_worker_that_slept_past_its_lease_changes_nothing(
    store: str, postgres_server: Databases
) -> None:
    with Stage("SIGSTOP past the lease", store, postgres_server) as stage:
        other, sleeper = stage.two_workers()
        jobs = stage.enqueue("slow", 2.0, times=4)
        stage.until_started(jobs)
        other.wake()
        sleeper.stop()
        # Woken while the others run its jobs: their finish must be theirs alone.
        stage.until_started(jobs, times=2)
        sleeper.go_on(head_start=0.5)

        def refused() -> list[Answered]:
            lines = read(stage.recorder.folder)
            return [line for line in lines if isinstance(line, Answered) and line.answer == "lost"]

        stage.until(lambda: len(refused()) == len(jobs), 10, "the late writes to be refused")
        stage.until_final()
        # It comes back with new sessions, and works.
        stage.until(lambda: len(stage.sessions_of(sleeper)) == 2, 10, "new sessions")
        more = stage.enqueue("quick", times=10)
        stage.until_final()
        verdict = stage.judge()
        assert verdict.counters["stopped"] == 1
        assert verdict.counters["lost"] == verdict.counters["rescued"] == len(jobs)
        assert verdict.counters["runs"] == 2 * len(jobs) + len(more)


def test_a_handler_that_holds_the_gil_is_not_run_twice(store: str, postgres_server: Databases) -> None:
    with Stage("GIL held for three leases", store, postgres_server) as stage:
        holder = stage.worker(concurrency=2)
        [neighbour] = stage.enqueue("aslow", 1.0)
        stage.until_started([neighbour])
        [job] = stage.enqueue("spin", 3 * LEASE + 0.5)
        stage.until_started([job])
        stage.worker(concurrency=2)
        stage.until_final()
        # The neighbour's second was over long before, and its event loop did not turn.
        [spun], [waited] = stage.ends(job), stage.ends(neighbour)
        held = spun.mono - stage.runs(job)[0].mono
        assert held > 3 * LEASE
        assert waited.mono > spun.mono - 0.1
        assert waited.pid == spun.pid
        stage.recorder.nemesis("hold", holder.children(), note=f"{held:.1f} s")
        verdict = stage.judge()
        assert verdict.counters["rescued"] == 0
        assert verdict.counters["runs"] == 2
