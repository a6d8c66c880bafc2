"""Rows to records and back. JSON that was damaged by hand reads as empty: one bad row must
not keep the jobs that were claimed with it from running."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from operator import attrgetter, itemgetter
from typing import Any

import msgspec

from winch.core.job import KEEP, Claim, JobRecord, from_micros, sort_key, to_micros
from winch.drivers._shared.rows import Row, RowReader, read_headers

MICROSECOND = timedelta(microseconds=1)

_encode = msgspec.json.encode
_texts = msgspec.json.Decoder(tuple[str, ...])


def to_json(value: Any) -> str:
    return _encode(value).decode()


def read_texts(text: str) -> tuple[str, ...]:
    if text == "[]":
        return ()
    try:
        return _texts.decode(text)
    except msgspec.DecodeError:
        return ()


def read_moment(micros: int | None) -> datetime | None:
    return None if micros is None else from_micros(micros)


def write_moment(moment: datetime | None) -> int | None:
    return None if moment is None else to_micros(moment)


def put_values(job: JobRecord, now: int) -> dict[str, Any]:
    """What record.put and record.archive write of a changed job."""
    values: dict[str, Any] = {
        "id": job.id,
        "run_at": to_micros(job.run_at),
        "state": job.state.value,
        "attempt": job.attempt,
        "crashes": job.crashes,
        "rescues": job.rescues,
        "is_suspect": int(job.is_suspect),
        "token": job.token,
        "ended_token": job.ended_token,
        "cancel_requested_at": write_moment(job.cancel_requested_at),
        "log": job.log,
        "history": to_json(job.history),
        "result": job.result,
        "reason": job.reason,
        "version": job.version,
        "args": job.args,
        "queue": job.queue,
        "options": job.options,
        "max_attempts": job.max_attempts,
        "fingerprint": job.fingerprint,
        "sort_key": sort_key(job.run_at, job.priority),
        "now": now,
    }
    if job.state.is_final:
        keep = KEEP[job.state] if job.keep is None else job.keep
        values["drop_at"] = now + keep // MICROSECOND
    return values


def read_claims(rows: Iterable[Row], token: str, claimed_at: datetime) -> list[Claim]:
    """Claims from the columns of `admit.take`, in the order of the queue."""
    moments = _Moments()
    return [
        Claim(
            id=row[1],
            token=token,
            task=row[2],
            version=row[3],
            args=row[4],
            queue=row[5],
            attempt=row[6],
            fence=row[7],
            created_at=moments[row[8]],
            run_at=moments[row[9]],
            claimed_at=claimed_at,
            is_suspect=bool(row[10]),
            expires_at=None if row[11] is None else moments[row[11]],
            headers={} if row[12] == "{}" else read_headers(row[12]),
            options=row[13],
            checkpoint=row[14],
        )
        for row in sorted(rows, key=_key)
    ]


_key = itemgetter(0, 1)


class _Ready(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One job that `claim` has found, as it was before."""

    sort_key: int
    id: str
    task: str
    version: int
    args: str
    attempt: int
    fence: int
    created_at: int
    run_at: int
    is_suspect: int
    expires_at: int | None
    headers: str
    options: str | None
    checkpoint: str | None


_ready = msgspec.json.Decoder(list[_Ready])
_order = attrgetter("sort_key", "id")


def read_found(text: str, token: str, queue: str, claimed_at: int) -> list[Claim]:
    """The claims of what `claim` has found, in the order of the queue."""
    found = _ready.decode(text)
    found.sort(key=_order)  # as they come already, but no aggregate promises an order
    moments = _Moments()
    now = from_micros(claimed_at)
    return [
        Claim(
            job.id,
            token,
            job.task,
            job.version,
            job.args,
            queue,
            job.attempt + 1,
            max(job.fence + 1, claimed_at),
            moments[job.created_at],
            moments[job.run_at],
            now,
            job.is_suspect != 0,
            None if job.expires_at is None else moments[job.expires_at],
            {} if job.headers == "{}" else read_headers(job.headers),
            job.options,
            job.checkpoint,
        )
        for job in found
    ]


class _Moments(dict[int, datetime]):
    """Moments that are made once: jobs enqueued together share theirs."""

    def __missing__(self, micros: int) -> datetime:
        moment = self[micros] = from_micros(micros)
        return moment


READ: RowReader = RowReader(moment=from_micros, span=MICROSECOND.__mul__, texts=read_texts)
