"""cancel, retry, delete, pause, resume: what people ask for, answered by the table of transitions."""

from __future__ import annotations

from typing import Any

from winch.core.gates.uses import LIMIT, GateUse, with_gates
from winch.core.job import Entry, Failure
from winch.core.lifecycle import FINAL, JobState
from winch.storage.params import Acted, Answer
from winch.storage.verbs import Verb
from winch.testing.conformance.bench import HOUR, MINUTE, SECOND, Bench
from winch.testing.conformance.case import case
from winch.testing.conformance.cases.jobs.finish import claimed

WAITING = (JobState.SCHEDULED, JobState.READY, JobState.RETRYING)


@case()
def a_waiting_job_is_cancelled_at_once(bench: Bench) -> None:
    for state in WAITING:
        job = bench.make_job(state)
        bench.advance(SECOND)
        assert bench.cancel(job.id, by="ada", reason="wrong customer") == [
            Acted(job.id, state, took=True)
        ]
        gone = bench.get(job.id)
        assert (gone.state, gone.finished_at) == (JobState.CANCELLED, bench.now)
        assert (gone.reason, gone.attempt) == ("wrong customer", job.attempt)
        entry = Entry(what="cancelled", at=bench.at, by="ada", note="wrong customer")
        assert gone.history == (*job.history, entry)
        bench.advance(2 * HOUR)
        assert bench.promote().count == 0
        assert bench.claim(job.queue) == []


@case()
def a_cancel_without_a_reason_says_who(bench: Bench) -> None:
    job_id = bench.add()
    bench.cancel(job_id, by="grace")
    job = bench.get(job_id)
    assert "grace" in (job.reason or "")
    assert [(entry.by, entry.note) for entry in job.history] == [("grace", None)]


@case()
def a_running_job_is_asked_to_stop_and_goes_on(bench: Bench) -> None:
    (claim,) = claimed(bench)
    before = bench.get(claim.id)
    bench.advance(SECOND)
    assert bench.cancel(claim.id, by="ada", reason="wrong customer") == [
        Acted(claim.id, JobState.RUNNING, took=True)
    ]
    job = bench.get(claim.id)
    assert (job.state, job.token, job.attempt) == (JobState.RUNNING, claim.token, before.attempt)
    assert (job.cancel_requested_at, job.finished_at) == (bench.now, None)
    assert job.history == (Entry(what="cancel requested", at=bench.at, by="ada", note="wrong customer"),)


@case()
def asking_a_running_job_twice_changes_nothing(bench: Bench) -> None:
    (claim,) = claimed(bench)
    bench.cancel(claim.id, by="ada", reason="first")
    before = bench.get(claim.id)
    bench.advance(SECOND)
    assert bench.cancel(claim.id, by="bob", reason="second")[0].state is JobState.RUNNING
    assert bench.get(claim.id) == before


@case()
def a_job_that_finished_anyway_is_what_it_finished_as(bench: Bench) -> None:
    (claim,) = claimed(bench)
    bench.cancel(claim.id, reason="wrong customer")
    assert bench.complete(claim, result="1") is Answer.TOOK
    job = bench.get(claim.id)
    assert (job.state, job.result, job.reason) == (JobState.COMPLETED, "1", None)


@case()
def answers_of_operators_verbs_come_in_the_order_of_the_ids(bench: Bench) -> None:
    ready = bench.make_job(JobState.READY)
    done = bench.make_job(JobState.COMPLETED)
    running = bench.make_job(JobState.RUNNING)
    missing = bench.new_id()
    ids = [running.id, missing, done.id, ready.id]
    assert bench.retry(*ids) == [
        Acted(running.id, JobState.RUNNING, took=False),
        Acted(missing, None, took=False),
        Acted(done.id, JobState.COMPLETED, took=True),
        Acted(ready.id, JobState.READY, took=False),
    ]
    assert bench.cancel(*ids[::-1]) == [
        Acted(ready.id, JobState.READY, took=True),
        Acted(done.id, JobState.READY, took=True),
        Acted(missing, None, took=False),
        Acted(running.id, JobState.RUNNING, took=True),
    ]
    assert bench.delete(*ids) == [
        Acted(running.id, JobState.RUNNING, took=False),
        Acted(missing, None, took=False),
        Acted(done.id, JobState.CANCELLED, took=True),
        Acted(ready.id, JobState.CANCELLED, took=True),
    ]


@case()
def operators_verbs_take_no_ids(bench: Bench) -> None:
    assert bench.cancel() == bench.retry() == bench.delete() == []


@case()
def a_scheduled_job_is_made_ready_early(bench: Bench) -> None:
    job = bench.make_job(JobState.SCHEDULED)
    bench.advance(SECOND)
    assert bench.retry(job.id, by="ada") == [Acted(job.id, JobState.SCHEDULED, took=True)]
    ready = bench.get(job.id)
    assert (ready.state, ready.run_at, ready.attempt) == (JobState.READY, bench.now, 0)
    assert ready.history == (Entry(what="retried", at=bench.at, by="ada"),)


@case()
def a_retrying_job_is_made_ready_early_with_its_attempts(bench: Bench) -> None:
    job = bench.make_job(JobState.RETRYING)
    bench.advance(SECOND)
    bench.retry(job.id)
    ready = bench.get(job.id)
    assert (ready.state, ready.run_at, ready.attempt) == (JobState.READY, bench.now, 1)
    assert [entry.what for entry in ready.history] == ["failed", "retried"]
    assert bench.take(job.queue).attempt == 2


@case()
def a_final_job_starts_anew_with_its_history_kept(bench: Bench) -> None:
    for state in sorted(FINAL):
        job = bench.make_job(state, args='{"x":"ü"}', tags=("t",), headers={"h": "v"})
        bench.advance(MINUTE)
        assert bench.retry(job.id, by="ada") == [Acted(job.id, state, took=True)]
        again = bench.get(job.id)
        assert (again.state, again.run_at, again.attempt) == (JobState.READY, bench.now, 0)
        assert (again.result, again.reason, again.finished_at) == (None, None, None)
        assert (again.token, again.fence, again.ended_token) == (None, job.fence, job.ended_token)
        assert (again.args, again.tags, again.headers) == (job.args, job.tags, job.headers)
        assert again.created_at == job.created_at
        assert again.history[: len(job.history)] == job.history
        assert again.history[-1] == Entry(what="retried", at=bench.at, by="ada")
        # The attempt that completed was described by the record's own fields until now.
        between = [entry.what for entry in again.history[len(job.history) : -1]]
        assert between == ["completed"] * (state is JobState.COMPLETED)
        claim = bench.take(job.queue)
        assert (claim.id, claim.attempt) == (job.id, 1)
        assert bench.complete(claim) is Answer.TOOK


@case()
def a_retried_job_stands_at_the_end_of_its_queue(bench: Bench) -> None:
    job = bench.make_job(JobState.DEAD)
    bench.advance(SECOND)
    other = bench.add(queue=job.queue)
    bench.advance(SECOND)
    bench.retry(job.id)
    assert [claim.id for claim in bench.claim(job.queue)] == [other, job.id]


@case()
def a_job_made_ready_early_stands_where_it_arrives(bench: Bench) -> None:
    for state in (JobState.SCHEDULED, JobState.RETRYING):
        job = bench.make_job(state)
        sooner = bench.add(queue=job.queue)
        bench.advance(SECOND)
        bench.retry(job.id)
        bench.advance(SECOND)
        later = bench.add(queue=job.queue)
        assert [claim.id for claim in bench.claim(job.queue)] == [sooner, job.id, later]


@case()
def a_retry_forgets_that_a_cancel_was_requested(bench: Bench) -> None:
    (claim,) = claimed(bench)
    bench.cancel(claim.id)
    bench.release(claim)
    bench.retry(claim.id)
    job = bench.get(claim.id)
    assert (job.state, job.cancel_requested_at, job.reason) == (JobState.READY, None, None)
    second = bench.take()
    bench.finish(bench.outcome(second, JobState.RETRYING))
    assert bench.get(claim.id).state is JobState.RETRYING


@case()
def a_deleted_job_is_gone_for_good(bench: Bench) -> None:
    for state in (*WAITING, *sorted(FINAL)):
        job = bench.make_job(state)
        assert bench.delete(job.id) == [Acted(job.id, state, took=True)]
        assert bench.find(job.id) == [None]
        assert bench.claim(job.queue) == []
        assert bench.delete(job.id) == [Acted(job.id, None, took=False)]
        assert bench.retry(job.id) == [Acted(job.id, None, took=False)]
    bench.advance(2 * HOUR)
    assert bench.promote().count == 0
    assert bench.list_jobs().jobs == ()


@case()
def a_running_job_is_not_deleted(bench: Bench) -> None:
    (claim,) = claimed(bench)
    before = bench.get(claim.id)
    assert bench.delete(claim.id) == [Acted(claim.id, JobState.RUNNING, took=False)]
    assert bench.get(claim.id) == before


@case()
def a_queue_is_emptied_page_by_page(bench: Bench) -> None:
    """A walk over the waiting jobs of a queue, which deletes each page before it asks for the next."""
    retrying = bench.make_job(JobState.RETRYING, queue="default").id
    (running,) = claimed(bench)
    other = bench.add(queue="other")
    waiting = [retrying, *bench.add_many(4), *bench.add_many(3, delay=HOUR)]
    seen: list[str] = []
    after: str | None = None
    while True:
        page = bench.list_jobs(queue="default", states=WAITING, limit=3, after=after)
        seen += [job.id for job in page.jobs]
        newer = bench.add()  # comes after the walk began: not met, not deleted
        assert all(acted.took for acted in bench.delete(*(job.id for job in page.jobs)))
        if (after := page.next) is None:
            break
    assert sorted(seen) == sorted(waiting)
    assert bench.get(running.id).state is JobState.RUNNING
    assert bench.get(other).state is bench.get(newer).state is JobState.READY


@case()
def running_jobs_of_a_paused_queue_go_on(bench: Bench) -> None:
    (claim,) = claimed(bench)
    bench.pause("default")
    assert bench.finish(bench.outcome(claim, JobState.READY)) == [Answer.TOOK]
    assert bench.claim() == []
    bench.resume("default")
    assert bench.complete(bench.take()) is Answer.TOOK


@case()
def a_queue_may_be_paused_before_it_has_jobs(bench: Bench) -> None:
    bench.pause("future")
    job_id = bench.add(queue="future")
    assert bench.get(job_id).state is JobState.READY
    assert bench.claim("future") == []
    bench.resume("future")
    assert [claim.id for claim in bench.claim("future")] == [job_id]


@case()
def pausing_and_resuming_may_be_repeated(bench: Bench) -> None:
    bench.add()
    bench.resume("default")
    bench.pause("default")
    bench.pause("default")
    assert bench.claim() == []
    bench.resume("default")
    bench.resume("default")
    assert len(bench.claim()) == 1


@case()
def a_cancel_and_a_finish_at_once_leave_one_legal_end(bench: Bench) -> None:
    for to in (JobState.COMPLETED, JobState.RETRYING):
        (claim,) = claimed(bench)
        cancel: Verb[Any] = bench.driver.cancel([claim.id], by="ada", now=bench.now)
        finish: Verb[Any] = bench.driver.finish([bench.outcome(claim, to, delay=HOUR)], now=bench.now)
        acted, answered = bench.together([cancel, finish])
        assert answered == [Answer.TOOK]
        assert len(acted) == 1
        state = bench.get(claim.id).state
        if to is JobState.COMPLETED:
            assert state is JobState.COMPLETED
        else:
            assert state is JobState.CANCELLED  # whichever came first, the job was not to run again


@case()
def the_whole_story_of_a_job_is_in_its_history(bench: Bench) -> None:
    job_id = bench.add()
    bench.finish(bench.outcome(bench.take(), JobState.READY, error=Failure("E", "first")))
    bench.finish(bench.outcome(bench.take(), JobState.SCHEDULED, counts=False, delay=HOUR))
    bench.retry(job_id, by="ada")
    bench.finish(bench.outcome(bench.take(), JobState.DEAD, error=Failure("E", "last")))
    bench.retry(job_id, by="bob")
    bench.complete(bench.take())
    job = bench.get(job_id)
    assert [(entry.what, entry.attempt, entry.by) for entry in job.history] == [
        ("failed", 1, None),
        ("snoozed", 2, None),
        ("retried", 0, "ada"),
        ("discarded", 2, None),
        ("retried", 0, "bob"),
    ]
    assert job.error == Failure("E", "last")
    assert (job.state, job.attempt) == (JobState.COMPLETED, 1)


# -- move ----------------------------------------------------------------------------------------------


def move(bench: Bench, queue: str, *ids: str) -> list[Acted]:
    return bench.call(bench.driver.move(ids, queue, by="ada", now=bench.now))


@case()
def a_waiting_job_moves_with_everything_it_has(bench: Bench) -> None:
    for state in WAITING:
        job = bench.make_job(state)
        to = bench.new_queue()
        bench.advance(SECOND)
        assert move(bench, to, job.id) == [Acted(job.id, state, took=True)]
        after = bench.get(job.id)
        note = f"from {job.queue} to {to}"
        entry = Entry(what="moved", at=bench.at, by="ada", note=note)
        assert (after.queue, after.history) == (to, (*job.history, entry))
        assert (after.state, after.run_at, after.args) == (job.state, job.run_at, job.args)
        bench.advance(2 * HOUR)
        bench.promote()
        assert bench.claim(job.queue) == []
        assert [claim.id for claim in bench.claim(to)] == [job.id]


@case()
def running_and_final_jobs_do_not_move(bench: Bench) -> None:
    for state in (JobState.RUNNING, *sorted(FINAL)):
        job = bench.make_job(state)
        assert move(bench, "other", job.id) == [Acted(job.id, state, took=False)]
        assert bench.get(job.id) == job
    missing = bench.new_id()
    assert move(bench, "other", missing) == [Acted(missing, None, took=False)]


@case()
def a_move_to_its_own_queue_changes_nothing(bench: Bench) -> None:
    job = bench.make_job(JobState.READY)
    assert move(bench, job.queue, job.id) == [Acted(job.id, JobState.READY, took=True)]
    assert bench.get(job.id) == job


@case()
def moved_jobs_keep_their_place_by_age(bench: Bench) -> None:
    old = bench.add(queue="a")
    bench.advance(SECOND)
    young = bench.add(queue="b")
    move(bench, "b", old)
    assert [claim.id for claim in bench.claim("b")] == [old, young]
    infos = bench.call(bench.driver.queues())
    assert [info.name for info in infos if sum(info.counts.values())] == ["b"]


@case()
def a_job_that_waits_at_a_gate_goes_on_waiting_there(bench: Bench) -> None:
    use = GateUse("limit:pay", LIMIT, name="limit:pay", n=1)
    ids = bench.add_many(2, options=with_gates(None, (use,)))
    (claim,) = bench.claim()
    (left,) = [job_id for job_id in ids if job_id != claim.id]
    assert bench.claim() == []
    assert bench.get(left).state is JobState.BLOCKED
    assert move(bench, "other", left)[0].took
    assert bench.get(left).gate == use.key
    bench.finish(bench.outcome(claim, is_gated=True))
    assert [one.id for one in bench.claim("other")] == [left]


@case()
def a_job_of_a_tenant_moves_with_its_tenant(bench: Bench) -> None:
    ids = bench.add_many(3, tenant="acme", options=with_gates(None, ()))
    assert all(acted.took for acted in move(bench, "other", *ids))
    assert bench.claim() == []
    assert bench.call(bench.driver.tenants())[0].queue == "other"
    assert sorted(one.id for one in bench.claim("other")) == sorted(ids)
    assert bench.call(bench.driver.tenants()) == []


# -- unique keys ---------------------------------------------------------------------------------------


@case()
def a_released_key_is_free_and_its_job_goes_on(bench: Bench) -> None:
    first = bench.add(unique_key="order:7")
    (claim,) = bench.claim()
    assert bench.call(bench.driver.release_key("order:7", by="ada", now=bench.now)) == first
    job = bench.get(first)
    assert (job.unique_key, job.state, job.token) == (None, JobState.RUNNING, claim.token)
    assert job.history[-1] == Entry(what="key released", at=bench.at, by="ada")
    second = bench.add(unique_key="order:7")
    assert bench.complete(claim) is Answer.TOOK
    (again,) = bench.enqueue(bench.new_job(unique_key="order:7"))
    assert again.holder == second, "the end of the first job leaves the key to the second"


@case()
def a_key_that_is_free_has_nothing_to_release(bench: Bench) -> None:
    assert bench.call(bench.driver.release_key("order:7", by="ada", now=bench.now)) is None
    job_id = bench.add(unique_key="order:7")
    bench.cancel(job_id)
    assert bench.call(bench.driver.release_key("order:7", by="ada", now=bench.now)) is None


@case()
def held_keys_are_listed_with_their_holders(bench: Bench) -> None:
    for number in range(5):
        bench.add(unique_key=f"order:{number}")
    job_id = bench.add(unique_key="order")
    bench.add(unique_key="mail:1")
    bench.add()
    found = bench.call(bench.driver.unique_keys(prefix="order:"))
    assert [one.key for one in found] == [f"order:{number}" for number in range(5)]
    assert bench.get(found[0].job).unique_key == "order:0"
    assert len(bench.call(bench.driver.unique_keys(prefix="order", limit=3))) == 3
    exact = bench.call(bench.driver.unique_keys(prefix="order", limit=1))
    assert [(one.key, one.job) for one in exact] == [("order", job_id)]
    assert len(bench.call(bench.driver.unique_keys())) == 7
    assert bench.call(bench.driver.unique_keys(prefix="no")) == []
