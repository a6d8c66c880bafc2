"""Unique keys: at most one live job has a key, whatever calls store, retry, end or roll back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from threading import Thread
from typing import Any

from winch.core.job import MAX_CRASHES, Entry
from winch.core.lifecycle import FINAL, JobState
from winch.core.policy.unique import Duplicate
from winch.storage.params import Acted, Enqueued, NewJob
from winch.testing.conformance.bench import HOUR, LEASE, MINUTE, SECOND, Bench, RolledBack
from winch.testing.conformance.case import case

KEY = "welcome:7"


def keyed(bench: Bench, mode: Duplicate = Duplicate.RETURN, **fields: Any) -> NewJob:
    return bench.new_job(**{"unique_key": KEY, "on_duplicate": mode, **fields})


def is_held(bench: Bench, **fields: Any) -> str | None:
    """The holder of the key: found with a job that is deleted again where it was stored."""
    (answer,) = bench.enqueue(keyed(bench, **fields))
    if answer.is_new:
        bench.delete(answer.id)
    return answer.holder


# -- holding ------------------------------------------------------------------------------------------


@case()
def a_second_job_of_a_key_is_not_stored_and_told_the_holder(bench: Bench) -> None:
    first = bench.add(unique_key=KEY)
    second = keyed(bench)
    assert bench.enqueue(second) == [Enqueued(second.id, is_new=False, holder=first)]
    assert bench.find(second.id) == [None]
    assert bench.get(first).unique_key == KEY
    assert [claim.id for claim in bench.claim()] == [first]


@case()
def other_keys_and_jobs_without_one_are_not_in_the_way(bench: Bench) -> None:
    bench.add(unique_key=KEY)
    bench.add(unique_key=KEY + "0")
    bench.add(unique_key=KEY.upper())
    bench.add()
    assert len(bench.claim()) == 4


@case()
def the_key_is_held_in_every_live_state(bench: Bench) -> None:
    for state in (JobState.SCHEDULED, JobState.READY, JobState.RUNNING, JobState.RETRYING):
        job = bench.make_job(state, unique_key=f"key of {state}")
        assert is_held(bench, unique_key=f"key of {state}") == job.id


@case()
def the_key_is_free_when_the_job_is_final(bench: Bench) -> None:
    for state in sorted(FINAL):
        bench.make_job(state, unique_key=KEY)
        assert is_held(bench) is None
    for state in (JobState.SCHEDULED, JobState.READY, JobState.RETRYING):
        job = bench.make_job(state, unique_key=KEY)
        bench.cancel(job.id)
        assert is_held(bench) is None


@case()
def a_deleted_job_leaves_its_key(bench: Bench) -> None:
    for state in (JobState.SCHEDULED, JobState.READY, JobState.RETRYING):
        job = bench.make_job(state, unique_key=KEY)
        bench.delete(job.id)
        assert is_held(bench) is None
    old = bench.make_job(JobState.DEAD, unique_key=KEY)
    holder = bench.add(unique_key=KEY)
    bench.delete(old.id)
    assert is_held(bench) == holder


@case()
def whatever_ends_a_running_job_leaves_its_key(bench: Bench) -> None:
    for end in ("release", "give_up", "end_session", "rescue"):
        session = bench.start_session()
        job_id = bench.add(unique_key=KEY, queue=end)
        claim = bench.take(end, session=session)
        bench.cancel(job_id)
        assert is_held(bench) == job_id
        match end:
            case "release":
                bench.release(claim)
            case "give_up":
                bench.give_up(session, claim.token)
            case "end_session":
                bench.end_session(session, claim, cause="SIGKILL")
            case _:
                bench.advance(2 * LEASE)
                bench.rescue()
        assert bench.get(job_id).state is JobState.CANCELLED
        assert is_held(bench) is None


@case()
def a_job_that_runs_again_keeps_its_key(bench: Bench) -> None:
    job_id = bench.add(unique_key=KEY)
    for times in range(MAX_CRASHES):
        assert is_held(bench) == job_id
        session = bench.start_session()
        claim = bench.take(session=session)
        bench.end_session(session, claim, cause="SIGSEGV")
        is_dead = times == MAX_CRASHES - 1
        assert is_held(bench) == (None if is_dead else job_id)
    job_id = bench.add(unique_key=KEY)
    bench.release(bench.take())
    assert is_held(bench) == job_id
    bench.finish(bench.outcome(bench.take(), JobState.RETRYING, delay=SECOND))
    bench.advance(MINUTE)
    bench.promote()
    assert is_held(bench) == job_id


@case()
def prune_and_trim_leave_the_keys_of_live_jobs(bench: Bench) -> None:
    bench.kill(unique_key=KEY, keep=HOUR)
    bench.kill(unique_key=KEY)
    holder = bench.add(unique_key=KEY)
    bench.advance(2 * HOUR)
    assert bench.prune() == 1
    assert bench.trim(count=0) == 1
    assert is_held(bench) == holder


# -- in one call --------------------------------------------------------------------------------------


@case()
def two_of_one_key_in_one_call_are_one_job(bench: Bench) -> None:
    first, plain, second = keyed(bench), bench.new_job(), keyed(bench)
    assert bench.enqueue(first, plain, second) == [
        Enqueued(first.id, is_new=True),
        Enqueued(plain.id, is_new=True),
        Enqueued(second.id, is_new=False, holder=first.id),
    ]
    assert len(bench.claim()) == 2


@case()
def many_keys_in_one_call_each_find_their_holder(bench: Bench) -> None:
    old = {n: bench.add(unique_key=f"key {n}") for n in range(0, 40, 4)}
    new = [bench.new_job(unique_key=f"key {n}") for n in reversed(range(40))]
    for n, job, answer in zip(reversed(range(40)), new, bench.enqueue(*new), strict=True):
        assert answer == Enqueued(job.id, is_new=n not in old, holder=old.get(n))


@case()
def a_rejected_duplicate_keeps_the_whole_call_from_being_stored(bench: Bench) -> None:
    holder = bench.add(unique_key=KEY)
    plain, other, refused = (
        bench.new_job(),
        bench.new_job(unique_key="another"),
        keyed(bench, Duplicate.REJECT),
    )
    assert bench.enqueue(plain, other, refused) == [
        Enqueued(plain.id, is_new=False),
        Enqueued(other.id, is_new=False),
        Enqueued(refused.id, is_new=False, holder=holder),
    ]
    assert bench.find(plain.id, other.id, refused.id) == [None] * 3
    assert is_held(bench, unique_key="another") is None
    twice = [keyed(bench, Duplicate.REJECT, unique_key="new") for _ in range(2)]
    assert [answer.holder for answer in bench.enqueue(*twice)] == [None, twice[0].id]
    assert bench.find(twice[0].id) == [None]
    assert bench.enqueue(twice[0]) == [Enqueued(twice[0].id, is_new=True)]


# -- replacing ----------------------------------------------------------------------------------------


@case()
def a_waiting_holder_is_replaced(bench: Bench) -> None:
    for state in (JobState.SCHEDULED, JobState.READY, JobState.RETRYING):
        key = f"key of {state}"
        job = bench.make_job(state, unique_key=key, args='{"a":1}', tags=("t",), priority=1)
        bench.advance(SECOND)
        new = keyed(bench, Duplicate.REPLACE, unique_key=key, args='{"a":2}', version=2, priority=5)
        assert bench.enqueue(new) == [Enqueued(new.id, is_new=False, holder=job.id, is_replaced=True)]
        after = bench.get(job.id)
        assert (after.state, after.run_at, after.attempt) == (JobState.READY, bench.now, 0)
        assert (after.args, after.version, after.priority) == ('{"a":2}', 2, 5)
        assert (after.queue, after.tags, after.created_at) == (job.queue, ("t",), job.created_at)
        assert after.history == (*job.history, Entry(what="replaced", at=bench.at))
        assert bench.find(new.id) == [None]
        claim = bench.take(job.queue)
        assert (claim.id, claim.args, claim.attempt) == (job.id, '{"a":2}', 1)


@case()
def a_replaced_job_waits_for_its_new_time(bench: Bench) -> None:
    ready = bench.add(unique_key=KEY, queue="q")
    bench.enqueue(keyed(bench, Duplicate.REPLACE, delay=HOUR))
    job = bench.get(ready)
    assert (job.state, job.run_at) == (JobState.SCHEDULED, bench.at + HOUR)
    assert bench.claim("q") == []
    bench.advance(HOUR)
    assert bench.promote().count == 1
    assert bench.take("q").id == ready


@case()
def a_replaced_job_stands_where_its_new_priority_puts_it(bench: Bench) -> None:
    one, two = bench.add(queue="q"), bench.add(queue="q", unique_key=KEY)
    bench.advance(SECOND)
    bench.enqueue(keyed(bench, Duplicate.REPLACE, priority=10))
    assert [claim.id for claim in bench.claim("q")] == [two, one]


@case()
def a_running_holder_is_not_replaced_and_nothing_is_stored(bench: Bench) -> None:
    job = bench.make_job(JobState.RUNNING, unique_key=KEY)
    plain, new = bench.new_job(), keyed(bench, Duplicate.REPLACE)
    assert bench.enqueue(plain, new) == [
        Enqueued(plain.id, is_new=False),
        Enqueued(new.id, is_new=False, holder=job.id),
    ]
    assert bench.get(job.id) == job
    assert bench.find(plain.id) == [None]


@case()
def the_last_of_several_replacements_in_one_call_counts(bench: Bench) -> None:
    news = [keyed(bench, Duplicate.REPLACE, args=f'{{"n":{n}}}') for n in range(3)]
    assert bench.enqueue(*news) == [
        Enqueued(news[0].id, is_new=True),
        Enqueued(news[1].id, is_new=False, holder=news[0].id, is_replaced=True),
        Enqueued(news[2].id, is_new=False, holder=news[0].id, is_replaced=True),
    ]
    assert bench.get(news[0].id).args == '{"n":2}'
    bench.enqueue(*(keyed(bench, Duplicate.REPLACE, args=f'{{"n":{n}}}') for n in (7, 8)))
    assert bench.get(news[0].id).args == '{"n":8}'


# -- ids ----------------------------------------------------------------------------------------------


@case()
def the_same_given_id_is_the_same_job_and_no_duplicate(bench: Bench) -> None:
    new = keyed(bench, Duplicate.REJECT, is_given_id=True)
    assert bench.enqueue(new) == [Enqueued(new.id, is_new=True)]
    assert bench.enqueue(new) == [Enqueued(new.id, is_new=False)]
    bench.complete(bench.take())
    assert bench.enqueue(new) == [Enqueued(new.id, is_new=False)]
    assert is_held(bench) is None  # a job that is there already takes no key
    other = keyed(bench)
    assert [a.is_new for a in bench.enqueue(new, other)] == [False, True]


@case()
def a_repeat_finds_its_own_job_and_no_duplicate(bench: Bench) -> None:
    new = keyed(bench, Duplicate.REJECT)
    bench.enqueue(new)
    assert bench.enqueue(new, is_repeat=True) == [Enqueued(new.id, is_new=False)]
    bench.complete(bench.take())
    assert bench.enqueue(new, is_repeat=True) == [Enqueued(new.id, is_new=False)]
    assert is_held(bench) is None
    fresh = keyed(bench)
    assert bench.enqueue(fresh, is_repeat=True) == [Enqueued(fresh.id, is_new=True)]


# -- retrying -----------------------------------------------------------------------------------------


@case()
def an_operators_retry_takes_the_key_again(bench: Bench) -> None:
    for state in sorted(FINAL):
        job = bench.make_job(state, unique_key=KEY)
        assert bench.retry(job.id) == [Acted(job.id, state, took=True)]
        assert is_held(bench) == job.id
        assert bench.get(job.id).unique_key == KEY
        bench.complete(bench.take(job.queue))
        assert is_held(bench) is None


@case()
def a_retry_is_refused_while_another_job_has_the_key(bench: Bench) -> None:
    dead = bench.kill(unique_key=KEY)
    plain = bench.kill()
    holder = bench.add(unique_key=KEY, queue="q")
    before = bench.get(dead.id)
    assert bench.retry(plain.id, dead.id) == [
        Acted(plain.id, JobState.DEAD, took=True),
        Acted(dead.id, JobState.DEAD, took=False, holder=holder),
    ]
    assert bench.get(dead.id) == before
    bench.complete(bench.take("q"))
    assert bench.retry(dead.id) == [Acted(dead.id, JobState.DEAD, took=True)]


@case()
def of_two_final_jobs_with_one_key_only_the_first_is_retried(bench: Bench) -> None:
    one, two = bench.kill(unique_key=KEY), bench.kill(unique_key=KEY)
    assert bench.retry(two.id, one.id) == [
        Acted(two.id, JobState.DEAD, took=True),
        Acted(one.id, JobState.DEAD, took=False, holder=two.id),
    ]


@case()
def a_retry_of_the_waiting_holder_takes(bench: Bench) -> None:
    job = bench.make_job(JobState.SCHEDULED, unique_key=KEY)
    assert bench.retry(job.id) == [Acted(job.id, JobState.SCHEDULED, took=True)]
    assert is_held(bench) == job.id


# -- at once ------------------------------------------------------------------------------------------


@case()
def of_many_producers_at_once_one_stores(bench: Bench) -> None:
    for _ in range(5):
        news = [keyed(bench) for _ in range(6)]
        verbs = [bench.driver.enqueue([new], now=bench.now) for new in news]
        answers = [answer for (answer,) in bench.together(verbs)]
        (winner,) = [answer.id for answer in answers if answer.is_new]
        assert {answer.holder for answer in answers} == {None, winner}
        bench.complete(bench.take())


@case()
def producers_of_many_keys_at_once_do_not_block_each_other_for_good(bench: Bench) -> None:
    keys = [f"key {n}" for n in range(20)]
    calls = [[bench.new_job(unique_key=key) for key in keys[:: (-1) ** n]] for n in range(6)]
    answers = bench.together([bench.driver.enqueue(jobs, now=bench.now) for jobs in calls])
    assert sum(answer.is_new for call in answers for answer in call) == 20
    assert len(bench.claim()) == 20


@case()
def a_finish_and_an_enqueue_at_once_leave_one_live_job_at_most(bench: Bench) -> None:
    for mode in (Duplicate.RETURN, Duplicate.REPLACE):
        for _ in range(5):
            bench.add(unique_key=KEY)
            claim = bench.take()
            new = keyed(bench, mode)
            verbs: list[Any] = [
                bench.driver.finish([bench.outcome(claim)], now=bench.now),
                bench.driver.enqueue([new], now=bench.now),
            ]
            _, (answer,) = bench.together(verbs)
            assert answer.is_new or answer.holder == claim.id
            assert is_held(bench) == (new.id if answer.is_new else None)
            bench.delete(new.id)


@case()
def a_retry_and_an_enqueue_at_once_leave_one_live_job(bench: Bench) -> None:
    for _ in range(5):
        dead = bench.kill(unique_key=KEY)
        new = keyed(bench)
        verbs: list[Any] = [
            bench.driver.retry([dead.id], by="ada", now=bench.now),
            bench.driver.enqueue([new], now=bench.now),
        ]
        (acted,), (stored,) = bench.together(verbs)
        assert acted.took is not stored.is_new
        assert (acted.holder, stored.holder) in ((None, dead.id), (new.id, None))
        bench.delete(dead.id, new.id)


# -- transactions -------------------------------------------------------------------------------------


@case(needs="joins_transactions")
def a_rolled_back_winner_leaves_the_key_free(bench: Bench) -> None:
    with bench.transaction() as conn:
        new = keyed(bench)
        bench.call_on(conn, bench.driver.enqueue([new], now=bench.now))
        raise RolledBack
    assert is_held(bench) is None


@case(needs="joins_transactions")
def a_duplicate_does_not_spoil_the_callers_transaction(bench: Bench) -> None:
    holder = bench.add(unique_key=KEY, queue="q")
    plain = bench.new_job()
    with bench.transaction() as conn:
        dup = keyed(bench)
        answers = bench.call_on(conn, bench.driver.enqueue([dup], now=bench.now))
        assert answers == [Enqueued(dup.id, is_new=False, holder=holder)]
        refused = [keyed(bench, Duplicate.REJECT), bench.new_job(unique_key="other")]
        bench.call_on(conn, bench.driver.enqueue(refused, now=bench.now))
        bench.call_on(conn, bench.driver.enqueue([plain], now=bench.now))
    assert bench.get(plain.id).state is JobState.READY
    assert is_held(bench, unique_key="other") is None


@case(needs="joins_transactions")
def a_finish_that_is_rolled_back_keeps_the_key(bench: Bench) -> None:
    bench.add(unique_key=KEY)
    claim = bench.take()
    with bench.transaction() as conn:
        bench.call_on(conn, bench.driver.finish([bench.outcome(claim)], now=bench.now))
        raise RolledBack
    assert is_held(bench) == claim.id


def waiting_producer(bench: Bench, new: NewJob) -> Iterator[list[Enqueued]]:
    """A producer on a connection of its own: started at the first step, its answer at the second."""
    answers: list[Enqueued] = []
    driver = bench.target.another()

    def produce() -> None:
        stored = driver.run(driver.enqueue([new], now=bench.now))
        answers.extend(stored)

    thread = Thread(target=produce)
    thread.start()
    thread.join(0.3)
    yield answers
    thread.join(20)
    driver.close()
    yield answers


@case(needs="joins_transactions")
def a_loser_waits_for_the_winner_and_hears_its_id(bench: Bench) -> None:
    first, second = keyed(bench), keyed(bench)
    with ExitStack() as stack:
        conn = stack.enter_context(bench.transaction())
        bench.call_on(conn, bench.driver.enqueue([first], now=bench.now))
        producer = waiting_producer(bench, second)
        assert next(producer) == [], "no caller receives a job that may never exist"
        stack.close()
        assert next(producer) == [Enqueued(second.id, is_new=False, holder=first.id)]


@case(needs="joins_transactions")
def a_loser_stores_its_job_when_the_winner_rolls_back(bench: Bench) -> None:
    first, second = keyed(bench), keyed(bench)
    with bench.transaction() as conn:
        bench.call_on(conn, bench.driver.enqueue([first], now=bench.now))
        producer = waiting_producer(bench, second)
        assert next(producer) == []
        raise RolledBack
    assert next(producer) == [Enqueued(second.id, is_new=True)]
    assert bench.find(first.id) == [None]
    assert is_held(bench) == second.id
