"""The index behind `search=[…]`: one line in a book for each declared argument of each job.

A line is written before its job, or in the same transaction where the caller brought one, so that a job
that is stored can be found. A line whose job was never stored, is gone, or has other arguments by now
does no harm: a search reads the jobs and compares their arguments. `sweep` strikes lines of jobs
that are gone. It leaves those of the last day alone, whose job may be on its way.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta

import msgspec

from winch.core.values.search import BOOK, job_of, key_of, span_of
from winch.engine.base.encryption import Keyring
from winch.engine.base.operation import Operation
from winch.storage.decide.schedules import RunKind, ScheduleRun, read_definition
from winch.storage.kv_records import KvFilter, KvRecord
from winch.storage.params import Enqueued, NewJob
from winch.storage.protocol import Driver

SWEPT = 500
YOUNG = timedelta(days=1)


def lines_of(job_id: str, terms: Iterable[str], at: datetime) -> list[KvRecord]:
    """The lines of one job."""
    body = msgspec.json.encode(int(at.timestamp())).decode()
    return [KvRecord(book=BOOK, key=key_of(term, job_id), body=body) for term in terms]


def lines_of_all(jobs: Sequence[NewJob], at: datetime) -> list[KvRecord]:
    """The lines of jobs that are about to be stored; mostly there are none."""
    return [line for job in jobs if job.terms for line in lines_of(job.id, job.terms, at)]


def lines_of_replaced(
    jobs: Sequence[NewJob], answers: Sequence[Enqueued], at: datetime
) -> list[KvRecord]:
    """The lines of jobs that have got the arguments of others which were not stored."""
    return [
        line
        for job, answer in zip(jobs, answers, strict=True)
        if job.terms and answer.is_replaced and answer.holder is not None
        for line in lines_of(answer.holder, job.terms, at)
    ]


def lines_of_runs(definition: str, runs: Iterable[ScheduleRun]) -> list[KvRecord]:
    """The lines of jobs that a schedule has just made; their ids are known only now."""
    if '"terms":[]' in definition:
        return []
    terms = read_definition(definition).job.terms
    now = datetime.now(UTC)
    return [
        line
        for run in runs
        if run.kind is not RunKind.HELD and run.job is not None
        for line in lines_of(run.job, terms, now)
    ]


def sealed(keys: Keyring | None, terms: tuple[str, ...]) -> tuple[str, ...]:
    """The terms as they are stored: with keys, no other program can guess values by trial."""
    return terms if keys is None else tuple(keys.blind(term) for term in terms)


def spellings(keys: Keyring | None, term: str) -> tuple[str, ...]:
    """All that a term may be stored as: plain, and by each key that has ever written."""
    return (term,) if keys is None else (term, *(keys.blind(term, name) for name in keys.names))


def found_under(
    driver: Driver, terms: Sequence[str], *, after: str | None, limit: int
) -> Operation[list[str]]:
    """Up to `limit` ids of jobs that may have one of these terms, newest first, from below `after`."""
    ids: set[str] = set()
    for term in terms:
        low, high = span_of(term, after)
        lines = yield driver.kv_list(
            KvFilter(book=BOOK, after=low, before=high, limit=limit, is_newest_first=True)
        )
        ids.update(job_of(line.key) for line in lines)
    return sorted(ids, reverse=True)[:limit]


class Swept(msgspec.Struct, frozen=True):
    """What one pass has seen and struck; `after` is where the next one begins, None at the end."""

    seen: int
    struck: int
    after: str | None


def sweep(driver: Driver, after: str | None, now: datetime) -> Operation[Swept]:
    """Look at the next lines and strike those whose job is gone."""
    lines: list[KvRecord] = yield driver.kv_list(KvFilter(book=BOOK, after=after, limit=SWEPT))
    if not lines:
        return Swept(0, 0, None)
    before = int((now - YOUNG).timestamp())
    old = [line.key for line in lines if _second(line.body) < before]
    records = yield driver.get([job_of(key) for key in old]) if old else driver.get([])
    gone = [key for key, record in zip(old, records, strict=True) if record is None]
    if gone:
        yield driver.kv_delete(BOOK, gone)
    return Swept(len(lines), len(gone), lines[-1].key if len(lines) == SWEPT else None)


def _second(body: str) -> int:
    try:
        return msgspec.json.decode(body, type=int)
    except msgspec.DecodeError:
        return 0
