"""Before a move: what cannot be moved, by name and reason, and how long the rest takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from datetime import timedelta

import msgspec

from winch.core.gates.uses import FIFO, gates_of
from winch.core.job import JobRecord
from winch.core.lifecycle import JobState
from winch.core.version import __version__
from winch.engine.moving.carrying import LIVE, jobs_of, store_time
from winch.engine.moving.families import families
from winch.engine.moving.route import ALL, MoveStep, Route, Scope
from winch.engine.moving.schedules import schedules_of
from winch.storage.protocol import Driver

# The clock of the target may be behind that of the source by so much.
MOST_SKEW = timedelta(milliseconds=100)
# Jobs a second that one mover carries, at least, between stores on one machine; and the seconds that a
# move without jobs takes.
PER_SECOND = 1000
FIXED = 2


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """What would move. `stays`: families of jobs that end where they are, each with the reason."""

    jobs: Mapping[str, int]
    by_state: Mapping[str, int]
    stays: Mapping[str, str]
    bytes: int
    seconds: float


def sizes(source: Driver, scope: Scope, *, final_too: bool) -> Sizes:
    """Count what a move would carry now."""
    states = [*LIVE, JobState.DEAD]
    if final_too:
        states += [JobState.COMPLETED, JobState.CANCELLED]
    by_queue: Counter[str] = Counter()
    by_state: Counter[str] = Counter()
    size = 0
    for job in jobs_of(source, scope, states):
        by_queue[job.queue] += 1
        by_state[str(job.state)] += 1
        size += len(msgspec.json.encode(job))
    return Sizes(
        jobs=dict(by_queue),
        by_state=dict(by_state),
        stays={
            family.name: family.stays
            for family in families(source, jobs_of(source, scope, LIVE), _covering(scope))
            if family.stays is not None
        },
        bytes=size,
        seconds=round(FIXED + by_queue.total() / PER_SECOND, 1),
    )


def _covering(scope: Scope) -> Callable[[JobRecord], bool]:
    return lambda job: scope.covers(job.queue, job.tenant)


def refusals(
    source: Driver, target: Driver, scope: Scope = ALL, before: Route | None = None
) -> list[str]:
    """Why the move cannot begin; nothing is changed."""
    found = _led_elsewhere(before, scope)
    behind = store_time(source) - store_time(target)
    if behind > MOST_SKEW:
        found.append(
            f"the clock of {target.describe()} is {behind.total_seconds():.1f} s behind that of "
            f"{source.describe()}, so that FIFO order would be lost: set the clocks"
        )
    live = next(iter(jobs_of(target, scope, LIVE)), None)
    if live is not None:
        found.append(
            f"{target.describe()} already has live jobs{_of(scope)}, such as {live.id}: a way back "
            "could not tell them from those that moved"
        )
    found += _older_workers(target)
    both = _ticked(source, scope) & _ticked(target, scope)
    found += [
        f"both stores tick schedule {name!r}: start the workers of the target when the move is open, or "
        "pause the schedule there"
        for name in sorted(both)
    ]
    return found if scope.is_all else found + _shared(source, scope) + _outside(source, scope)


def _led_elsewhere(before: Route | None, scope: Scope) -> list[str]:
    """The record of an earlier move still leads producers; there is one."""
    if before is None or before.step is not MoveStep.DONE or before.scope.is_all or scope.is_all:
        return []
    return [
        f"{before.scope} has moved to {before.address}, and producers find it by the record of that "
        "move, which this one would replace: move everything that is left, without --queue and --tenant"
    ]


def _outside(source: Driver, scope: Scope) -> list[str]:
    """Families that have members in other queues."""
    found = families(source, jobs_of(source, scope, LIVE), _covering(scope))
    return [f"{family.name}: {family.stays}" for family in found if family.outside and family.stays]


def _ticked(driver: Driver, scope: Scope) -> set[str]:
    return {row.name for row in schedules_of(driver, scope) if row.is_active and row.paused_at is None}


def _older_workers(target: Driver) -> list[str]:
    """Workers of an earlier release may not read what this one writes."""
    ours = _numbers(__version__)
    return [
        f"worker {session.worker} on {target.describe()} runs Winch {session.release}, which is older "
        f"than {__version__}: upgrade it first"
        for session in target.run(target.sessions())
        if session.ended_at is None and _numbers(session.release) < ours
    ]


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in release.split(".") if part.isdigit())


def _shared(source: Driver, scope: Scope) -> list[str]:
    """Gates that jobs in scope share with jobs that stay: no store could count for both."""
    mine: set[str] = set()
    others: dict[str, str] = {}
    for job in jobs_of(source, ALL, LIVE):
        for use in gates_of(job.options):
            name = use.key if use.kind == FIFO else use.name or use.key
            if scope.covers(job.queue, job.tenant):
                mine.add(name)
            else:
                others[name] = job.queue
    remedy = "add --also {}" if scope.tenant is None else "move everything"
    return [
        f"{name} holds for jobs of {scope} and for others in queue {others[name]!r}: "
        + remedy.format(others[name])
        for name in sorted(mine & set(others))
    ]


def _of(scope: Scope) -> str:
    return "" if scope.is_all else f" of {scope}"
