"""What keeps the store going: lost claims, due jobs, old jobs."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from winch.core import changes
from winch.core.job import RESCUE_RULE, from_micros, to_micros
from winch.core.policy.retention import dead_limits
from winch.core.values.codec import to_json
from winch.drivers.sqlite.connections.writer import store_time
from winch.drivers.sqlite.records import MICROSECOND
from winch.drivers.sqlite.statements import Ring
from winch.drivers.sqlite.verbs.awaited import prune_waits, still_awaited
from winch.drivers.sqlite.verbs.base import HEAD_START_MICROS, Body, query, read_jobs
from winch.drivers.sqlite.verbs.changed_jobs import store
from winch.storage.decide.waits import STILL_AWAITED
from winch.storage.params import Promoted, Rescued, Trim
from winch.storage.verbs import Now, Verb

KEEP_SESSIONS = timedelta(days=1)


class UpkeepVerbs:
    """See UpkeepVerbs in storage/families.py for the contracts."""

    def rescue(
        self, *, limit: int = 1000, as_of: datetime | None = None, now: Now = None
    ) -> Verb[list[Rescued]]:
        def body() -> Body[list[Rescued]]:
            at = store_time(now)
            yield from query("rescue.far", now=at)
            yield from query("rescue", now=at, as_of=at if as_of is None else min(at, to_micros(as_of)))
            ids = [row[0] for row in (yield from query("rescue.orphans", limit=limit))]
            jobs = yield from read_jobs(ids)
            moment = from_micros(at)
            taken, back = [], []
            for job in (jobs[i] for i in ids):
                changed = changes.suspected(job, "rescued", "lease over", moment, RESCUE_RULE)
                taken.append(changed)
                back.append(Rescued(job.id, job.token or "", job.session or "", changed.state))
            yield from store(taken, at)
            return back

        return Verb("rescue", body)

    def promote(self, *, limit: int = 1000, now: Now = None) -> Verb[Promoted]:
        def body() -> Body[Promoted]:
            at = store_time(now)
            rows = yield from query("promote", now=at, limit=limit, head_start=HEAD_START_MICROS)
            ring = Ring()
            for (queue,) in rows:
                ring.ready[queue] += 1
            yield ring
            later = yield from query("promote.next")
            next_at = from_micros(later[0][0]) if later else None
            return Promoted(len(rows), next_at, from_micros(at))

        return Verb("promote", body)

    def prune(self, *, limit: int = 1000, now: Now = None) -> Verb[int]:
        def body() -> Body[int]:
            at = store_time(now)
            gone = yield from _prune_jobs(at, limit)
            yield from prune_waits(at)
            yield from query("prune.sessions", before=at - KEEP_SESSIONS // MICROSECOND)
            yield from query("prune.declarations")
            yield from query("prune.keys", now=at)
            return gone

        return Verb("prune", body)

    def trim(self, which: Trim, *, now: Now = None) -> Verb[int]:
        def body() -> Body[int]:
            at = store_time(now)
            total = 0
            for task, options in (yield from query("trim", task=which.task, queue=which.queue)):
                if total >= which.limit and not which.is_dry_run:
                    break
                total += yield from _trim_task(task, options, which, at, which.limit - total)
            return total

        return Verb("trim", body)


def _prune_jobs(at: int, limit: int) -> Body[int]:
    """Delete final jobs whose keeping time is over, except those that a waiting job still needs."""
    gone = 0
    while gone < limit:
        awaited = yield from query("prune.awaited", now=at, limit=limit - gone)
        if not awaited:
            return gone + len((yield from query("prune", now=at, limit=limit - gone)))
        needed = yield from still_awaited(awaited)
        if needed:
            later = at + STILL_AWAITED // MICROSECOND
            yield from query("prune.later", ids=to_json(sorted(needed)), later=later)
        if ids := [job_id for job_id, _ in awaited if job_id not in needed]:
            gone += len((yield from query("prune.these", ids=to_json(ids))))
    return gone


def _trim_task(task: str, options: str | None, which: Trim, at: int, limit: int) -> Body[int]:
    """Delete up to `limit` of what is too much of one task, or count it."""
    count, most_bytes = which.count, which.bytes
    if not which.is_forced:
        own = dead_limits(options)
        count = which.count if own.dead_count is None else own.dead_count
        most_bytes = which.bytes if own.dead_bytes is None else own.dead_bytes
    is_by_count = count is not None and most_bytes is None and which.older_than is None
    name = "trim.many" if is_by_count and which.queue is None else "trim.over"
    values: dict[str, Any] = {
        "task": task,
        "queue": which.queue,
        "count": count,
        "bytes": most_bytes,
        "before": None if which.older_than is None else at - which.older_than // MICROSECOND,
        "limit": limit,
        "skip": 0,
        "only_awaited": False,
    }
    if which.is_dry_run:
        ((count,),) = yield from query("trim.matched", **values)
        awaited = yield from query("trim.over", **values | {"only_awaited": True, "limit": -1})
        return int(count) - len((yield from still_awaited(awaited)))
    gone = 0
    while True:
        rows = yield from query(name, **values)
        needed = yield from still_awaited(rows)
        if ids := [row[0] for row in rows if row[0] not in needed]:
            gone += len((yield from query("trim.delete", ids=to_json(ids[: limit - gone]))))
        if len(rows) < limit or gone >= limit:
            return gone
        values["skip"] += len(needed)
