"""The answer to a COMMIT is lost on its way, and a network delivers nothing for longer than a lease."""

from __future__ import annotations

import time
from urllib.parse import urlsplit

import pytest

from lab.history import read
from lab.history.lines import Answered
from lab.proxy import Proxy
from tests.faults.apps import HEARTBEAT, LEASE, make
from tests.faults.stage import Stage
from tests.servers import Databases
from winch.core.lifecycle import JobState

pytestmark = [pytest.mark.servers, pytest.mark.faults, pytest.mark.scenario]

# How each verb's own statement is known on the wire.
STATEMENTS = {
    "enqueue": r"insert into \S+\.job\b",
    "claim": r"update \S+\.job\s+set state = 'running'",
    "finish": r"delete from \S+\.job\s+where ctid",
}


def proxy_for(stage: Stage) -> Proxy:
    parts = urlsplit(stage.url)
    assert parts.hostname is not None
    return Proxy((parts.hostname, parts.port or 5432))


def test_an_enqueue_whose_answer_is_lost_stores_one_job(postgres_server: Databases) -> None:
    with (
        Stage("reply to COMMIT cut: enqueue", "postgres", postgres_server) as stage,
        proxy_for(stage) as proxy,
    ):
        stage.producer = make(proxy.url(stage.url))
        stage.worker()
        cut = proxy.cut_after_request(STATEMENTS["enqueue"], times=3)
        jobs = stage.enqueue("quick", times=10)
        stage.until_final()
        stage.producer.close()
        stage.recorder.nemesis("cut", count=cut.count)
        verdict = stage.judge()
        assert verdict.counters["cut"] == 3
        assert verdict.counters["acked"] == verdict.counters["runs"] == len(jobs)


def test_a_claim_whose_answer_is_lost_is_held_for_about_a_beat(postgres_server: Databases) -> None:
    with (
        Stage("reply to COMMIT cut: claim", "postgres", postgres_server) as stage,
        proxy_for(stage) as proxy,
    ):
        worker = stage.fleet.worker(env={"WINCH_URL": proxy.url(stage.url)})
        stage.ready(worker)
        waits, jobs = [], []
        for _ in range(3):
            cut = proxy.cut_after_request(STATEMENTS["claim"])
            began = time.monotonic()
            jobs += stage.enqueue("quick", times=2)
            assert cut.wait(10)
            stage.until_final()
            waits.append(time.monotonic() - began)
        stage.recorder.nemesis("cut", count=proxy.counters["swallowed"])
        verdict = stage.judge()
        assert verdict.counters["cut"] == 3
        assert verdict.counters["runs"] == verdict.counters["acked"] == 6
        assert verdict.counters["rescued"] == 0
        assert {job.attempt for job in stage.jobs(jobs)} == {1}
        assert max(waits) < LEASE
        stage.measured(f"enqueue to done {max(waits):.2f} s at most; a beat is {HEARTBEAT:g} s")


def test_a_finish_whose_answer_is_lost_is_answered_already(postgres_server: Databases) -> None:
    with (
        Stage("reply to COMMIT cut: finish", "postgres", postgres_server) as stage,
        proxy_for(stage) as proxy,
    ):
        worker = stage.fleet.worker(env={"WINCH_URL": proxy.url(stage.url)})
        stage.ready(worker)
        jobs: list[str] = []
        for _ in range(3):
            cut = proxy.cut_after_request(STATEMENTS["finish"])
            jobs += stage.enqueue("quick", times=3)
            stage.until_final()
            assert cut.wait(10), "no finish went by that looks like the one to cut"

        def already() -> set[str]:
            lines = read(stage.recorder.folder)
            return {x.job for x in lines if isinstance(x, Answered) and x.answer == "already"}

        stage.until(lambda: len(already()) >= 3, 10, "the repeats to be answered")
        stage.recorder.nemesis("cut", count=proxy.counters["swallowed"])
        verdict = stage.judge()
        assert verdict.counters["cut"] == 3
        assert verdict.counters["runs"] == len(jobs)
        assert verdict.counters["lost"] == verdict.counters["rescued"] == 0


@pytest.mark.slow
def test_a_network_that_stalls_for_two_leases_counts_against_no_job(postgres_server: Databases) -> None:
    with (
        Stage("network stalled for two leases", "postgres", postgres_server) as stage,
        proxy_for(stage) as proxy,
    ):
        env = {"WINCH_URL": proxy.url(stage.url)}
        workers = [stage.fleet.worker(concurrency=4, env=env) for _ in range(2)]
        for worker in workers:
            stage.ready(worker)
        stage.until_entitled()
        jobs = stage.enqueue("slow", 2.0, times=4) + stage.enqueue("aslow", 2 * LEASE + 2, times=4)
        stage.until_started(jobs)
        with proxy.stall():
            stage.recorder.nemesis("outage", note="stalled")
            time.sleep(2 * LEASE)
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
        stage.measured(f"new jobs done {resumed:.2f} s after the stall")
