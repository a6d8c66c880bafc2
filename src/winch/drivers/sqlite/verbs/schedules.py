"""Schedules and their runs. What a change comes to is decided in storage/decide/schedules.py."""

from __future__ import annotations

from datetime import datetime

from winch.core.job import from_micros, to_micros
from winch.core.values.codec import to_json
from winch.drivers._shared.rows import Row
from winch.drivers.sqlite.connections.writer import store_time
from winch.drivers.sqlite.records import read_moment, write_moment
from winch.drivers.sqlite.statements import Step
from winch.drivers.sqlite.verbs.base import Body, query
from winch.drivers.sqlite.verbs.enqueue import EnqueueVerbs
from winch.storage.decide.schedules import (
    KEEP_RUNS,
    Answered,
    Change,
    Changed,
    Effect,
    RunKind,
    ScheduleRow,
    ScheduleRows,
    ScheduleRun,
    changed,
    gives_way,
    is_new_job,
    is_repeated,
    needs_live,
    with_held,
)
from winch.storage.params import Enqueued
from winch.storage.verbs import Now, Verb


class ScheduleVerbs:
    """See ScheduleVerbs in storage/families.py for the contracts."""

    def __init__(self, enqueue: EnqueueVerbs) -> None:
        self._enqueue = enqueue

    def schedules(self, *, name: str | None = None, now: Now = None) -> Verb[ScheduleRows]:
        def body() -> Body[ScheduleRows]:
            rows = yield from query("schedules", name=name)
            return ScheduleRows(from_micros(store_time(now)), tuple(map(_read_row, rows)))

        return Verb("schedules", body, is_read=True)

    def due_schedules(self, *, limit: int = 100, now: Now = None) -> Verb[ScheduleRows]:
        def body() -> Body[ScheduleRows]:
            at = store_time(now)
            rows = yield from query("due_schedules", limit=limit, now=at)
            ((next_at,),) = yield from query("due_schedules.next", now=at)
            return ScheduleRows(from_micros(at), tuple(map(_read_row, rows)), read_moment(next_at))

        return Verb("due_schedules", body, is_read=True)

    def change_schedule(self, name: str, change: Change, *, now: Now = None) -> Verb[Changed]:
        def body() -> Body[Changed]:
            at = from_micros(store_time(now))
            rows = yield from query("schedules", name=name)
            live = 0
            if needs_live(change):
                ((live,),) = yield from query("change_schedule.live", name=name)
            effect = changed(name, _read_row(rows[0]) if rows else None, change, at, live)
            if effect.answer is not Answered.DONE:
                return Changed(answer=effect.answer, row=effect.row)
            row = effect.row
            if row is None:
                yield from query("change_schedule.remove", name=name)
                yield from query("change_schedule.forget", name=name)
            elif effect.is_written:
                yield from query(
                    "change_schedule",
                    name=name,
                    definition=row.definition,
                    is_defined=effect.is_defined,
                    is_code=row.is_code,
                    created_at=to_micros(row.created_at),
                    last_window=to_micros(row.last_window),
                    next_at=write_moment(row.next_at),
                    timing=row.timing,
                    pending=write_moment(row.pending),
                    paused_at=write_moment(row.paused_at),
                    pause_reason=row.pause_reason,
                )
            runs = yield from self._write_runs(name, effect, now)
            return Changed(answer=effect.answer, row=row, runs=runs)

        return Verb("change_schedule", body)

    def _write_runs(
        self, name: str, effect: Effect, now: datetime | None
    ) -> Body[tuple[ScheduleRun, ...]]:
        if not effect.runs:
            return ()
        windows = to_json([to_micros(run.window) for run in effect.runs])
        rows = yield from query("change_schedule.taken", name=name, windows=windows)
        there = {from_micros(window): RunKind(kind) for window, kind in rows}
        pairs = list(zip(effect.runs, effect.jobs, strict=True))
        ids = [run.job for run, job in pairs if is_new_job(run, job)]
        stored = set()
        if ids:  # a job may outlive the run of its window
            stored = {row[0] for row in (yield from query("change_schedule.stored", ids=to_json(ids)))}
        taken = {
            run.window
            for run, job in pairs
            if (run.window in there and not gives_way(there[run.window], run.kind))
            or (is_new_job(run, job) and run.job in stored)
        }
        jobs = [job for run, job in pairs if job is not None and run.window not in taken]
        answers: dict[str, Enqueued] = {}
        if jobs:
            made = yield from self._enqueue.enqueue(jobs, now=now).steps()
            answers = {answer.id: answer for answer in made}
        runs = tuple(
            run
            for run in with_held(effect.runs, answers)
            if run.window not in taken
            # A trigger that was repeated has its row already.
            and not is_repeated(run, answers)
        )
        yield Step.each(
            "change_schedule.run",
            [
                {
                    "schedule": name,
                    "window_at": to_micros(run.window),
                    "kind": run.kind,
                    "at": to_micros(run.at),
                    "job": run.job,
                    "note": run.note,
                }
                for run in runs
            ],
        )
        yield from query("change_schedule.trim", name=name, keep=KEEP_RUNS)
        return runs

    def schedule_runs(self, name: str, *, limit: int = 50) -> Verb[list[ScheduleRun]]:
        def body() -> Body[list[ScheduleRun]]:
            rows = yield from query("schedule_runs", name=name, limit=limit)
            return [
                ScheduleRun(
                    schedule=schedule,
                    window=from_micros(window),
                    kind=RunKind(kind),
                    at=from_micros(at),
                    job=job,
                    note=note,
                )
                for schedule, window, kind, at, job, note in rows
            ]

        return Verb("schedule_runs", body, is_read=True)


def _read_row(row: Row) -> ScheduleRow:
    (name, definition, is_code, created_at, last_window, declared_by, next_at, timing, pending,
     paused_at, pause_reason) = row  # fmt: skip
    return ScheduleRow(
        name=name,
        definition=definition,
        is_code=bool(is_code),
        created_at=from_micros(created_at),
        last_window=from_micros(last_window),
        declared_by=declared_by,
        next_at=read_moment(next_at),
        timing=timing,
        pending=read_moment(pending),
        paused_at=read_moment(paused_at),
        pause_reason=pause_reason,
    )
