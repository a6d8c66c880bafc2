"""conn=: a verb in the caller's own transaction is there when it commits, and never was otherwise."""

from __future__ import annotations

from winch.core.gates.uses import FIFO, GateUse, with_gates
from winch.core.lifecycle import JobState
from winch.storage.params import Answer, Enqueued
from winch.testing.conformance.bench import HOUR, Bench, RolledBack
from winch.testing.conformance.case import case
from winch.testing.conformance.cases.jobs.finish import claimed


@case(needs="joins_transactions")
def a_commit_makes_the_job_visible(bench: Bench) -> None:
    new = bench.new_job()
    with bench.transaction() as conn:
        stored = bench.call_on(conn, bench.driver.enqueue([new], now=bench.now))
        assert stored == [Enqueued(new.id, is_new=True)]
    assert bench.get(new.id).state is JobState.READY
    assert [claim.id for claim in bench.claim()] == [new.id]


@case(needs="joins_transactions")
def nobody_else_sees_the_job_before_the_commit(bench: Bench) -> None:
    new = bench.new_job()
    with bench.transaction() as conn:
        bench.call_on(conn, bench.driver.enqueue([new], now=bench.now))
        assert bench.find(new.id) == [None]
        assert bench.counts()[JobState.READY] == 0
    assert bench.counts()[JobState.READY] == 1


@case(needs="joins_transactions")
def the_caller_sees_the_job_inside_the_transaction(bench: Bench) -> None:
    new = bench.new_job(delay=HOUR)
    with bench.transaction() as conn:
        bench.call_on(conn, bench.driver.enqueue([new], now=bench.now))
        (job,) = bench.call_on(conn, bench.driver.get([new.id]))
        assert job is not None
        assert job.state is JobState.SCHEDULED


@case(needs="joins_transactions")
def a_rollback_leaves_nothing(bench: Bench) -> None:
    jobs = bench.new_jobs(3)
    with bench.transaction() as conn:
        bench.call_on(conn, bench.driver.enqueue(jobs, now=bench.now))
        raise RolledBack
    assert bench.find(*[job.id for job in jobs]) == [None] * 3
    assert bench.claim() == []
    assert bench.list_jobs().jobs == ()


@case(needs="joins_transactions")
def a_rollback_leaves_a_given_id_free(bench: Bench) -> None:
    new = bench.new_job(is_given_id=True)
    with bench.transaction() as conn:
        bench.call_on(conn, bench.driver.enqueue([new], now=bench.now))
        raise RolledBack
    assert bench.enqueue(new) == [Enqueued(new.id, is_new=True)]


@case(needs="joins_transactions")
def a_given_id_that_exists_does_not_spoil_the_transaction(bench: Bench) -> None:
    known = bench.new_job(is_given_id=True)
    bench.enqueue(known)
    done = bench.make_job(JobState.COMPLETED, is_given_id=True)
    new = bench.new_job(is_given_id=True)
    with bench.transaction() as conn:
        again = bench.new_job(id=done.id, is_given_id=True)
        stored = bench.call_on(conn, bench.driver.enqueue([known, again, new], now=bench.now))
        assert [answer.is_new for answer in stored] == [False, False, True]
    assert bench.get(new.id).state is JobState.READY


@case(needs="joins_transactions")
def several_verbs_share_one_transaction(bench: Bench) -> None:
    (claim,) = claimed(bench)
    child = bench.new_job(queue="child")
    with bench.transaction() as conn:
        bench.call_on(conn, bench.driver.enqueue([child], now=bench.now))
        assert bench.call_on(conn, bench.driver.finish([bench.outcome(claim)], now=bench.now)) == [
            Answer.TOOK
        ]
    assert bench.get(claim.id).state is JobState.COMPLETED
    assert bench.get(child.id).state is JobState.READY


@case(needs="joins_transactions")
def a_finish_that_is_rolled_back_never_happened(bench: Bench) -> None:
    (claim,) = claimed(bench)
    before = bench.get(claim.id)
    with bench.transaction() as conn:
        bench.call_on(conn, bench.driver.finish([bench.outcome(claim)], now=bench.now))
        raise RolledBack
    assert bench.get(claim.id) == before
    assert bench.complete(claim) is Answer.TOOK


@case(needs="joins_transactions")
def members_of_a_fifo_key_are_stored_in_transactions_and_keep_their_order(bench: Bench) -> None:
    fifo = {
        "fifo": "outbox:orders:7",
        "options": with_gates(None, [GateUse("fifo:outbox:orders:7", FIFO)]),
    }
    with bench.transaction() as conn:
        bench.call_on(conn, bench.driver.enqueue(bench.new_jobs(2, **fifo), now=bench.now))
        raise RolledBack
    first, second, third = bench.new_jobs(3, **fifo)
    with bench.transaction() as conn:
        bench.call_on(conn, bench.driver.enqueue([first], now=bench.now))
        bench.call_on(conn, bench.driver.enqueue([second], now=bench.now))
    bench.enqueue(third)
    order = []
    while claims := bench.claim():
        (claim,) = claims
        order.append(claim.id)
        bench.complete(claim, is_gated=True)
    assert order == [first.id, second.id, third.id]


@case()
def a_thing_that_is_no_connection_is_refused(bench: Bench) -> None:
    new = bench.new_job()
    known = bench.add()
    for thing in (object(), None, "conn"):
        assert "conn" in bench.refusal(thing, bench.driver.enqueue([new], now=bench.now))
        assert "conn" in bench.refusal(thing, bench.driver.get([known]))
    assert bench.find(new.id) == [None]


@case(needs="joins_transactions")
def a_transaction_reads_what_it_has_enqueued_and_what_was_there(bench: Bench) -> None:
    live = bench.add()
    final = bench.make_job(JobState.COMPLETED).id
    new = bench.new_job(unique_key="a", delay=HOUR)
    gone = bench.new_job().id
    with bench.transaction() as conn:
        bench.call_on(conn, bench.driver.enqueue([new], now=bench.now))
        jobs = bench.call_on(conn, bench.driver.get([gone, new.id, live, final]))
        assert [None if job is None else (job.id, job.state) for job in jobs] == [
            None,
            (new.id, JobState.SCHEDULED),
            (live, JobState.READY),
            (final, JobState.COMPLETED),
        ]
        raise RolledBack
    assert bench.find(new.id) == [None]


@case(needs="joins_transactions")
def a_read_in_a_transaction_leaves_its_end_to_the_caller(bench: Bench) -> None:
    new = bench.new_job()
    with bench.transaction() as conn:
        bench.call_on(conn, bench.driver.enqueue([new], now=bench.now))
        assert bench.call_on(conn, bench.driver.get([bench.new_job().id])) == [None]
        assert bench.find(new.id) == [None]
    assert bench.get(new.id).state is JobState.READY


@case(needs="joins_transactions")
def an_answer_in_a_transaction_has_the_state_and_the_time(bench: Bench) -> None:
    new = bench.new_job(delay=HOUR)
    with bench.transaction() as conn:
        [answer] = bench.call_on(conn, bench.driver.enqueue([new], now=bench.now))
        (job,) = bench.call_on(conn, bench.driver.get([new.id]))
        assert job is not None
        assert (answer.created_at, answer.state) == (job.created_at, JobState.SCHEDULED)
