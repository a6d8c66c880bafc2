"""What keeps the store going: lost claims, due jobs, old jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta

from winch.core.job import RESCUE_RULE, Failure, JobRecord, from_micros
from winch.core.lifecycle import JobState
from winch.core.policy.retention import dead_bytes, dead_limits
from winch.core.values.fingerprint import trace
from winch.drivers.redis.records import MICROSECOND, micros, read_job
from winch.drivers.redis.verbs.base import Base, Body, Step, read_rows, suspect_rule
from winch.storage.params import Promoted, Rescued, Trim
from winch.storage.verbs import Now, Verb

KEEP_SESSIONS = timedelta(days=1) // MICROSECOND
LEASE_OVER = "lease over"
# Dead jobs that are read at once to find those that are too many.
STRETCH = 500


class TooMany:
    """Collects the dead jobs of a task that are past its limits; they come newest first."""

    def __init__(self, which: Trim, before: datetime | None) -> None:
        self._which = which
        self._before = before
        self._count, self._bytes = which.count, which.bytes
        self._seen = self._total = 0
        self.over: list[JobRecord] = []

    @property
    def is_enough(self) -> bool:
        return not self._which.is_dry_run and len(self.over) >= self._which.limit

    def look_at(self, job: JobRecord, *, is_awaited: bool) -> None:
        which = self._which
        if which.queue is not None and job.queue != which.queue:
            return
        if self._seen == 0 and not which.is_forced:
            own = dead_limits(job.options)
            self._count = self._count if own.dead_count is None else own.dead_count
            self._bytes = self._bytes if own.dead_bytes is None else own.dead_bytes
        self._seen += 1
        self._total += dead_bytes(job)
        if (
            (self._count is not None and self._seen > self._count)
            or (self._bytes is not None and self._total > self._bytes)
            or (
                self._before is not None
                and job.finished_at is not None
                and job.finished_at <= self._before
            )
        ) and not is_awaited:
            self.over.append(job)


class UpkeepVerbs:
    """Rescue, promote, prune and trim."""

    def __init__(self, base: Base) -> None:
        self._call = base.call

    def rescue(
        self, *, limit: int = 1000, as_of: datetime | None = None, now: Now = None
    ) -> Verb[list[Rescued]]:
        def body() -> Body[list[Rescued]]:
            reply = yield self._call(
                "rescue",
                now=micros(now),
                as_of=micros(as_of),
                limit=limit,
                cause=LEASE_OVER,
                trace=trace(Failure("rescued", LEASE_OVER)),
                rule=suspect_rule(RESCUE_RULE),
            )
            return [Rescued(row[0], row[1], row[2], JobState(row[3])) for row in read_rows(reply, 4)]

        return Verb("rescue", body)

    def promote(self, *, limit: int = 1000, now: Now = None) -> Verb[Promoted]:
        def body() -> Body[Promoted]:
            at, count, next_at = yield self._call("promote", now=micros(now), limit=limit)
            return Promoted(count, None if next_at < 0 else from_micros(next_at), from_micros(at))

        return Verb("promote", body)

    def prune(self, *, limit: int = 1000, now: Now = None) -> Verb[int]:
        def body() -> Body[int]:
            gone: int = yield self._call(
                "prune", now=micros(now), limit=limit, keep_sessions=KEEP_SESSIONS
            )
            return gone

        return Verb("prune", body)

    def trim(self, which: Trim, *, now: Now = None) -> Verb[int]:
        def body() -> Body[int]:
            if which.task is not None:
                tasks = {which.task}
            else:
                tasks = {task.decode() for task in (yield self._call("deaths"))}
            before = yield from died_before(self._call, which, now)
            return (
                yield from trim_tasks(
                    tasks, which, lambda task: self._too_many(task, which, before), self._trimmed
                )
            )

        return Verb("trim", body)

    def _trimmed(self, over: Sequence[JobRecord]) -> Body[int]:
        died = [micros(job.finished_at) for job in over]
        gone: int = yield self._call("trim", ids=[job.id for job in over], died=died)
        return gone

    def _too_many(self, task: str, which: Trim, before: datetime | None) -> Body[list[JobRecord]]:
        """The dead jobs of a task that are past its limits, newest first."""
        rule, start = TooMany(which, before), 0
        while True:
            rows = yield self._call("deaths", task=task, start=start, count=STRETCH)
            ids = rows[0]
            for job_id, stored, state, awaited in zip(*rows, strict=True):
                rule.look_at(read_job(job_id.decode(), stored, state, None), is_awaited=awaited == 1)
            start += len(ids)
            if len(ids) < STRETCH or rule.is_enough:
                return rule.over


def died_before(call: Callable[..., Step], which: Trim, now: Now) -> Body[datetime | None]:
    """The moment before which a dead job is too old, by the store's clock."""
    if which.older_than is None:
        return None
    at = micros(now)
    if at is None:
        at, *_ = yield call("explain", id="", queue="")
    return from_micros(at) - which.older_than


def trim_tasks(
    tasks: Iterable[str],
    which: Trim,
    too_many: Callable[[str], Body[list[JobRecord]]],
    trimmed: Callable[[Sequence[JobRecord]], Body[int]],
) -> Body[int]:
    """Remove the dead jobs that are too many, task by task; returns how many there were."""
    gone = 0
    for task in sorted(tasks):
        over = yield from too_many(task)
        if which.is_dry_run:
            gone += len(over)
            continue
        over = over[: which.limit - gone]
        if over:
            gone += yield from trimmed(over)
    return gone
