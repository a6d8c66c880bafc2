"""Schedules and their runs. storage/decide/schedules.py decides what a change does."""

from __future__ import annotations

from datetime import datetime

import msgspec

from winch.core.errors import StorageUnavailable
from winch.drivers.postgres.records import read_maybe_moment, read_moment
from winch.drivers.postgres.statements import Body, Row
from winch.drivers.postgres.verbs.base import Base
from winch.drivers.postgres.verbs.enqueue import EnqueueVerbs
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
    is_new_job,
    is_repeated,
    needs_live,
    with_held,
)
from winch.storage.params import Enqueued
from winch.storage.verbs import Now, Verb

# How often a change looks again when the row appears or disappears meanwhile.
LOOKS = 5


class ScheduleVerbs:
    """See storage/families.py for the contracts."""

    def __init__(self, base: Base, enqueue: EnqueueVerbs) -> None:
        self._base = base
        self._enqueue = enqueue

    def schedules(self, *, name: str | None = None, now: Now = None) -> Verb[ScheduleRows]:
        def body() -> Body[ScheduleRows]:
            ((at,),) = yield self._base.statement("schedules.now", is_alone=True, now=now)
            rows = yield self._base.statement("schedules", is_alone=True, name=name)
            return ScheduleRows(read_moment(at), tuple(map(_read_row, rows)))

        return self._base.read("schedules", body)

    def due_schedules(self, *, limit: int = 100, now: Now = None) -> Verb[ScheduleRows]:
        def body() -> Body[ScheduleRows]:
            rows = yield self._base.statement("due_schedules", is_alone=True, limit=limit, now=now)
            ((at, next_at),) = yield self._base.statement("due_schedules.next", is_alone=True, now=now)
            return ScheduleRows(read_moment(at), tuple(map(_read_row, rows)), read_maybe_moment(next_at))

        return self._base.read("due_schedules", body)

    def change_schedule(self, name: str, change: Change, *, now: Now = None) -> Verb[Changed]:
        def body() -> Body[Changed]:
            for _ in range(LOOKS):
                yield self._base.statement("change_schedule", name=name)
                rows = yield self._base.statement("schedules", name=name)
                ((moment,),) = yield self._base.statement("schedules.now", now=now)
                at = read_moment(moment)
                live = 0
                if needs_live(change):
                    ((live,),) = yield self._base.statement("change_schedule.live", name=name)
                row = _read_row(rows[0]) if rows else None
                effect = changed(name, row, change, at, live)
                if effect.answer is not Answered.DONE:
                    return Changed(answer=effect.answer, row=effect.row)
                if (yield from self._write_row(name, row is None, effect)):
                    runs = yield from self._write_runs(name, effect, now)
                    return Changed(answer=effect.answer, row=effect.row, runs=runs)
            raise StorageUnavailable(f"schedule {name!r} keeps changing faster than it can be edited")

        return Verb("change_schedule", body)

    def _write_row(self, name: str, is_new: bool, effect: Effect) -> Body[bool]:
        row = effect.row
        if row is None:
            yield self._base.statement("change_schedule.remove", name=name)
            yield self._base.statement("change_schedule.forget", name=name)
        elif is_new:
            rows = yield self._base.statement(
                "change_schedule.add",
                name=name,
                definition=row.definition,
                is_code=row.is_code,
                created_at=row.created_at,
                last_window=row.last_window,
            )
            if rows and row.paused_at is not None:
                yield from self._put(name, effect, row)
            return bool(rows)
        elif effect.is_written:
            yield from self._put(name, effect, row)
        return True

    def _put(self, name: str, effect: Effect, row: ScheduleRow) -> Body[None]:
        yield self._base.statement(
            "change_schedule.put",
            name=name,
            definition=row.definition if effect.is_defined else None,
            last_window=row.last_window,
            next_at=row.next_at,
            timing=row.timing,
            pending=row.pending,
            paused_at=row.paused_at,
            pause_reason=row.pause_reason,
        )

    def _write_runs(
        self, name: str, effect: Effect, now: datetime | None
    ) -> Body[tuple[ScheduleRun, ...]]:
        ids = [
            run.job for run, job in zip(effect.runs, effect.jobs, strict=True) if is_new_job(run, job)
        ]
        stored: set[str] = set()
        if ids:  # a job may outlive the run of its window
            found = yield self._base.statement("change_schedule.stored", ids=ids)
            stored = {row[0] for row in found}
        pairs = [
            (run, job)
            for run, job in zip(effect.runs, effect.jobs, strict=True)
            if not (is_new_job(run, job) and run.job in stored)
        ]
        if not pairs:
            return ()
        rows = yield self._base.statement(
            "change_schedule.run",
            name=name,
            runs=msgspec.json.encode(
                [
                    {
                        "window_at": run.window,
                        "kind": run.kind,
                        "at": run.at,
                        "job": run.job,
                        "note": run.note,
                    }
                    for run, _ in pairs
                ]
            ).decode(),
        )
        taken = {read_moment(row[0]) for row in rows}
        runs = tuple(run for run, _ in pairs if run.window in taken)
        jobs = [job for run, job in pairs if job is not None and run.window in taken]
        answers: dict[str, Enqueued] = {}
        if jobs:
            made = yield from self._enqueue.enqueue(jobs, now=now).steps()
            answers = {answer.id: answer for answer in made}
        kept = []
        for run in with_held(runs, answers):
            if run.kind is RunKind.HELD:
                yield self._base.statement(
                    "change_schedule.held",
                    name=name,
                    window_at=run.window,
                    kind=run.kind,
                    job=run.job,
                    note=run.note,
                )
            elif is_repeated(run, answers):
                yield self._base.statement("change_schedule.again", name=name, window_at=run.window)
                continue
            kept.append(run)
        yield self._base.statement("change_schedule.trim", name=name, keep=KEEP_RUNS)
        return tuple(kept)

    def schedule_runs(self, name: str, *, limit: int = 50) -> Verb[list[ScheduleRun]]:
        def body() -> Body[list[ScheduleRun]]:
            rows = yield self._base.statement("schedule_runs", is_alone=True, name=name, limit=limit)
            return [
                ScheduleRun(
                    schedule=schedule,
                    window=read_moment(window),
                    kind=RunKind(kind),
                    at=read_moment(at),
                    job=job,
                    note=note,
                )
                for schedule, window, kind, at, job, note in rows
            ]

        return self._base.read("schedule_runs", body)


def _read_row(row: Row) -> ScheduleRow:
    (name, definition, is_code, created_at, last_window, declared_by, next_at, timing, pending,
     paused_at, pause_reason) = row  # fmt: skip
    return ScheduleRow(
        name=name,
        definition=definition,
        is_code=is_code,
        created_at=read_moment(created_at),
        last_window=read_moment(last_window),
        declared_by=declared_by,
        next_at=read_maybe_moment(next_at),
        timing=timing,
        pending=read_maybe_moment(pending),
        paused_at=read_maybe_moment(paused_at),
        pause_reason=pause_reason,
    )
