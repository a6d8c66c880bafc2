"""Backfill: past windows get their jobs once, beside ticks and other backfills."""

from __future__ import annotations

from datetime import datetime, timedelta

from winch.core.lifecycle import JobState
from winch.core.policy.schedule import Misfire, window_id
from winch.core.policy.unique import Duplicate
from winch.storage.decide.schedules import (
    KEEP_RUNS,
    SCHEDULE_HEADER,
    Answered,
    Backfill,
    Changed,
    RunKind,
    Skip,
)
from winch.storage.verbs import Verb
from winch.testing.conformance.bench import HOUR, MINUTE, Bench
from winch.testing.conformance.case import case
from winch.testing.conformance.cases.store.schedules import (
    NAME,
    QUEUE,
    definition,
    enqueued,
    put,
    row_of,
    runs,
    start,
    tick,
)


def filling(bench: Bench, *windows: datetime, **fields: int | timedelta | str) -> Verb[Changed]:
    change = Backfill(windows=windows, **{"definition": row_of(bench).definition, **fields})  # type: ignore[arg-type]
    return bench.driver.change_schedule(NAME, change, now=bench.now)


def fill(bench: Bench, *windows: datetime, **fields: int | timedelta | str) -> Changed:
    return bench.call(filling(bench, *windows, **fields))


def finish_all(bench: Bench) -> None:
    """Every job of the schedule runs to its end."""
    while claims := bench.claim(QUEUE, limit=100):
        bench.finish(*map(bench.outcome, claims))


@case()
def past_windows_get_their_jobs(bench: Bench) -> None:
    first = start(bench)
    put(bench, definition())
    tick(bench)
    windows = [first - n * MINUTE for n in (3, 2, 1)]
    changed = fill(bench, *windows)
    assert changed.answer is Answered.DONE
    assert [(run.window, run.kind, run.job) for run in changed.runs] == [
        (window, RunKind.ENQUEUED, window_id(NAME, window)) for window in windows
    ]
    assert enqueued(bench) == windows
    job = bench.get(window_id(NAME, windows[0]))
    assert (job.state, job.headers[SCHEDULE_HEADER]) == (JobState.READY, NAME)
    assert row_of(bench).last_window == first, "the ticker goes on where it was"
    assert [run.note for run in runs(bench)] == ["backfill"] * 3


@case()
def a_backfill_repeated_stores_nothing(bench: Bench) -> None:
    first = start(bench)
    put(bench, definition())
    tick(bench)
    windows = [first - n * MINUTE for n in (3, 2, 1)]
    fill(bench, *windows[:2])  # and its process died
    assert [run.window for run in fill(bench, *windows).runs] == windows[2:]
    assert fill(bench, *windows).runs == ()
    answers = bench.together([filling(bench, *windows, first - 4 * MINUTE) for _ in range(4)])
    assert sum(len(answer.runs) for answer in answers) == 1
    assert len(enqueued(bench)) == 4


@case()
def a_window_has_one_job_after_its_run_is_forgotten(bench: Bench) -> None:
    first = start(bench)
    put(bench, definition())
    tick(bench)
    bench.advance((KEEP_RUNS + 10) * MINUTE)
    # Windows that the ticker has still to deal with, and older ones.
    old = [first - MINUTE, first + MINUTE]
    fill(bench, *old)
    finish_all(bench)
    fill(bench, *(first + n * MINUTE for n in range(5, KEEP_RUNS + 6)))
    assert not {run.window for run in runs(bench)} & set(old), "their runs are gone"
    assert fill(bench, *old).runs == ()
    assert len(enqueued(bench)) == KEEP_RUNS + 3


@case()
def a_tick_leaves_the_windows_of_a_backfill_alone(bench: Bench) -> None:
    first = start(bench)
    put(bench, definition(misfire=Misfire.ALL))
    tick(bench)
    bench.advance(4 * MINUTE)
    windows = [first + n * MINUTE for n in (1, 2, 3, 4)]
    fill(bench, windows[0], windows[2])
    seen = row_of(bench)
    assert [run.window for run in tick(bench, seen).runs] == [windows[1], windows[3]]
    assert enqueued(bench) == windows


@case()
def windows_without_a_job_give_way(bench: Bench) -> None:
    first = start(bench)
    put(bench, definition(misfire=Misfire.SKIP))
    tick(bench)
    bench.advance(3 * MINUTE + MINUTE / 2)
    (missed,) = tick(bench).runs
    assert missed.kind is RunKind.MISSED
    bench.call(bench.driver.change_schedule(NAME, Skip(window=first + 4 * MINUTE), now=bench.now))
    bench.advance(MINUTE)
    windows = [first + n * MINUTE for n in (1, 2, 3, 4)]
    assert len(fill(bench, *windows).runs) == 4
    assert enqueued(bench) == windows
    assert {run.kind for run in runs(bench)} == {RunKind.ENQUEUED}
    assert fill(bench, *windows).runs == ()


@case()
def a_backfill_takes_no_window_to_come_and_no_other_definition(bench: Bench) -> None:
    first = start(bench)
    put(bench, definition())
    tick(bench)
    assert fill(bench, first + MINUTE).runs == ()
    other = definition(HOUR).text
    assert fill(bench, first - MINUTE, definition=other).answer is Answered.STALE
    assert enqueued(bench) == []
    gone = Backfill(definition=other, windows=(first,))
    assert bench.call(bench.driver.change_schedule("none", gone)).answer is Answered.MISSING


@case()
def a_backfill_has_a_pace_and_a_priority(bench: Bench) -> None:
    first = start(bench)
    put(bench, definition())
    tick(bench)
    windows = [first - n * MINUTE for n in (3, 2, 1)]
    fill(bench, *windows, spacing=10 * MINUTE, first=2, priority=7)
    jobs = [bench.get(window_id(NAME, window)) for window in windows]
    assert [job.run_at - bench.at for job in jobs] == [
        20 * MINUTE,
        30 * MINUTE,
        40 * MINUTE,
    ]
    assert {(job.state, job.priority) for job in jobs} == {(JobState.SCHEDULED, 7)}


@case()
def a_backfill_meets_a_unique_key(bench: Bench) -> None:
    first = start(bench)
    unique = {"unique_key": "report", "on_duplicate": Duplicate.REJECT}
    put(bench, definition(job=unique))
    tick(bench)
    windows = [first - n * MINUTE for n in (2, 1)]
    kinds = [run.kind for run in fill(bench, *windows).runs]
    assert kinds == [RunKind.ENQUEUED, RunKind.HELD]
    finish_all(bench)
    assert [run.window for run in fill(bench, *windows).runs] == windows[1:]
    assert len(enqueued(bench)) == 2
