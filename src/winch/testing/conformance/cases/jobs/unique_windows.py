"""Windows, keys that a started job leaves, and debounce: cases of the family `unique`."""

from __future__ import annotations

from typing import Any

from winch.core.gates.uses import FIFO, GateUse, with_gates
from winch.core.lifecycle import JobState
from winch.core.policy.unique import Duplicate, Until
from winch.storage.params import Acted, Enqueued
from winch.testing.conformance.bench import HOUR, MINUTE, SECOND, Bench, RolledBack
from winch.testing.conformance.case import case
from winch.testing.conformance.cases.jobs.unique import KEY, is_held, keyed

FAMILY = "unique"


# -- windows, scopes, debounce ----------------------------------------------------------------------


@case()
def within_its_time_a_final_job_has_its_key(bench: Bench) -> None:
    first = bench.make_job(JobState.COMPLETED, unique_key=KEY, unique_within=HOUR)
    bench.advance(HOUR - SECOND)
    second = keyed(bench, unique_within=HOUR)
    assert bench.enqueue(second) == [Enqueued(second.id, is_new=False, holder=first.id)]
    assert bench.find(second.id) == [None]
    assert bench.enqueue(keyed(bench, Duplicate.REJECT, unique_within=HOUR))[0].holder == first.id
    bench.advance(2 * SECOND)
    (answer,) = bench.enqueue(keyed(bench, unique_within=HOUR))
    assert answer.is_new
    assert bench.enqueue(keyed(bench, unique_within=HOUR))[0].holder == answer.id


@case()
def a_live_job_has_its_key_when_its_time_is_over(bench: Bench) -> None:
    first = bench.add(unique_key=KEY, unique_within=MINUTE)
    bench.advance(HOUR)
    assert bench.enqueue(keyed(bench, unique_within=MINUTE))[0].holder == first


@case()
def the_time_binds_only_who_asks_for_it_and_goes_with_the_job(bench: Bench) -> None:
    first = bench.make_job(JobState.COMPLETED, unique_key=KEY, unique_within=HOUR)
    assert is_held(bench) is None, "a job without a window looks at live ones only"
    assert is_held(bench, unique_within=HOUR) == first.id
    bench.delete(first.id)
    assert is_held(bench, unique_within=HOUR) is None


@case()
def of_a_bulk_within_a_time_the_first_is_stored(bench: Bench) -> None:
    jobs = [keyed(bench, unique_within=HOUR) for _ in range(3)]
    answers = bench.enqueue(*jobs)
    assert [answer.is_new for answer in answers] == [True, False, False]
    bench.complete(bench.take())
    again = bench.enqueue(*(keyed(bench, unique_within=HOUR) for _ in range(2)), bench.new_job())
    assert [answer.is_new for answer in again] == [False, False, True]
    assert [answer.holder for answer in again] == [jobs[0].id, jobs[0].id, None]


@case()
def many_at_once_within_a_time_give_one_job(bench: Bench) -> None:
    for _ in range(3):
        jobs = [keyed(bench, unique_within=HOUR) for _ in range(6)]
        answers = bench.together([bench.driver.enqueue([job], now=bench.now) for job in jobs])
        assert sum(answer.is_new for (answer,) in answers) == 1
        bench.complete(bench.take())
        bench.advance(2 * HOUR)


@case()
def keys_whose_time_is_over_are_pruned(bench: Bench) -> None:
    bench.make_job(JobState.COMPLETED, unique_key=KEY, unique_within=HOUR)
    bench.advance(2 * HOUR)
    bench.prune()
    assert is_held(bench, unique_within=HOUR) is None


@case()
def a_started_job_leaves_its_key_to_who_asks_so(bench: Bench) -> None:
    first = bench.add(unique_key=KEY)
    assert bench.enqueue(keyed(bench, unique_until=Until.STARTED))[0].holder == first
    claim = bench.take()
    assert is_held(bench) == first
    (answer,) = bench.enqueue(keyed(bench, unique_until=Until.STARTED))
    assert answer.is_new
    assert (bench.get(first).unique_key, bench.get(answer.id).unique_key) == (None, KEY)
    assert is_held(bench) == answer.id
    bench.complete(claim)
    assert is_held(bench) == answer.id, "the end of the one that left it does not free it"
    bench.complete(bench.take())
    assert is_held(bench) is None


@case()
def a_key_that_was_left_is_not_taken_again_by_a_retry(bench: Bench) -> None:
    first = bench.add(unique_key=KEY)
    claim = bench.take()
    second = bench.enqueue(keyed(bench, unique_until=Until.STARTED))[0].id
    bench.finish(bench.outcome(claim, JobState.DEAD))
    assert bench.retry(first) == [Acted(first, JobState.DEAD, took=True)]
    assert is_held(bench) == second


@case()
def of_many_who_want_a_started_jobs_key_one_gets_it(bench: Bench) -> None:
    bench.add(unique_key=KEY)
    bench.take()
    jobs = [keyed(bench, unique_until=Until.STARTED) for _ in range(6)]
    answers = bench.together([bench.driver.enqueue([job], now=bench.now) for job in jobs])
    assert sum(answer.is_new for (answer,) in answers) == 1
    assert len(bench.claim()) == 1


@case()
def debounce_puts_a_waiting_job_off_with_the_latest_arguments(bench: Bench) -> None:
    first = bench.add(unique_key=KEY, on_duplicate=Duplicate.DEBOUNCE, delay=5 * SECOND)
    for number in range(3):
        bench.advance(3 * SECOND)
        later = keyed(bench, Duplicate.DEBOUNCE, delay=5 * SECOND, args=f'{{"to":{number}}}')
        assert bench.enqueue(later) == [Enqueued(later.id, is_new=False, holder=first, is_replaced=True)]
        assert bench.promote().count == 0
    job = bench.get(first)
    assert (job.args, job.run_at, job.state) == ('{"to":2}', bench.at + 5 * SECOND, JobState.SCHEDULED)
    bench.advance(5 * SECOND)
    assert bench.promote().count == 1


@case()
def the_last_one_waits_for_the_end_of_the_one_that_runs(bench: Bench) -> None:
    """What Unique(mode="keep_last") is to a store: a debounce without a wait, at a FIFO key."""
    turn = {"fifo": "unique:k", "options": with_gates(None, [GateUse("fifo:unique:k", FIFO)])}
    first = bench.add(unique_key=KEY, on_duplicate=Duplicate.DEBOUNCE, **turn)
    (running,) = bench.claim()
    second = keyed(bench, Duplicate.DEBOUNCE, **turn)
    assert bench.enqueue(second) == [Enqueued(second.id, is_new=True)]
    assert bench.claim() == []
    assert bench.get(second.id).state is JobState.BLOCKED
    for number in range(2):
        third = keyed(bench, Duplicate.DEBOUNCE, args=f'{{"n":{number}}}', **turn)
        answer = Enqueued(third.id, is_new=False, holder=second.id, is_replaced=True)
        assert bench.enqueue(third) == [answer]
        assert bench.claim() == []
    assert running.id == first
    bench.complete(running, is_gated=True)
    (last,) = bench.claim()
    assert (last.id, last.args) == (second.id, '{"n":1}')
    bench.complete(last, is_gated=True)
    assert bench.claim() == []
    assert is_held(bench) is None


@case()
def debounce_does_not_put_off_for_ever(bench: Bench) -> None:
    began = bench.at
    options: dict[str, Any] = {
        "delay": 10 * SECOND,
        "max_wait": 15 * SECOND,
        "on_duplicate": Duplicate.DEBOUNCE,
    }
    first = bench.add(unique_key=KEY, **options)
    bench.advance(9 * SECOND)
    bench.enqueue(keyed(bench, **options))
    assert bench.get(first).run_at == began + 15 * SECOND
    bench.advance(9 * SECOND)
    bench.enqueue(keyed(bench, **options))
    job = bench.get(first)
    assert (job.state, job.run_at) == (JobState.READY, bench.at)


@case()
def debounce_beside_a_running_job_is_a_job_of_its_own(bench: Bench) -> None:
    first = bench.add(unique_key=KEY, on_duplicate=Duplicate.DEBOUNCE)
    claim = bench.take()
    one, two = (keyed(bench, Duplicate.DEBOUNCE, delay=SECOND, args=f"[{n}]") for n in range(2))
    answers = bench.enqueue(one, two)
    assert [(a.is_new, a.holder, a.is_replaced) for a in answers] == [
        (True, None, False),
        (False, one.id, True),
    ]
    assert bench.get(one.id).args == "[1]"
    bench.complete(claim)
    assert bench.get(first).state is JobState.COMPLETED
    assert is_held(bench) == one.id


@case(needs="joins_transactions")
def a_rolled_back_window_or_takeover_never_was(bench: Bench) -> None:
    first = bench.add(unique_key=KEY)
    claim = bench.take()
    with bench.transaction() as conn:
        job = keyed(bench, unique_until=Until.STARTED)
        bench.call_on(conn, bench.driver.enqueue([job], now=bench.now))
        raise RolledBack
    assert bench.get(first).unique_key == KEY
    assert is_held(bench) == first
    bench.complete(claim)
    with bench.transaction() as conn:
        job = keyed(bench, unique_within=HOUR)
        bench.call_on(conn, bench.driver.enqueue([job], now=bench.now))
        raise RolledBack
    assert is_held(bench, unique_within=HOUR) is None


@case()
def explain_names_who_has_the_key_of_a_final_job(bench: Bench) -> None:
    old = bench.make_job(JobState.DEAD, unique_key=KEY)
    facts = bench.call(bench.driver.explain(old.id, now=bench.now))
    assert facts is not None
    assert facts.key_holder is None
    holder = bench.add(unique_key=KEY)
    facts = bench.call(bench.driver.explain(old.id, now=bench.now))
    assert facts is not None
    assert facts.key_holder == holder
    facts = bench.call(bench.driver.explain(holder, now=bench.now))
    assert facts is not None
    assert facts.key_holder is None
