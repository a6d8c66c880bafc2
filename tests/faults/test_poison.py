"""A job that kills its process is found, and its neighbours lose nothing."""

from __future__ import annotations

import psutil
import pytest

from lab.history import read
from lab.history.lines import Nemesis
from tests.faults.stage import ONE_STORE, STORES, Stage
from tests.servers import Databases
from winch.core.job import JobRecord
from winch.core.lifecycle import JobState

pytestmark = [
    pytest.mark.servers,
    pytest.mark.faults,
    pytest.mark.scenario,
]

EVERY_NIGHT = {("postgres", "SIGSEGV"), ("postgres", "exit")}
CAUSES = {"SIGSEGV": "killed by SIGSEGV", "exit": "exit code 9", "SIGKILL": "killed by SIGKILL"}


def deaths(stage: Stage) -> list[Nemesis]:
    lines = [line for line in read(stage.recorder.folder) if isinstance(line, Nemesis)]
    return sorted((line for line in lines if line.action == "kill"), key=lambda line: line.mono)


def entries(job: JobRecord) -> list[str]:
    return [entry.what for entry in job.history]


# How a process died is the supervisor's to see; on the second store one way is enough for every day.
@pytest.mark.parametrize(
    "how, store",
    [
        pytest.param(how, store, marks=[pytest.mark.slow] * ((store, how) in EVERY_NIGHT))
        for how in CAUSES
        for store in STORES
    ],
)
def test_a_poison_job_among_fifty_dies_after_three_deaths_and_the_fifty_complete(
    store: str, how: str, postgres_server: Databases
) -> None:
    with Stage(f"poison, {how}", store, postgres_server) as stage:
        neighbours = stage.enqueue("slow", 0.1, times=15)
        [poison] = stage.enqueue("poison", how)
        neighbours += stage.enqueue("slow", 0.1, times=35)
        stage.worker(concurrency=10)
        took = stage.until_final(60)
        verdict = stage.judge()

        first, second, third = deaths(stage)
        assert len({first.pids[0], second.pids[0], third.pids[0]}) == 3
        [dead] = stage.jobs([poison])
        assert (dead.state, dead.attempt, dead.crashes) == (JobState.DEAD, 0, 3)
        assert entries(dead) == ["crashed"] * 3
        assert dead.reason == f"crashed 3 times; last cause: {CAUSES[how]}"

        # Those that were running at the first death are suspects once; none has failed.
        ended = {line.run for line in stage.ends() if line.is_ok}
        beside = {
            line.job for line in stage.runs() if line.pid == first.pids[0] and line.run not in ended
        } - {poison}
        jobs = stage.jobs(neighbours)
        assert {(job.state, job.attempt) for job in jobs} == {(JobState.COMPLETED, 1)}
        crashed = {job.id for job in jobs if entries(job) == ["crashed"]}
        assert {tuple(entries(job)) for job in jobs} <= {(), ("crashed",)}
        assert 1 <= len(crashed) <= 9
        # A job may have returned in its thread a moment before the end, unreported.
        assert beside <= crashed
        assert verdict.counters["killed"] == 3
        stage.measured(f"3 deaths, {len(crashed)} of 50 counted a crash, all final in {took:.1f} s")


@pytest.mark.parametrize("store", ONE_STORE)
def test_running_out_of_memory_is_a_failure_like_any_other(
    store: str, postgres_server: Databases
) -> None:
    with Stage("allocating more than the limit", store, postgres_server) as stage:
        worker = stage.worker(concurrency=4)
        [child] = worker.children()
        process = psutil.Process(child)
        limit = process.memory_info().vms + (400 << 20)
        process.rlimit(psutil.RLIMIT_AS, (limit, limit))
        neighbours = stage.enqueue("slow", 0.5, times=3)
        [job] = stage.enqueue("hog", 1024)
        more = stage.enqueue("quick", times=10)
        stage.until_final()
        [dead] = stage.jobs([job])
        assert (dead.state, dead.attempt, dead.crashes) == (JobState.DEAD, 2, 0)
        assert dead.error is not None
        assert dead.error.type == "MemoryError"
        assert {(j.state, j.attempt) for j in stage.jobs(neighbours + more)} == {(JobState.COMPLETED, 1)}
        assert worker.children() == [child]
        stage.recorder.nemesis("hold", [child], note="RLIMIT_AS")
        stage.judge()


@pytest.mark.parametrize("store", ONE_STORE)
def test_a_poison_job_in_a_collecting_call_is_found_too(store: str, postgres_server: Databases) -> None:
    with Stage("poison in a collecting call", store, postgres_server) as stage:
        collector = stage.app.tasks.get("collector")
        jobs = stage.app.enqueue_many([collector.bind(is_poison=n == 7) for n in range(20)])
        stage.worker(concurrency=2)
        stage.until_final(60)
        records = stage.jobs([job.id for job in jobs])
        poison = records.pop(7)
        assert (poison.state, poison.attempt, poison.crashes) == (JobState.DEAD, 0, 3)
        assert {(job.state, job.attempt) for job in records} == {(JobState.COMPLETED, 1)}
        assert {tuple(entries(job)) for job in records} == {("crashed",)}
