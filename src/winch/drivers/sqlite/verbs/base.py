"""What the families of verbs share: statements, the clock, reading jobs and the holders of keys."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from datetime import timedelta
from typing import Any, TypeVar

from winch.core.job import HEAD_START, JobRecord, from_micros
from winch.core.lifecycle import TRANSITIONS, JobState
from winch.core.values.codec import to_json
from winch.drivers._shared.rows import Row
from winch.drivers.sqlite.records import MICROSECOND, READ
from winch.drivers.sqlite.statements import Ring, Step
from winch.storage.decide.unique import Holder
from winch.storage.verbs import Verb

T = TypeVar("T")
Body = Generator[Any, Any, T]

# A job due sooner than the promoter's own poll rings the bell; a later one is met by the poll.
RING_WITHIN = timedelta(seconds=2)
RING_WITHIN_MICROS = RING_WITHIN // MICROSECOND
HEAD_START_MICROS = HEAD_START // MICROSECOND


def verb(name: str, body: Callable[[], Body[T]], *, is_read: bool = False) -> Verb[T]:
    return Verb(name, body, is_read)


def query(name: str, /, **values: Any) -> Generator[Any, Any, list[Row]]:
    """One statement; returns its rows."""
    rows: list[Row] = yield Step(name, values)
    return rows


def read_jobs(ids: Iterable[str], *, is_kept_too: bool = False) -> Body[dict[str, JobRecord]]:
    """The jobs of these ids: live ones, and on request final ones."""
    wanted = list(ids)
    as_json = to_json(wanted)
    rows = yield from query("get", ids=as_json)
    if is_kept_too and len(rows) < len(wanted):
        rows += yield from query("get.kept", ids=as_json)
    return {row[0]: READ.job(row) for row in rows}


def holders(keys: Iterable[str]) -> Body[dict[str, Holder]]:
    """The live jobs that have these unique keys."""
    rows = yield from query("enqueue.holders", keys=to_json(list(keys)))
    return {key: Holder(job_id, JobState(state)) for key, job_id, state in rows}


def kept_holders(keys: Iterable[str | None], at: int) -> Body[dict[str, Holder]]:
    """The final jobs that have these unique keys for a while yet."""
    rows = yield from query("enqueue.kept", keys=to_json(list(keys)), now=at)
    return {key: Holder(job_id, None) for key, job_id in rows}


def ring_for(jobs: Iterable[JobRecord], now: int) -> Ring:
    """The queues and promoters that these jobs wake."""
    ring = Ring()
    soon = from_micros(now) + RING_WITHIN
    for job in jobs:
        if job.state is JobState.READY:
            ring.ready[job.queue] += 1
        elif job.state in TRANSITIONS["promote"] and job.run_at < soon:
            ring.due = True
    return ring
