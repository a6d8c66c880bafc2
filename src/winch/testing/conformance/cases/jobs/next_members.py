"""Hand-over in the finish: the call that ends a member of a FIFO key claims the next one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from winch.core.gates.uses import SCOPE, BreakerSpec, GateSpec, GateUse
from winch.core.job import Claim
from winch.core.lifecycle import JobState
from winch.core.policy.queue_settings import QueueRule
from winch.storage.params import Answer, Finish, NewJob
from winch.testing.conformance.bench import HOUR, LEASE, Bench
from winch.testing.conformance.case import case
from winch.testing.conformance.cases.gates.gates import fifo, gated, ids_of, limit, set_limits
from winch.testing.conformance.cases.jobs.fifo import drained, ids, members

TOOK, ALREADY, LOST = [Answer.TOOK], [Answer.ALREADY], [Answer.LOST]


def ended(bench: Bench, claim: Claim, to: JobState = JobState.COMPLETED, **fields: Any) -> Finish:
    return bench.outcome(claim, to, is_gated=True, **fields)


def started(bench: Bench, jobs: Sequence[NewJob], **fields: Any) -> Claim:
    """The first member, claimed; the others wait."""
    bench.enqueue(*jobs)
    claim = bench.take(limit=1, **fields)
    assert claim.id == jobs[0].id
    assert bench.claim() == []
    return claim


def is_refused(bench: Bench, claim: Claim, **fields: Any) -> None:
    """The end takes, and claims nothing."""
    assert bench.finish_and_claim(ended(bench, claim), then=bench.claiming(**fields)) == (TOOK, [])


@case()
def a_finish_claims_the_next_member_of_its_key(bench: Bench) -> None:
    jobs = members(bench, 4)
    claim = started(bench, jobs)
    order = [claim.id]
    for _ in jobs[1:]:
        then = bench.claiming()
        answers, claims = bench.finish_and_claim(ended(bench, claim), then=then)
        assert answers == TOOK
        (claim,) = claims
        record = bench.get(claim.id)
        assert (record.state, record.token, record.session) == (
            JobState.RUNNING,
            then.token,
            then.session,
        )
        assert (claim.token, claim.attempt, claim.claimed_at) == (then.token, 1, bench.at)
        assert bench.claim() == []
        order.append(claim.id)
    assert order == ids(jobs)
    assert bench.finish_and_claim(ended(bench, claim), then=bench.claiming()) == (TOOK, [])
    assert [job.state for job in bench.jobs(order)] == [JobState.COMPLETED] * 4


@case()
def members_that_no_claim_has_looked_at_are_claimed_by_a_finish(bench: Bench) -> None:
    """They are ready, not blocked, when the one before them ends."""
    bench.add(**gated(fifo()))
    claim = bench.take()
    later = bench.add_many(2, **gated(fifo()))
    _, claims = bench.finish_and_claim(ended(bench, claim), then=bench.claiming())
    assert ids_of(claims) == later[:1]
    assert drained(bench, claims[0]) == later


@case()
def one_finish_claims_the_next_members_of_many_keys(bench: Bench) -> None:
    lines = [members(bench, 3, f"acct:{n}") for n in range(20)]
    bench.enqueue(*(line[place] for place in range(3) for line in lines))
    claims = bench.claim()
    assert ids_of(claims) == [line[0].id for line in lines]
    for place in (1, 2):
        outcomes = [ended(bench, claim) for claim in claims]
        answers, claims = bench.finish_and_claim(*outcomes, then=bench.claiming())
        assert answers == TOOK * 20
        assert ids_of(claims) == [line[place].id for line in lines]
    assert bench.finish(*(ended(bench, claim) for claim in claims)) == TOOK * 20


@case()
def a_finish_claims_no_more_than_its_limit(bench: Bench) -> None:
    lines = [members(bench, 2, f"acct:{n}") for n in range(5)]
    bench.enqueue(*(line[place] for place in range(2) for line in lines))
    claims = bench.claim()
    outcomes = [ended(bench, claim) for claim in claims]
    _, taken = bench.finish_and_claim(*outcomes, then=bench.claiming(limit=2))
    assert ids_of(taken) == [line[1].id for line in lines[:2]]
    assert ids_of(bench.claim()) == [line[1].id for line in lines[2:]]


@case()
def a_repeated_finish_claims_nothing(bench: Bench) -> None:
    jobs = members(bench, 3)
    outcome = ended(bench, started(bench, jobs))
    then = bench.claiming()
    _, (second,) = bench.finish_and_claim(outcome, then=then)
    assert bench.finish_and_claim(outcome, then=bench.claiming()) == (ALREADY, [])
    assert bench.give_up(then.session, then.token) == 1
    assert bench.finish_and_claim(outcome, then=bench.claiming()) == (ALREADY, [])
    third = bench.take()
    assert third.id == second.id
    assert bench.complete(second) is Answer.LOST
    assert drained(bench, third) == ids(jobs[1:])


@case()
def a_finish_that_comes_after_its_own_repeat_claims_nothing(bench: Bench) -> None:
    """The first call was delayed, and its worker has given its token up."""
    jobs = members(bench, 2)
    outcome = ended(bench, started(bench, jobs))
    assert bench.finish(outcome) == TOOK
    assert bench.finish_and_claim(outcome, then=bench.claiming()) == (ALREADY, [])
    assert drained(bench) == ids(jobs[1:])


@case()
def a_finish_that_is_lost_claims_nothing(bench: Bench) -> None:
    jobs = members(bench, 2)
    claim = started(bench, jobs)
    bench.release(claim)
    assert bench.finish_and_claim(ended(bench, claim), then=bench.claiming()) == (LOST, [])
    assert drained(bench) == ids(jobs)


@case()
def a_key_goes_on_only_after_a_member_that_is_final(bench: Bench) -> None:
    for to in (JobState.RETRYING, JobState.SCHEDULED, JobState.READY):
        jobs = members(bench, 2, f"acct:{to}", queue=bench.new_queue())
        bench.enqueue(*jobs)
        claim = bench.take(jobs[0].queue)
        then = bench.claiming(jobs[0].queue)
        assert bench.finish_and_claim(ended(bench, claim, to, delay=HOUR), then=then) == (TOOK, [])
        assert bench.get(jobs[1].id).state is not JobState.RUNNING


@case()
def a_dead_member_goes_on_unless_its_key_blocks(bench: Bench) -> None:
    jobs = members(bench, 2)
    claim = started(bench, jobs)
    _, claims = bench.finish_and_claim(ended(bench, claim, JobState.DEAD), then=bench.claiming())
    assert ids_of(claims) == [jobs[1].id]
    bench.complete(claims[0], is_gated=True)
    strict = gated(fifo("acct:8", blocks=True))
    first, second = bench.add(**strict), bench.add(**strict)
    claim = bench.take()
    assert claim.id == first
    then = bench.claiming()
    assert bench.finish_and_claim(ended(bench, claim, JobState.DEAD), then=then) == (TOOK, [])
    assert bench.claim() == []
    assert bench.get(second).state is not JobState.RUNNING


@case()
def a_finish_claims_nothing_that_its_worker_does_not_serve(bench: Bench) -> None:
    """The member is ready instead, for its own workers."""
    kinds: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"queue": "others"}, {}),
        ({"task": "mail.b"}, {"tasks": ("mail.a",)}),
    ]
    for number, (fields, serves) in enumerate(kinds):
        first, second = members(bench, 2, f"acct:{number}", task="mail.a")
        second = bench.new_job(
            **{**gated(fifo(f"acct:{number}")), "id": second.id, "task": "mail.a", **fields}
        )
        bench.enqueue(first, second)
        claim = bench.take("default", "others", limit=1)
        assert bench.claim("default", "others") == []
        is_refused(bench, claim, **serves)
        taken = bench.take("default", "others")
        assert taken.id == second.id
        bench.complete(taken, is_gated=True)


@case()
def a_finish_claims_nothing_from_a_paused_queue(bench: Bench) -> None:
    jobs = members(bench, 2)
    claim = started(bench, jobs)
    bench.pause("default")
    is_refused(bench, claim)
    bench.resume("default")
    assert drained(bench) == ids(jobs[1:])


@case()
def a_finish_claims_nothing_for_a_session_that_has_ended(bench: Bench) -> None:
    jobs = members(bench, 3)
    claim = started(bench, jobs)
    gone = bench.start_session()
    bench.end_session(gone)
    is_refused(bench, claim, session=gone)
    second = bench.take()
    is_refused(bench, second, session=bench.new_id())
    assert drained(bench) == ids(jobs[2:])


@case()
def a_finish_takes_what_a_claim_would_take_first(bench: Bench) -> None:
    """An older job, a job of an earlier queue and a job of a tenant keep their turn."""
    others: list[dict[str, Any]] = [
        {"priority": 5},
        {"queue": "urgent"},
        {**gated(), "tenant": "acme"},
    ]
    for number, fields in enumerate(others):
        jobs = members(bench, 2, f"acct:{number}")
        claim = started(bench, jobs)
        other = bench.add(**fields)
        then = bench.claiming("urgent", "default")
        assert bench.finish_and_claim(ended(bench, claim), then=then) == (TOOK, [])
        taken = bench.claim("urgent", "default")
        assert set(ids_of(taken)) == {other, jobs[1].id}
        for one in taken:
            bench.complete(one, is_gated=True)


@case()
def a_finish_claims_nothing_from_a_queue_with_a_rule(bench: Bench) -> None:
    """A claim counts the queue's jobs, and knows its order."""
    for rule in (QueueRule(concurrency=1), QueueRule(is_strict=True)):
        queue = bench.new_queue()
        first, second = bench.add_many(2, queue=queue, **gated(fifo(queue)))
        claim = bench.take(queue)
        assert claim.id == first
        bench.call(bench.driver.set_queue(queue, rule, now=bench.now))
        then = bench.claiming(queue)
        assert bench.finish_and_claim(ended(bench, claim), then=then) == (TOOK, [])
        assert bench.take(queue).id == second


@case()
def a_finish_leaves_a_member_with_a_second_gate_to_a_claim(bench: Bench) -> None:
    both = gated(fifo(), limit(1))
    first, second = bench.add(**both), bench.add(**both)
    claim = bench.take(limit=1)
    assert claim.id == first
    assert bench.claim() == []
    is_refused(bench, claim)
    assert bench.take().id == second


@case()
def a_lost_claim_ends_and_claims_nothing_while_another_runs_the_member(bench: Bench) -> None:
    jobs = members(bench, 2)
    bench.enqueue(*jobs)
    worker = bench.start_session()
    zombie = bench.take(limit=1, session=worker)
    bench.advance(2 * LEASE)
    bench.beat(bench.session)
    assert [one.id for one in bench.rescue()] == [jobs[0].id]
    anew = bench.take(limit=1)
    assert anew.id == zombie.id
    assert bench.finish_and_claim(ended(bench, zombie), then=bench.claiming()) == (LOST, [])
    record = bench.get(anew.id)
    assert (record.state, record.token) == (JobState.RUNNING, anew.token)
    assert drained(bench, anew) == ids(jobs)


@case()
def a_member_that_a_finish_claimed_keeps_its_turn(bench: Bench) -> None:
    """The member before it has the lower number, and waits when an operator retries it."""
    jobs = members(bench, 3)
    claim = started(bench, jobs)
    _, (second,) = bench.finish_and_claim(ended(bench, claim), then=bench.claiming())
    bench.retry(jobs[0].id)
    assert bench.claim() == []
    assert bench.finish(ended(bench, second)) == TOOK
    assert drained(bench) == [jobs[0].id, jobs[2].id]


@case()
def a_breaker_counts_members_that_such_a_finish_ends(bench: Bench) -> None:
    """Four failures of nine trip nothing; of four they would."""
    spec = BreakerSpec(failures=0.5, of=4, window=60_000_000, hold=30_000_000)
    both = gated(fifo(), GateUse("scope:bank", SCOPE, breaker=spec))
    jobs = bench.add_many(10, **both)
    for job in jobs[:5]:
        claim = bench.take(limit=1)
        assert claim.id == job
        is_refused(bench, claim)
    for _ in range(4):
        bench.finish(ended(bench, bench.take(limit=1), JobState.DEAD, what="failed"))
    assert bench.take().id == jobs[9]


@case()
def a_member_that_a_finish_claimed_is_rescued_as_any_other(bench: Bench) -> None:
    jobs = members(bench, 3)
    claim = started(bench, jobs)
    worker = bench.start_session()
    _, (second,) = bench.finish_and_claim(ended(bench, claim), then=bench.claiming(session=worker))
    bench.advance(2 * LEASE)
    bench.beat(bench.session)
    assert [one.id for one in bench.rescue()] == [jobs[1].id]
    assert bench.finish_and_claim(ended(bench, second), then=bench.claiming()) == (LOST, [])
    assert drained(bench) == ids(jobs[1:])


@case()
def outcomes_of_plain_jobs_end_beside_those_that_claim(bench: Bench) -> None:
    plain = bench.add()
    first, second = bench.add_many(2, **gated(fifo()))
    claims = bench.claim(limit=2)
    assert ids_of(claims) == [plain, first]
    outcomes = [bench.outcome(claims[0]), ended(bench, claims[1])]
    answers, taken = bench.finish_and_claim(*outcomes, then=bench.claiming())
    assert answers == TOOK * 2
    assert ids_of(taken or bench.claim()) == [second]  # a store with parts may leave it to a claim


# -- limits: a driver may hand permits on in the same call ---------------------------------------------


def handed_on(bench: Bench, ends: Sequence[Claim], most: int) -> list[Claim]:
    """End these claims of jobs under a limit; what is claimed with it, or after it. Never more than
    there is room for."""
    outcomes = [ended(bench, claim) for claim in ends]
    answers, claims = bench.finish_and_claim(*outcomes, then=bench.claiming(limit=len(ends)))
    assert answers == [Answer.TOOK] * len(ends)
    assert len(claims) <= len(ends)
    running = [*claims, *bench.claim()]
    assert len(running) <= most
    (about,) = [one for one in bench.call(bench.driver.limits()) if one.used or one.waiting]
    assert about.used == len(running)
    return running


@case()
def the_permits_of_ended_jobs_go_to_the_next_in_line(bench: Bench) -> None:
    jobs = [bench.new_job(**gated(limit(2))) for _ in range(7)]
    bench.enqueue(*jobs)
    claims = bench.claim()
    order: list[str] = []
    while len(order) < 6:
        order += ids_of(claims)
        assert len(claims) == 2
        claims = handed_on(bench, claims, 2)
    assert [*order, *ids_of(claims)] == ids(jobs)


@case()
def permits_do_not_pass_a_job_that_stands_before(bench: Bench) -> None:
    first, plain = bench.new_job(**gated(limit(1))), bench.new_job()
    second = bench.new_job(**gated(limit(1)))
    bench.enqueue(first)
    claim = bench.take()
    bench.enqueue(plain, second)
    is_refused(bench, claim)
    assert ids_of(bench.claim()) == [plain.id, second.id]


@case()
def no_permit_goes_on_after_a_failure_that_is_retried(bench: Bench) -> None:
    first, second = (bench.new_job(**gated(limit(1))) for _ in range(2))
    bench.enqueue(first, second)
    claim = bench.take()
    assert bench.claim() == []
    outcome = ended(bench, claim, JobState.RETRYING, delay=HOUR)
    assert bench.finish_and_claim(outcome, then=bench.claiming()) == (TOOK, [])
    assert ids_of(bench.claim()) == [second.id]


@case()
def a_lower_limit_takes_permits_away_when_they_come_back(bench: Bench) -> None:
    jobs = [bench.new_job(**gated(limit(2))) for _ in range(5)]
    bench.enqueue(*jobs)
    one, other = bench.claim()
    set_limits(bench, limit_mail=GateSpec(1))
    _, claims = bench.finish_and_claim(ended(bench, one), then=bench.claiming(limit=1))
    assert (claims, bench.claim()) == ([], [])
    running = handed_on(bench, [other], 1)
    assert len(running) == 1


@case()
def a_paused_queue_hands_no_permit_on(bench: Bench) -> None:
    jobs = [bench.new_job(**gated(limit(1))) for _ in range(2)]
    bench.enqueue(*jobs)
    claim = bench.take()
    bench.pause("default")
    is_refused(bench, claim)
