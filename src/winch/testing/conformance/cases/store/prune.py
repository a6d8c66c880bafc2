"""prune: final jobs go when their keeping time is over, and not before."""

from __future__ import annotations

from datetime import timedelta

from winch.core.job import KEEP
from winch.core.lifecycle import FINAL, LIVE, JobState
from winch.storage.params import Enqueued
from winch.testing.conformance.bench import DAY, HOUR, SECOND, Bench
from winch.testing.conformance.case import case
from winch.testing.conformance.cases.jobs.transitions import UNREACHABLE_STATES


@case()
def each_final_state_has_its_own_keeping_time(bench: Bench) -> None:
    for state in sorted(FINAL):
        job = bench.make_job(state)
        bench.advance(KEEP[state] - SECOND)
        assert bench.prune() == 0
        assert bench.get(job.id) == job
        bench.advance(2 * SECOND)
        assert bench.prune() == 1
        assert bench.find(job.id) == [None]


@case()
def a_jobs_own_keeping_time_beats_the_default(bench: Bench) -> None:
    long = bench.make_job(JobState.COMPLETED, keep=timedelta(days=500))
    short = bench.make_job(JobState.DEAD, keep=HOUR)
    bench.advance(HOUR + SECOND)
    assert bench.prune() == 1
    assert bench.find(short.id) == [None]
    bench.advance(timedelta(days=498))
    assert bench.prune() == 0
    assert bench.get(long.id) == long
    bench.advance(2 * DAY)
    assert bench.prune() == 1


@case()
def a_job_kept_for_no_time_goes_with_the_next_prune(bench: Bench) -> None:
    job = bench.make_job(JobState.COMPLETED, keep=timedelta(0))
    assert bench.get(job.id).state is JobState.COMPLETED
    assert bench.prune() == 1
    assert bench.find(job.id) == [None]


@case()
def the_keeping_time_counts_from_the_end_of_the_job(bench: Bench) -> None:
    bench.add(keep=DAY)
    claim = bench.take()
    bench.advance(2 * DAY)
    bench.complete(claim)
    bench.advance(DAY - SECOND)
    assert bench.prune() == 0
    bench.advance(2 * SECOND)
    assert bench.prune() == 1


@case()
def live_jobs_are_never_pruned(bench: Bench) -> None:
    made = [bench.make_job(state, keep=SECOND) for state in sorted(LIVE - UNREACHABLE_STATES)]
    bench.advance(timedelta(days=1000))
    assert bench.prune() == 0
    assert bench.jobs([job.id for job in made]) == made


@case()
def a_retried_job_is_live_again_and_stays(bench: Bench) -> None:
    job = bench.make_job(JobState.COMPLETED, keep=HOUR)
    bench.retry(job.id)
    bench.advance(timedelta(days=1000))
    assert bench.prune() == 0
    assert bench.get(job.id).state is JobState.READY


@case()
def calling_again_until_less_than_the_limit_removes_all(bench: Bench) -> None:
    ids = bench.add_many(25)
    claims = bench.claim(limit=25)
    bench.finish(*map(bench.outcome, claims))
    bench.advance(KEEP[JobState.COMPLETED] + SECOND)
    removed: list[int] = []
    while not removed or removed[-1] >= 10:
        removed.append(bench.prune(limit=10))
        assert len(removed) < 10, f"prune does not come to an end: {removed}"
    assert sum(removed) == 25
    assert bench.find(*ids) == [None] * 25


@case()
def a_pruned_given_id_may_be_used_again(bench: Bench) -> None:
    job = bench.make_job(JobState.COMPLETED, is_given_id=True, keep=HOUR)
    bench.advance(DAY)
    assert bench.prune() == 1
    again = bench.new_job(id=job.id, is_given_id=True)
    assert bench.enqueue(again) == [Enqueued(job.id, is_new=True)]
    assert bench.get(job.id).state is JobState.READY


@case()
def sessions_that_ended_long_ago_are_forgotten(bench: Bench) -> None:
    live, ended = bench.start_session(), bench.start_session()
    bench.end_session(ended)
    bench.advance(HOUR)
    bench.prune()
    assert ended in [info.id for info in bench.sessions(is_ended_too=True)]
    bench.advance(30 * DAY)
    assert bench.prune() == 0  # counts jobs only
    assert [info.id for info in bench.sessions(is_ended_too=True)] == [live]
