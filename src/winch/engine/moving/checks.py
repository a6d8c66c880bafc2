"""Before a move: what cannot be moved, by name and reason, and how long the rest takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import timedelta

import msgspec

from winch.core.gates.uses import FIFO, gates_of
from winch.core.lifecycle import JobState
from winch.core.version import __version__
from winch.engine.moving.carrying import LIVE, jobs_of, store_time
from winch.engine.moving.holding import schedules_of
from winch.storage.parcels import is_tied
from winch.storage.protocol import Driver

# The clock of the target may be behind that of the source by so much.
MOST_SKEW = timedelta(milliseconds=100)
# Jobs a second that one mover carries, at least, between stores on one machine.
PER_SECOND = 1000


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """What would move. `stays`: jobs that end where they are, because they wait or are waited for."""

    jobs: Mapping[str, int]
    by_state: Mapping[str, int]
    stays: int
    bytes: int
    seconds: float


def sizes(source: Driver, queue: str | None, *, final_too: bool) -> Sizes:
    """Count what a move would carry now."""
    states = [*LIVE, JobState.DEAD]
    if final_too:
        states += [JobState.COMPLETED, JobState.CANCELLED]
    by_queue: Counter[str] = Counter()
    by_state: Counter[str] = Counter()
    stays = size = 0
    for job in jobs_of(source, queue, states):
        by_queue[job.queue] += 1
        by_state[str(job.state)] += 1
        stays += is_tied(job)
        size += len(msgspec.json.encode(job))
    return Sizes(
        jobs=dict(by_queue),
        by_state=dict(by_state),
        stays=stays,
        bytes=size,
        seconds=round(by_queue.total() / PER_SECOND, 1),
    )


def refusals(source: Driver, target: Driver, queue: str | None) -> list[str]:
    """Why the move cannot begin; nothing is changed."""
    found = []
    behind = store_time(source) - store_time(target)
    if behind > MOST_SKEW:
        found.append(
            f"the clock of {target.describe()} is {behind.total_seconds():.1f} s behind that of "
            f"{source.describe()}, so that FIFO order would be lost: set the clocks"
        )
    live = next(iter(jobs_of(target, queue, LIVE)), None)
    if live is not None:
        found.append(
            f"{target.describe()} already has live jobs{_of(queue)}, such as {live.id}: a way back "
            "could not tell them from those that moved"
        )
    found += _older_workers(target)
    both = _ticked(source, queue) & _ticked(target, queue)
    found += [
        f"both stores tick schedule {name!r}: start the workers of the target when the move is open, or "
        "pause the schedule there"
        for name in sorted(both)
    ]
    return found if queue is None else found + _shared(source, queue)


def _ticked(driver: Driver, queue: str | None) -> set[str]:
    return {row.name for row in schedules_of(driver, queue) if row.is_active and row.paused_at is None}


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


def _shared(source: Driver, queue: str) -> list[str]:
    """Gates that jobs of the queue share with jobs that stay: no store could count for both."""
    mine: set[str] = set()
    others: dict[str, str] = {}
    for job in jobs_of(source, None, LIVE):
        for use in gates_of(job.options):
            name = use.key if use.kind == FIFO else use.name or use.key
            if job.queue == queue:
                mine.add(name)
            else:
                others[name] = job.queue
    return [
        f"{name} holds for jobs of queue {queue!r} and of queue {others[name]!r}: move everything"
        for name in sorted(mine & set(others))
    ]


def _of(queue: str | None) -> str:
    return "" if queue is None else f" in queue {queue!r}"
