"""What jobs wait for: shared by the verbs that begin, end and forget waits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

from winch.core.flow import FLOW_ALIKE
from winch.core.job import JobRecord
from winch.core.lifecycle import JobState
from winch.core.values.codec import to_json
from winch.drivers._shared.rows import read_headers
from winch.drivers.sqlite.records import MICROSECOND
from winch.drivers.sqlite.statements import Ring
from winch.drivers.sqlite.verbs.base import Body, query
from winch.storage.decide.waits import AWAITED_HEADER, KEEP_TAKEN, KEEP_UNTAKEN, Awaited, awaited_by
from winch.storage.params import Finish


def look_again(keys: Iterable[str]) -> Body[None]:
    """Write these keys down for the next `unblock`, and ring for it."""
    yield from query("signal.recheck", keys=to_json(list(keys)))
    yield Ring(due=True)


def begin_waits(outcomes: Iterable[Finish], ended: Sequence[JobRecord], at: int) -> Body[None]:
    """Write down what the jobs wait for that a finish has blocked."""
    blocked = {job.id for job in ended if job.state is JobState.BLOCKED}
    for outcome in outcomes:
        if outcome.id not in blocked or not (outcome.waits or outcome.timeout):
            continue
        yield from query("unblock.leave", ids=to_json([outcome.id]))
        until = None if outcome.timeout is None else at + outcome.timeout // MICROSECOND
        # A wait for nothing but the time has a key that never comes.
        waits = [(wait.key, int(wait.is_enough)) for wait in outcome.waits] or [("", 0)]
        yield from query("finish.waits", id=outcome.id, waits=to_json(waits), until=until)
        yield from look_again(wait.key for wait in outcome.waits)


def still_awaited(rows: Iterable[Sequence[Any]]) -> Body[set[str]]:
    """The ids among these, each with its headers as they are stored, that a waiting job still needs."""
    asked: dict[Awaited, list[str]] = {}
    for job_id, headers in rows:
        if AWAITED_HEADER in headers and (waiter := awaited_by(read_headers(headers))) is not None:
            asked.setdefault(waiter, []).append(job_id)
    if not asked:
        return set()
    needed = yield from query("prune.needed", asked=to_json(list(asked)), alike=FLOW_ALIKE)
    found = list(asked.values())
    return {job_id for row in needed for job_id in found[row[0]]}


def prune_waits(at: int) -> Body[None]:
    """Delete old signals, and waits of jobs that are gone."""
    yield from query(
        "prune.signals",
        taken_before=at - _micros(KEEP_TAKEN),
        untaken_before=at - _micros(KEEP_UNTAKEN),
    )
    yield from query("prune.waiting")


def _micros(span: timedelta) -> int:
    return span // MICROSECOND
