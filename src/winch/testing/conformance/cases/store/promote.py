"""promote: due jobs become ready, and the next due moment is returned."""

from __future__ import annotations

from datetime import timedelta

from winch.core.lifecycle import JobState
from winch.storage.params import Promoted
from winch.testing.conformance.bench import HOUR, MINUTE, SECOND, Bench
from winch.testing.conformance.case import case


@case()
def due_jobs_become_ready_and_others_wait(bench: Bench) -> None:
    due = bench.add(delay=MINUTE)
    later = bench.add(delay=HOUR)
    bench.advance(MINUTE)
    assert bench.promote() == Promoted(1, bench.at - MINUTE + HOUR, bench.at)
    assert [job.state for job in bench.jobs([due, later])] == [JobState.READY, JobState.SCHEDULED]


@case()
def a_job_is_due_at_its_very_moment_and_not_before(bench: Bench) -> None:
    job_id = bench.add(delay=MINUTE)
    bench.advance(MINUTE - timedelta(microseconds=1))
    assert bench.promote().count == 0
    bench.advance(timedelta(microseconds=1))
    assert bench.promote().count == 1
    assert bench.get(job_id).state is JobState.READY


@case()
def a_retrying_job_is_promoted_like_a_scheduled_one(bench: Bench) -> None:
    job = bench.make_job(JobState.RETRYING)
    bench.advance(HOUR)
    assert bench.promote() == Promoted(1, None, bench.at)
    ready = bench.get(job.id)
    assert (ready.state, ready.run_at) == (JobState.READY, job.run_at)
    assert (ready.attempt, ready.history) == (job.attempt, job.history)


@case()
def the_next_due_moment_is_the_earliest_of_all_that_wait(bench: Bench) -> None:
    assert bench.promote() == Promoted(0, None, bench.at)
    bench.add(delay=3 * HOUR, queue="a")
    assert bench.promote().next_at == bench.at + 3 * HOUR
    retrying = bench.make_job(JobState.RETRYING)
    assert bench.promote().next_at == retrying.run_at
    bench.add(delay=MINUTE, queue="b")
    assert bench.promote() == Promoted(0, bench.at + MINUTE, bench.at)
    bench.add()
    assert bench.promote().next_at == bench.at + MINUTE


@case()
def no_more_than_the_limit_is_promoted_and_the_earliest_go_first(bench: Bench) -> None:
    start = bench.at
    ids = [bench.add(delay=n * SECOND) for n in (5, 3, 1, 4, 2)]
    bench.advance(MINUTE)
    assert bench.promote(limit=2) == Promoted(2, start + 3 * SECOND, bench.at)
    states = {job.id: job.state for job in bench.jobs(ids)}
    assert [states[job_id] for job_id in ids] == [
        JobState.SCHEDULED,
        JobState.SCHEDULED,
        JobState.READY,
        JobState.SCHEDULED,
        JobState.READY,
    ]
    assert bench.promote(limit=2) == Promoted(2, start + 5 * SECOND, bench.at)
    assert bench.promote(limit=2) == Promoted(1, None, bench.at)


@case()
def promoted_jobs_stand_by_run_time_and_priority(bench: Bench) -> None:
    late = bench.add(delay=2 * MINUTE)
    early = bench.add(delay=MINUTE)
    urgent = bench.add(delay=2 * MINUTE + 30 * SECOND, priority=2)
    bench.advance(HOUR)
    bench.promote()
    assert [claim.id for claim in bench.claim()] == [urgent, early, late]


@case()
def jobs_of_a_paused_queue_are_promoted_but_not_claimed(bench: Bench) -> None:
    job_id = bench.add(delay=MINUTE)
    bench.pause("default")
    bench.advance(MINUTE)
    assert bench.promote().count == 1
    assert bench.get(job_id).state is JobState.READY
    assert bench.claim() == []


@case()
def promoting_at_once_counts_each_job_once(bench: Bench) -> None:
    bench.add_many(40, delay=MINUTE)
    bench.advance(MINUTE)
    answers = bench.together([bench.driver.promote(now=bench.now) for _ in range(4)])
    assert sum(answer.count for answer in answers) == 40
    assert bench.counts()[JobState.READY] == 40
