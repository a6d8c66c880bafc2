"""Rows to records and back. JSON that was damaged by hand reads as empty: one bad row must
not keep the jobs that were claimed with it from running."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from winch.core.job import Claim
from winch.core.lifecycle import JobState
from winch.drivers._shared.rows import RowReader, read_headers
from winch.drivers.postgres.statements import Row, Rows
from winch.storage.params import ClaimRef, QueueInfo

# Moments that come as numbers are microseconds since this one.
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)

_encode = msgspec.json.encode
_headers = msgspec.json.Decoder(dict[str, str])
_counts = msgspec.json.Decoder(dict[str, int])


# -- writing -----------------------------------------------------------------------------------------


def write_claims(claims: Iterable[ClaimRef]) -> str:
    return _encode([{"id": claim.id, "token": claim.token} for claim in claims]).decode()


def write_span(span: timedelta | None) -> float | None:
    """A duration in seconds. A float holds the microseconds of some centuries exactly enough."""
    return None if span is None else span.total_seconds()


# -- reading -----------------------------------------------------------------------------------------


def read_moment(moment: datetime) -> datetime:
    """The moment in UTC; psycopg gives it in the time zone of the session."""
    return moment if moment.tzinfo is UTC else moment.astimezone(UTC)


def read_maybe_moment(moment: datetime | None) -> datetime | None:
    return None if moment is None else read_moment(moment)


class _Moments(dict[Any, datetime]):
    """Moments that are made once: jobs enqueued together share theirs. From numbers, as statements of
    `libpq.BARE_MOMENTS` have them, or from what psycopg gives."""

    def __missing__(self, moment: int | datetime) -> datetime:
        made = (
            read_moment(moment)
            if isinstance(moment, datetime)
            else _EPOCH + timedelta(microseconds=moment)
        )
        self[moment] = made
        return made


class _HeadersRead(dict[str, dict[str, str]]):
    """Headers that are read once: members of a flow share theirs. Those of a claim never change."""

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
    moments, read = _Moments(), _HeadersRead()
    one_queue, now = queues[0], moments[rows[0][9]]
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
            moments[created_at],
            moments[run_at],
            now,
            is_suspect,
            None if expires_at is None else moments[expires_at],
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
