"""claim: ready jobs are taken in order, by live sessions, once each."""

from __future__ import annotations

from winch.core.job import Claim, to_micros
from winch.core.lifecycle import JobState
from winch.storage.params import Answer
from winch.testing.conformance.bench import DAY, HOUR, LEASE, MINUTE, SECOND, Bench
from winch.testing.conformance.case import case


@case()
def a_claim_carries_all_that_a_worker_needs(bench: Bench) -> None:
    new = bench.new_job(
        version=2,
        headers={"a": "b"},
        options='{"timeout":1}',
        expires=HOUR,
        priority=3,
        args='{"x":"ü"}',
    )
    bench.enqueue(new)
    created = bench.at
    bench.advance(SECOND)
    token = bench.new_token()
    (claim,) = bench.claim(token=token)
    assert claim == Claim(
        id=new.id,
        token=token,
        task=new.task,
        version=2,
        args='{"x":"ü"}',
        queue="default",
        attempt=1,
        fence=to_micros(bench.at),
        created_at=created,
        run_at=created,
        claimed_at=bench.at,
        is_suspect=False,
        expires_at=created + HOUR,
        headers={"a": "b"},
        options='{"timeout":1}',
        checkpoint=None,
    )


@case()
def jobs_stored_and_claimed_together_keep_what_each_has(bench: Bench) -> None:
    shared, other = {"a": "b"}, {"a": "ü", "c": ""}
    jobs = [
        bench.new_job(args=args, headers=headers)
        for headers in (shared, shared, {}, other, {}, {}, shared, dict(shared))
        for args in ('["ü"]', '["ü"]', "[]")
    ]
    bench.enqueue(*jobs)
    bench.advance(SECOND)
    claims = {claim.id: claim for claim in bench.claim(limit=len(jobs))}
    for job in jobs:
        claim = claims.pop(job.id)
        assert (claim.args, claim.headers, claim.attempt) == (job.args, job.headers, 1)
        assert (claim.is_suspect, claim.expires_at, claim.options, claim.checkpoint) == (
            False,
            None,
            None,
            None,
        )
    assert not claims


@case()
def a_claimed_job_runs_under_this_token_and_session(bench: Bench) -> None:
    job_id = bench.add()
    bench.advance(SECOND)
    claim = bench.take()
    job = bench.get(job_id)
    assert job.state is JobState.RUNNING
    assert (job.token, job.session) == (claim.token, bench.session)
    assert (job.attempt, job.fence, job.claimed_at) == (1, claim.fence, bench.now)
    assert job.ended_token is None


@case()
def an_empty_queue_gives_nothing(bench: Bench) -> None:
    assert bench.claim() == []
    assert bench.claim("never-heard-of") == []


@case()
def a_running_job_is_not_claimed_again(bench: Bench) -> None:
    bench.add()
    bench.take()
    assert bench.claim() == []
    assert bench.claim(session=bench.start_session()) == []


@case()
def jobs_are_taken_in_order_of_arrival(bench: Bench) -> None:
    ids = []
    for _ in range(5):
        ids.append(bench.add())
        bench.advance(SECOND)
    assert [bench.take().id for _ in range(5)] == ids


@case()
def one_claim_gives_its_jobs_in_order_of_arrival(bench: Bench) -> None:
    ids = []
    for _ in range(5):
        bench.advance(-SECOND)
        ids.append(bench.add())
    assert [claim.id for claim in bench.claim()] == ids[::-1]


@case()
def jobs_stored_together_keep_their_order(bench: Bench) -> None:
    first = bench.add_many(30)
    later = bench.add_many(30)  # at the same moment
    assert [claim.id for claim in bench.claim(limit=40)] == [*first, *later[:10]]
    assert [claim.id for claim in bench.claim(limit=40)] == later[10:]


@case()
def jobs_due_together_keep_their_order(bench: Bench) -> None:
    ids = bench.add_many(30, delay=MINUTE)
    bench.advance(MINUTE)
    bench.promote()
    assert [claim.id for claim in bench.claim()] == ids


@case()
def a_level_of_priority_is_a_head_start_of_sixty_seconds(bench: Bench) -> None:
    plain = bench.add()
    bench.advance(59 * SECOND)
    early = bench.add(priority=1)
    bench.advance(2 * SECOND)
    late = bench.add(priority=1)
    assert [claim.id for claim in bench.claim()] == [early, plain, late]


@case()
def a_low_priority_does_not_starve(bench: Bench) -> None:
    low = bench.add(priority=-10)
    bench.advance(9 * MINUTE)
    middle = bench.add()
    bench.advance(2 * MINUTE)
    new = bench.add()
    assert [claim.id for claim in bench.claim()] == [middle, low, new]


@case()
def a_delayed_job_stands_where_its_run_time_puts_it(bench: Bench) -> None:
    delayed = bench.add(delay=10 * SECOND)
    bench.advance(5 * SECOND)
    sooner = bench.add()
    bench.advance(10 * SECOND)
    later = bench.add()
    bench.promote()
    assert [claim.id for claim in bench.claim()] == [sooner, delayed, later]


@case()
def a_retrying_job_stands_where_its_new_run_time_puts_it(bench: Bench) -> None:
    failing = bench.add()
    claim = bench.take()
    bench.finish(bench.outcome(claim, JobState.RETRYING, delay=10 * SECOND))
    bench.advance(5 * SECOND)
    sooner = bench.add()
    bench.advance(10 * SECOND)
    later = bench.add()
    bench.promote()
    assert [claim.id for claim in bench.claim()] == [sooner, failing, later]


@case()
def no_more_than_the_limit_is_taken(bench: Bench) -> None:
    bench.add_many(5)
    assert len(bench.claim(limit=3)) == 3
    assert len(bench.claim(limit=3)) == 2
    assert bench.claim(limit=3) == []


@case()
def the_first_queue_comes_first_however_old_the_others(bench: Bench) -> None:
    old = bench.add(queue="b")
    bench.advance(HOUR)
    new = bench.add(queue="a")
    assert [claim.id for claim in bench.claim("a", "b")] == [new, old]


@case()
def the_limit_holds_over_all_queues(bench: Bench) -> None:
    a, b, c = (bench.add_many(2, queue=queue) for queue in "abc")
    first = [claim.id for claim in bench.claim("b", "a", "c", limit=3)]
    assert set(first[:2]) == set(b)
    assert first[2] in a
    rest = [claim.id for claim in bench.claim("b", "a", "c", limit=10)]
    assert rest[0] in a
    assert set(rest[1:]) == set(c)


@case()
def only_the_named_queues_are_touched(bench: Bench) -> None:
    other = bench.get(bench.add(queue="other"))
    mine = bench.add(queue="mine")
    assert [claim.id for claim in bench.claim("mine")] == [mine]
    assert bench.get(other.id) == other


@case()
def a_paused_queue_gives_nothing_and_the_others_go_on(bench: Bench) -> None:
    held = bench.add(queue="held")
    open_ = bench.add(queue="open")
    bench.pause("held")
    assert [claim.id for claim in bench.claim("held", "open")] == [open_]
    bench.resume("held")
    assert [claim.id for claim in bench.claim("held", "open")] == [held]


@case()
def a_task_the_worker_does_not_know_stays_untouched(bench: Bench) -> None:
    strange = bench.get(bench.add(task="new.task"))
    bench.advance(SECOND)
    known = bench.add(task="mail.send")
    assert [claim.id for claim in bench.claim(tasks=("mail.send", "mail.sort"))] == [known]
    assert bench.get(strange.id) == strange
    assert [claim.id for claim in bench.claim(tasks=("new.task",))] == [strange.id]


@case()
def unknown_tasks_at_the_front_do_not_hide_known_ones(bench: Bench) -> None:
    bench.add_many(300, task="new.task")
    bench.advance(SECOND)
    known = bench.add(task="mail.send")
    assert [claim.id for claim in bench.claim(tasks=("mail.send",), limit=1)] == [known]


@case()
def a_worker_without_tasks_gets_nothing(bench: Bench) -> None:
    bench.add()
    assert bench.claim(tasks=()) == []


@case()
def an_unknown_session_gets_nothing(bench: Bench) -> None:
    job = bench.get(bench.add())
    assert bench.claim(session=bench.new_token()) == []
    assert bench.get(job.id) == job


@case()
def an_ended_session_gets_nothing(bench: Bench) -> None:
    job = bench.get(bench.add())
    session = bench.start_session()
    bench.end_session(session)
    assert bench.claim(session=session) == []
    assert bench.get(job.id) == job


@case()
def a_session_whose_lease_was_swept_gets_nothing(bench: Bench) -> None:
    session = bench.start_session()
    bench.advance(LEASE)
    bench.rescue()
    bench.add()
    assert bench.claim(session=session) == []


@case()
def waiting_jobs_are_not_claimed_even_when_due(bench: Bench) -> None:
    scheduled = bench.make_job(JobState.SCHEDULED)
    retrying = bench.make_job(JobState.RETRYING)
    bench.advance(DAY)
    assert bench.claim(scheduled.queue, retrying.queue) == []
    bench.promote()
    assert len(bench.claim(scheduled.queue, retrying.queue)) == 2


@case()
def final_jobs_are_not_claimed(bench: Bench) -> None:
    made = [bench.make_job(state) for state in (JobState.COMPLETED, JobState.CANCELLED, JobState.DEAD)]
    assert bench.claim(*[job.queue for job in made]) == []


@case()
def each_claim_counts_one_attempt(bench: Bench) -> None:
    bench.add()
    for attempt in (1, 2, 3):
        claim = bench.take()
        assert claim.attempt == attempt
        assert bench.finish(bench.outcome(claim, JobState.READY)) == [Answer.TOOK]


@case()
def the_fence_grows_with_every_claim(bench: Bench) -> None:
    bench.add()
    fences = []
    for _ in range(5):  # the store's clock stands still
        claim = bench.take()
        fences.append(claim.fence)
        bench.release(claim)
    assert fences == sorted(set(fences))
    bench.advance(SECOND)
    assert bench.take().fence >= to_micros(bench.at) > fences[-1]


@case()
def the_fence_grows_when_the_clock_goes_backwards(bench: Bench) -> None:
    bench.add()
    first = bench.take()
    bench.release(first)
    bench.advance(-DAY)
    second = bench.take()
    assert second.fence > first.fence


@case()
def the_fence_grows_through_an_operators_retry(bench: Bench) -> None:
    job = bench.make_job(JobState.DEAD)
    bench.advance(-DAY)
    bench.retry(job.id)
    claim = bench.take(job.queue)
    assert claim.attempt == 1
    assert claim.fence > job.fence


@case()
def a_suspect_is_told_to_be_one(bench: Bench) -> None:
    bench.add()
    session = bench.start_session()
    bench.take(session=session)
    bench.advance(LEASE)
    bench.rescue()
    assert bench.take(session=bench.start_session()).is_suspect


@case()
def five_hundred_jobs_are_claimed_in_one_call(bench: Bench) -> None:
    ids = bench.add_many(600)
    taken = bench.claim(limit=500)
    assert len({claim.id for claim in taken}) == 500
    assert {claim.id for claim in taken} < set(ids)
    counts = bench.counts()
    assert (counts[JobState.RUNNING], counts[JobState.READY]) == (500, 100)


@case()
def no_job_goes_to_two_workers_that_claim_at_once(bench: Bench) -> None:
    ids = bench.add_many(120)
    sessions = [bench.start_session() for _ in range(8)]
    claims = [bench.claiming(session=session, limit=20) for session in sessions]
    taken = bench.together([bench.driver.claim(params, now=bench.now) for params in claims])
    seen = [claim.id for batch in taken for claim in batch]
    assert len(seen) == len(set(seen))
    seen += [claim.id for claim in bench.claim(limit=120)]  # SKIP LOCKED may have left some behind
    assert sorted(seen) == sorted(ids)
    for params, batch in zip(claims, taken, strict=True):
        assert {claim.token for claim in batch} <= {params.token}
