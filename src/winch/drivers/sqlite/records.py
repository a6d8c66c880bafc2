"""Rows to records and back. JSON that was damaged by hand reads as empty: one bad row must
not keep the jobs that were claimed with it from running."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import msgspec

from winch.core.job import KEEP, JobRecord, from_micros, sort_key, to_micros
from winch.core.values.codec import to_json
from winch.drivers._shared.rows import RowReader

MICROSECOND = timedelta(microseconds=1)

_texts = msgspec.json.Decoder(tuple[str, ...])


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


READ: RowReader = RowReader(moment=from_micros, span=MICROSECOND.__mul__, texts=read_texts)
