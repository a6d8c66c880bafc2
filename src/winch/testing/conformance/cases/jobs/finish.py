"""finish: a claim's own end, fenced by (id, token), distinct from a repeat and from a lost claim."""

from __future__ import annotations

from datetime import timedelta

from winch.core.job import HISTORY_LIMIT, Claim, Entry, Failure
from winch.core.lifecycle import FINAL, JobState
from winch.storage.crash_report import CrashReport
from winch.storage.params import Answer, ClaimRef
from winch.testing.conformance.bench import HOUR, LEASE, MINUTE, SECOND, Bench
from winch.testing.conformance.case import case

RERUN = (JobState.RETRYING, JobState.SCHEDULED, JobState.READY)


def claimed(bench: Bench, count: int = 1) -> list[Claim]:
    """Claims of new jobs, each with a token of its own."""
    made = []
    for _ in range(count):
        bench.add()
        made.append(bench.take())
    return made


@case()
def a_completed_job_keeps_its_result_and_its_last_attempt(bench: Bench) -> None:
    (claim,) = claimed(bench)
    running = bench.get(claim.id)
    started = bench.at
    bench.advance(SECOND)
    assert bench.complete(claim, result='{"sent":"ja"}') is Answer.TOOK
    job = bench.get(claim.id)
    assert job.state is JobState.COMPLETED
    assert job.finished_at == bench.now
    assert job.result == '{"sent":"ja"}'
    assert (job.token, job.ended_token) == (None, claim.token)
    assert (job.attempt, job.fence) == (1, claim.fence)
    assert (job.session, job.claimed_at) == (bench.session, started)
    assert (job.history, job.reason, job.error) == ((), None, None)
    assert (job.created_at, job.run_at, job.args) == (running.created_at, running.run_at, running.args)


@case()
def a_failed_attempt_is_written_down_and_tried_again_after_its_delay(bench: Bench) -> None:
    (claim,) = claimed(bench)
    started = bench.at
    bench.advance(SECOND)
    error = Failure("ValueError", "no such user: Zoë 🚀", "Traceback …\n  line\n")
    assert bench.finish(bench.outcome(claim, JobState.RETRYING, delay=MINUTE, error=error)) == [
        Answer.TOOK
    ]
    job = bench.get(claim.id)
    assert job.state is JobState.RETRYING
    assert job.run_at == bench.at + MINUTE
    assert (job.attempt, job.token, job.ended_token) == (1, None, claim.token)
    assert (job.finished_at, job.result) == (None, None)
    assert job.error == error
    assert job.history == (
        Entry(
            what="failed",
            at=bench.at,
            attempt=1,
            token=claim.token,
            session=bench.session,
            claimed_at=started,
            error=error,
        ),
    )


@case()
def a_snoozed_job_gets_its_attempt_back(bench: Bench) -> None:
    (claim,) = claimed(bench)
    snooze = bench.outcome(claim, JobState.SCHEDULED, delay=HOUR, counts=False, reason="too early")
    assert bench.finish(snooze) == [Answer.TOOK]
    job = bench.get(claim.id)
    assert job.state is JobState.SCHEDULED
    assert job.run_at == bench.at + HOUR
    assert (job.attempt, job.reason) == (0, "too early")
    assert [(entry.what, entry.attempt) for entry in job.history] == [("snoozed", 1)]


@case()
def an_attempt_that_counts_stays_counted(bench: Bench) -> None:
    for to in RERUN:
        (claim,) = claimed(bench)
        bench.finish(bench.outcome(claim, to, delay=HOUR))
        assert bench.get(claim.id).attempt == 1
        bench.cancel(claim.id)


@case()
def a_dead_job_keeps_error_and_reason(bench: Bench) -> None:
    (claim,) = claimed(bench)
    error = Failure("Discard", "bad address")
    assert bench.finish(bench.outcome(claim, JobState.DEAD, error=error, reason="bad address")) == [
        Answer.TOOK
    ]
    job = bench.get(claim.id)
    assert job.state is JobState.DEAD
    assert (job.finished_at, job.reason, job.error) == (bench.now, "bad address", error)
    assert [(entry.what, entry.token) for entry in job.history] == [("discarded", claim.token)]


@case()
def a_job_cancelled_by_its_own_task_keeps_the_reason(bench: Bench) -> None:
    (claim,) = claimed(bench)
    assert bench.finish(bench.outcome(claim, JobState.CANCELLED, reason="no longer wanted")) == [
        Answer.TOOK
    ]
    job = bench.get(claim.id)
    assert job.state is JobState.CANCELLED
    assert (job.finished_at, job.reason) == (bench.now, "no longer wanted")
    assert [entry.what for entry in job.history] == ["cancelled"]


@case()
def a_job_sent_straight_back_is_ready_with_a_new_place(bench: Bench) -> None:
    (claim,) = claimed(bench)
    bench.advance(SECOND)
    other = bench.add()
    bench.advance(SECOND)
    assert bench.finish(bench.outcome(claim, JobState.READY)) == [Answer.TOOK]
    assert bench.get(claim.id).run_at == bench.now
    assert [again.id for again in bench.claim()] == [other, claim.id]


@case()
def large_results_and_tracebacks_come_back(bench: Bench) -> None:
    first, second = claimed(bench, 2)
    result = '"' + "ü€" * 150_000 + '"'
    traceback = "  File …, line 1\n" * 3000  # just below what a worker keeps of it
    bench.finish(
        bench.outcome(first, JobState.COMPLETED, result=result),
        bench.outcome(second, JobState.DEAD, error=Failure("E", "m", traceback)),
    )
    assert bench.get(first.id).result == result
    error = bench.get(second.id).error
    assert error is not None
    assert error.traceback == traceback


@case()
def answers_come_in_the_order_of_the_outcomes(bench: Bench) -> None:
    done, lost, new, unknown = claimed(bench, 4)
    bench.complete(done)
    wrong = ClaimRef(lost.id, bench.new_token())
    missing = ClaimRef(bench.new_id(), unknown.token)
    for order in (1, -1):
        refs: list[Claim | ClaimRef] = [wrong, done, missing, new if order == 1 else unknown]
        expected = [Answer.LOST, Answer.ALREADY, Answer.LOST, Answer.TOOK]
        assert bench.finish(*map(bench.outcome, refs[::order])) == expected[::order]


@case()
def swapped_tokens_are_both_lost(bench: Bench) -> None:
    a, b = claimed(bench, 2)
    before = bench.jobs([a.id, b.id])
    swapped = [ClaimRef(a.id, b.token), ClaimRef(b.id, a.token)]
    assert bench.finish(*map(bench.outcome, swapped)) == [Answer.LOST, Answer.LOST]
    assert bench.jobs([a.id, b.id]) == before


@case()
def swapped_tokens_do_not_hide_right_ones(bench: Bench) -> None:
    a, b, c = claimed(bench, 3)
    refs = [ClaimRef(a.id, b.token), ClaimRef(b.id, b.token), ClaimRef(c.id, a.token)]
    assert bench.finish(*map(bench.outcome, refs)) == [Answer.LOST, Answer.TOOK, Answer.LOST]
    states = [job.state for job in bench.jobs([a.id, b.id, c.id])]
    assert states == [JobState.RUNNING, JobState.COMPLETED, JobState.RUNNING]


@case()
def one_that_does_not_take_never_keeps_the_others(bench: Bench) -> None:
    claims = claimed(bench, 6)
    targets = [JobState.COMPLETED, JobState.RETRYING, JobState.DEAD] * 2
    outcomes = [bench.outcome(claim, to) for claim, to in zip(claims, targets, strict=True)]
    bad = bench.outcome(ClaimRef(bench.new_id(), bench.new_token()))
    answers = bench.finish(*outcomes[:3], bad, *outcomes[3:])
    assert answers == [Answer.TOOK] * 3 + [Answer.LOST] + [Answer.TOOK] * 3
    assert [job.state for job in bench.jobs([claim.id for claim in claims])] == targets


@case()
def nothing_to_finish_is_no_change(bench: Bench) -> None:
    assert bench.finish() == []


@case()
def a_job_that_nobody_claimed_cannot_be_finished(bench: Bench) -> None:
    job = bench.get(bench.add())
    assert bench.complete(ClaimRef(job.id, bench.new_token())) is Answer.LOST
    assert bench.get(job.id) == job


@case()
def a_repeat_is_answered_already_while_the_job_waits(bench: Bench) -> None:
    for to in RERUN:
        (claim,) = claimed(bench)
        outcome = bench.outcome(claim, to, delay=HOUR)
        assert bench.finish(outcome) == [Answer.TOOK]
        before = bench.get(claim.id)
        bench.advance(SECOND)
        assert bench.finish(outcome) == [Answer.ALREADY]
        assert bench.get(claim.id) == before
        bench.cancel(claim.id)


@case()
def a_repeat_is_answered_already_from_the_archive(bench: Bench) -> None:
    for to in sorted(FINAL):
        (claim,) = claimed(bench)
        outcome = bench.outcome(claim, to)
        assert bench.finish(outcome) == [Answer.TOOK]
        before = bench.get(claim.id)
        bench.advance(SECOND)
        assert bench.finish(outcome, outcome) == [Answer.ALREADY, Answer.ALREADY]
        assert bench.get(claim.id) == before


@case()
def a_repeat_is_answered_already_while_another_runs_the_job(bench: Bench) -> None:
    (claim,) = claimed(bench)
    outcome = bench.outcome(claim, JobState.READY)
    bench.finish(outcome)
    second = bench.take()
    assert bench.finish(outcome) == [Answer.ALREADY]
    assert bench.get(claim.id).token == second.token
    assert bench.complete(second) is Answer.TOOK


@case()
def a_repeat_is_answered_already_after_another_finished_the_job(bench: Bench) -> None:
    (claim,) = claimed(bench)
    outcome = bench.outcome(claim, JobState.READY)
    bench.finish(outcome)
    second = bench.take()
    later = bench.outcome(second, JobState.READY)
    bench.finish(later)
    assert bench.finish(outcome) == [Answer.ALREADY]
    bench.complete(bench.take())
    assert bench.finish(outcome, later) == [Answer.ALREADY, Answer.ALREADY]


@case()
def a_repeat_is_answered_already_after_an_operators_retry(bench: Bench) -> None:
    (claim,) = claimed(bench)
    outcome = bench.outcome(claim, JobState.DEAD)
    bench.finish(outcome)
    bench.retry(claim.id)
    before = bench.get(claim.id)
    assert bench.finish(outcome) == [Answer.ALREADY]
    assert bench.get(claim.id) == before


ENDS = (
    JobState.COMPLETED,
    JobState.RETRYING,
    JobState.SCHEDULED,
    JobState.READY,
    JobState.CANCELLED,
    JobState.DEAD,
)


@case()
def another_outcome_of_an_ended_claim_is_lost(bench: Bench) -> None:
    """Nothing of the second is recorded, so its sender must not believe that it was."""
    for first in ENDS:
        (claim,) = claimed(bench)
        taken = bench.outcome(claim, first, delay=HOUR)
        assert bench.finish(taken) == [Answer.TOOK]
        before = bench.get(claim.id)
        for second in ENDS:
            late = bench.outcome(claim, second, delay=MINUTE)
            # A cancelled job may have been one that was to run again.
            is_like = taken.what == late.what or (first is JobState.CANCELLED and second not in FINAL)
            assert bench.finish(late) == [Answer.ALREADY if is_like else Answer.LOST], (first, second)
        assert bench.get(claim.id) == before
        bench.cancel(claim.id)


@case()
def a_repeat_of_an_end_that_a_requested_cancel_changed_is_answered_already(bench: Bench) -> None:
    for to in RERUN:
        (claim,) = claimed(bench)
        bench.cancel(claim.id)
        outcome = bench.outcome(claim, to)
        assert bench.finish(outcome) == [Answer.TOOK]
        assert bench.get(claim.id).state is JobState.CANCELLED
        assert bench.finish(outcome) == [Answer.ALREADY]
        assert bench.complete(claim) is Answer.LOST


@case()
def one_claim_twice_in_a_call_ends_once(bench: Bench) -> None:
    (claim,) = claimed(bench)
    outcome = bench.outcome(claim, JobState.RETRYING, delay=HOUR)
    first, second = bench.finish(outcome, outcome)
    assert first is Answer.TOOK
    assert second in (Answer.TOOK, Answer.ALREADY)
    job = bench.get(claim.id)
    assert (job.state, job.attempt, len(job.history)) == (JobState.RETRYING, 1, 1)


@case()
def one_of_two_callers_at_once_takes(bench: Bench) -> None:
    (claim,) = claimed(bench)
    verbs = [
        bench.driver.finish([bench.outcome(claim, to)], now=bench.now)
        for to in (JobState.COMPLETED, JobState.DEAD, JobState.COMPLETED, JobState.RETRYING)
    ]
    answers = [answer for (answer,) in bench.together(verbs)]
    assert answers.count(Answer.TOOK) == 1
    # The two that complete agree: the later one is a repeat, if the earlier one took.
    is_completed = bench.get(claim.id).state is JobState.COMPLETED
    assert answers.count(Answer.ALREADY) == (1 if is_completed else 0)


@case()
def a_rescued_claim_is_lost(bench: Bench) -> None:
    bench.add()
    claim = bench.take(session=bench.start_session())
    bench.advance(LEASE)
    bench.rescue()
    before = bench.get(claim.id)
    assert bench.complete(claim) is Answer.LOST
    assert bench.get(claim.id) == before


@case()
def a_rescued_claim_stays_lost_while_another_runs_the_job_and_after(bench: Bench) -> None:
    bench.add()
    claim = bench.take(session=bench.start_session())
    bench.advance(LEASE)
    bench.rescue()
    second = bench.take(session=bench.start_session())
    before = bench.get(claim.id)
    assert bench.complete(claim) is Answer.LOST
    assert bench.get(claim.id) == before
    assert bench.complete(second) is Answer.TOOK
    assert bench.complete(claim) is Answer.LOST


@case()
def a_claim_that_was_given_up_is_lost(bench: Bench) -> None:
    (claim,) = claimed(bench)
    assert bench.give_up(bench.session, claim.token) == 1
    before = bench.get(claim.id)
    assert bench.complete(claim) is Answer.LOST
    assert bench.get(claim.id) == before


@case()
def claims_of_a_session_that_ended_are_lost(bench: Bench) -> None:
    for cause in (None, "signal 9"):
        session = bench.start_session()
        bench.add_many(2)
        started, other = (bench.take(session=session) for _ in range(2))
        bench.end_session(session, started, cause=cause)
        ids = [started.id, other.id]
        before = bench.jobs(ids)
        assert bench.finish(bench.outcome(started), bench.outcome(other)) == [Answer.LOST] * 2
        assert bench.jobs(ids) == before
        bench.cancel(*ids)


@case()
def claims_that_others_ended_with_a_requested_cancel_are_lost(bench: Bench) -> None:
    given_up, ended, swept = (bench.start_session() for _ in range(3))
    claims = []
    for session in (given_up, ended, swept):
        bench.add()
        claims.append(bench.take(session=session))
    bench.cancel(*[claim.id for claim in claims])
    bench.give_up(given_up, claims[0].token)
    bench.end_session(ended)
    bench.advance(LEASE)
    bench.rescue()
    assert [job.state for job in bench.jobs([c.id for c in claims])] == [JobState.CANCELLED] * 3
    assert bench.finish(*map(bench.outcome, claims)) == [Answer.LOST] * 3


@case()
def the_claim_of_a_job_that_is_gone_is_lost(bench: Bench) -> None:
    (claim,) = claimed(bench)
    bench.complete(claim)
    bench.delete(claim.id)
    assert bench.complete(claim) is Answer.LOST
    assert bench.find(claim.id) == [None]


@case()
def a_requested_cancel_beats_running_again(bench: Bench) -> None:
    for to in RERUN:
        (claim,) = claimed(bench)
        bench.cancel(claim.id, by="ada", reason="wrong customer")
        assert bench.finish(bench.outcome(claim, to, delay=HOUR, reason="later")) == [Answer.TOOK]
        job = bench.get(claim.id)
        assert job.state is JobState.CANCELLED
        assert (job.finished_at, job.reason) == (bench.now, "wrong customer")
        assert [entry.what for entry in job.history] == ["cancel requested", "cancelled"]
        assert job.history[-1].token == claim.token


@case()
def a_requested_cancel_does_not_change_a_final_outcome(bench: Bench) -> None:
    for to in (JobState.COMPLETED, JobState.DEAD):
        (claim,) = claimed(bench)
        bench.cancel(claim.id)
        assert bench.finish(bench.outcome(claim, to)) == [Answer.TOOK]
        assert bench.get(claim.id).state is to


@case()
def a_final_job_takes_no_part_any_more(bench: Bench) -> None:
    (claim,) = claimed(bench)
    bench.complete(claim)
    done = bench.get(claim.id)
    bench.advance(timedelta(days=1))
    assert bench.claim() == []
    assert bench.promote().count == 0
    assert bench.rescue() == []
    assert bench.end_session(bench.session, claim, cause="signal 9") == []
    assert bench.get(claim.id) == done


@case()
def five_hundred_claims_end_in_one_call(bench: Bench) -> None:
    bench.add_many(500)
    claims = bench.claim(limit=500)
    targets = [list(JobState)[n % len(JobState)] for n in range(500)]
    targets = [
        JobState.COMPLETED if to in (JobState.BLOCKED, JobState.RUNNING) else to for to in targets
    ]
    outcomes = [bench.outcome(claim, to) for claim, to in zip(claims, targets, strict=True)]
    assert bench.finish(*outcomes) == [Answer.TOOK] * 500
    assert [job.state for job in bench.jobs([claim.id for claim in claims])] == targets


@case()
def the_history_keeps_its_last_hundred_entries(bench: Bench) -> None:
    job_id = bench.add()
    tokens = []
    for _ in range(HISTORY_LIMIT + 3):
        claim = bench.take()
        tokens.append(claim.token)
        bench.finish(bench.outcome(claim, JobState.READY, counts=False))
    job = bench.get(job_id)
    assert job.attempt == 0
    assert [entry.token for entry in job.history] == tokens[-HISTORY_LIMIT:]
    bench.cancel(job_id)
    assert len(bench.get(job_id).history) == HISTORY_LIMIT


@case()
def a_suspect_that_ends_by_itself_is_innocent(bench: Bench) -> None:
    (claim,) = claimed(bench)
    bench.call(
        bench.driver.crash(CrashReport([ClaimRef(claim.id, claim.token)], "SIGSEGV"), now=bench.now)
    )
    again = bench.take()
    assert again.is_suspect
    bench.finish(bench.outcome(again, JobState.READY))
    assert not bench.get(claim.id).is_suspect
    assert not bench.take().is_suspect
