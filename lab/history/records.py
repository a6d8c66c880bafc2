"""The input and the verdict of the checker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from time import monotonic, time

import msgspec

from lab.history.lines import Line, read
from winch.core.job import MAX_CRASHES, JobRecord
from winch.storage.decide.schedules import KEEP_RUNS, ScheduleRun
from winch.storage.params import Event, JobFilter, SessionInfo
from winch.storage.protocol import Driver

PAGE = 1000


class History(msgspec.Struct, frozen=True, kw_only=True):
    """One run, from the store (`events`, `jobs`, `sessions`) and from outside of it (`lines`).

    `offset` is wall minus monotonic time on a clock that was never set: it gives the time, by the
    store's clock, at which a line was written, whatever the writer's own clock showed.
    """

    events: tuple[Event, ...]
    jobs: tuple[JobRecord, ...]
    sessions: tuple[SessionInfo, ...]
    lines: tuple[Line, ...]
    offset: float
    # What became of the windows of schedules; and which windows must have a job, by schedule.
    runs: tuple[ScheduleRun, ...] = ()
    windows: Mapping[str, tuple[datetime, ...]] = {}
    # Of each effect that the tasks of these names left in the store, the job; None: not checked.
    effects: tuple[str, ...] | None = None
    transactional: tuple[str, ...] = ()
    is_quiet: bool = True
    expects_fault: bool = False
    # From the end of a lease to the rescue. None: no process was there to sweep, so it is not judged.
    takeover_limit: timedelta | None = None
    # At so many crashes a job is dead; more must not be there.
    crash_limit: int = MAX_CRASHES
    # How long after the signal a claim that was on its way may still land.
    stop_settle: timedelta = timedelta(seconds=0.5)
    # From the first job that a claim call takes to its last. More than a moment where it asks several
    # servers one after another, or takes hundreds on a busy machine.
    claim_call: timedelta = timedelta(seconds=1)
    # How far the store's times may be from what we saw. Runs are short, skews are hours.
    clock_tolerance: timedelta = timedelta(seconds=60)


class Violation(msgspec.Struct, frozen=True):
    """A promise broken: which one, by which job, and the few events that show it."""

    invariant: str
    job: str | None
    words: str
    evidence: tuple[Event | Line | SessionInfo, ...] = ()

    def __str__(self) -> str:
        head = f"{self.invariant}: {f'job {self.job}: ' if self.job else ''}{self.words}"
        return "\n    ".join([head, *map(_short, self.evidence)])


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What was found. `counters` hold what happened in the run, faults included."""

    violations: tuple[Violation, ...]
    counters: Mapping[str, int]
    takeovers: tuple[timedelta, ...]

    @property
    def is_ok(self) -> bool:
        return not self.violations

    def named(self, invariant: str) -> list[Violation]:
        return [found for found in self.violations if found.invariant == invariant]

    def __str__(self) -> str:
        happened = ", ".join(f"{name} {count}" for name, count in self.counters.items() if count)
        slowest = f"; slowest takeover {max(self.takeovers)}" if self.takeovers else ""
        lines = [f"{len(self.violations)} violations; {happened}{slowest}"]
        return "\n".join(lines + [str(violation) for violation in self.violations])


def gather(
    driver: Driver,
    folder: str | Path,
    *,
    is_quiet: bool = True,
    expects_fault: bool = False,
    takeover_limit: timedelta | None = None,
    crash_limit: int = MAX_CRASHES,
) -> History:
    """Read a run's history: everything the store knows, and the lines recorded in `folder`."""
    events: list[Event] = []
    while page := driver.run(driver.events(after=events[-1].seq if events else 0)):
        events.extend(page)
    jobs: list[JobRecord] = []
    after: str | None = None
    while True:
        found = driver.run(driver.list_jobs(JobFilter(limit=PAGE, after=after)))
        jobs.extend(found.jobs)
        after = found.next
        if after is None:
            break
    sessions = driver.run(driver.sessions(is_ended_too=True))
    runs: list[ScheduleRun] = []
    for row in driver.run(driver.schedules()).found:
        found_runs = driver.run(driver.schedule_runs(row.name, limit=2 * KEEP_RUNS))
        runs.extend(found_runs)
    return History(
        events=tuple(events),
        jobs=tuple(jobs),
        sessions=tuple(sessions),
        lines=tuple(read(folder)),
        offset=time() - monotonic(),
        runs=tuple(runs),
        is_quiet=is_quiet,
        expects_fault=expects_fault,
        takeover_limit=takeover_limit,
        crash_limit=crash_limit,
    )


def _short(item: Event | Line | SessionInfo) -> str:
    if isinstance(item, Event):
        state = item.state or "gone"
        tokens = f"token {_cut(item.token)}, by {_cut(item.by_token)}"
        return (
            f"event {item.seq}: v{item.v} {item.kind} -> {state}, attempt {item.attempt}, {tokens}, "
            f"session {_cut(item.session)}, {item.at:%H:%M:%S.%f}"
        )
    return repr(item)


def _cut(text: str | None) -> str:
    return "none" if text is None else text[:8]


def by_job(events: Sequence[Event]) -> dict[str, list[Event]]:
    """Each job's events in the order of their own counter."""
    found: dict[str, list[Event]] = {}
    for event in sorted(events, key=lambda event: (event.job, event.v, event.seq)):
        found.setdefault(event.job, []).append(event)
    return found
