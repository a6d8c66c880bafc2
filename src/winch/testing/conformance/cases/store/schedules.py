"""Schedules: every window gets its job once, whichever process ticks; definitions follow the live
sessions."""

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
    Put,
    RunKind,
    ScheduleRow,
    ScheduleRun,
    Tick,
)
from winch.storage.params import Declared, NewJob
from winch.testing.conformance.bench import HOUR, MINUTE, SECOND, Bench
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


def put(bench: Bench, defined: Definition, name: str = NAME, *, is_new: bool = True) -> Changed:
    change = Put(definition=defined.text, timing=defined.timing.key, is_new=is_new)
    return bench.call(bench.driver.change_schedule(name, change, now=bench.now))


def declared(defined: Definition, name: str = NAME) -> Declared:
    return Declared(name, defined.text, defined.timing.key)


def start(bench: Bench) -> datetime:
    """The bench's time at the beginning of a minute, so that windows are easily recognised."""
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
    defined = {"priority": 7, "tags": ("nightly",), "max_attempts": 3, "keep": HOUR, "version": 2}
    put(bench, definition(job={**defined, "headers": {"x": "y"}, "expires": HOUR}))
    tick(bench)
    bench.advance(MINUTE)
    (run,) = tick(bench).runs
    job = bench.get(run.job or "")
    kept = msgspec.structs.asdict(job)
    assert {name: kept[name] for name in defined} == defined
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
    looked = bench.call(bench.driver.due_schedules(now=bench.now))
    assert looked.next_at == first + 3 * MINUTE, "its next window is still to come"
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
