"""How schedules are defined, by people and by code: cases of the family `schedules`."""

from __future__ import annotations

from datetime import timedelta

from winch.core.lifecycle import JobState
from winch.core.policy.schedule import Misfire, Overlap
from winch.storage.decide.schedules import (
    Answered,
    Pause,
    Put,
    Remove,
    Resume,
    RunKind,
    Skip,
    Trigger,
)
from winch.testing.conformance.bench import HOUR, LEASE, MINUTE, SECOND, Bench
from winch.testing.conformance.case import case
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

FAMILY = "schedules"


# -- definitions ----------------------------------------------------------------------------------------


@case()
def adding_twice_keeps_the_first(bench: Bench) -> None:
    start(bench)
    defined = definition()
    assert put(bench, defined).answer is Answered.DONE
    assert put(bench, defined).answer is Answered.DONE, "the same again is a repeat"
    assert put(bench, definition(HOUR)).answer is Answered.EXISTS
    assert row_of(bench).definition == defined.text
    answers = bench.together(
        [
            bench.driver.change_schedule(
                "other", Put(definition=one.text, timing=one.timing.key, is_new=True), now=bench.now
            )
            for one in (definition(n * MINUTE) for n in range(1, 5))
        ]
    )
    assert sorted(one.answer for one in answers) == [Answered.DONE] + [Answered.EXISTS] * 3


@case()
def an_edited_schedule_counts_its_new_windows_from_then_on(bench: Bench) -> None:
    first = start(bench)
    bench.now = first = first.replace(minute=1)
    put(bench, definition(HOUR))
    tick(bench)
    bench.advance(10 * MINUTE)
    assert put(bench, definition(), is_new=False).answer is Answered.DONE
    assert due(bench) == [NAME]
    assert tick(bench).runs == ()
    assert row_of(bench).next_at == first + 11 * MINUTE
    bench.advance(MINUTE)
    assert [run.window for run in tick(bench).runs] == [first + 11 * MINUTE]
    assert put(bench, definition(), "nobody", is_new=False).answer is Answered.MISSING


@case()
def a_tick_by_a_definition_that_is_no_longer_in_effect_changes_nothing(bench: Bench) -> None:
    start(bench)
    put(bench, definition())
    tick(bench)
    bench.advance(MINUTE)
    old = row_of(bench)
    put(bench, definition(job={"args": '{"day":2}'}), is_new=False)
    assert tick(bench, old).answer is Answered.STALE
    (run,) = tick(bench).runs
    assert bench.get(run.job or "").args == '{"day":2}'


@case()
def a_removed_schedule_is_gone_with_its_runs_and_not_its_jobs(bench: Bench) -> None:
    start(bench)
    put(bench, definition())
    tick(bench)
    bench.advance(MINUTE)
    old = row_of(bench)
    (run,) = tick(bench).runs
    change = bench.driver.change_schedule
    assert bench.call(change(NAME, Remove(), now=bench.now)).answer is Answered.DONE
    assert bench.call(bench.driver.schedules(name=NAME)).found == ()
    assert runs(bench) == []
    assert bench.get(run.job or "").state is JobState.READY
    for one in (Remove(), Pause(), Resume(), Trigger(bench.new_id())):
        assert bench.call(change(NAME, one, now=bench.now)).answer is Answered.MISSING
    assert tick(bench, old).answer is Answered.MISSING


@case()
def a_paused_schedule_gives_nothing_and_makes_up_for_nothing(bench: Bench) -> None:
    first = start(bench)
    put(bench, definition(misfire=Misfire.ALL))
    tick(bench)
    change = bench.driver.change_schedule
    bench.call(change(NAME, Pause(reason="stocktaking"), now=bench.now))
    row = row_of(bench)
    assert (row.paused_at, row.pause_reason) == (first, "stocktaking")
    bench.advance(3 * MINUTE)
    assert due(bench) == []
    assert tick(bench).answer is Answered.STALE
    bench.advance(SECOND)
    bench.call(change(NAME, Resume(), now=bench.now))
    assert row_of(bench).paused_at is None
    assert tick(bench).runs == ()
    bench.now = first + 4 * MINUTE
    assert [run.window for run in tick(bench).runs] == [first + 4 * MINUTE]


@case()
def a_trigger_gives_a_job_now_and_a_repeat_of_it_none(bench: Bench) -> None:
    start(bench)
    put(bench, definition(HOUR, overlap=Overlap.SKIP, jitter=HOUR))
    change = Trigger(bench.new_id())
    bench.call(bench.driver.change_schedule(NAME, Pause(), now=bench.now))
    (run,) = bench.call(bench.driver.change_schedule(NAME, change, now=bench.now)).runs
    assert (run.kind, run.job) == (RunKind.TRIGGERED, change.job_id)
    assert bench.get(change.job_id).state is JobState.READY
    bench.advance(SECOND)
    assert bench.call(bench.driver.change_schedule(NAME, change, now=bench.now)).runs == ()
    assert runs(bench) == [run]
    assert len(enqueued(bench)) == 1


@case()
def a_skipped_window_gets_no_job(bench: Bench) -> None:
    first = start(bench)
    put(bench, definition())
    tick(bench)
    skip = Skip(window=first + MINUTE)
    answers = bench.together([bench.driver.change_schedule(NAME, skip, now=bench.now) for _ in range(4)])
    assert sorted(one.answer for one in answers) == [Answered.DONE] + [Answered.STALE] * 3
    bench.advance(MINUTE)
    assert due(bench) == []
    bench.advance(MINUTE)
    tick(bench)
    assert enqueued(bench) == [first + 2 * MINUTE]
    assert [run.kind for run in runs(bench)] == [RunKind.ENQUEUED, RunKind.SKIPPED]


# -- defined in code ------------------------------------------------------------------------------------


@case()
def a_declared_schedule_is_active_while_a_live_session_declares_it(bench: Bench) -> None:
    first = start(bench)
    session = bench.start_session(schedules=(declared(definition()),))
    row = row_of(bench)
    assert (row.is_code, row.declared_by, row.is_active) == (True, 1, True)
    tick(bench)
    bench.advance(MINUTE)
    assert due(bench) == [NAME]
    tick(bench)
    bench.end_session(session)
    bench.advance(MINUTE)
    assert due(bench) == []
    assert not row_of(bench).is_active
    assert tick(bench).answer is Answered.STALE
    bench.start_session(schedules=(declared(definition()),))
    assert due(bench) == [NAME], "what was missed meanwhile is up to its misfire policy"
    tick(bench)
    assert enqueued(bench) == [first + MINUTE, first + 2 * MINUTE]


@case()
def a_session_without_queues_declares_schedules_and_serves_nothing(bench: Bench) -> None:
    start(bench)
    session = bench.start_session(queues=(), tasks=(), slots=0, schedules=(declared(definition()),))
    assert row_of(bench).is_active
    tick(bench)
    bench.add(queue=QUEUE)
    [queue] = [one for one in bench.call(bench.driver.queues()) if one.name == QUEUE]
    assert queue.sessions == 0
    [found] = [one for one in bench.call(bench.driver.sessions()) if one.id == session]
    assert (found.queues, found.slots, found.is_worker) == ((), 0, False)
    bench.advance(LEASE + SECOND)
    bench.rescue()
    assert not row_of(bench).is_active, "its lease was over"


@case()
def the_definition_of_the_session_that_started_last_is_in_effect(bench: Bench) -> None:
    start(bench)
    old, new = definition(), definition(job={"args": '{"day":2}'})
    bench.start_session(schedules=(declared(old),))
    bench.advance(SECOND)
    canary = bench.start_session(schedules=(declared(new),))
    row = row_of(bench)
    assert (row.definition, row.declared_by) == (new.text, 2)
    bench.advance(SECOND)
    bench.start_session(schedules=())
    assert row_of(bench).definition == new.text
    bench.end_session(canary, cause="killed by SIGKILL")
    assert row_of(bench).definition == old.text
    assert row_of(bench).declared_by == 1


@case()
def another_timing_that_comes_into_effect_counts_from_then_on(bench: Bench) -> None:
    first = start(bench)
    bench.now = first = first.replace(minute=1)
    bench.start_session(schedules=(declared(definition(HOUR)),))
    tick(bench)
    bench.advance(5 * MINUTE)
    canary = bench.start_session(schedules=(declared(definition(misfire=Misfire.ALL)),))
    assert due(bench) == [NAME]
    assert tick(bench).runs == ()
    bench.advance(MINUTE)
    assert [run.window for run in tick(bench).runs] == [first + 6 * MINUTE]
    bench.end_session(canary)
    bench.advance(MINUTE)
    assert due(bench) == [NAME], "the older timing is in effect again"
    assert tick(bench).runs == ()
    assert row_of(bench).next_at == first.replace(minute=0) + HOUR


@case()
def a_session_that_only_repeats_its_start_changes_nothing(bench: Bench) -> None:
    start(bench)
    session = bench.new_session(schedules=(declared(definition()),))
    for _ in range(2):
        bench.call(bench.driver.start_session(session, now=bench.now))
        tick(bench)
    assert row_of(bench).declared_by == 1


@case()
def what_code_defines_is_not_changed_by_others(bench: Bench) -> None:
    start(bench)
    defined = definition()
    session = bench.start_session(schedules=(declared(defined),))
    change = bench.driver.change_schedule
    for one in (
        Put(definition=definition(HOUR).text, timing="", is_new=False),
        Put(definition=definition(HOUR).text, timing="", is_new=True),
        Remove(),
    ):
        assert bench.call(change(NAME, one, now=bench.now)).answer is Answered.DECLARED
    assert row_of(bench).definition == defined.text
    bench.call(change(NAME, Pause(), now=bench.now))
    assert row_of(bench).definition == defined.text
    assert row_of(bench).paused_at == bench.now
    bench.end_session(session)
    assert bench.call(change(NAME, Remove(), now=bench.now)).answer is Answered.DONE
    assert bench.call(bench.driver.schedules()).found == ()


@case()
def a_schedule_of_its_own_stays_while_code_declares_its_name(bench: Bench) -> None:
    start(bench)
    own = definition(HOUR)
    put(bench, own)
    session = bench.start_session(schedules=(declared(definition()),))
    assert row_of(bench).definition == definition().text
    assert put(bench, definition(2 * HOUR), is_new=False).answer is Answered.DECLARED
    tick(bench)
    bench.end_session(session)
    assert row_of(bench).definition == own.text


@case()
def pruned_sessions_take_their_declarations_along(bench: Bench) -> None:
    start(bench)
    session = bench.start_session(schedules=(declared(definition()),), lease=LEASE)
    bench.end_session(session)
    bench.advance(timedelta(days=2))
    bench.prune()
    row = row_of(bench)
    assert (row.declared_by, row.is_active) == (0, False)
    assert row.definition == definition().text
