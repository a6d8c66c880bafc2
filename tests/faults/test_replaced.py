"""Children that reach a limit (jobs, memory, time) stop cleanly and are replaced; no job is affected."""

from __future__ import annotations

import pytest

from tests.faults.stage import ONE_STORE, Stage
from tests.servers import Databases
from winch.core.lifecycle import JobState

pytestmark = [pytest.mark.servers, pytest.mark.faults, pytest.mark.scenario]


def pids(stage: Stage, jobs: list[str]) -> list[int]:
    return [int(job.result or 0) for job in stage.jobs(jobs)]


@pytest.mark.parametrize("store", ONE_STORE)
def test_a_child_is_replaced_after_so_many_jobs(store: str, postgres_server: Databases) -> None:
    with Stage("--max-jobs 5", store, postgres_server) as stage:
        jobs = stage.enqueue("where", times=23)
        worker = stage.worker(concurrency=3, flags=["--max-jobs", "5"])
        stage.until_final()
        found = pids(stage, jobs)
        counts = {pid: found.count(pid) for pid in found}
        assert max(counts.values()) == 5
        assert len(counts) == 5
        assert {(job.state, job.attempt) for job in stage.jobs(jobs)} == {(JobState.COMPLETED, 1)}
        stage.until(lambda: len(worker.children()) == 1, 10, "the last child alone")
        stage.recorder.nemesis("hold", list(counts), note="--max-jobs")
        verdict = stage.judge()
        assert verdict.counters["rescued"] == 0
        assert verdict.counters["runs"] == len(jobs)


def test_an_isolated_process_is_replaced_after_so_many_jobs(postgres_server: Databases) -> None:
    with Stage("--max-jobs 2, isolated", "sqlite", postgres_server) as stage:
        jobs = stage.enqueue("alone", times=4)
        stage.worker(concurrency=1, flags=["--max-jobs", "2"])
        stage.until_final()
        found = pids(stage, jobs)
        assert found[0] == found[1]
        assert found[2] == found[3]
        assert found[0] != found[2]


def test_a_burst_goes_on_in_the_children_that_follow(postgres_server: Databases) -> None:
    with Stage("--burst --max-jobs 5", "sqlite", postgres_server) as stage:
        jobs = stage.enqueue("where", times=12)
        worker = stage.fleet.worker(concurrency=3, flags=["--max-jobs", "5", "--burst"])
        assert worker.wait(30) == 0
        assert {job.state for job in stage.jobs(jobs)} == {JobState.COMPLETED}
        assert len(set(pids(stage, jobs))) == 3


def test_a_worker_that_replaces_nothing_ends_after_so_many_jobs(postgres_server: Databases) -> None:
    with Stage("--max-jobs 5 --no-replace", "sqlite", postgres_server) as stage:
        jobs = stage.enqueue("where", times=12)
        for expected in (5, 10):
            worker = stage.fleet.worker(concurrency=3, flags=["--max-jobs", "5", "--no-replace"])
            assert worker.wait(30) == 0
            states = [job.state for job in stage.jobs(jobs)]
            assert states.count(JobState.COMPLETED) == expected
            assert states.count(JobState.READY) == len(jobs) - expected
        last = ["--max-jobs", "5", "--no-replace", "--burst"]
        assert stage.fleet.worker(concurrency=3, flags=last).wait(30) == 0
        assert {(job.state, job.attempt) for job in stage.jobs(jobs)} == {(JobState.COMPLETED, 1)}


def test_a_child_that_holds_too_much_memory_is_replaced(postgres_server: Databases) -> None:
    with Stage("--max-memory", "sqlite", postgres_server) as stage:
        worker = stage.worker(concurrency=2, flags=["--max-memory", "300MB"])
        [child] = worker.children()
        neighbours = stage.enqueue("slow", 3.0)
        stage.until_started(neighbours)
        [job] = stage.enqueue("swell", 400)
        stage.until(lambda: child not in worker.children(), 20, "the end of the swollen child")
        after = stage.enqueue("where")
        stage.until_final()
        assert pids(stage, [job]) == [child]
        assert child not in pids(stage, after)
        assert {j.attempt for j in stage.jobs(neighbours + after)} == {1}
        assert "max_memory 300MB" in worker.text()


def test_a_child_is_replaced_when_its_lifetime_is_over(postgres_server: Databases) -> None:
    with Stage("--max-lifetime 2s", "sqlite", postgres_server) as stage:
        worker = stage.worker(concurrency=2, flags=["--max-lifetime", "2s"])
        [child] = worker.children()
        jobs = stage.enqueue("slow", 4.0)
        stage.until_started(jobs)
        stage.until(lambda: child not in worker.children(), 20, "the end of the old child")
        assert {(job.state, job.attempt) for job in stage.jobs(jobs)} == {(JobState.COMPLETED, 1)}
        assert [line.pid for line in stage.runs(jobs[0])] == [child]
