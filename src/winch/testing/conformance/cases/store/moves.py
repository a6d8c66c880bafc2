"""What a move needs: jobs that leave for another store or come from one, and the fence."""

from __future__ import annotations

from collections import Counter

import msgspec
from msgspec.structs import replace

from winch.core.flow import INPUTS_HEADER, Edge, Inputs, member_id, members_prefix
from winch.core.gates.uses import FIFO, LIMIT, GateUse, with_gates
from winch.core.job import JobRecord
from winch.core.lifecycle import JobState
from winch.core.policy.schedule import Overlap, window_id
from winch.storage.decide.schedules import SCHEDULE_HEADER, Adopt, Answered, Pause, RunKind, ScheduleRun
from winch.storage.decide.unique import Holder
from winch.storage.decide.waits import AWAITED_HEADER, Dependencies, all_key
from winch.storage.params import NewJob, Wait
from winch.storage.parcels import NO_PARCEL, Parcel
from winch.testing.conformance.bench import HOUR, MINUTE, SECOND, Bench
from winch.testing.conformance.case import case
from winch.testing.conformance.cases.store.backfills import fill
from winch.testing.conformance.cases.store.schedules import (
    NAME,
    QUEUE,
    declared,
    definition,
    due,
    enqueued,
    put,
    row_of,
    runs,
    start,
    tick,
)

MOVE = "8d1f"
FIFO_A = with_gates(None, [GateUse("fifo:a", FIFO)])
WAITING = (JobState.SCHEDULED, JobState.READY, JobState.RETRYING)
FINAL = (JobState.COMPLETED, JobState.CANCELLED, JobState.DEAD)


def out(bench: Bench, number: int, *ids: str, move: str = MOVE, is_whole: bool = False) -> Parcel:
    return bench.call(bench.driver.move_out(move, number, ids, is_whole=is_whole, now=bench.now))


def come(bench: Bench, number: int, *jobs: JobRecord, move: str = MOVE) -> bool:
    return bench.call(bench.driver.move_in(move, number, jobs, now=bench.now))


def done(bench: Bench, number: int) -> None:
    bench.call(bench.driver.move_done(MOVE, number))


def found(bench: Bench, job_id: str) -> JobRecord | None:
    [job] = bench.find(job_id)
    return job


def there_and_back(bench: Bench, *ids: str) -> None:
    """The jobs leave the store and come to it again, as a mover carries them."""
    parcel = out(bench, 1, *ids)
    assert come(bench, 1, *parcel.jobs)
    done(bench, 1)


@case()
def a_job_that_waits_leaves_whole_and_comes_as_it_was(bench: Bench) -> None:
    for number, state in enumerate(WAITING, 1):
        before = bench.make_job(state, tags=("a", "b"), headers={"trace": "7"}, priority=3)
        parcel = out(bench, number, before.id)
        assert parcel == Parcel(number, (before,))
        assert found(bench, before.id) is None
        bench.advance(2 * HOUR)
        assert bench.promote().count == 0
        assert bench.claim(before.queue) == []
        assert come(bench, number, *parcel.jobs)
        done(bench, number)
        assert found(bench, before.id) == before
        bench.promote()
        assert [claim.id for claim in bench.claim(before.queue)] == [before.id]


@case()
def a_final_job_leaves_and_comes_with_all_that_is_known_of_it(bench: Bench) -> None:
    for number, state in enumerate(FINAL, 1):
        before = bench.make_job(state)
        parcel = out(bench, number, before.id)
        assert parcel.jobs == (before,)
        assert found(bench, before.id) is None
        assert come(bench, number, *parcel.jobs)
        done(bench, number)
        assert found(bench, before.id) == before


@case()
def a_running_job_stays(bench: Bench) -> None:
    job = bench.make_job(JobState.RUNNING)
    assert out(bench, 1, job.id) == NO_PARCEL
    assert found(bench, job.id) == job


@case()
def a_job_that_others_may_wait_for_stays(bench: Bench) -> None:
    job_id = bench.add(headers={AWAITED_HEADER: "true"})
    assert out(bench, 1, job_id) == NO_PARCEL
    assert found(bench, job_id) is not None


def a_family(bench: Bench) -> tuple[str, list[str], str]:
    """The key of two members, their ids, and one that waits for them."""
    flow = bench.new_id()
    key = all_key(members_prefix(flow, "m"))
    inputs = msgspec.json.encode(Inputs(flow, (Edge("m", 2),))).decode()
    members = [
        bench.new_job(id=member_id(flow, "m", number), headers={AWAITED_HEADER: key})
        for number in range(2)
    ]
    last = bench.new_job(id=member_id(flow, "last"), headers={INPUTS_HEADER: inputs})
    waits = [(last.id, [Wait(key)])]
    bench.call(bench.driver.enqueue_after([*members, last], Dependencies(waits), now=bench.now))
    return key, [job.id for job in members], last.id


@case()
def a_family_leaves_and_comes_whole(bench: Bench) -> None:
    _, members, last = a_family(bench)
    (claim,) = bench.claim(limit=1)
    assert out(bench, 1, *members, last) == NO_PARCEL
    assert out(bench, 2, *members, last, is_whole=True) == NO_PARCEL, "a member runs"
    bench.complete(claim)
    assert out(bench, 3, *members, last, bench.new_id(), is_whole=True) == NO_PARCEL, "one is not there"
    parcel = out(bench, 4, *members, last, is_whole=True)
    assert {job.id for job in parcel.jobs} == {*members, last}
    assert bench.find(*members, last) == [None] * 3
    assert come(bench, 4, *parcel.jobs)
    done(bench, 4)
    found = [job for job in bench.find(*members, last) if job is not None]
    assert Counter(job.state for job in found) == {JobState.READY: 2, JobState.COMPLETED: 1}


@case()
def members_that_came_are_waited_for(bench: Bench) -> None:
    """The last one is claimed too early, and waits again, as a worker has it."""
    key, members, last = a_family(bench)
    parcel = out(bench, 1, *members, last, is_whole=True)
    assert come(bench, 1, *parcel.jobs)
    claims = {claim.id: claim for claim in bench.claim(limit=9)}
    assert set(claims) == {*members, last}
    bench.finish(bench.outcome(claims[last], JobState.BLOCKED, waits=(Wait(key),), counts=False))
    for member in members:
        bench.call(bench.driver.unblock(now=bench.now))
        assert bench.claim(limit=9) == []
        bench.complete(claims[member])
    bench.call(bench.driver.unblock(now=bench.now))
    assert [claim.id for claim in bench.claim(limit=9)] == [last]


@case()
def an_open_parcel_is_answered_whatever_is_asked(bench: Bench) -> None:
    first, second = bench.add(), bench.add()
    parcel = out(bench, 1, first)
    assert [job.id for job in parcel.jobs] == [first]
    for number in (0, 1, 2, 9):
        assert out(bench, number, second) == parcel
    assert found(bench, second) is not None


@case()
def a_number_takes_jobs_once(bench: Bench) -> None:
    first, second = bench.add(), bench.add()
    out(bench, 3, first)
    done(bench, 3)
    for late in (0, 1, 3):
        assert out(bench, late, second) == NO_PARCEL
    assert [job.id for job in out(bench, 4, second).jobs] == [second]


@case()
def done_with_another_number_forgets_nothing(bench: Bench) -> None:
    job_id = bench.add()
    parcel = out(bench, 2, job_id)
    done(bench, 1)
    done(bench, 3)
    assert out(bench, 0) == parcel
    done(bench, 2)
    done(bench, 2)
    assert out(bench, 0) == NO_PARCEL


@case()
def a_parcel_comes_once_also_when_its_jobs_are_gone_by_then(bench: Bench) -> None:
    job_id = bench.add()
    parcel = out(bench, 1, job_id)
    assert come(bench, 1, *parcel.jobs)
    (claim,) = bench.claim()
    bench.complete(claim)
    bench.call(bench.driver.delete([job_id], by="ada", now=bench.now))
    assert not come(bench, 1, *parcel.jobs)
    assert found(bench, job_id) is None
    assert come(bench, 2)
    assert not come(bench, 1, *parcel.jobs)


@case()
def a_job_that_is_there_stays_as_it_is(bench: Bench) -> None:
    job_id = bench.add()
    there = found(bench, job_id)
    assert there is not None
    assert come(bench, 1, replace(there, args='{"to":8}'))
    assert found(bench, job_id) == there


@case()
def moves_have_numbers_of_their_own(bench: Bench) -> None:
    first, second = bench.add(), bench.add()
    parcel = out(bench, 5, first)
    assert [job.id for job in out(bench, 1, second, move="other").jobs] == [second]
    assert come(bench, 5, *parcel.jobs)
    assert come(bench, 1, move="other")


@case()
def a_unique_key_goes_with_its_job(bench: Bench) -> None:
    job_id = bench.add(unique_key="k")
    keys = ["k", "free"]
    assert bench.call(bench.driver.key_holders(keys)) == [Holder(job_id, JobState.READY), None]
    parcel = out(bench, 1, job_id)
    assert bench.call(bench.driver.key_holders(keys)) == [None, None]
    assert come(bench, 1, *parcel.jobs)
    assert bench.call(bench.driver.key_holders(keys)) == [Holder(job_id, JobState.READY), None]
    [answer] = bench.call(bench.driver.enqueue([bench.new_job(unique_key="k")], now=bench.now))
    assert answer.holder == job_id


@case()
def a_job_whose_key_is_held_comes_without_it(bench: Bench) -> None:
    job_id = bench.add(unique_key="k")
    parcel = out(bench, 1, job_id)
    other = bench.add(unique_key="k")
    assert come(bench, 1, *parcel.jobs)
    assert bench.call(bench.driver.key_holders(["k"])) == [Holder(other, JobState.READY)]
    job = found(bench, job_id)
    assert job is not None
    assert job.unique_key is None


@case()
def a_given_id_is_known_where_its_job_came(bench: Bench) -> None:
    new = bench.new_job(is_given_id=True)
    bench.call(bench.driver.enqueue([new], now=bench.now))
    there_and_back(bench, new.id)
    [answer] = bench.call(bench.driver.enqueue([new], now=bench.now))
    assert not answer.is_new


# -- the fence ------------------------------------------------------------------------------------------


def fenced(bench: Bench, number: int, *jobs: NewJob, is_repeat: bool = False) -> list[bool] | None:
    verb = bench.driver.enqueue_fenced(jobs, number, is_repeat=is_repeat, now=bench.now)
    answers = bench.call(verb)
    return None if answers is None else [answer.is_new for answer in answers]


@case()
def a_fenced_enqueue_is_refused_below_the_fence_and_stores_nothing(bench: Bench) -> None:
    keyed, plain = bench.new_job(unique_key="k"), bench.new_job()
    assert fenced(bench, 0, bench.new_job()) == [True]
    assert bench.call(bench.driver.raise_fence(7))
    for number in (0, 6):
        assert fenced(bench, number, keyed, plain) is None
    assert bench.find(keyed.id, plain.id) == [None, None]
    assert bench.call(bench.driver.key_holders(["k"])) == [None]
    assert fenced(bench, 7, keyed) == [True]
    assert fenced(bench, 8, plain) == [True]


@case()
def a_fence_only_rises(bench: Bench) -> None:
    for number in (7, 3, 7):
        assert bench.call(bench.driver.raise_fence(number))
    assert fenced(bench, 6, bench.new_job()) is None
    assert fenced(bench, 7, bench.new_job()) == [True]


@case()
def a_fenced_enqueue_that_takes_is_an_enqueue(bench: Bench) -> None:
    first = bench.new_job(unique_key="k")
    assert fenced(bench, 1, first) == [True]
    assert fenced(bench, 1, first, is_repeat=True) == [False]
    assert fenced(bench, 1, bench.new_job(unique_key="k")) == [False]
    member, delayed = bench.new_job(fifo="a", options=FIFO_A), bench.new_job(delay=HOUR)
    assert fenced(bench, 1, member, delayed) == [True, True]
    assert {claim.id for claim in bench.claim(limit=9)} == {first.id, member.id}


def members(bench: Bench, count: int, key: str = "acct:7") -> list[str]:
    options = with_gates(None, [GateUse(f"fifo:{key}", FIFO)])
    return [bench.add(fifo=key, options=options) for _ in range(count)]


@case()
def members_of_a_fifo_key_keep_their_order(bench: Bench) -> None:
    ids = members(bench, 4)
    bench.advance(SECOND)
    parcel = out(bench, 1, *ids)
    assert [job.id for job in parcel.jobs] == ids
    assert come(bench, 1, *reversed(parcel.jobs))
    bench.advance(SECOND)
    ids += members(bench, 1)  # one that is stored after they came
    done_ids = []
    for _ in ids:
        (claim,) = bench.claim(limit=10)
        done_ids.append(claim.id)
        bench.complete(claim)
    assert done_ids == ids


@case()
def a_job_at_a_gate_comes_ready_and_a_claim_decides_anew(bench: Bench) -> None:
    options = with_gates(None, [GateUse("limit:x", LIMIT, name="limit:x", n=1)])
    first, second = bench.add(options=options), bench.add(options=options)
    (claim,) = bench.claim(limit=10)
    assert claim.id == first
    bench.claim(limit=10)
    parcel = out(bench, 1, first, second)
    assert [job.id for job in parcel.jobs] == [second]
    assert come(bench, 1, *parcel.jobs)
    job = found(bench, second)
    assert job is not None
    assert (job.state, job.gate) == (JobState.READY, None)
    assert bench.claim(limit=10) == []
    bench.complete(claim)
    assert [one.id for one in bench.claim(limit=10)] == [second]


@case()
def what_a_job_had_of_its_gates_is_free_when_it_leaves(bench: Bench) -> None:
    first, second = members(bench, 2)
    (claim,) = bench.claim(limit=10)
    assert claim.id == first
    bench.release(claim)
    out(bench, 1, first)
    assert [one.id for one in bench.claim(limit=10)] == [second]


# -- schedules ------------------------------------------------------------------------------------------


def adopt(bench: Bench, change: Adopt) -> None:
    answer = bench.call(bench.driver.change_schedule(NAME, change, now=bench.now)).answer
    assert answer is Answered.DONE


@case()
def an_adopted_schedule_goes_on_after_the_last_window_of_its_store(bench: Bench) -> None:
    first = start(bench)
    defined = definition()
    adopt(bench, Adopt(definition=defined.text, is_code=False, last_window=first, reason="moves"))
    assert row_of(bench).pause_reason == "moves"
    bench.advance(2 * MINUTE)
    assert due(bench) == []
    last = first + MINUTE
    adopt(bench, Adopt(definition=defined.text, is_code=False, last_window=last, is_held=False))
    bench.advance(SECOND)
    tick(bench)
    assert enqueued(bench) == [first + 2 * MINUTE]


@case()
def an_adopted_schedule_of_code_is_active_while_a_session_declares_it(bench: Bench) -> None:
    first = start(bench)
    defined = definition()
    for is_held in (True, False):
        adopt(
            bench,
            Adopt(definition=defined.text, is_code=True, last_window=first, is_held=is_held),
        )
    bench.advance(MINUTE)
    assert due(bench) == []
    bench.start_session(schedules=(declared(defined),))
    assert due(bench) == [NAME]
    tick(bench)
    assert enqueued(bench) == [first + MINUTE]


@case()
def a_paused_schedule_has_its_last_window_in_the_answer(bench: Bench) -> None:
    first = start(bench)
    put(bench, definition())
    tick(bench)
    bench.advance(MINUTE)
    tick(bench)
    changed = bench.call(bench.driver.change_schedule(NAME, Pause(reason="moves"), now=bench.now))
    assert changed.row is not None
    assert changed.row.last_window == first + MINUTE


@case()
def an_adopted_schedule_knows_the_runs_of_its_store(bench: Bench) -> None:
    """A job that has moved keeps the next one from overlapping; no window is filled a second time, and a
    run that is here already stays as it is."""
    first = start(bench)
    defined = definition(overlap=Overlap.SKIP)
    done_at, here, live, by_hand = (first - n * MINUTE for n in (4, 3, 2, 1))
    job = bench.add(queue=QUEUE)
    parcel = out(bench, 1, job)
    assert come(bench, 1, *(replace(one, headers={SCHEDULE_HEADER: NAME}) for one in parcel.jobs))
    done(bench, 1)
    ended = bench.add(queue="ended")
    (claim,) = bench.claim("ended")
    bench.complete(claim)
    put(bench, defined)
    fill(bench, here)
    (stays,) = runs(bench)
    kinds = {
        done_at: (RunKind.ENQUEUED, ended),
        here: (RunKind.MISSED, None),
        live: (RunKind.ENQUEUED, job),
        by_hand: (RunKind.TRIGGERED, window_id(NAME, by_hand)),
    }
    came = tuple(
        ScheduleRun(schedule=NAME, window=window, kind=kind, at=first, job=one)
        for window, (kind, one) in kinds.items()
    )
    change = Adopt(definition=defined.text, is_code=False, last_window=first, is_held=False, runs=came)
    for _ in range(2):  # a repeat changes nothing
        adopt(bench, change)
        known = {run.window: run for run in runs(bench)}
        assert known == {run.window: run for run in came} | {here: stays}
    assert fill(bench, done_at, live).runs == ()
    bench.cancel(stays.job or "")
    tick(bench)
    bench.advance(MINUTE)
    (run,) = tick(bench).runs
    assert run.kind is RunKind.SKIPPED
    bench.cancel(job)
    bench.advance(MINUTE)
    (run,) = tick(bench).runs
    assert run.kind is RunKind.ENQUEUED
