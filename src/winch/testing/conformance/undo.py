"""Jobs that have done what must be undone: a cancel lets them run once more."""

from __future__ import annotations

from winch.core.job import MAX_CRASHES, Claim, Note
from winch.core.lifecycle import JobState
from winch.storage.params import Answer, ClaimRef
from winch.testing.conformance.bench import HOUR, LEASE, SECOND, Bench
from winch.testing.conformance.case import case
from winch.testing.conformance.finish import claimed
from winch.testing.conformance.reports import crash, note


def with_undo(bench: Bench) -> Claim:
    (claim,) = claimed(bench)
    assert note(bench, claim, checkpoint='"one step"', has_undo=True) is Answer.TOOK
    assert bench.get(claim.id).has_undo
    return claim


@case(needs="keeps_undo")
def a_note_says_whether_something_is_to_be_undone(bench: Bench) -> None:
    claim = with_undo(bench)
    assert note(bench, claim, progress="1") is Answer.TOOK
    assert bench.get(claim.id).has_undo
    assert note(bench, claim, has_undo=False) is Answer.TOOK
    assert not bench.get(claim.id).has_undo


@case(needs="keeps_undo")
def a_late_note_does_not_say_what_is_to_be_undone(bench: Bench) -> None:
    (claim,) = claimed(bench)
    bench.cancel(claim.id)
    stale = ClaimRef(claim.id, bench.new_token())
    said = Note(has_undo=True, forgets_cancel=True)
    assert bench.call(bench.driver.note(stale, said)) is Answer.LOST
    job = bench.get(claim.id)
    assert (job.has_undo, job.cancel_requested_at) == (False, bench.now)


@case(needs="keeps_undo")
def cancel_makes_a_waiting_job_with_something_to_undo_ready(bench: Bench) -> None:
    for to in (JobState.SCHEDULED, JobState.RETRYING, JobState.READY):
        claim = with_undo(bench)
        bench.finish(bench.outcome(claim, to, delay=SECOND * 0 if to is JobState.READY else HOUR))
        bench.advance(SECOND)
        (acted,) = bench.cancel(claim.id)
        assert (acted.state, acted.took) == (to, True)
        job = bench.get(claim.id)
        assert (job.state, job.cancel_requested_at) == (JobState.READY, bench.now)
        assert job.history[-1].what == "cancel requested"
        assert job.run_at <= bench.at
        again = bench.take()
        assert (again.id, again.checkpoint) == (claim.id, '"one step"')
        bench.finish(bench.outcome(again, JobState.CANCELLED))
        assert bench.get(claim.id).state is JobState.CANCELLED


@case(needs="keeps_undo")
def cancelling_it_twice_asks_once(bench: Bench) -> None:
    claim = with_undo(bench)
    bench.finish(bench.outcome(claim, JobState.SCHEDULED, delay=HOUR))
    bench.cancel(claim.id)
    once = bench.get(claim.id)
    bench.advance(SECOND)
    bench.cancel(claim.id)
    assert bench.get(claim.id) == once


@case(needs="keeps_undo")
def a_cancel_requested_while_it_ran_lets_it_run_again_at_once(bench: Bench) -> None:
    claim = with_undo(bench)
    bench.cancel(claim.id)
    bench.finish(bench.outcome(claim, JobState.SCHEDULED, delay=HOUR))
    job = bench.get(claim.id)
    assert (job.state, job.run_at) == (JobState.READY, bench.now)
    assert job.cancel_requested_at is not None
    assert bench.take().id == claim.id


@case(needs="keeps_undo")
def what_takes_it_back_leaves_it_to_run_again(bench: Bench) -> None:
    claim = with_undo(bench)
    bench.cancel(claim.id)
    bench.release(claim)
    assert bench.get(claim.id).state is JobState.READY
    claim = bench.take()
    crash(bench, claim)
    assert bench.get(claim.id).state is JobState.READY
    claim = bench.take()
    bench.advance(2 * LEASE)
    bench.rescue()
    job = bench.get(claim.id)
    assert (job.state, job.has_undo) == (JobState.READY, True)
    assert job.cancel_requested_at is not None
    session = bench.start_session()
    (claim,) = bench.claim(session=session)
    bench.call(bench.driver.give_up(session, [claim.token], now=bench.now))
    assert bench.get(claim.id).state is JobState.READY


@case(needs="keeps_undo")
def a_note_can_end_the_request_that_it_carries_out(bench: Bench) -> None:
    claim = with_undo(bench)
    bench.cancel(claim.id)
    assert note(bench, claim, forgets_cancel=True) is Answer.TOOK
    job = bench.get(claim.id)
    assert (job.cancel_requested_at, job.has_undo) == (None, True)
    bench.finish(bench.outcome(claim, JobState.SCHEDULED, delay=HOUR))
    assert bench.get(claim.id).state is JobState.SCHEDULED


@case(needs="keeps_undo")
def death_by_crashes_keeps_what_is_to_be_undone(bench: Bench) -> None:
    claim = with_undo(bench)
    for _ in range(MAX_CRASHES):
        crash(bench, claim)
        if bench.get(claim.id).state is JobState.READY:
            claim = bench.take()
    assert bench.get(claim.id).state is JobState.DEAD
    bench.retry(claim.id)
    bench.cancel(claim.id)
    job = bench.get(claim.id)
    assert (job.state, job.has_undo) == (JobState.READY, True)


@case()
def a_completed_job_that_is_run_anew_has_no_checkpoint(bench: Bench) -> None:
    (claim,) = claimed(bench)
    note(bench, claim, checkpoint='"the end"')
    bench.finish(bench.outcome(claim, JobState.COMPLETED))
    bench.retry(claim.id)
    assert bench.take().checkpoint is None


@case()
def a_job_that_did_not_complete_goes_on_from_its_checkpoint(bench: Bench) -> None:
    (claim,) = claimed(bench)
    note(bench, claim, checkpoint='"half"')
    bench.finish(bench.outcome(claim, JobState.DEAD))
    bench.retry(claim.id)
    assert bench.take().checkpoint == '"half"'
