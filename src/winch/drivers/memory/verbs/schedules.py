"""Schedules: a row each, and the runs of each by window."""

from __future__ import annotations

from datetime import datetime

from msgspec.structs import replace

from winch.drivers.memory.verbs.base import Base, verb
from winch.drivers.memory.verbs.enqueue import EnqueueVerbs
from winch.storage.decide.schedules import (
    KEEP_RUNS,
    Answered,
    Change,
    Changed,
    RunKind,
    ScheduleRow,
    ScheduleRows,
    ScheduleRun,
    changed,
    gives_way,
    is_new_job,
    is_repeated,
    timing_key,
    with_held,
)
from winch.storage.params import NewJob, NewSession
from winch.storage.verbs import Now, Verb


class ScheduleVerbs:
    """Schedules and their runs."""

    def __init__(self, base: Base, enqueue: EnqueueVerbs) -> None:
        self._base = base
        self._state = base.state
        self._enqueue = enqueue

    def declare(self, session: NewSession, at: datetime) -> None:
        """Write down the schedules that a new session declares."""
        rows = self._state.schedules.rows
        for declared in session.schedules:
            row = rows.get(declared.name)
            if row is None:
                rows[declared.name] = ScheduleRow(
                    name=declared.name,
                    definition=declared.definition,
                    is_code=True,
                    created_at=at,
                    last_window=at,
                )
            elif row.is_code:
                rows[declared.name] = replace(row, definition=declared.definition)

    def _in_effect(self, row: ScheduleRow) -> ScheduleRow:
        sessions = [s for s in self._state.sessions.values() if s.ended_at is None]
        sessions.sort(key=lambda session: (session.started_at, session.info.id))
        declared = [one.definition for s in sessions for one in s.info.schedules if one.name == row.name]
        definition = declared[-1] if declared else row.definition
        return replace(row, definition=definition, declared_by=len(declared))

    def schedules(self, *, name: str | None = None, now: Now = None) -> Verb[ScheduleRows]:
        def body() -> ScheduleRows:
            rows = sorted(self._state.schedules.rows.items())
            found = [self._in_effect(row) for key, row in rows if name in (None, key)]
            return ScheduleRows(self._base.now(now), tuple(found))

        return verb("schedules", body, is_read=True)

    def due_schedules(self, *, limit: int = 100, now: Now = None) -> Verb[ScheduleRows]:
        return verb("due_schedules", lambda: self.due(self._base.now(now), limit), is_read=True)

    def due(self, at: datetime, limit: int) -> ScheduleRows:
        """What `due_schedules` answers at this moment."""
        rows = [self._in_effect(row) for row in self._state.schedules.rows.values()]
        rows = [row for row in rows if row.paused_at is None]
        found = sorted((row for row in rows if _is_due(row, at)), key=lambda row: row.name)
        later = [row.next_at for row in rows if row.next_at is not None and row.next_at > at]
        return ScheduleRows(at, tuple(found[:limit]), min(later, default=None))

    def change_schedule(self, name: str, change: Change, *, now: Now = None) -> Verb[Changed]:
        def body() -> Changed:
            at = self._base.now(now)
            state = self._state.schedules
            own = state.rows.get(name)
            row = None if own is None else self._in_effect(own)
            effect = changed(name, row, change, at, self.live_jobs(name))
            if effect.answer is not Answered.DONE:
                return Changed(answer=effect.answer, row=effect.row)
            if effect.row is None:
                state.rows.pop(name, None)
                state.runs.pop(name, None)
            elif effect.is_written:
                after = effect.row
                if own is not None and not effect.is_defined:
                    after = replace(after, definition=own.definition)
                state.rows[name] = replace(after, declared_by=0)
            kept = state.runs.setdefault(name, {}) if effect.runs else {}
            pairs = [
                (run, job)
                for run, job in zip(effect.runs, effect.jobs, strict=True)
                if not self._is_done(run, job, kept.get(run.window))
            ]
            runs = tuple(run for run, _ in pairs)
            jobs = [job for _, job in pairs if job is not None]
            answers = {answer.id: answer for answer in self._enqueue.store(jobs, at)}
            runs = tuple(run for run in with_held(runs, answers) if not is_repeated(run, answers))
            kept.update((run.window, run) for run in runs)
            for window in sorted(kept)[:-KEEP_RUNS]:
                if kept[window].job not in self._state.live:
                    del kept[window]
            return Changed(answer=effect.answer, row=effect.row, runs=runs)

        return verb("change_schedule", body)

    def _is_done(self, run: ScheduleRun, job: NewJob | None, there: ScheduleRun | None) -> bool:
        """Whether the window has its run, or its job has outlived the run."""
        if there is not None and not gives_way(there.kind, run.kind):
            return True
        is_stored = run.job in self._state.live or run.job in self._state.archive
        return is_new_job(run, job) and is_stored

    def live_jobs(self, name: str) -> int:
        """How many jobs of this schedule are live."""
        return sum(
            run.job in self._state.live and run.kind in (RunKind.ENQUEUED, RunKind.TRIGGERED)
            for run in self._state.schedules.runs.get(name, {}).values()
        )

    def schedule_runs(self, name: str, *, limit: int = 50) -> Verb[list[ScheduleRun]]:
        def body() -> list[ScheduleRun]:
            runs = self._state.schedules.runs.get(name, {})
            return [runs[window] for window in sorted(runs, reverse=True)[:limit]]

        return verb("schedule_runs", body, is_read=True)


def _is_due(row: ScheduleRow, at: datetime) -> bool:
    if not row.is_active:
        return False
    is_other = row.declared_by > 0 and timing_key(row.definition) != row.timing
    return row.next_at is None or row.next_at <= at or row.pending is not None or is_other
