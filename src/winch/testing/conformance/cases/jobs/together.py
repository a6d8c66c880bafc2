"""Jobs that are waited for together, by one key and without a count; and `results`."""

from __future__ import annotations

from typing import Any

from winch.core.flow import member_id, members_prefix
from winch.core.job import Claim
from winch.core.lifecycle import JobState
from winch.storage.decide.waits import AWAITED_HEADER, EACH, Dependencies, all_key, death_key, job_key
from winch.storage.params import Answer, ClaimRef, NewJob, Wait
from winch.storage.verbs import Verb
from winch.testing.conformance.bench import LEASE, SECOND, Bench
from winch.testing.conformance.case import case
from winch.testing.conformance.cases.jobs.waits import after, unblock
from winch.testing.conformance.cases.store.reports import crash


def members(
    bench: Bench, count: int, *, name: str = "0", flow: str = "", each: bool = False
) -> list[NewJob]:
    """Members of one name, which are waited for together."""
    flow = flow or bench.new_id()
    key = all_key(members_prefix(flow, name)) + (EACH if each else "")
    headers = {AWAITED_HEADER: key}
    return [bench.new_job(id=member_id(flow, name, number), headers=headers) for number in range(count)]


def together(jobs: list[NewJob]) -> Wait:
    return Wait(jobs[0].headers[AWAITED_HEADER].removesuffix(EACH))


def called_back(bench: Bench, jobs: list[NewJob], *waits: Wait) -> str:
    """The id of a callback that waits for all of these, which are stored with it."""
    callback = bench.new_job(queue="callbacks")
    bench.enqueue(*jobs)
    after(bench, [callback], (callback.id, [together(jobs), *waits]))
    return callback.id


def state(bench: Bench, job_id: str) -> JobState:
    unblock(bench)
    return bench.get(job_id).state


@case()
def what_waits_for_many_is_ready_when_the_last_of_them_is_final(bench: Bench) -> None:
    jobs = members(bench, 5)
    callback = called_back(bench, jobs)
    assert state(bench, callback) is JobState.BLOCKED
    claims = bench.claim(limit=5)
    assert [claim.id for claim in claims] == [job.id for job in jobs]
    bench.finish(*(bench.outcome(claim) for claim in claims[:3]))
    assert state(bench, callback) is JobState.BLOCKED
    bench.finish(bench.outcome(claims[3], JobState.DEAD))
    assert state(bench, callback) is JobState.BLOCKED
    bench.finish(bench.outcome(claims[4], JobState.CANCELLED, what="cancelled"))
    assert state(bench, callback) is JobState.READY


@case()
def the_last_two_that_end_at_the_same_time_wake_what_waits_once(bench: Bench) -> None:
    for _ in range(5):
        jobs = members(bench, 4)
        callback = called_back(bench, jobs)
        unblock(bench)
        claims = bench.claim(limit=4)
        bench.together([bench.driver.finish([bench.outcome(c)], now=bench.now) for c in claims])
        counts = bench.together([bench.driver.unblock(now=bench.now) for _ in range(4)])
        assert sum(unblocked.count for unblocked in counts) + unblock(bench).count == 1
        (claim,) = bench.claim("callbacks")
        assert claim.id == callback
        bench.finish(bench.outcome(claim))


@case()
def a_finish_that_is_repeated_counts_once(bench: Bench) -> None:
    jobs = members(bench, 2)
    callback = called_back(bench, jobs)
    first, second = bench.claim(limit=2)
    assert bench.finish(bench.outcome(first)) == [Answer.TOOK]
    assert bench.finish(bench.outcome(first)) == [Answer.ALREADY]
    assert state(bench, callback) is JobState.BLOCKED
    bench.finish(bench.outcome(second))
    assert state(bench, callback) is JobState.READY


@case()
def an_enqueue_that_is_repeated_counts_once(bench: Bench) -> None:
    jobs = members(bench, 2)
    callback = called_back(bench, jobs)
    assert [answer.is_new for answer in bench.enqueue(*jobs, is_repeat=True)] == [False, False]
    bench.finish(*(bench.outcome(claim) for claim in bench.claim(limit=2)))
    assert state(bench, callback) is JobState.READY


@case()
def a_member_that_runs_again_is_waited_for(bench: Bench) -> None:
    """Retried, rescued, released, snoozed: it is not final."""
    jobs = members(bench, 2)
    callback = called_back(bench, jobs)
    session = bench.start_session()
    first, second = bench.claim(session=session, limit=2)
    bench.finish(bench.outcome(first))
    bench.advance(LEASE + SECOND)
    bench.rescue()
    assert bench.finish(bench.outcome(second)) == [Answer.LOST]
    assert state(bench, callback) is JobState.BLOCKED
    again = bench.take()
    bench.finish(bench.outcome(again, JobState.RETRYING, what="failed", delay=SECOND))
    assert state(bench, callback) is JobState.BLOCKED
    bench.advance(SECOND)
    bench.promote()
    third = bench.take()
    bench.release(third)
    assert state(bench, callback) is JobState.BLOCKED
    bench.finish(bench.outcome(bench.take()))
    assert state(bench, callback) is JobState.READY


@case()
def every_way_to_an_end_counts_for_those_together(bench: Bench) -> None:
    jobs = members(bench, 6)
    callback = called_back(bench, jobs)
    claims = bench.claim(limit=4)
    bench.cancel(jobs[4].id)
    bench.delete(jobs[5].id)
    for claim in claims[:2]:
        bench.cancel(claim.id)
    bench.release(claims[0])
    crash(bench, claims[1])
    bench.finish(bench.outcome(claims[2], JobState.DEAD))
    assert state(bench, callback) is JobState.BLOCKED
    bench.finish(bench.outcome(claims[3]))
    assert state(bench, callback) is JobState.READY


@case()
def a_member_that_dies_with_its_process_is_final(bench: Bench) -> None:
    jobs = members(bench, 1)
    callback = called_back(bench, jobs)
    for crashes in range(1, 4):
        (claim,) = bench.claim()
        crash(bench, claim)
        is_dead = crashes == 3
        assert state(bench, callback) is (JobState.READY if is_dead else JobState.BLOCKED)
    assert bench.get(jobs[0].id).state is JobState.DEAD


@case()
def those_that_are_retried_by_an_operator_are_waited_for_again(bench: Bench) -> None:
    jobs = members(bench, 2)
    bench.enqueue(*jobs)
    bench.finish(*(bench.outcome(claim, JobState.DEAD) for claim in bench.claim(limit=2)))
    bench.advance(SECOND)
    bench.retry(jobs[0].id)
    callback = bench.new_job(queue="callbacks")
    after(bench, [callback], (callback.id, [together(jobs)]))
    assert state(bench, callback.id) is JobState.BLOCKED
    bench.finish(bench.outcome(bench.take()))
    assert state(bench, callback.id) is JobState.READY


@case()
def those_of_which_there_is_none_are_not_waited_for(bench: Bench) -> None:
    others = members(bench, 1)
    bench.enqueue(*others)
    callback = bench.new_job(queue="callbacks")
    nobody = all_key(members_prefix(bench.new_id(), "0"))
    after(bench, [callback], (callback.id, [Wait(nobody)]))
    assert state(bench, callback.id) is JobState.READY


@case()
def jobs_of_another_name_or_flow_are_not_waited_for(bench: Bench) -> None:
    flow = bench.new_id()
    jobs = members(bench, 1, flow=flow)
    others = members(bench, 1, name="1", flow=flow)
    callback = called_back(bench, jobs)
    bench.enqueue(*others)
    claims = {claim.id: claim for claim in bench.claim(limit=2)}
    bench.finish(bench.outcome(claims[jobs[0].id]))
    assert state(bench, callback) is JobState.READY


@case()
def a_member_adds_others_while_it_is_unfinished(bench: Bench) -> None:
    jobs = members(bench, 1)
    callback = called_back(bench, jobs)
    claim = bench.take()
    more = members(bench, 3, name=f"m{claim.id}")
    ref = ClaimRef(claim.id, claim.token)
    verb = bench.driver.enqueue_after(
        more, Dependencies([(callback, [together(more)])], ref), now=bench.now
    )
    assert bench.call(verb) is not None
    bench.finish(bench.outcome(claim))
    assert state(bench, callback) is JobState.BLOCKED
    late = members(bench, 1, name="late")
    refused = bench.driver.enqueue_after(
        late, Dependencies([(callback, [together(late)])], ref), now=bench.now
    )
    assert bench.call(refused) is None
    bench.finish(*(bench.outcome(one) for one in bench.claim(limit=3)))
    assert state(bench, callback) is JobState.READY


@case()
def a_finish_and_a_wait_for_it_at_the_same_time_find_each_other(bench: Bench) -> None:
    for _ in range(8):
        jobs = members(bench, 2)
        bench.enqueue(*jobs)
        claims = bench.claim(limit=2)
        callback = bench.new_job(queue="callbacks")
        verbs: list[Verb[Any]] = [
            *(bench.driver.finish([bench.outcome(claim)], now=bench.now) for claim in claims),
            bench.driver.enqueue_after(
                [callback], Dependencies([(callback.id, [together(jobs)])]), now=bench.now
            ),
            bench.driver.unblock(now=bench.now),
        ]
        bench.together(verbs)
        assert state(bench, callback.id) is JobState.READY
        (claim,) = bench.claim("callbacks")
        bench.finish(bench.outcome(claim))


@case()
def one_can_be_waited_for_alone_and_together_with_others(bench: Bench) -> None:
    jobs = members(bench, 3, each=True)
    callback = called_back(bench, jobs)
    alone, deaths = bench.new_job(queue="callbacks"), bench.new_job(queue="callbacks")
    after(bench, [alone], (alone.id, [Wait(job_key(jobs[0].id))]))
    dead = [Wait(death_key(job.id), is_enough=True) for job in jobs]
    after(bench, [deaths], (deaths.id, [together(jobs), *dead]))
    first, second, third = bench.claim(limit=3)
    bench.finish(bench.outcome(first))
    assert state(bench, alone.id) is JobState.READY
    assert state(bench, deaths.id) is JobState.BLOCKED
    bench.finish(bench.outcome(second, JobState.DEAD))
    assert state(bench, deaths.id) is JobState.READY
    assert state(bench, callback) is JobState.BLOCKED
    bench.finish(bench.outcome(third))
    assert state(bench, callback) is JobState.READY


@case()
def many_are_stored_and_ended_in_many_calls(bench: Bench) -> None:
    jobs = members(bench, 60)
    for at in range(0, 60, 20):
        bench.enqueue(*jobs[at : at + 20])
    callback = bench.new_job(queue="callbacks")
    after(bench, [callback], (callback.id, [together(jobs)]))
    rest: list[Claim] = []
    for _ in range(3):
        claims = bench.claim(limit=20)
        bench.finish(*(bench.outcome(claim) for claim in claims[:-1]))
        rest.append(claims[-1])
        assert state(bench, callback.id) is JobState.BLOCKED
    bench.finish(*(bench.outcome(claim) for claim in rest))
    assert state(bench, callback.id) is JobState.READY


@case()
def results_are_those_of_the_jobs_that_were_asked_for(bench: Bench) -> None:
    jobs = members(bench, 4)
    bench.enqueue(*jobs)
    alone = bench.add(queue="other")
    claims = bench.claim(limit=3)
    bench.finish(
        bench.outcome(claims[0], result="[1]"), bench.outcome(claims[1], JobState.DEAD, result=None)
    )
    ids = [job.id for job in jobs]
    states = [JobState.COMPLETED, JobState.DEAD, JobState.RUNNING, JobState.READY]
    found = bench.call(bench.driver.results(ids))
    assert [None if end is None else end.state for end in found] == states
    assert [end.result for end in found if end is not None] == ["[1]", None, None, None]
    assert {end.task for end in found if end is not None} == {jobs[0].task}
    asked = [alone, ids[3], bench.new_id(), ids[0], alone]
    some = bench.call(bench.driver.results(asked))
    assert [None if end is None else end.state for end in some] == [
        JobState.READY, JobState.READY, None, JobState.COMPLETED, JobState.READY,
    ]  # fmt: skip
    assert bench.call(bench.driver.results([])) == []


@case()
def results_tell_the_task_however_long_its_name_is(bench: Bench) -> None:
    names = ["t", "t" * 31, "t" * 32, "t" * 200]
    jobs = [bench.new_job(task=name) for name in names for _ in range(2)]
    bench.enqueue(*jobs)
    for claim in bench.claim(limit=4):
        bench.complete(claim, result="7")
    found = bench.call(bench.driver.results([job.id for job in jobs]))
    assert [end and end.task for end in found] == [job.task for job in jobs]
    assert sorted(end.result or "" for end in found if end) == [""] * 4 + ["7"] * 4
