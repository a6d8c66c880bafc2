"""crash, note, standing: what a worker reports about a job while it runs, and when its process dies."""

from __future__ import annotations

from typing import Any

from winch.core.job import CRASH_RULE, LOG_LIMIT, MAX_CRASHES, POISON_WINDOW, Claim, Note, SuspectRule
from winch.core.lifecycle import JobState
from winch.storage.crash_report import CrashReport
from winch.storage.params import Answer, ClaimRef, Standing
from winch.testing.conformance.bench import DAY, LEASE, SECOND, Bench
from winch.testing.conformance.case import case
from winch.testing.conformance.cases.jobs.finish import claimed


def crash(bench: Bench, *claims: Claim | ClaimRef, rule: SuspectRule = CRASH_RULE) -> list[Answer]:
    refs = [ClaimRef(claim.id, claim.token) for claim in claims]
    return bench.call(bench.driver.crash(CrashReport(refs, "killed by SIGSEGV", rule), now=bench.now))


def note(bench: Bench, claim: Claim, **fields: Any) -> Answer:
    return bench.call(bench.driver.note(ClaimRef(claim.id, claim.token), Note(**fields)))


def standing(bench: Bench, *claims: Claim | ClaimRef) -> list[Standing]:
    return bench.call(bench.driver.standing([ClaimRef(claim.id, claim.token) for claim in claims]))


@case()
def a_crash_makes_a_suspect_and_costs_no_attempt(bench: Bench) -> None:
    (claim,) = claimed(bench)
    bench.advance(SECOND)
    assert crash(bench, claim) == [Answer.TOOK]
    job = bench.get(claim.id)
    assert (job.state, job.attempt, job.crashes, job.is_suspect) == (JobState.READY, 0, 1, True)
    (entry,) = job.history
    assert (entry.what, entry.at, entry.attempt, entry.token) == ("crashed", bench.now, 1, claim.token)
    assert entry.error is not None
    assert entry.error.message == "killed by SIGSEGV"
    assert bench.take().is_suspect


@case()
def a_crash_keeps_the_jobs_place(bench: Bench) -> None:
    (claim,) = claimed(bench)
    bench.advance(SECOND)
    later = bench.add()
    crash(bench, claim)
    assert [again.id for again in bench.claim()] == [claim.id, later]


@case()
def crashes_end_in_death_at_the_limit_with_the_cause(bench: Bench) -> None:
    added = bench.add()
    for _ in range(MAX_CRASHES):
        claim = bench.take()
        bench.advance(SECOND)
        assert crash(bench, claim) == [Answer.TOOK]
    job = bench.get(added)
    assert (job.state, job.crashes) == (JobState.DEAD, MAX_CRASHES)
    assert job.reason == f"crashed {MAX_CRASHES} times; last cause: killed by SIGSEGV"


@case()
def the_caller_says_at_how_many_crashes_a_job_is_dead(bench: Bench) -> None:
    for most in (1, 5):
        rule = SuspectRule(most, DAY)
        by_crash, by_session = bench.add(), bench.add()
        for times in range(1, most + 1):
            state = JobState.DEAD if times == most else JobState.READY
            session = bench.start_session()
            one, other = bench.claim(session=session)
            bench.advance(SECOND)
            assert crash(bench, one, rule=rule) == [Answer.TOOK]
            (back,) = bench.end_session(session, other, cause="signal 9", rule=rule)
            assert back.to is state
            for job_id in (by_crash, by_session):
                job = bench.get(job_id)
                assert (job.state, job.crashes) == (state, times)


@case()
def the_caller_says_how_long_crashes_count(bench: Bench) -> None:
    rule = SuspectRule(2, DAY)
    by_crash, by_session = bench.add(), bench.add()
    # The second crash comes when the first no longer counts; the third follows soon.
    for wait, times in ((SECOND, 1), (DAY + SECOND, 1), (DAY - SECOND, 2)):
        bench.advance(wait)
        session = bench.start_session()
        one, other = bench.claim(session=session)
        crash(bench, one, rule=rule)
        bench.end_session(session, other, cause="signal 9", rule=rule)
        for job_id in (by_crash, by_session):
            job = bench.get(job_id)
            assert (job.state is JobState.DEAD, job.crashes) == (times == 2, times)


@case()
def crashes_outside_the_window_do_not_count(bench: Bench) -> None:
    session = bench.start_session(lease=2 * POISON_WINDOW)
    added = bench.add()
    for _ in range(MAX_CRASHES + 2):
        (claim,) = bench.claim(session=session)
        crash(bench, claim)
        bench.advance(POISON_WINDOW)
    job = bench.get(added)
    assert (job.state, job.crashes) == (JobState.READY, 1)


@case()
def a_crash_is_answered_pairwise_and_repeats_are_told(bench: Bench) -> None:
    a, b = claimed(bench, 2)
    assert crash(bench, ClaimRef(a.id, bench.new_token()), b) == [Answer.LOST, Answer.TOOK]
    assert crash(bench, b, ClaimRef(bench.new_id(), b.token)) == [Answer.ALREADY, Answer.LOST]
    assert bench.get(a.id).state is JobState.RUNNING
    assert bench.get(b.id).crashes == 1
    assert crash(bench) == []


@case()
def a_crash_of_a_job_to_be_cancelled_cancels_it(bench: Bench) -> None:
    (claim,) = claimed(bench)
    bench.cancel(claim.id)
    crash(bench, claim)
    assert bench.get(claim.id).state is JobState.CANCELLED


@case()
def a_note_is_kept_while_the_claim_is_live(bench: Bench) -> None:
    (claim,) = claimed(bench)
    assert note(bench, claim, progress='{"percent":40}') is Answer.TOOK
    assert note(bench, claim, checkpoint='{"page":7}') is Answer.TOOK
    assert note(bench, claim, log="one\n") is Answer.TOOK
    assert note(bench, claim, log="two \N{SNOWMAN}\n") is Answer.TOOK
    job = bench.get(claim.id)
    assert (job.progress, job.checkpoint) == ('{"percent":40}', '{"page":7}')
    assert job.log == "one\ntwo \N{SNOWMAN}\n"


@case()
def a_note_of_a_lost_claim_changes_nothing(bench: Bench) -> None:
    (claim,) = claimed(bench)
    bench.advance(2 * LEASE)
    bench.rescue()
    before = bench.get(claim.id)
    assert note(bench, claim, progress="1", checkpoint="2", log="3") is Answer.LOST
    assert bench.get(claim.id) == before
    bench.take(session=bench.start_session())
    assert note(bench, claim, progress="1", checkpoint="2", log="3") is Answer.LOST
    assert bench.get(claim.id).checkpoint is None


@case()
def notes_sent_together_take_or_are_lost_one_by_one(bench: Bench) -> None:
    a, b, c, d = claimed(bench, 4)
    bench.cancel(c.id)
    bench.finish(bench.outcome(d, JobState.COMPLETED))
    note(bench, a, progress="1", checkpoint='"old"')
    sent = [
        (ClaimRef(a.id, a.token), Note(checkpoint='"a"', log="line \N{SNOWMAN}\n")),
        (ClaimRef(b.id, bench.new_token()), Note(checkpoint='"stolen"', has_undo=True)),
        (ClaimRef(c.id, c.token), Note(checkpoint='"c"', has_undo=True, forgets_cancel=True)),
        (ClaimRef(d.id, d.token), Note(checkpoint='"late"')),
        (ClaimRef(bench.new_id(), b.token), Note(progress="1")),
    ]
    took = [Answer.TOOK, Answer.LOST, Answer.TOOK, Answer.LOST, Answer.LOST]
    assert bench.call(bench.driver.notes(sent)) == took
    first, second, third, last = (bench.get(claim.id) for claim in (a, b, c, d))
    assert (first.progress, first.checkpoint, first.log) == ("1", '"a"', "line \N{SNOWMAN}\n")
    assert (second.checkpoint, second.has_undo) == (None, False)
    assert (third.checkpoint, third.has_undo, third.cancel_requested_at) == ('"c"', True, None)
    assert last.checkpoint is None
    assert bench.call(bench.driver.notes(sent[1:2])) == [Answer.LOST]
    assert bench.call(bench.driver.notes(sent[2:3])) == [Answer.TOOK]


@case()
def notes_sent_together_again_change_nothing(bench: Bench) -> None:
    claims = claimed(bench, 3)
    sent = [(ClaimRef(c.id, c.token), Note(checkpoint=f'"{c.id}"', has_undo=True)) for c in claims]
    for _ in range(2):
        assert bench.call(bench.driver.notes(sent)) == [Answer.TOOK] * 3
    assert [bench.get(claim.id).checkpoint for claim in claims] == [note.checkpoint for _, note in sent]
    bench.advance(2 * LEASE)
    bench.rescue()
    assert bench.call(bench.driver.notes(sent)) == [Answer.LOST] * 3


@case()
def a_note_that_arrives_late_changes_nothing(bench: Bench) -> None:
    (claim,) = claimed(bench)
    bench.cancel(claim.id)
    assert note(bench, claim, number=1, checkpoint='"one"') is Answer.TOOK
    assert note(bench, claim, number=3, checkpoint='"three"', has_undo=True) is Answer.TOOK
    before = bench.get(claim.id)
    late = {"checkpoint": '"late"', "progress": "1", "log": "late\n"}
    for number in (1, 2, 3):  # 3: the same one once more
        sent = note(bench, claim, number=number, has_undo=False, forgets_cancel=True, **late)
        assert sent is Answer.TOOK
        assert bench.get(claim.id) == before
    assert note(bench, claim, number=4, has_undo=False, forgets_cancel=True, **late) is Answer.TOOK
    job = bench.get(claim.id)
    assert (job.checkpoint, job.progress, job.log) == ('"late"', "1", "late\n")
    assert (job.has_undo, job.cancel_requested_at) == (False, None)


@case()
def notes_that_arrive_late_together_change_nothing(bench: Bench) -> None:
    a, b, c = claimed(bench, 3)
    refs = [ClaimRef(claim.id, claim.token) for claim in (a, b, c)]

    def send(*numbers: int) -> None:
        sent = [
            (ref, Note(number=n, checkpoint=str(n), has_undo=n == 2, forgets_cancel=True))
            for ref, n in zip(refs, numbers, strict=True)
        ]
        assert bench.call(bench.driver.notes(sent)) == [Answer.TOOK] * 3

    send(1, 2, 1)
    bench.cancel(b.id)
    send(2, 1, 1)
    first, second, third = (bench.get(claim.id) for claim in (a, b, c))
    assert (first.checkpoint, first.has_undo) == ("2", True)
    assert (second.checkpoint, second.has_undo) == ("2", True)
    assert second.cancel_requested_at == bench.now
    assert third.checkpoint == "1"
    send(1, 3, 2)
    checkpoints = [bench.get(claim.id).checkpoint for claim in (a, b, c)]
    assert checkpoints == ["2", "3", "2"]


@case()
def numbers_of_notes_begin_anew_with_each_claim(bench: Bench) -> None:
    (claim,) = claimed(bench)
    note(bench, claim, number=7, checkpoint='"first"')
    bench.finish(bench.outcome(claim, JobState.READY))
    again = bench.take()
    assert note(bench, again, number=1, checkpoint='"second"') is Answer.TOOK
    assert bench.get(claim.id).checkpoint == '"second"'
    assert note(bench, claim, number=8, checkpoint='"stolen"') is Answer.LOST
    assert note(bench, again, number=1, checkpoint='"third"') is Answer.TOOK
    assert bench.get(claim.id).checkpoint == '"second"'


@case()
def a_note_without_a_number_takes_and_keeps_the_number(bench: Bench) -> None:
    (claim,) = claimed(bench)
    note(bench, claim, number=2, checkpoint='"two"')
    ref = ClaimRef(claim.id, claim.token)
    for only in ([(ref, Note(log="one\n"))], [(ref, Note(progress="1"))]):
        assert bench.call(bench.driver.notes(only)) == [Answer.TOOK]
    assert note(bench, claim, log="two\n") is Answer.TOOK
    assert note(bench, claim, number=1, checkpoint='"one"') is Answer.TOOK
    job = bench.get(claim.id)
    assert (job.checkpoint, job.progress, job.log) == ('"two"', "1", "one\ntwo\n")
    assert note(bench, claim, checkpoint='"mine"') is Answer.TOOK
    assert bench.get(claim.id).checkpoint == '"mine"'


@case()
def a_new_attempt_has_the_checkpoint_but_not_the_progress_and_log(bench: Bench) -> None:
    (claim,) = claimed(bench)
    note(bench, claim, progress="1", checkpoint='"here"', log="first\n")
    bench.finish(bench.outcome(claim, JobState.READY))
    (entry,) = bench.get(claim.id).history
    assert entry.log == "first\n"
    again = bench.take()
    assert again.checkpoint == '"here"'
    job = bench.get(claim.id)
    assert (job.progress, job.log, job.checkpoint) == (None, None, '"here"')


@case()
def jobs_given_back_together_are_claimed_anew_with_what_each_has(bench: Bench) -> None:
    """Two of each kind: a driver may treat those alike that look alike."""
    session = bench.start_session()
    bench.enqueue(*(bench.new_job() for _ in range(8)))
    created = bench.at
    bench.advance(SECOND)
    before = bench.claim(session=session, limit=8)
    for claim in before[2:4]:
        note(bench, claim, progress="1", log="one\n")
    for claim in before[4:6]:
        note(bench, claim, checkpoint='"here"')
    bench.end_session(session, *before[6:], cause="signal 9")
    for moved in (SECOND, -DAY):  # the store's clock may be set back, too
        bench.advance(moved)
        session = bench.start_session()
        after = {claim.id: claim for claim in bench.claim(session=session, limit=8)}
        for place, first in enumerate(before):
            claim, job = after[first.id], bench.get(first.id)
            # The last two had started when their process died, which counts no attempt.
            assert (claim.attempt, job.attempt, claim.is_suspect) == (1, 1, place >= 6)
            assert (claim.created_at, claim.run_at, job.run_at) == (created,) * 3
            assert claim.fence == job.fence > first.fence
            assert (job.progress, job.log) == (None, None)
            assert claim.checkpoint == job.checkpoint == ('"here"' if place in (4, 5) else None)
        before = [after[first.id] for first in before]
        bench.end_session(session)


@case()
def a_completed_job_keeps_its_log_and_progress(bench: Bench) -> None:
    (claim,) = claimed(bench)
    note(bench, claim, progress="1", log="done\n")
    bench.finish(bench.outcome(claim, JobState.COMPLETED))
    job = bench.get(claim.id)
    assert (job.progress, job.log) == ("1", "done\n")


@case()
def the_last_part_of_the_log_comes_with_the_finish(bench: Bench) -> None:
    for to in (JobState.COMPLETED, JobState.RETRYING, JobState.SCHEDULED, JobState.DEAD):
        (claim,) = claimed(bench)
        note(bench, claim, log="first\n")
        bench.finish(bench.outcome(claim, to, delay=SECOND, log="last ü\n"))
        job = bench.get(claim.id)
        assert job.log == "first\nlast ü\n"
        logs = [entry.log for entry in job.history]
        assert logs == ([] if to is JobState.COMPLETED else [job.log])


@case()
def a_log_keeps_its_end(bench: Bench) -> None:
    (claim,) = claimed(bench)
    note(bench, claim, log="a" * LOG_LIMIT)
    note(bench, claim, log="b" * 10)
    log = bench.get(claim.id).log or ""
    assert (len(log), log[-11:]) == (LOG_LIMIT, "a" + "b" * 10)


@case()
def held_names_the_live_claims_of_the_session(bench: Bench) -> None:
    for _ in range(3):
        bench.add()
    first = bench.claim(limit=2)
    (second,) = bench.claim()
    other = bench.start_session()
    bench.add()
    bench.claim(session=other)
    refs = [ClaimRef(claim.id, claim.token) for claim in (*first, second)]
    held: list[ClaimRef] = bench.call(bench.driver.held(bench.session))
    assert held == sorted(refs, key=lambda ref: ref.id)
    bench.finish(bench.outcome(second, JobState.COMPLETED))
    held = bench.call(bench.driver.held(bench.session))
    assert set(held) == set(refs[:2])
    assert bench.call(bench.driver.held(bench.new_token())) == []


@case()
def a_completed_attempt_is_recognised_after_an_operators_retry(bench: Bench) -> None:
    (claim,) = claimed(bench)
    outcome = bench.outcome(claim, JobState.COMPLETED)
    bench.finish(outcome)
    bench.retry(claim.id)
    again = bench.take()
    bench.finish(bench.outcome(again, JobState.COMPLETED))
    assert bench.finish(outcome) == [Answer.ALREADY]
    entries = [(entry.what, entry.token) for entry in bench.get(claim.id).history]
    assert entries == [("completed", claim.token), ("retried", None)]


@case()
def standing_tells_live_ended_and_lost_apart(bench: Bench) -> None:
    live, done, released, lost = claimed(bench, 4)
    bench.finish(bench.outcome(done, JobState.COMPLETED))
    bench.release(released)
    bench.give_up(bench.session, lost.token)
    stranger = ClaimRef(bench.new_id(), live.token)
    wrong = ClaimRef(live.id, bench.new_token())
    found = standing(bench, live, done, released, lost, wrong, stranger)
    assert found == [
        Standing.LIVE,
        Standing.ENDED,
        Standing.ENDED,
        Standing.LOST,
        Standing.LOST,
        Standing.LOST,
    ]
