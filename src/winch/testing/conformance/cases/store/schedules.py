"""Schedules: every window gets its job once, whoever ticks; definitions follow the live sessions."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from winch.core.lifecycle import JobState
from winch.core.policy.schedule import Misfire, Overlap, Timing
from winch.core.policy.unique import Duplicate
from winch.storage.decide.schedules import (
    KEEP_RUNS,
    SCHEDULE_HEADER,
    WINDOW_HEADER,
    Answered,
    Changed,
    Definition,
    Pause,
    Put,
    Remove,
    Resume,
    RunKind,
    ScheduleRow,
    ScheduleRun,
    Skip,
    Tick,
    Trigger,
)
from winch.storage.params import Declared, NewJob
from winch.testing.conformance.bench import HOUR, LEASE, MINUTE, SECOND, Bench
from winch.testing.conformance.case import case

NAME = "report"
QUEUE = "reports"


def definition(every: timedelta = MINUTE, **fields: Any) -> Definition:
    job = fields.pop("job", {})
    return Definition(
        timing=fields.pop("timing", Timing(every=every)),
        job=NewJob(**{"id": "", "task": "report.make", "args": '{"day":1}', "queue": QUEUE, **job}),
        **fields,
    )


def put(bench: Bench, said: Definition, name: str = NAME, *, is_new: bool = True) -> Changed:
    change = Put(definition=said.text, timing=said.timing.key, is_new=is_new)
    return bench.call(bench.driver.change_schedule(name, change, now=bench.now))


def declared(said: Definition, name: str = NAME) -> Declared:
    return Declared(name, said.text, said.timing.key)


def start(bench: Bench) -> datetime:
    """The bench's time at the beginning of a minute, so that windows are easily told."""
    bench.now = bench.at.replace(second=0, microsecond=0) + MINUTE
    return bench.now


def row_of(bench: Bench, name: str = NAME) -> ScheduleRow:
    found = bench.call(bench.driver.schedules(name=name, now=bench.now))
    assert found.now == bench.now
    (row,) = found.found
    return row


def due(bench: Bench) -> list[str]:
    return [row.name for row in bench.call(bench.driver.due_schedules(now=bench.now)).found]


def tick(bench: Bench, seen: ScheduleRow | None = None, name: str = NAME) -> Changed:
    row = seen or row_of(bench, name)
    verb = bench.driver.change_schedule(
        name, Tick(definition=row.definition, since=row.last_window), now=bench.now
    )
    return bench.call(verb)


def runs(bench: Bench, name: str = NAME) -> list[ScheduleRun]:
    return bench.call(bench.driver.schedule_runs(name))


def enqueued(bench: Bench) -> list[datetime]:
    """The windows that have a job, oldest first, as the jobs themselves say."""
    jobs = bench.list_jobs(queue=QUEUE, limit=1000).jobs
    return sorted(datetime.fromisoformat(job.headers[WINDOW_HEADER]) for job in jobs)


# -- windows --------------------------------------------------------------------------------------------


@case()
def a_window_gets_one_job_when_it_is_due(bench: Bench) -> None:
    first = start(bench)
    assert put(bench, definition()).answer is Answered.DONE
    assert due(bench) == [NAME], "a new schedule wants to be looked at"
    assert tick(bench).runs == ()
    assert row_of(bench).next_at == first + MINUTE
    assert due(bench) == []
    bench.advance(MINUTE)
    assert due(bench) == [NAME]
    (run,) = tick(bench).runs
    assert (run.window, run.kind) == (first + MINUTE, RunKind.ENQUEUED)
    job = bench.get(run.job or "")
    assert (job.state, job.task, job.args, job.queue) == (
        JobState.READY,
        "report.make",
        '{"day":1}',
        QUEUE,
    )
    assert job.headers[SCHEDULE_HEADER] == NAME
    assert due(bench) == []
    assert tick(bench).runs == ()
    assert enqueued(bench) == [first + MINUTE]
    assert runs(bench) == [run]


@case()
def many_ticks_at_once_give_one_job(bench: Bench) -> None:
    start(bench)
    put(bench, definition())
    tick(bench)
    bench.advance(MINUTE)
    seen = row_of(bench)
    change = Tick(definition=seen.definition, since=seen.last_window)
    answers = bench.together(
        [bench.driver.change_schedule(NAME, change, now=bench.now) for _ in range(8)]
    )
    assert sorted(answer.answer for answer in answers) == [Answered.DONE] + [Answered.STALE] * 7
    assert sum(len(answer.runs) for answer in answers) == 1
    assert len(enqueued(bench)) == 1


@case()
def a_late_tick_by_an_old_look_changes_nothing(bench: Bench) -> None:
    start(bench)
    put(bench, definition())
    tick(bench)
    bench.advance(MINUTE)
    old = row_of(bench)
    tick(bench)
    bench.advance(MINUTE)
    assert tick(bench, old).answer is Answered.STALE
    assert len(enqueued(bench)) == 1
    assert tick(bench).answer is Answered.DONE
    assert len(enqueued(bench)) == 2


@case()
def a_tick_with_an_earlier_clock_takes_nothing_back(bench: Bench) -> None:
    first = start(bench)
    put(bench, definition())
    bench.advance(2 * MINUTE)
    tick(bench)
    bench.now = first + MINUTE
    assert tick(bench).runs == ()
    assert row_of(bench).last_window == first + 2 * MINUTE
    bench.now = first + 3 * MINUTE
    assert [run.window for run in tick(bench).runs] == [first + 3 * MINUTE]


@case()
def windows_in_time_each_get_a_job(bench: Bench) -> None:
    first = start(bench)
    put(bench, definition(2 * SECOND, misfire=Misfire.SKIP))
    tick(bench)
    bench.advance(7 * SECOND)
    tick(bench)
    assert enqueued(bench) == [first + n * SECOND for n in (2, 4, 6)]


@case()
def missed_windows_are_made_up_for_as_declared(bench: Bench) -> None:
    first = start(bench)
    wanted = {
        Misfire.SKIP: [],
        Misfire.LATEST: [first + 5 * MINUTE],
        Misfire.ALL: [first + n * MINUTE for n in (3, 4, 5)],
    }
    for misfire in wanted:
        put(bench, definition(misfire=misfire, catch_up=3), name=misfire)
        tick(bench, name=misfire)
    bench.advance(5 * MINUTE + 30 * SECOND)
    for misfire, windows in wanted.items():
        changed = tick(bench, name=misfire)
        made = [run.window for run in changed.runs if run.kind is RunKind.ENQUEUED]
        assert made == windows, f"{misfire}: {made}"
        (missed,) = [run for run in changed.runs if run.kind is RunKind.MISSED]
        assert str(5 - len(windows)) in (missed.note or "")
        assert row_of(bench, misfire).last_window == first + 5 * MINUTE


@case()
def a_job_of_a_window_may_be_due_later_by_jitter(bench: Bench) -> None:
    first = start(bench)
    put(bench, definition(HOUR, jitter=MINUTE))
    bench.now = first.replace(minute=0) + HOUR
    (run,) = tick(bench).runs
    job = bench.get(run.job or "")
    assert run.window < job.run_at < run.window + MINUTE
    assert job.state is JobState.SCHEDULED


@case()
def the_job_keeps_what_its_schedule_says(bench: Bench) -> None:
    start(bench)
    said = {"priority": 7, "tags": ("nightly",), "max_attempts": 3, "keep": HOUR, "version": 2}
    put(bench, definition(job={**said, "headers": {"x": "y"}, "expires": HOUR}))
    tick(bench)
    bench.advance(MINUTE)
    (run,) = tick(bench).runs
    job = bench.get(run.job or "")
    kept = msgspec.structs.asdict(job)
    assert {name: kept[name] for name in said} == said
    assert job.expires_at == bench.at + HOUR
    assert job.headers["x"] == "y"


# -- overlap --------------------------------------------------------------------------------------------


@case()
def overlap_skip_gives_no_job_while_an_earlier_one_is_not_final(bench: Bench) -> None:
    start(bench)
    put(bench, definition(overlap=Overlap.SKIP))
    tick(bench)
    bench.advance(MINUTE)
    (run,) = tick(bench).runs
    bench.advance(MINUTE)
    assert [(one.kind, one.job) for one in tick(bench).runs] == [(RunKind.SKIPPED, None)]
    claim = bench.take(QUEUE)
    bench.advance(MINUTE)
    assert [(one.kind, one.job) for one in tick(bench).runs] == [(RunKind.SKIPPED, None)]
    bench.complete(claim)
    bench.advance(MINUTE)
    (again,) = tick(bench).runs
    assert again.kind is RunKind.ENQUEUED
    assert len(enqueued(bench)) == 2
    assert run.job != again.job


@case()
def overlap_queue_keeps_one_window_until_the_earlier_job_is_final(bench: Bench) -> None:
    first = start(bench)
    put(bench, definition(overlap=Overlap.QUEUE))
    tick(bench)
    bench.advance(MINUTE)
    tick(bench)
    claim = bench.take(QUEUE)
    bench.advance(MINUTE)
    assert tick(bench).runs == ()
    assert row_of(bench).pending == first + 2 * MINUTE
    assert due(bench) == [NAME], "it is looked at again until the job ends"
    bench.advance(MINUTE)
    assert [run.kind for run in tick(bench).runs] == [RunKind.SKIPPED]
    assert enqueued(bench) == [first + MINUTE]
    bench.complete(claim)
    (run,) = tick(bench).runs
    assert (run.kind, run.window) == (RunKind.ENQUEUED, first + 2 * MINUTE)
    assert row_of(bench).pending is None
    assert enqueued(bench) == [first + MINUTE, first + 2 * MINUTE]


@case()
def overlap_allow_gives_jobs_side_by_side(bench: Bench) -> None:
    start(bench)
    put(bench, definition())
    tick(bench)
    for _ in range(3):
        bench.advance(MINUTE)
        tick(bench)
    assert bench.counts()[JobState.READY] == 3


@case()
def a_window_whose_unique_key_is_held_says_by_whom(bench: Bench) -> None:
    start(bench)
    holder = bench.add(unique_key="report:1")
    put(bench, definition(job={"unique_key": "report:1", "on_duplicate": Duplicate.REJECT}))
    tick(bench)
    bench.advance(MINUTE)
    (run,) = tick(bench).runs
    assert (run.kind, run.job) == (RunKind.HELD, holder)
    assert runs(bench) == [run]
    bench.cancel(holder)
    bench.advance(MINUTE)
    assert [run.kind for run in tick(bench).runs] == [RunKind.ENQUEUED]


# -- definitions ----------------------------------------------------------------------------------------


@case()
def adding_twice_keeps_the_first(bench: Bench) -> None:
    start(bench)
    said = definition()
    assert put(bench, said).answer is Answered.DONE
    assert put(bench, said).answer is Answered.DONE, "the same again is a repeat"
    assert put(bench, definition(HOUR)).answer is Answered.EXISTS
    assert row_of(bench).definition == said.text
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
    said = definition()
    session = bench.start_session(schedules=(declared(said),))
    change = bench.driver.change_schedule
    for one in (
        Put(definition=definition(HOUR).text, timing="", is_new=False),
        Put(definition=definition(HOUR).text, timing="", is_new=True),
        Remove(),
    ):
        assert bench.call(change(NAME, one, now=bench.now)).answer is Answered.DECLARED
    assert row_of(bench).definition == said.text
    bench.call(change(NAME, Pause(), now=bench.now))
    assert row_of(bench).definition == said.text
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


# -- history --------------------------------------------------------------------------------------------


@case()
def runs_are_kept_newest_first_and_not_for_ever(bench: Bench) -> None:
    bench.now = datetime(2026, 1, 1, tzinfo=UTC)
    put(bench, definition(SECOND, overlap=Overlap.SKIP))
    tick(bench)
    bench.advance(SECOND)
    (first,) = tick(bench).runs
    for _ in range(KEEP_RUNS // 9 + 2):
        bench.advance(9 * SECOND)
        tick(bench)
    kept = bench.call(bench.driver.schedule_runs(NAME, limit=10 * KEEP_RUNS))
    assert [run.window for run in kept] == sorted((run.window for run in kept), reverse=True)
    # The job that is not final keeps its row, or the next tick would not know of it.
    assert len(kept) == KEEP_RUNS + 1
    assert kept[-1] == first
    assert len(bench.call(bench.driver.schedule_runs(NAME, limit=7))) == 7
    assert len(enqueued(bench)) == 1


@case()
def schedules_are_listed_by_name(bench: Bench) -> None:
    start(bench)
    for name in ("b", "a", "Z"):
        put(bench, definition(), name)
    found = bench.call(bench.driver.schedules(now=bench.now))
    assert [row.name for row in found.found] == ["Z", "a", "b"]
    listed = bench.call(bench.driver.due_schedules(limit=2, now=bench.now))
    assert [row.name for row in listed.found] == ["Z", "a"]
    for name in ("b", "a", "Z"):
        tick(bench, name=name)
    later = bench.call(bench.driver.due_schedules(now=bench.now))
    assert (later.found, later.next_at) == ((), bench.at + MINUTE)
