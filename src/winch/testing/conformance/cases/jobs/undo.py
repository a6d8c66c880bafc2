"""Jobs that have done what must be undone: a cancel, or the crash that would be their death, lets them
run once more."""

from __future__ import annotations

from winch.core.job import MAX_CRASHES, MAX_RESCUES, UNDO_LIVES, Claim, Note
from winch.core.lifecycle import JobState
from winch.storage.params import Answer, ClaimRef
from winch.testing.conformance.bench import HOUR, LEASE, SECOND, Bench
from winch.testing.conformance.case import case
from winch.testing.conformance.cases.jobs.finish import claimed
from winch.testing.conformance.cases.store.reports import crash, note


def with_undo(bench: Bench) -> Claim:
    (claim,) = claimed(bench)
    assert note(bench, claim, checkpoint='"one step"', has_undo=True) is Answer.TOOK
    assert bench.get(claim.id).has_undo
    return claim


@case()
def a_note_says_whether_something_is_to_be_undone(bench: Bench) -> None:
    claim = with_undo(bench)
    assert note(bench, claim, progress="1") is Answer.TOOK
    assert bench.get(claim.id).has_undo
    assert note(bench, claim, has_undo=False) is Answer.TOOK
    assert not bench.get(claim.id).has_undo


@case()
def a_late_note_does_not_say_what_is_to_be_undone(bench: Bench) -> None:
    (claim,) = claimed(bench)
    bench.cancel(claim.id)
    stale = ClaimRef(claim.id, bench.new_token())
    note = Note(has_undo=True, forgets_cancel=True)
    assert bench.call(bench.driver.note(stale, note)) is Answer.LOST
    job = bench.get(claim.id)
    assert (job.has_undo, job.cancel_requested_at) == (False, bench.now)


@case()
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


@case()
def cancelling_it_twice_asks_once(bench: Bench) -> None:
    claim = with_undo(bench)
    bench.finish(bench.outcome(claim, JobState.SCHEDULED, delay=HOUR))
    bench.cancel(claim.id)
    once = bench.get(claim.id)
    bench.advance(SECOND)
    bench.cancel(claim.id)
    assert bench.get(claim.id) == once


@case()
def a_cancel_requested_while_it_ran_lets_it_run_again_at_once(bench: Bench) -> None:
    claim = with_undo(bench)
    bench.cancel(claim.id)
    bench.finish(bench.outcome(claim, JobState.SCHEDULED, delay=HOUR))
    job = bench.get(claim.id)
    assert (job.state, job.run_at) == (JobState.READY, bench.now)
    assert job.cancel_requested_at is not None
    assert bench.take().id == claim.id


@case()
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


@case()
def a_note_can_end_the_request_that_it_carries_out(bench: Bench) -> None:
    claim = with_undo(bench)
    bench.cancel(claim.id)
    assert note(bench, claim, forgets_cancel=True) is Answer.TOOK
    job = bench.get(claim.id)
    assert (job.cancel_requested_at, job.has_undo) == (None, True)
    bench.finish(bench.outcome(claim, JobState.SCHEDULED, delay=HOUR))
    assert bench.get(claim.id).state is JobState.SCHEDULED


@case()
def the_crash_that_would_be_its_death_lets_it_run_to_undo(bench: Bench) -> None:
    claim = with_undo(bench)
    for crashes in range(1, MAX_CRASHES + 1):
        bench.advance(SECOND)
        assert crash(bench, claim) == [Answer.TOOK]
        job = bench.get(claim.id)
        assert (job.state, job.crashes, job.has_undo) == (JobState.READY, crashes, True)
        assert (job.reason, job.fingerprint) == (None, None)
        claim = bench.take()
        assert (claim.checkpoint, claim.attempt, claim.is_suspect) == ('"one step"', 1, True)
    bench.finish(bench.outcome(claim, JobState.DEAD))
    assert bench.get(claim.id).state is JobState.DEAD


@case()
def so_does_the_end_of_its_session(bench: Bench) -> None:
    claim = with_undo(bench)
    for crashes in range(1, MAX_CRASHES + 1):
        session = bench.get(claim.id).session
        assert session is not None
        (back,) = bench.end_session(session, claim, cause="exit code 1")
        assert back.to is JobState.READY
        assert bench.get(claim.id).crashes == crashes
        (claim,) = bench.claim(session=bench.start_session())


@case()
def so_does_the_rescue_that_would_be_its_death(bench: Bench) -> None:
    claim = with_undo(bench)
    for rescues in range(1, MAX_RESCUES * UNDO_LIVES):
        bench.advance(LEASE)
        (rescued,) = bench.rescue()
        assert (rescued.id, rescued.to) == (claim.id, JobState.READY)
        assert bench.get(claim.id).rescues == rescues
        claim = bench.take(session=bench.start_session())
    bench.advance(LEASE)
    (rescued,) = bench.rescue()
    assert rescued.to is JobState.DEAD
    job = bench.get(claim.id)
    assert (job.rescues, job.has_undo) == (MAX_RESCUES * UNDO_LIVES, True)


@case()
def once_all_is_undone_the_next_crash_is_its_death(bench: Bench) -> None:
    claim = with_undo(bench)
    for _ in range(MAX_CRASHES):
        crash(bench, claim)
        claim = bench.take()
    assert note(bench, claim, has_undo=False) is Answer.TOOK
    crash(bench, claim)
    job = bench.get(claim.id)
    assert (job.state, job.crashes) == (JobState.DEAD, MAX_CRASHES + 1)


@case()
def who_crashes_while_it_undoes_is_dead_in_the_end_and_keeps_what_is_left(bench: Bench) -> None:
    claim = with_undo(bench)
    times = MAX_CRASHES * UNDO_LIVES
    for _ in range(times - 1):
        crash(bench, claim)
        claim = bench.take()
    crash(bench, claim)
    job = bench.get(claim.id)
    assert (job.state, job.crashes, job.has_undo) == (JobState.DEAD, times, True)
    assert job.reason == f"crashed {times} times; last cause: killed by SIGSEGV"
    assert job.fingerprint is not None
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
