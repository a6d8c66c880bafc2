"""Schedules in a move: each is ticked by one store, which knows what became of earlier windows."""

from __future__ import annotations

from collections.abc import Iterable

from winch.core.errors import ConfigError
from winch.core.policy.schedule import Overlap
from winch.engine.moving.carrying import LIVE, Carrier
from winch.engine.moving.holding import BY, is_ours
from winch.engine.moving.route import Scope
from winch.storage.decide.schedules import (
    KEEP_RUNS,
    SCHEDULE_HEADER,
    Adopt,
    Answered,
    Pause,
    Remove,
    ScheduleRow,
    ScheduleRun,
    read_definition,
)
from winch.storage.protocol import Driver

TICKED_ELSEWHERE = f"{BY}: another store ticks it"
# A backfill may have left more of them, for jobs that are not final.
MOST_RUNS = 10_000


def schedules_of(driver: Driver, scope: Scope) -> list[ScheduleRow]:
    """The schedules whose jobs are in scope."""
    return [row for row in driver.run(driver.schedules()).found if is_in(scope, row)]


def is_in(scope: Scope, row: ScheduleRow) -> bool:
    """Whether the schedule moves."""
    job = read_definition(row.definition).job
    return scope.is_all or scope.covers(job.queue, job.tenant)


def announce_schedules(carrier: Carrier) -> None:
    """Have the target know the schedules and tick none of them."""
    for row in schedules_of(carrier.source, carrier.scope):
        _adopt(carrier, row, is_held=True)


def hand_schedules_over(carrier: Carrier) -> None:
    """Have the source tick none of them any more, then the target from the window on that came last. One
    that must not overlap waits until none of its jobs is left in the source. May be repeated."""
    rows = schedules_of(carrier.source, carrier.scope)
    busy = _busy(carrier, rows)
    for row in rows:
        if row.paused_at is not None and not is_ours(row.pause_reason):
            continue  # a person has paused it, and it stays so in both
        there = _there(carrier, row)
        if there is None and row.paused_at is None:  # it is new
            _adopt(carrier, row, is_held=True)
            there = _there(carrier, row)
        last = row
        if row.paused_at is None:
            change = Pause(reason=TICKED_ELSEWHERE)
            last = carrier.source.run(carrier.source.change_schedule(row.name, change)).row or row
        if there is None or there.paused_at is None or not is_ours(there.pause_reason):
            continue  # the target ticks it, or a person has paused or removed it there
        if row.name not in busy:
            _adopt(carrier, last, is_held=False, runs=_runs(carrier.source, last))


def _there(carrier: Carrier, row: ScheduleRow) -> ScheduleRow | None:
    return next(iter(carrier.target.run(carrier.target.schedules(name=row.name)).found), None)


def _busy(carrier: Carrier, rows: Iterable[ScheduleRow]) -> set[str]:
    """Those that must not overlap, and of which a job is still in the source."""
    minding = {row.name for row in rows if read_definition(row.definition).overlap is not Overlap.ALLOW}
    if not minding:
        return set()
    return minding & {job.headers.get(SCHEDULE_HEADER, "") for job in carrier.jobs(LIVE)}


def _runs(driver: Driver, row: ScheduleRow) -> tuple[ScheduleRun, ...]:
    """What became of its windows: the newest ones, and those whose jobs may be live."""
    found = driver.run(driver.schedule_runs(row.name, limit=MOST_RUNS))
    return tuple(found)


def _adopt(
    carrier: Carrier, row: ScheduleRow, *, is_held: bool, runs: tuple[ScheduleRun, ...] = ()
) -> None:
    reason = row.pause_reason
    if row.paused_at is None or is_ours(reason):
        reason = TICKED_ELSEWHERE
    for start in range(0, max(len(runs), 1), KEEP_RUNS):
        change = Adopt(
            definition=row.definition,
            is_code=row.is_code,
            last_window=row.last_window,
            pending=row.pending,
            is_held=is_held or start + KEEP_RUNS < len(runs),
            reason=reason,
            runs=runs[start : start + KEEP_RUNS],
        )
        answer = carrier.target.run(carrier.target.change_schedule(row.name, change)).answer
        if answer is not Answered.DONE:
            raise ConfigError(f"schedule {row.name!r} cannot move: {answer}")


def forget_schedules(driver: Driver) -> None:
    """Remove those that a way back has left behind, paused for the other store."""
    for row in driver.run(driver.schedules()).found:
        if is_ours(row.pause_reason) and not row.declared_by:
            driver.run(driver.change_schedule(row.name, Remove()))
