"""Writing jobs back that a verb has changed, with everything that follows from the change."""

from __future__ import annotations

from collections.abc import Sequence

from winch.core import changes
from winch.core.job import JobRecord, from_micros
from winch.core.values.codec import to_json
from winch.drivers.sqlite.records import put_values
from winch.drivers.sqlite.statements import Step
from winch.drivers.sqlite.verbs import permits
from winch.drivers.sqlite.verbs.base import Body, query, read_jobs, ring_for


def store(jobs: Sequence[JobRecord], now: int) -> Body[None]:
    """Write changed live jobs to their table, or to the archive; ring for those that can run, and
    give back the permits that they no longer need."""
    live = [put_values(job, now) for job in jobs if not job.state.is_final]
    final = [put_values(job, now) for job in jobs if job.state.is_final]
    if live:
        yield Step.each("record.put", live)
    if final:
        yield Step.each("record.archive", final)
        ids = to_json([values["id"] for values in final])
        yield from query("record.awaited", ids=ids)
        yield from query("record.leave", ids=ids)
    yield ring_for(jobs, now)
    yield from permits.left(jobs, now)


def give_back(
    ids: Sequence[str], at: int, *, by_holder: bool = False, has_started: bool = False
) -> Body[None]:
    """Make claimed jobs ready again."""
    if ids:
        jobs = yield from read_jobs(ids)
        moment = from_micros(at)
        freed = [
            changes.given_back(jobs[i], moment, by_holder=by_holder, has_started=has_started)
            for i in ids
        ]
        yield from store(freed, at)
