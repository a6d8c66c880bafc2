"""Schedules as the store holds them, and what becomes of one when it is changed: decided once, for every
driver.

A driver reads the schedule's row under a lock, calls `changed`, and writes what it returns, jobs
included, in the same transaction. So a window is decided by one, even if others look at the same
moment: the second finds that the last window is no longer the one it had read. The row (schedule,
window) is unique besides, and a job is stored only together with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import StrEnum

import msgspec

from winch.core.policy.schedule import (
    DEFAULT_CATCH_UP,
    Misfire,
    Overlap,
    Timing,
    jittered,
    owed,
    window_id,
)
from winch.core.policy.unique import Duplicate
from winch.storage.params import Enqueued, NewJob

# The newest runs of each schedule that are kept.
KEEP_RUNS = 200
HELD_NOTE = "its unique key was held"
BACKFILL_NOTE = "backfill"
SCHEDULE_HEADER = "winch-schedule"
WINDOW_HEADER = "winch-window"


class Definition(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The timing of a schedule, its policies, and the job that it enqueues."""

    timing: Timing
    job: NewJob
    misfire: Misfire = Misfire.LATEST
    catch_up: int = DEFAULT_CATCH_UP
    overlap: Overlap = Overlap.ALLOW
    jitter: timedelta = timedelta(0)
    misfire_deadline: timedelta | None = None

    @property
    def text(self) -> str:
        """The definition as the JSON text that the store keeps."""
        return msgspec.json.encode(self, order="deterministic").decode()


def read_definition(text: str) -> Definition:
    return msgspec.json.decode(text, type=Definition)


def timing_key(text: str) -> str:
    """The key of the timing in a definition's text."""
    return read_definition(text).timing.key


class ScheduleRow(msgspec.Struct, frozen=True, kw_only=True):
    """One schedule. `timing` is the key of the timing that `next_at` was found by.

    `definition` is the one in effect: that of the live session which started last among those that
    declare the schedule, else its own. One that only code defines is active while a live session
    declares it (`declared_by` counts them).
    """

    name: str
    definition: str
    is_code: bool
    created_at: datetime
    last_window: datetime
    declared_by: int = 0
    next_at: datetime | None = None
    timing: str | None = None
    pending: datetime | None = None
    paused_at: datetime | None = None
    pause_reason: str | None = None

    @property
    def is_active(self) -> bool:
        return not self.is_code or self.declared_by > 0


class ScheduleRows(msgspec.Struct, frozen=True):
    """Schedules by name, and the store's time. `next_at`: when the next of the others is due."""

    now: datetime
    found: tuple[ScheduleRow, ...]
    next_at: datetime | None = None


class RunKind(StrEnum):
    """What a window led to: a job, or none, because of overlap, a skip, a miss or a held unique key."""

    ENQUEUED = "enqueued"
    SKIPPED = "skipped"
    MISSED = "missed"
    TRIGGERED = "triggered"
    HELD = "held"


class ScheduleRun(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a schedule's history. `job` is the one it enqueued, or the one that was in the way."""

    schedule: str
    window: datetime
    kind: RunKind
    at: datetime
    job: str | None = None
    note: str | None = None


# -- changes ----------------------------------------------------------------------------------------


class Put(msgspec.Struct, frozen=True, kw_only=True):
    """Define a schedule of its own: a new one, or (`is_new=False`) one that is there. The new definition
    counts from now on."""

    definition: str
    timing: str
    is_new: bool


class Pause(msgspec.Struct, frozen=True, kw_only=True):
    reason: str | None = None


class Resume(msgspec.Struct, frozen=True):
    """Windows that passed meanwhile are not made up for."""


class Remove(msgspec.Struct, frozen=True):
    """Forget the schedule and its runs; its jobs stay. Not while code declares it."""


class Tick(msgspec.Struct, frozen=True, kw_only=True):
    """Deal with what is due. `definition` and `since` (the last window) are as they were read: if either
    is another one by now, nothing is done. `deadline` is for schedules that have none of their own."""

    definition: str
    since: datetime
    deadline: timedelta | None = None


class Trigger(msgspec.Struct, frozen=True):
    """A job now, whatever the time and the policies say. A repeat with the same id is the same job."""

    job_id: str


class Skip(msgspec.Struct, frozen=True, kw_only=True):
    """No job for the next window, which was read as this one."""

    window: datetime


class Backfill(msgspec.Struct, frozen=True, kw_only=True):
    """A job for each of these past windows that has none, whatever the policies say. `definition` is as
    it was read: if it is another one by now, nothing is done. The first job is due `first` times
    `spacing` from now, the next one a `spacing` later."""

    definition: str
    windows: tuple[datetime, ...]
    priority: int | None = None
    spacing: timedelta = timedelta(0)
    first: int = 0


class Adopt(msgspec.Struct, frozen=True, kw_only=True):
    """Have a schedule of another store, from the window on that it had dealt with last. While it
    `is_held` this store does not tick it; `reason` says why. Windows that pass meanwhile are made up for
    as the misfire policy says. `runs`: what became of windows there; a run that is here stays."""

    definition: str
    is_code: bool
    last_window: datetime
    pending: datetime | None = None
    is_held: bool = True
    reason: str | None = None
    runs: tuple[ScheduleRun, ...] = ()


Change = Put | Pause | Resume | Remove | Tick | Trigger | Skip | Backfill | Adopt


class Answered(StrEnum):
    """What a change came to. STALE: another process was first. DECLARED: the code defines it."""

    DONE = "done"
    MISSING = "missing"
    EXISTS = "exists"
    DECLARED = "declared"
    STALE = "stale"


class Changed(msgspec.Struct, frozen=True, kw_only=True):
    """The answer, the row as it is now, and the lines that were added to the history."""

    answer: Answered
    row: ScheduleRow | None = None
    runs: tuple[ScheduleRun, ...] = ()


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    """What to write. `jobs` go with the runs of the same place; `row` None with DONE: remove it.
    Its definition is written only where it `is_defined` anew: the one in effect may be a session's."""

    answer: Answered
    row: ScheduleRow | None = None
    is_written: bool = True
    is_defined: bool = False
    runs: tuple[ScheduleRun, ...] = ()
    jobs: tuple[NewJob | None, ...] = ()


def needs_live(change: Change) -> bool:
    """Whether `changed` asks how many jobs of the schedule are not final."""
    return isinstance(change, Tick)


def changed(
    name: str,
    row: ScheduleRow | None,
    change: Change,
    at: datetime,
    live: int = 0,
) -> Effect:
    """What this change makes of a schedule. `live`: how many of its jobs are not final."""
    if isinstance(change, Put):
        return _put(name, row, change, at)
    if isinstance(change, Adopt):
        return _adopt(name, row, change, at)
    if row is None:
        return Effect(answer=Answered.MISSING)
    if isinstance(change, Remove):
        if row.declared_by:
            return Effect(answer=Answered.DECLARED, row=row, is_written=False)
        return Effect(answer=Answered.DONE)
    if isinstance(change, Pause):
        paused = msgspec.structs.replace(row, paused_at=at, pause_reason=change.reason)
        return Effect(answer=Answered.DONE, row=paused)
    if isinstance(change, Resume):
        return _resume(row, at)
    if isinstance(change, Trigger):
        return _trigger(row, change, at)
    if isinstance(change, Skip):
        return _skip(row, change, at)
    if isinstance(change, Backfill):
        return _backfill(row, change, at)
    return _tick(row, change, at, live)


def _put(name: str, row: ScheduleRow | None, change: Put, at: datetime) -> Effect:
    if row is None:
        if not change.is_new:
            return Effect(answer=Answered.MISSING)
        made = ScheduleRow(
            name=name, definition=change.definition, is_code=False, created_at=at, last_window=at
        )
        return Effect(answer=Answered.DONE, row=made, is_defined=True)
    if row.is_code or row.declared_by:
        return Effect(answer=Answered.DECLARED, row=row, is_written=False)
    if change.is_new and row.definition != change.definition:
        return Effect(answer=Answered.EXISTS, row=row, is_written=False)
    if change.is_new:  # a repeat, or two that agree
        return Effect(answer=Answered.DONE, row=row, is_written=False)
    edited = msgspec.structs.replace(row, definition=change.definition, next_at=None)
    return Effect(answer=Answered.DONE, row=edited, is_defined=True)


def _adopt(name: str, row: ScheduleRow | None, change: Adopt, at: datetime) -> Effect:
    made = row or ScheduleRow(
        name=name,
        definition=change.definition,
        is_code=change.is_code,
        created_at=at,
        last_window=change.last_window,
    )
    adopted = msgspec.structs.replace(
        made,
        definition=made.definition if made.declared_by else change.definition,
        # One that this store ticks goes on from its own last window, where that is later.
        last_window=(
            change.last_window
            if row is None or row.paused_at is not None
            else max(row.last_window, change.last_window)
        ),
        pending=change.pending or made.pending,
        paused_at=at if change.is_held else None,
        pause_reason=change.reason if change.is_held else None,
        next_at=None,
    )
    return Effect(
        answer=Answered.DONE,
        row=adopted,
        is_defined=row is None,
        runs=change.runs,
        jobs=(None,) * len(change.runs),
    )


def _resume(row: ScheduleRow, at: datetime) -> Effect:
    if row.paused_at is None:
        return Effect(answer=Answered.DONE, row=row, is_written=False)
    resumed = msgspec.structs.replace(
        row,
        paused_at=None,
        pause_reason=None,
        last_window=max(row.last_window, at),
        next_at=None,
    )
    return Effect(answer=Answered.DONE, row=resumed)


def _trigger(row: ScheduleRow, change: Trigger, at: datetime) -> Effect:
    definition = read_definition(row.definition)
    job = msgspec.structs.replace(
        job_of(row.name, definition, at, change.job_id), run_at=None, is_given_id=True
    )
    run = ScheduleRun(schedule=row.name, window=at, kind=RunKind.TRIGGERED, at=at, job=job.id)
    return Effect(answer=Answered.DONE, row=row, is_written=False, runs=(run,), jobs=(job,))


def _skip(row: ScheduleRow, change: Skip, at: datetime) -> Effect:
    if change.window <= row.last_window or row.next_at not in (None, change.window):
        return Effect(answer=Answered.STALE, row=row, is_written=False)
    definition = read_definition(row.definition)
    run = ScheduleRun(
        schedule=row.name, window=change.window, kind=RunKind.SKIPPED, at=at, note="as asked"
    )
    skipped = msgspec.structs.replace(
        row,
        last_window=change.window,
        next_at=definition.timing.next_after(change.window),
        timing=definition.timing.key,
    )
    return Effect(answer=Answered.DONE, row=skipped, runs=(run,), jobs=(None,))


def _backfill(row: ScheduleRow, change: Backfill, at: datetime) -> Effect:
    if row.definition != change.definition:
        return Effect(answer=Answered.STALE, row=row, is_written=False)
    definition = read_definition(row.definition)
    if change.priority is not None:
        job = msgspec.structs.replace(definition.job, priority=change.priority)
        definition = msgspec.structs.replace(definition, job=job)
    runs: list[ScheduleRun] = []
    jobs: list[NewJob | None] = []
    for place, window in enumerate(one for one in change.windows if one <= at):
        job_id = window_id(row.name, window)
        job = job_of(row.name, definition, window, job_id)
        if change.spacing:
            job = msgspec.structs.replace(job, run_at=at + (change.first + place) * change.spacing)
        kind, note = RunKind.ENQUEUED, BACKFILL_NOTE
        runs.append(
            ScheduleRun(schedule=row.name, window=window, kind=kind, at=at, job=job_id, note=note)
        )
        jobs.append(job)
    return Effect(answer=Answered.DONE, row=row, is_written=False, runs=tuple(runs), jobs=tuple(jobs))


def is_new_job(run: ScheduleRun, job: NewJob | None) -> bool:
    """Whether the job of this window is stored with the run. That of an adopted run is there, or was."""
    return run.kind is RunKind.ENQUEUED and job is not None


def is_repeated(run: ScheduleRun, answers: Mapping[str, Enqueued]) -> bool:
    """Whether this is the run of a trigger that was repeated, which has its row already."""
    answer = answers.get(run.job or "")
    return run.kind is RunKind.TRIGGERED and answer is not None and not answer.is_new


def gives_way(there: RunKind, to: RunKind) -> bool:
    """Whether the run of a window is replaced by another: one without a job by one with a job."""
    return to is RunKind.ENQUEUED and there in (RunKind.MISSED, RunKind.SKIPPED, RunKind.HELD)


def _tick(row: ScheduleRow, change: Tick, at: datetime, live: int) -> Effect:
    is_stale = (
        row.definition != change.definition
        or row.last_window != change.since
        or row.paused_at is not None
        or not row.is_active
    )
    if is_stale:
        return Effect(answer=Answered.STALE, row=row, is_written=False)
    definition = read_definition(row.definition)
    timing = definition.timing
    runs: list[ScheduleRun] = []
    jobs: list[NewJob | None] = []

    def note(window: datetime, kind: RunKind, job: NewJob | None = None, why: str | None = None) -> None:
        name = None if job is None else job.id
        runs.append(ScheduleRun(schedule=row.name, window=window, kind=kind, at=at, job=name, note=why))
        jobs.append(job)

    def give(window: datetime) -> None:
        nonlocal live
        job_id = window_id(row.name, window)
        note(window, RunKind.ENQUEUED, job_of(row.name, definition, window, job_id))
        live += 1

    pending = row.pending
    if pending is not None and (not live or definition.overlap is not Overlap.QUEUE):
        give(pending)
        pending = None
    found = None
    last = row.last_window
    if row.timing is not None and row.timing != timing.key:
        # Another timing has come into effect: its windows count from now on.
        last = max(last, at)
    elif found := owed(
        timing,
        definition.misfire,
        definition.catch_up,
        last,
        at,
        definition.misfire_deadline or change.deadline,
    ):
        last = found.until
    if found is not None and found.missed:
        count = f"{'more than ' if found.is_more else ''}{len(found.missed):,}"
        note(found.missed[-1], RunKind.MISSED, why=f"{count} missed")
    for window in () if found is None else found.windows:
        if not live or definition.overlap is Overlap.ALLOW:
            give(window)
        elif definition.overlap is Overlap.QUEUE and pending is None:
            pending = window
        else:
            note(window, RunKind.SKIPPED, why="the job of an earlier window was not done")
    after = msgspec.structs.replace(
        row,
        last_window=last,
        next_at=timing.next_after(last),
        timing=timing.key,
        pending=pending,
    )
    return Effect(
        answer=Answered.DONE,
        row=after,
        is_written=after != row,
        runs=tuple(runs),
        jobs=tuple(jobs),
    )


def job_of(name: str, definition: Definition, window: datetime, job_id: str) -> NewJob:
    """The job of one window."""
    wanted = definition.job
    # No caller receives the duplicate; the history records that the key was held.
    on_duplicate = wanted.on_duplicate
    return msgspec.structs.replace(
        wanted,
        id=job_id,
        run_at=jittered(name, window, definition.jitter),
        delay=None,
        on_duplicate=Duplicate.RETURN if on_duplicate is Duplicate.REJECT else on_duplicate,
        headers={
            **wanted.headers,
            SCHEDULE_HEADER: name,
            WINDOW_HEADER: window.isoformat().replace("+00:00", "Z"),
        },
    )


def with_held(runs: tuple[ScheduleRun, ...], answers: dict[str, Enqueued]) -> tuple[ScheduleRun, ...]:
    """The runs, with those whose job was not stored because its unique key was held."""
    found = []
    for run in runs:
        answer = answers.get(run.job or "")
        if answer is None or answer.holder is None:
            found.append(run)
        else:
            held = msgspec.structs.replace(run, kind=RunKind.HELD, job=answer.holder, note=HELD_NOTE)
            found.append(held)
    return tuple(found)
