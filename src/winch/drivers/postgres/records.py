"""Rows to records and back. JSON that was damaged by hand reads as empty: one bad row must
not keep the jobs that were claimed with it from running."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any

import msgspec

from winch.core.changes import died_of
from winch.core.job import Claim, Failure
from winch.core.lifecycle import JobState
from winch.core.values.codec import clean_text
from winch.core.values.fingerprint import trace
from winch.drivers._shared.rows import RowReader, read_headers
from winch.drivers.postgres.binary import Ids, Moments, Texts, Tids, same
from winch.drivers.postgres.statements import Row, Rows
from winch.storage.params import ClaimRef, Finish, NewJob, QueueInfo

# Whoever writes has cut texts to size already; here only what cannot be stored is taken out.
_NO_LIMIT = 1 << 30
# A finish of fewer jobs does not count leases down.
COUNTED = 16

_encode = msgspec.json.encode
_headers = msgspec.json.Decoder(dict[str, str])
_counts = msgspec.json.Decoder(dict[str, int])


# -- writing -----------------------------------------------------------------------------------------


class _NewRow(msgspec.Struct, omit_defaults=True):
    id: str
    task: str
    version: int
    args: str
    queue: str
    priority: int
    is_given_id: bool
    delay_seconds: float | None = None
    run_at: datetime | None = None
    tenant: str | None = None
    fifo: str | None = None
    unique_key: str | None = None
    tags: tuple[str, ...] | None = None
    headers: str | None = None
    options: str | None = None
    expires_seconds: float | None = None
    max_attempts: int | None = None
    keep_seconds: float | None = None
    max_wait_seconds: float | None = None


def write_jobs(jobs: Iterable[NewJob]) -> str:
    """The jobs as the one JSON text that `enqueue` takes."""
    return _encode(
        [
            _NewRow(
                job.id,
                job.task,
                job.version,
                job.args,
                job.queue,
                job.priority,
                job.is_given_id,
                write_span(job.delay),
                job.run_at,
                job.tenant,
                job.fifo,
                job.unique_key,
                job.tags or None,
                _write_headers(job),
                job.options,
                write_span(job.expires),
                job.max_attempts,
                write_span(job.keep),
                write_span(job.max_wait),
            )
            for job in jobs
        ]
    ).decode()


# What jobs stored by `enqueue.alike` may differ in (terms are stored elsewhere), what they share, and
# what they must not have: all other fields, also those that a later release adds.
_OWN = ("id", "args", "headers", "terms")
_SHARED = ("task", "version", "queue", "priority", "options", "expires", "max_attempts", "keep", "tags")
_ABSENT = tuple(field for field in NewJob.__struct_fields__ if field not in (*_OWN, *_SHARED))
_plain_job = NewJob(id="", task="", args="")
_absent = attrgetter(*_ABSENT)
_without_own = attrgetter(*_SHARED, *_ABSENT)
_nothing = _absent(_plain_job)
_seldom = attrgetter("headers", "options", "expires", "keep")
_seldom_nothing = _seldom(_plain_job)


def is_bare(job: NewJob) -> bool:
    """Whether a job that `write_one` takes has nothing but its arguments: a worker may be handed it."""
    return bool(_seldom(job) == _seldom_nothing)


def write_one(
    job: NewJob, now: datetime | None, *, may_hand_over: bool = False, is_noted: bool = False
) -> dict[str, Any] | None:
    """The parameters of `enqueue.one`; None if there is more to the job."""
    if _absent(job) != _nothing or job.tags:
        return None
    return {
        "id": job.id,
        "args": job.args,
        "task": job.task,
        "version": job.version,
        "queue": job.queue,
        "priority": job.priority,
        "max_attempts": job.max_attempts,
        "now": now,
        "headers": _write_headers(job),
        "options": job.options,
        "expires_seconds": write_span(job.expires),
        "keep_seconds": write_span(job.keep),
        "may_hand_over": may_hand_over,
        "is_noted": is_noted,
    }


def write_alike(jobs: Sequence[NewJob]) -> dict[str, Any] | None:
    """The parameters of `enqueue.alike`; None where the jobs are not alike."""
    first = jobs[0]
    if _absent(first) != _nothing:
        return None
    if len(jobs) > 1:
        usual = _without_own(first)
        if any(_without_own(job) != usual for job in jobs):
            return None
    return {
        "ids": Ids(job.id for job in jobs),
        "args": Texts(job.args for job in jobs),
        "headers": _alike_headers(jobs),
        "tags": Texts(first.tags) if first.tags else None,
        "task": first.task,
        "version": first.version,
        "queue": first.queue,
        "priority": first.priority,
        "options": first.options,
        "expires_seconds": write_span(first.expires),
        "max_attempts": first.max_attempts,
        "keep_seconds": write_span(first.keep),
    }


def _alike_headers(jobs: Sequence[NewJob]) -> Texts | None:
    first = jobs[0].headers
    if all(job.headers is first for job in jobs):  # the members of a flow share the very object
        text = _write_headers(jobs[0])
        return None if text is None else Texts([text] * len(jobs))
    return Texts(map(_write_headers, jobs)) if any(job.headers for job in jobs) else None


def _write_headers(job: NewJob) -> str | None:
    return _encode(job.headers).decode() if job.headers else None


class _OutcomeRow(msgspec.Struct, omit_defaults=True):
    job: str
    by_token: str
    state: str
    what: str
    delay_seconds: float
    counts: bool
    result: str | None = None
    error: Failure | None = None
    said: str | None = None
    more_log: str | None = None
    fingerprint: str | None = None
    trace: str | None = None


def write_completed(outcomes: Sequence[Finish], places: Tids | None) -> dict[str, Any]:
    """The parameters of `finish`: mostly all results are one, and then it is written once.

    Leases are counted down only by calls for many jobs. A single one may be part of the application's
    own transaction, and others would wait for its commit.
    """
    is_one, result = same(outcome.result for outcome in outcomes)
    leases: Counter[str] = Counter()
    if len(outcomes) >= COUNTED:
        leases.update(outcome.token for outcome in outcomes)
    return {
        "places": places,
        "leases": Ids(leases) if leases else None,
        "numbers": list(leases.values()) if leases else None,
        "ids": Ids(outcome.id for outcome in outcomes),
        "tokens": Ids(outcome.token for outcome in outcomes),
        "results": None if is_one else _encode({o.id: o.result for o in outcomes}).decode(),
        "result": result,
    }


def write_outcomes(outcomes: Iterable[Finish]) -> str:
    return _encode(
        [
            _OutcomeRow(
                o.id,
                o.token,
                o.to.value,
                o.what,
                o.delay.total_seconds(),
                o.counts,
                o.result,
                _clean_error(o.error),
                _clean(o.reason),
                _clean(o.log),
                o.fingerprint,
                _trace(o),
            )
            for o in outcomes
        ]
    ).decode()


def _trace(outcome: Finish) -> str | None:
    """What the store makes a fingerprint of, for a job that dies without one."""
    if outcome.to is not JobState.DEAD or outcome.fingerprint is not None:
        return None
    return trace(died_of(outcome))


def write_claims(claims: Iterable[ClaimRef]) -> str:
    return _encode([{"id": claim.id, "token": claim.token} for claim in claims]).decode()


def write_span(span: timedelta | None) -> float | None:
    """A duration in seconds. A float holds the microseconds of some centuries exactly enough."""
    return None if span is None else span.total_seconds()


def _clean(text: str | None) -> str | None:
    """Text nobody chose: one odd character in it must not fail the batch it is written with."""
    return None if text is None else clean_text(text, _NO_LIMIT)


def _clean_error(error: Failure | None) -> Failure | None:
    if error is None:
        return None
    return Failure(
        clean_text(error.type, _NO_LIMIT),
        clean_text(error.message, _NO_LIMIT),
        _clean(error.traceback),
    )


# -- reading -----------------------------------------------------------------------------------------


def read_moment(moment: datetime) -> datetime:
    """The moment in UTC; psycopg gives it in the time zone of the session."""
    return moment if moment.tzinfo is UTC else moment.astimezone(UTC)


def read_maybe_moment(moment: datetime | None) -> datetime | None:
    return None if moment is None else read_moment(moment)


class _HeadersRead(dict[str, dict[str, str]]):
    """Headers that are read once: members of a flow share theirs. Nobody changes those of a claim."""

    def __missing__(self, text: str) -> dict[str, str]:
        found = self[text] = read_headers(text)
        return found


def read_ended(
    state: str, ended_token: str | None, whats: str | None
) -> tuple[JobState, str | None, dict[str, str]]:
    """How the holders of this job's claims ended them, as `changes.ended_as` takes it."""
    return JobState(state), ended_token, _headers.decode(whats) if whats else {}


def read_claims(rows: Rows, token: str, queues: Sequence[str]) -> list[Claim]:
    """Claims from the columns of `claim`, in the order of the queues and of the jobs in them."""
    if not rows:
        return []
    rows.sort()  # by sort key and id: no two rows share both
    if len(queues) > 1:
        place = {queue: number for number, queue in enumerate(queues)}
        rows.sort(key=lambda row: place[row[2]])
    moment = Moments().of if isinstance(rows[0][7], int) else read_moment
    one_queue, now = queues[0], moment(rows[0][9])
    read = _HeadersRead()
    return [
        Claim(
            id_,
            token,
            task,
            version,
            args,
            queue or one_queue,
            attempt,
            fence,
            moment(created_at),
            moment(run_at),
            now,
            is_suspect,
            None if expires_at is None else moment(expires_at),
            read[headers] if headers is not None else {},
            options,
            checkpoint,
        )
        for (
            _,
            id_,
            queue,
            task,
            args,
            attempt,
            fence,
            created_at,
            run_at,
            _,
            version,
            is_suspect,
            expires_at,
            headers,
            options,
            checkpoint,
            _,
        ) in rows
    ]


def read_queue(row: Row) -> QueueInfo:
    counts: dict[str, Any] = _counts.decode(row[5]) if row[5] else {}
    return QueueInfo(
        name=row[0],
        counts={JobState(state): count for state, count in counts.items()},
        paused_at=read_maybe_moment(row[1]),
        pause_reason=row[2],
        oldest_ready_at=read_maybe_moment(row[3]),
        sessions=row[4],
    )


def _texts(values: Sequence[str] | None) -> tuple[str, ...]:
    return tuple(values or ())


def _span(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)


READ: RowReader = RowReader(moment=read_moment, span=_span, texts=_texts)
