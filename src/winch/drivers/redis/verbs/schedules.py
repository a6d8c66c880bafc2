"""The verbs of schedules. What a change comes to is decided in storage/decide/schedules.py.

Cron is not for Lua, so a change is a look, a decision and a script that writes it, jobs included. The
script does so only while the row is the one that was looked at; else the next look decides anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from winch.core.errors import StorageUnavailable
from winch.core.job import from_micros, to_micros
from winch.core.policy.schedule import Overlap
from winch.drivers.redis.records import envelope, micros, moment
from winch.drivers.redis.verbs.base import Base, Body
from winch.drivers.redis.verbs.enqueue import names_of, new_row
from winch.storage.decide.schedules import (
    HELD_NOTE,
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
    needs_live,
    read_definition,
    with_held,
)
from winch.storage.params import Enqueued
from winch.storage.verbs import Now, Verb

# Each look in vain means that another change took effect.
TRIES = 100


class _Row(msgspec.Struct):
    """As lua/parts/schedule.lua keeps it."""

    definition: str
    created_at: int
    last_window: int
    v: int
    is_code: bool = False
    next_at: int | None = None
    timing: str | None = None
    pending: int | None = None
    paused_at: int | None = None
    pause_reason: str | None = None


class _Run(msgspec.Struct):
    window: int
    kind: RunKind
    at: int
    job: str | None = None
    note: str | None = None


_row = msgspec.msgpack.Decoder(_Row)
_run = msgspec.msgpack.Decoder(_Run)


class ScheduleVerbs:
    """Reading and changing schedules; see storage/families.py for the contracts."""

    def __init__(self, base: Base) -> None:
        self._call = base.call

    def schedules(self, *, name: str | None = None, now: Now = None) -> Verb[ScheduleRows]:
        def body() -> Body[ScheduleRows]:
            at, *rows = yield self._call("schedules", now=micros(now), name=name)
            return ScheduleRows(from_micros(at), _by_name(rows))

        return Verb("schedules", body, is_read=True)

    def due_schedules(self, *, limit: int = 100, now: Now = None) -> Verb[ScheduleRows]:
        def body() -> Body[ScheduleRows]:
            sent, next_at, *rows = yield self._call("due_schedules", now=micros(now), limit=limit)
            at, found = from_micros(sent), _by_name(rows)
            # One that is due for a window it kept back has its next window still to come.
            later = [row.next_at for row in found if row.next_at is not None and row.next_at > at]
            if next_at >= 0:
                later.append(from_micros(next_at))
            return ScheduleRows(at, found, min(later, default=None))

        return Verb("due_schedules", body, is_read=True)

    def change_schedule(self, name: str, change: Change, *, now: Now = None) -> Verb[Changed]:
        def body() -> Body[Changed]:
            for _ in range(TRIES):
                at, *rows = yield self._call("schedules", now=micros(now), name=name)
                row, seen = (_read_row(rows[0]), _row.decode(rows[0][1]).v) if rows else (None, 0)
                live = 0
                if row is not None and needs_live(change) and _minds_others(row):
                    live = yield self._call("schedule_runs", name=name, is_live=True)
                effect = changed(name, row, change, from_micros(at), live)
                if effect.answer is not Answered.DONE:
                    return Changed(answer=effect.answer, row=effect.row)
                if effect.row is not None and not effect.is_written and not effect.runs:
                    return Changed(answer=effect.answer, row=effect.row)
                reply = yield self._change(name, seen, effect, now)
                if reply is not None:
                    return Changed(answer=effect.answer, row=effect.row, runs=_written(effect, reply))
            raise StorageUnavailable(
                f"schedule {name} was changed by others {TRIES} times while this change was decided; "
                "try again"
            )

        return Verb("change_schedule", body)

    def _change(self, name: str, seen: int, effect: Effect, now: datetime | None) -> Any:
        jobs = [job for job in effect.jobs if job is not None]
        numbers = {job.id: number for number, job in enumerate(jobs, start=1)}
        row = effect.row
        return self._call(
            "change_schedule",
            blobs=[envelope(job) for job in jobs],
            now=micros(now),
            name=name,
            v=seen,
            is_removed=row is None,
            row=None if row is None or not effect.is_written else _kept(row),
            definition=row.definition if row is not None and effect.is_defined else None,
            is_code=seen == 0 and row is not None and row.is_code,
            keep=KEEP_RUNS,
            held_note=HELD_NOTE,
            names=names_of(jobs) if jobs else {},
            jobs=[new_row(job) for job in jobs],
            runs=[
                (
                    to_micros(run.window),
                    run.kind.value,
                    to_micros(run.at),
                    run.job or False,
                    run.note or False,
                    False if job is None else numbers[job.id],
                )
                for run, job in zip(effect.runs, effect.jobs, strict=True)
            ],
        )

    def schedule_runs(self, name: str, *, limit: int = 50) -> Verb[list[ScheduleRun]]:
        def body() -> Body[list[ScheduleRun]]:
            found = map(_run.decode, (yield self._call("schedule_runs", name=name, limit=limit)))
            return [
                ScheduleRun(
                    schedule=name,
                    window=from_micros(run.window),
                    kind=run.kind,
                    at=from_micros(run.at),
                    job=run.job,
                    note=run.note,
                )
                for run in found
            ]

        return Verb("schedule_runs", body, is_read=True)


def _minds_others(row: ScheduleRow) -> bool:
    """Where jobs may stand side by side it does not matter how many do."""
    return read_definition(row.definition).overlap is not Overlap.ALLOW


def _written(effect: Effect, reply: Sequence[Any]) -> tuple[ScheduleRun, ...]:
    """The runs that the script has written, with the holder of a unique key."""
    runs: list[ScheduleRun] = []
    for index, holder in reply:
        run = effect.runs[index - 1]
        answer = Enqueued(run.job or "", not holder, holder.decode() or None)
        runs += with_held((run,), {answer.id: answer})
    return tuple(runs)


def _by_name(rows: Sequence[Any]) -> tuple[ScheduleRow, ...]:
    return tuple(sorted(map(_read_row, rows), key=lambda row: row.name))


def _read_row(found: Sequence[Any]) -> ScheduleRow:
    name, packed, definition, declared_by = found
    row = _row.decode(packed)
    return ScheduleRow(
        name=name.decode(),
        definition=row.definition if definition is None else definition.decode(),
        is_code=row.is_code,
        created_at=from_micros(row.created_at),
        last_window=from_micros(row.last_window),
        declared_by=declared_by,
        next_at=moment(row.next_at),
        timing=row.timing,
        pending=moment(row.pending),
        paused_at=moment(row.paused_at),
        pause_reason=row.pause_reason,
    )


def _kept(row: ScheduleRow) -> dict[str, Any]:
    """What a change writes of a row. What is not there is nil in the script."""
    kept = {
        "created_at": to_micros(row.created_at),
        "last_window": to_micros(row.last_window),
        "next_at": micros(row.next_at),
        "timing": row.timing,
        "pending": micros(row.pending),
        "paused_at": micros(row.paused_at),
        "pause_reason": row.pause_reason,
    }
    return {name: value for name, value in kept.items() if value is not None}
