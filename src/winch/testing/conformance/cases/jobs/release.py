"""release, give_up, cancels: what a worker gives back unrun, and what it is asked to stop."""

from __future__ import annotations

from winch.core.lifecycle import JobState
from winch.storage.params import Answer, ClaimRef
from winch.testing.conformance.bench import HOUR, LEASE, SECOND, Bench
from winch.testing.conformance.case import case
from winch.testing.conformance.cases.jobs.finish import claimed


@case()
def a_released_job_is_ready_as_if_never_claimed(bench: Bench) -> None:
    before = bench.get(bench.add())
    bench.advance(SECOND)
    claim = bench.take()
    bench.advance(SECOND)
    assert bench.release(claim) == [Answer.TOOK]
    job = bench.get(claim.id)
    assert (job.state, job.attempt, job.token) == (JobState.READY, 0, None)
    assert (job.run_at, job.history, job.reason) == (before.run_at, (), None)
    assert (job.is_suspect, job.crashes, job.rescues) == (False, 0, 0)


@case()
def a_release_after_the_start_leaves_a_line(bench: Bench) -> None:
    a, b = claimed(bench, 2)
    at = bench.get(a.id).run_at
    bench.advance(SECOND)
    assert bench.release(a, has_started=True) == [Answer.TOOK]
    assert bench.release(b) == [Answer.TOOK]
    job = bench.get(a.id)
    assert (job.state, job.attempt, job.token, job.run_at) == (JobState.READY, 0, None, at)
    [line] = job.history
    assert (line.what, line.attempt, line.token, line.at) == ("released", 1, a.token, bench.now)
    assert (line.session, line.error) == (job.session, None)
    assert bench.get(b.id).history == ()
    assert bench.release(a, has_started=True) == [Answer.ALREADY]
    assert len(bench.get(a.id).history) == 1
    assert bench.take().attempt == 1


@case()
def a_released_job_keeps_its_place(bench: Bench) -> None:
    (claim,) = claimed(bench)
    bench.advance(SECOND)
    later = bench.add()
    bench.release(claim)
    assert [again.id for again in bench.claim()] == [claim.id, later]


@case()
def a_released_retry_keeps_its_attempts(bench: Bench) -> None:
    (claim,) = claimed(bench)
    bench.finish(bench.outcome(claim, JobState.READY))
    second = bench.take()
    bench.release(second)
    assert bench.get(claim.id).attempt == 1
    assert bench.take().attempt == 2


@case()
def released_answers_come_in_order(bench: Bench) -> None:
    a, b, c = claimed(bench, 3)
    bench.release(b)
    wrong = ClaimRef(c.id, bench.new_token())
    missing = ClaimRef(bench.new_id(), c.token)
    assert bench.release(wrong, b, a, missing) == [
        Answer.LOST,
        Answer.ALREADY,
        Answer.TOOK,
        Answer.LOST,
    ]
    assert bench.get(c.id).state is JobState.RUNNING
    assert bench.release() == []


@case()
def a_release_with_swapped_tokens_changes_nothing(bench: Bench) -> None:
    a, b = claimed(bench, 2)
    before = bench.jobs([a.id, b.id])
    assert bench.release(ClaimRef(a.id, b.token), ClaimRef(b.id, a.token)) == [Answer.LOST] * 2
    assert bench.jobs([a.id, b.id]) == before


@case()
def a_repeated_release_is_answered_already(bench: Bench) -> None:
    (claim,) = claimed(bench)
    bench.release(claim)
    before = bench.get(claim.id)
    assert bench.release(claim) == [Answer.ALREADY]
    assert bench.get(claim.id) == before
    second = bench.take()
    assert bench.release(claim) == [Answer.ALREADY]
    assert bench.get(claim.id).token == second.token


@case()
def a_finish_after_the_release_is_lost(bench: Bench) -> None:
    (claim,) = claimed(bench)
    bench.release(claim)
    before = bench.get(claim.id)
    for to in (JobState.COMPLETED, JobState.RETRYING, JobState.DEAD, JobState.CANCELLED):
        assert bench.finish(bench.outcome(claim, to)) == [Answer.LOST]
    assert bench.get(claim.id) == before
    second = bench.take()
    assert bench.complete(claim) is Answer.LOST
    assert bench.complete(second) is Answer.TOOK


@case()
def a_release_after_the_finish_is_lost(bench: Bench) -> None:
    for to in (JobState.COMPLETED, JobState.RETRYING, JobState.DEAD):
        (claim,) = claimed(bench)
        bench.finish(bench.outcome(claim, to, delay=HOUR))
        assert bench.release(claim) == [Answer.LOST]
        assert bench.get(claim.id).state is to


@case()
def a_rescued_claim_cannot_be_released(bench: Bench) -> None:
    bench.add()
    claim = bench.take(session=bench.start_session())
    bench.advance(LEASE)
    bench.rescue()
    assert bench.release(claim) == [Answer.LOST]
    second = bench.take(session=bench.start_session())
    assert bench.release(claim) == [Answer.LOST]
    assert bench.get(claim.id).token == second.token


@case()
def a_requested_cancel_is_carried_out_by_the_release(bench: Bench) -> None:
    (claim,) = claimed(bench)
    bench.cancel(claim.id, reason="wrong customer")
    assert bench.release(claim) == [Answer.TOOK]
    job = bench.get(claim.id)
    assert (job.state, job.finished_at) == (JobState.CANCELLED, bench.now)
    assert (job.reason, job.attempt, job.token) == ("wrong customer", 0, None)
    assert [entry.what for entry in job.history] == ["cancel requested", "cancelled"]
    assert bench.release(claim) == [Answer.ALREADY]


@case()
def five_hundred_claims_are_released_in_one_call(bench: Bench) -> None:
    ids = bench.add_many(500)
    claims = bench.claim(limit=500)
    assert bench.release(*claims) == [Answer.TOOK] * 500
    assert {job.state for job in bench.jobs(ids)} == {JobState.READY}


@case()
def giving_up_frees_what_a_lost_claim_took(bench: Bench) -> None:
    ids = bench.add_many(3)
    lost, kept = bench.new_token(), bench.new_token()
    taken = bench.claim(token=lost, limit=2)
    other = bench.take(token=kept)
    assert bench.give_up(bench.session, lost) == 2
    for job in bench.jobs([claim.id for claim in taken]):
        assert (job.state, job.attempt, job.token) == (JobState.READY, 0, None)
        assert (job.history, job.is_suspect) == ((), False)
    assert bench.get(other.id).token == kept
    assert sorted(ids) == sorted([*(claim.id for claim in taken), other.id])


@case()
def a_job_given_up_keeps_its_place(bench: Bench) -> None:
    (claim,) = claimed(bench)
    bench.advance(SECOND)
    later = bench.add()
    bench.give_up(bench.session, claim.token)
    assert [again.id for again in bench.claim()] == [claim.id, later]


@case()
def giving_up_may_be_repeated_for_a_claim_that_lands_late(bench: Bench) -> None:
    bench.add()
    token = bench.new_token()
    assert bench.give_up(bench.session, token) == 0
    bench.take(token=token)
    assert bench.give_up(bench.session, token) == 1
    assert bench.give_up(bench.session, token) == 0


@case()
def giving_up_several_tokens_counts_all_their_jobs(bench: Bench) -> None:
    claims = claimed(bench, 3)
    tokens = [claim.token for claim in claims]
    assert bench.give_up(bench.session, *tokens[:2], bench.new_token()) == 2
    assert bench.give_up(bench.session) == 0
    assert bench.get(claims[2].id).state is JobState.RUNNING


@case()
def giving_up_touches_no_other_session(bench: Bench) -> None:
    (claim,) = claimed(bench)
    assert bench.give_up(bench.start_session(), claim.token) == 0
    assert bench.get(claim.id).token == claim.token


@case()
def giving_up_carries_out_a_requested_cancel(bench: Bench) -> None:
    (claim,) = claimed(bench)
    bench.cancel(claim.id, reason="wrong customer")
    assert bench.give_up(bench.session, claim.token) == 1
    job = bench.get(claim.id)
    assert (job.state, job.reason) == (JobState.CANCELLED, "wrong customer")
    assert (job.attempt, job.finished_at) == (0, bench.now)


@case()
def cancels_names_the_running_jobs_that_are_asked_to_stop(bench: Bench) -> None:
    mine, theirs = bench.start_session(), bench.start_session()
    bench.add_many(3)
    asked = bench.take(session=mine)
    bench.take(session=mine)
    foreign = bench.take(session=theirs)
    assert bench.cancels(mine, theirs) == []
    bench.cancel(asked.id, foreign.id)
    assert bench.cancels(mine) == [ClaimRef(asked.id, asked.token)]
    assert bench.cancels(theirs, mine) == [
        ClaimRef(foreign.id, foreign.token),
        ClaimRef(asked.id, asked.token),
    ]
    assert bench.cancels() == []
    assert bench.cancels(bench.new_token()) == []


@case()
def a_finished_job_is_no_longer_asked_to_stop(bench: Bench) -> None:
    (claim,) = claimed(bench)
    bench.cancel(claim.id)
    bench.complete(claim)
    assert bench.cancels(bench.session) == []
