"""Upkeep: lost claims, due jobs, old jobs."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from winch.core.job import RESCUE_RULE, UNDO_LIVES, Failure
from winch.core.lifecycle import JobState
from winch.core.policy.retention import DeadLimits, dead_limits
from winch.core.values.fingerprint import trace
from winch.drivers.postgres.records import read_moment
from winch.drivers.postgres.statements import Body
from winch.drivers.postgres.verbs.base import Base
from winch.storage.decide.waits import KEEP_TAKEN, KEEP_UNTAKEN
from winch.storage.params import Promoted, Rescued, Trim
from winch.storage.verbs import Now, Verb

KEEP_SESSIONS = timedelta(days=1)
LEASE_OVER = "lease over"
# Claims by the hundred are of short jobs. A job that still runs after OLD_SECONDS is filed as running. A
# rescue looks at OLD_LEASES claims' rows for that, and removes as many as LEASES.
OLD_SECONDS = 5.0
OLD_LEASES = 100
LEASES = 10_000


class UpkeepVerbs:
    """See storage/families.py for the contracts."""

    def __init__(self, base: Base) -> None:
        self._base = base

    def rescue(
        self, *, limit: int = 1000, as_of: datetime | None = None, now: Now = None
    ) -> Verb[list[Rescued]]:
        def body() -> Body[list[Rescued]]:
            yield self._base.statement("rescue", as_of=as_of, now=now)
            yield self._base.statement("admit.lock_running", session=None)
            rows = yield self._base.statement(
                "rescue.jobs",
                limit=limit,
                cause=LEASE_OVER,
                trace=trace(Failure("rescued", LEASE_OVER)),
                most=RESCUE_RULE.most,
                undo_lives=UNDO_LIVES,
                window_seconds=RESCUE_RULE.within.total_seconds(),
                now=now,
            )
            yield self._base.statement(
                "rescue.leases", limit=LEASES, most=OLD_LEASES, old_seconds=OLD_SECONDS, now=now
            )
            yield self._base.statement("rescue.file", most=OLD_LEASES, old_seconds=OLD_SECONDS, now=now)
            return [Rescued(row[0], row[1], row[2], JobState(row[3])) for row in rows]

        return Verb("rescue", body)

    def promote(self, *, limit: int = 1000, now: Now = None) -> Verb[Promoted]:
        def body() -> Body[Promoted]:
            ((at, count, next_at, _),) = yield self._base.statement(
                "promote", is_alone=True, limit=limit, now=now
            )
            later = None if next_at is None else read_moment(next_at)
            return Promoted(count, later, read_moment(at))

        return Verb("promote", body)

    def prune(self, *, limit: int = 1000, now: Now = None) -> Verb[int]:
        def body() -> Body[int]:
            ((count,),) = yield self._base.statement(
                "prune",
                is_alone=True,
                limit=limit,
                session_seconds=KEEP_SESSIONS.total_seconds(),
                now=now,
            )
            yield self._base.statement(
                "prune.waits",
                is_alone=True,
                taken_seconds=KEEP_TAKEN.total_seconds(),
                untaken_seconds=KEEP_UNTAKEN.total_seconds(),
                now=now,
            )
            return int(count)

        return Verb("prune", body)

    def trim(self, which: Trim, *, now: Now = None) -> Verb[int]:
        def over(task: str, count: int | None, most_bytes: int | None) -> dict[str, Any]:
            older = None if which.older_than is None else which.older_than.total_seconds()
            return {
                "task": task,
                "queue": which.queue,
                "count": count,
                "bytes": most_bytes,
                "older_seconds": older,
                "limit": which.limit,
                "now": now,
            }

        def body() -> Body[int]:
            counts: dict[str, int] = {}
            ranked: list[dict[str, Any]] = []
            rows = yield self._base.statement("trim", is_alone=True, task=which.task, queue=which.queue)
            for task, options in rows:
                own = DeadLimits() if which.is_forced else dead_limits(options)
                count = which.count if own.dead_count is None else own.dead_count
                most_bytes = which.bytes if own.dead_bytes is None else own.dead_bytes
                is_by_count = count is not None and most_bytes is None and which.older_than is None
                if is_by_count and count is not None and which.queue is None and not which.is_dry_run:
                    counts[task] = count
                else:
                    ranked.append(over(task, count, most_bytes))
            if which.is_dry_run:
                total = 0
                for values in ranked:
                    ((number,),) = yield self._base.statement("trim.matched", is_alone=True, **values)
                    total += number
                return total
            ids: list[str] = []
            if counts:
                rows = yield self._base.statement(
                    "trim.many",
                    is_alone=True,
                    tasks=list(counts),
                    counts=list(counts.values()),
                    limit=which.limit,
                )
                ids += [row[0] for row in rows]
            for values in ranked:
                if len(ids) >= which.limit:
                    break
                rows = yield self._base.statement("trim.over", is_alone=True, **values)
                ids += [row[0] for row in rows]
            if not ids:
                return 0
            ((gone,),) = yield self._base.statement("trim.delete", is_alone=True, ids=ids[: which.limit])
            return int(gone)

        return Verb("trim", body)
