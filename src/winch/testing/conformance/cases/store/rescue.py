"""rescue: running jobs whose session is over go back, and no late finish counts."""

from __future__ import annotations

from datetime import timedelta

from winch.core.job import MAX_RESCUES, POISON_WINDOW, Claim, Failure
from winch.core.lifecycle import JobState
from winch.storage.params import Answer, Rescued
from winch.testing.conformance.bench import DAY, HOUR, LEASE, MINUTE, SECOND, Bench
from winch.testing.conformance.case import case

MICROSECOND = timedelta(microseconds=1)


def lose(bench: Bench) -> Claim:
    """Claim a job in a session that never beats, and rescue it."""
    claim = bench.take(session=bench.start_session())
    bench.advance(LEASE)
    assert len(bench.rescue()) == 1
    return claim


@case()
def a_job_is_safe_while_the_lease_lasts(bench: Bench) -> None:
    bench.add()
    claim = bench.take()
    bench.advance(LEASE - MICROSECOND)
    assert bench.rescue() == []
    assert bench.get(claim.id).token == claim.token


@case()
def a_job_is_rescued_at_the_very_end_of_the_lease(bench: Bench) -> None:
    bench.add()
    claim = bench.take()
    bench.advance(LEASE)
    assert bench.rescue() == [Rescued(claim.id, claim.token, bench.session, JobState.READY)]


@case()
def a_rescued_job_is_a_suspect_with_its_attempt_handed_back(bench: Bench) -> None:
    bench.add()
    claim = bench.take()
    started = bench.at
    bench.advance(LEASE)
    bench.rescue()
    job = bench.get(claim.id)
    assert (job.state, job.attempt, job.token) == (JobState.READY, 0, None)
    assert (job.is_suspect, job.rescues, job.crashes) == (True, 1, 0)
    assert job.finished_at is None
    (entry,) = job.history
    assert (entry.what, entry.at, entry.attempt) == ("rescued", bench.now, 1)
    assert (entry.session, entry.claimed_at) == (bench.session, started)


@case()
def a_rescued_job_keeps_its_place(bench: Bench) -> None:
    bench.add()
    claim = bench.take(session=bench.start_session())
    bench.advance(SECOND)
    later = bench.add()
    bench.advance(LEASE)
    bench.rescue()
    assert [again.id for again in bench.claim()] == [claim.id, later]


@case()
def the_session_is_ended_before_its_jobs_are_taken(bench: Bench) -> None:
    session = bench.start_session()
    bench.add()
    bench.take(session=session)
    bench.advance(LEASE)
    bench.rescue()
    info = bench.session_info(session)
    assert (info.ended_at, info.running) == (bench.now, 0)
    assert info.end_reason
    assert bench.claim(session=session) == []  # a claim that was delayed on its way
    assert not bench.beat(session)[0].is_live  # and a beat
    assert bench.session_info(session) == info


@case()
def a_session_over_its_lease_is_ended_also_without_jobs(bench: Bench) -> None:
    session = bench.start_session()
    bench.advance(LEASE)
    assert bench.rescue() == []
    assert bench.session_info(session).ended_at == bench.now


@case()
def a_session_that_beats_is_spared(bench: Bench) -> None:
    quiet, alive = bench.start_session(), bench.start_session()
    bench.add_many(2)
    lost = bench.take(session=quiet)
    kept = bench.take(session=alive)
    bench.advance(LEASE - SECOND)
    bench.beat(alive)
    bench.advance(SECOND)
    assert [rescued.id for rescued in bench.rescue()] == [lost.id]
    assert bench.get(kept.id).token == kept.token
    assert bench.complete(kept) is Answer.TOOK


@case()
def several_sessions_are_swept_in_one_call(bench: Bench) -> None:
    expected = []
    for _ in range(3):
        session = bench.start_session()
        for _ in range(2):
            bench.add()
            claim = bench.take(session=session)
            expected.append(Rescued(claim.id, claim.token, session, JobState.READY))
    bench.advance(LEASE)
    assert bench.rescue() == sorted(expected, key=lambda rescued: rescued.id)
    assert bench.rescue() == []


@case()
def no_more_than_the_limit_is_rescued_at_once(bench: Bench) -> None:
    ids = bench.add_many(5)
    bench.claim()
    bench.advance(LEASE)
    assert len(bench.rescue(limit=2)) == 2
    assert bench.counts()[JobState.RUNNING] == 3
    assert not bench.beat(bench.session)[0].is_live
    assert [len(bench.rescue(limit=2)) for _ in range(3)] == [2, 1, 0]
    assert {job.state for job in bench.jobs(ids)} == {JobState.READY}


@case()
def a_claim_that_waits_for_its_rescue_may_still_finish(bench: Bench) -> None:
    bench.add_many(2)
    a, b = bench.claim()
    bench.advance(LEASE)
    (rescued,) = bench.rescue(limit=1)
    left = b if rescued.id == a.id else a
    assert bench.complete(left) is Answer.TOOK
    assert bench.rescue() == []


@case()
def a_rescue_that_was_held_up_judges_nobody_by_the_delay(bench: Bench) -> None:
    bench.add()
    claim = bench.take()
    in_reach_at = bench.advance(LEASE / 2)
    bench.advance(LEASE)
    assert bench.rescue(as_of=in_reach_at) == []
    assert bench.beat(bench.session)[0].is_live
    in_reach_at = bench.advance(LEASE)
    bench.advance(LEASE)
    assert [rescued.id for rescued in bench.rescue(as_of=in_reach_at)] == [claim.id]


@case()
def a_lease_that_runs_is_not_over_whatever_the_sweeper_thinks(bench: Bench) -> None:
    bench.add()
    bench.take()
    bench.advance(LEASE / 2)
    # What the sweeper knows came from a clock that has been set back since.
    assert bench.rescue(as_of=bench.at + 2 * LEASE) == []


@case()
def jobs_of_a_session_the_store_forgot_are_rescued(bench: Bench) -> None:
    session = bench.start_session()
    ids = bench.add_many(3)
    bench.claim(session=session)
    bench.advance(LEASE)
    assert len(bench.rescue(limit=1)) == 1
    bench.advance(30 * DAY)
    bench.prune()  # the ended session may go now, whatever still points to it
    assert len(bench.rescue()) == 2
    assert {job.state for job in bench.jobs(ids)} == {JobState.READY}


@case()
def a_thousand_jobs_are_rescued_in_one_call(bench: Bench) -> None:
    bench.add_many(1001)
    bench.claim(limit=1001)
    bench.advance(LEASE)
    assert len(bench.rescue()) == 1000
    assert len(bench.rescue()) == 1


@case()
def the_tenth_rescue_is_the_last(bench: Bench) -> None:
    job_id = bench.add()
    for rescues in range(1, MAX_RESCUES):
        lose(bench)
        job = bench.get(job_id)
        assert (job.state, job.rescues) == (JobState.READY, rescues)
    claim = bench.take(session=bench.start_session())
    bench.advance(LEASE)
    (rescued,) = bench.rescue()
    assert (rescued.token, rescued.to) == (claim.token, JobState.DEAD)
    job = bench.get(job_id)
    assert (job.state, job.finished_at) == (JobState.DEAD, bench.now)
    assert (job.rescues, job.attempt, job.crashes) == (MAX_RESCUES, 0, 0)
    assert "rescued 10 times" in (job.reason or "")
    assert job.error == Failure("winch.JobRescued", "lease over")
    assert bench.complete(claim) is Answer.LOST


@case()
def rescues_of_long_ago_do_not_count(bench: Bench) -> None:
    job_id = bench.add()
    for _ in range(MAX_RESCUES + 2):
        lose(bench)
        bench.advance(POISON_WINDOW / 6)
    assert bench.get(job_id).state is JobState.READY


@case()
def rescues_just_inside_the_window_count(bench: Bench) -> None:
    job_id = bench.add()
    for _ in range(MAX_RESCUES - 1):
        lose(bench)
    bench.advance(POISON_WINDOW - HOUR)
    lose(bench)
    assert bench.get(job_id).state is JobState.DEAD


@case()
def an_operators_retry_starts_the_count_of_rescues_over(bench: Bench) -> None:
    job_id = bench.add()
    for _ in range(MAX_RESCUES):
        lose(bench)
    bench.retry(job_id)
    assert bench.get(job_id).rescues == 0
    lose(bench)
    job = bench.get(job_id)
    assert (job.state, job.rescues) == (JobState.READY, 1)


@case()
def an_operators_retry_of_a_waiting_job_starts_the_count_of_rescues_over(bench: Bench) -> None:
    job_id = bench.add()
    lose(bench)
    lose(bench)
    claim = bench.take(session=bench.start_session())
    bench.finish(bench.outcome(claim, JobState.RETRYING, delay=HOUR))
    assert bench.get(job_id).rescues == 2
    bench.retry(job_id)
    assert bench.get(job_id).rescues == 0
    lose(bench)
    assert bench.get(job_id).rescues == 1


@case()
def rescues_and_crashes_are_counted_apart(bench: Bench) -> None:
    job_id = bench.add()
    for _ in range(2):
        session = bench.start_session()
        claim = bench.take(session=session)
        bench.end_session(session, claim, cause="signal 9")
    lose(bench)
    job = bench.get(job_id)
    assert (job.state, job.crashes, job.rescues) == (JobState.READY, 2, 1)


@case()
def a_requested_cancel_is_carried_out_by_the_rescue(bench: Bench) -> None:
    bench.add()
    claim = bench.take()
    bench.cancel(claim.id, reason="wrong customer")
    bench.advance(LEASE)
    (rescued,) = bench.rescue()
    assert rescued.to is JobState.CANCELLED
    job = bench.get(claim.id)
    assert (job.state, job.reason) == (JobState.CANCELLED, "wrong customer")
    assert job.finished_at == bench.now


@case()
def a_job_released_in_time_is_not_rescued(bench: Bench) -> None:
    bench.add()
    claim = bench.take()
    bench.release(claim)
    bench.advance(LEASE + MINUTE)
    assert bench.rescue() == []
    assert bench.get(claim.id).rescues == 0


@case()
def two_sweepers_at_once_rescue_each_job_once(bench: Bench) -> None:
    ids = bench.add_many(50)
    bench.claim()
    bench.advance(LEASE)
    swept = bench.together([bench.driver.rescue(now=bench.now) for _ in range(4)])
    assert sorted(rescued.id for batch in swept for rescued in batch) == sorted(ids)
    assert {job.rescues for job in bench.jobs(ids)} == {1}


@case()
def a_lease_from_before_the_clock_was_set_back_lasts_one_lease_from_the_next_sweep(bench: Bench) -> None:
    bench.add()
    claim = bench.take()
    bench.advance(-10 * HOUR)
    assert bench.rescue() == []
    assert [session.lease_until for session in bench.sessions()] == [bench.at + LEASE]
    bench.advance(LEASE - MICROSECOND)
    assert bench.rescue() == []
    bench.advance(MICROSECOND)
    assert bench.rescue() == [Rescued(claim.id, claim.token, bench.session, JobState.READY)]


@case()
def a_worker_that_beats_after_the_clock_was_set_back_keeps_its_jobs(bench: Bench) -> None:
    bench.add()
    claim = bench.take()
    bench.advance(-10 * HOUR)
    assert bench.rescue() == []
    for _ in range(3):
        bench.advance(LEASE - SECOND)
        (pulse,) = bench.beat(bench.session)
        assert pulse.is_live
        assert bench.rescue() == []
    assert bench.complete(claim) is Answer.TOOK


@case()
def each_session_has_its_own_longest_lease(bench: Bench) -> None:
    """A long lease is not taken for one that lies far in the future."""
    long = bench.new_session(lease=HOUR)
    bench.call(bench.driver.start_session(long, now=bench.now))
    until = {session.id: session.lease_until for session in bench.sessions()}
    assert bench.rescue() == []
    assert {session.id: session.lease_until for session in bench.sessions()} == until
    bench.advance(2 * MINUTE)
    bench.rescue()
    assert [session.id for session in bench.sessions()] == [long.id]
