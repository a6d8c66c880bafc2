"""Rows of SQL stores to records. The columns are the same in each; how a moment, a span or a list is
written differs, so a store gives its own readers of these."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import msgspec

from winch.core.job import Entry, JobRecord
from winch.core.lifecycle import JobState
from winch.core.policy.queue_limits import QueueLimit
from winch.core.values.codec import to_json
from winch.storage.params import Event, NewSession, Pulse, SessionInfo

Row = tuple[Any, ...]

_history = msgspec.json.Decoder(tuple[Entry, ...])
_commands = msgspec.json.Decoder(tuple[tuple[str, str], ...])
_headers = msgspec.json.Decoder(dict[str, str])
_bounds = msgspec.json.Decoder(dict[str, QueueLimit])


def read_history(text: str | None) -> tuple[Entry, ...]:
    """Damaged JSON reads as empty: one bad row must not stop the jobs that were claimed with it."""
    if text is None or text == "[]":
        return ()
    try:
        return _history.decode(text)
    except msgspec.DecodeError:
        return ()


def read_pulses(sessions: Sequence[str], now: datetime, rows: Iterable[Row]) -> list[Pulse]:
    """From rows of session, beats and commands as JSON; a session without a row is not live."""
    found = {
        session: (beats, () if commands is None else _commands.decode(commands))
        for session, beats, commands in rows
    }
    return [
        Pulse(session, session in found, beats, now, commands)
        for session in sessions
        for beats, commands in [found.get(session, (0, ()))]
    ]


def session_values(session: NewSession) -> dict[str, Any]:
    """The columns that both stores write alike."""
    same = ("id", "worker", "host", "pid", "release", "slots", "supervisor")
    return {
        **{name: getattr(session, name) for name in same},
        "labels": to_json(session.labels),
        "queue_limits": to_json(session.queue_limits),
    }


def read_headers(text: str | None) -> dict[str, str]:
    """As read_history."""
    if text is None or text == "{}":
        return {}
    try:
        return _headers.decode(text)
    except msgspec.DecodeError:
        return {}


@dataclass(frozen=True)
class RowReader:
    """How one store writes the values that have no SQL type of their own."""

    moment: Callable[[Any], datetime]
    span: Callable[[Any], timedelta]
    texts: Callable[[Any], tuple[str, ...]]

    def maybe(self, moment: Any) -> datetime | None:
        return None if moment is None else self.moment(moment)

    def job(self, row: Row) -> JobRecord:
        """A job from columns that are JobRecord's fields in order."""
        return JobRecord(
            id=row[0],
            task=row[1],
            version=row[2],
            args=row[3],
            queue=row[4],
            priority=row[5],
            created_at=self.moment(row[6]),
            run_at=self.moment(row[7]),
            state=JobState(row[8]),
            tenant=row[9],
            fifo=row[10],
            unique_key=row[11],
            tags=self.texts(row[12]),
            headers=read_headers(row[13]),
            options=row[14],
            expires_at=self.maybe(row[15]),
            max_attempts=row[16],
            keep=None if row[17] is None else self.span(row[17]),
            attempt=row[18],
            crashes=row[19],
            rescues=row[20],
            is_suspect=bool(row[21]),
            fence=row[22],
            token=row[23],
            session=row[24],
            claimed_at=self.maybe(row[25]),
            ended_token=row[26],
            cancel_requested_at=self.maybe(row[27]),
            progress=row[28],
            checkpoint=row[29],
            log=row[30],
            history=read_history(row[31]),
            finished_at=self.maybe(row[32]),
            result=row[33],
            reason=row[34],
            fingerprint=row[35],
            gate=row[36],
            has_undo=bool(row[37]),
            seq=row[38],
        )

    def session(self, row: Row) -> SessionInfo:
        """A session from the columns of `sessions`."""
        return SessionInfo(
            id=row[0],
            worker=row[1],
            host=row[2],
            pid=row[3],
            release=row[4],
            queues=self.texts(row[5]),
            tasks=self.texts(row[6]),
            slots=row[7],
            started_at=self.moment(row[8]),
            lease_until=self.moment(row[9]),
            beats=row[10],
            running=row[11],
            ended_at=self.maybe(row[12]),
            end_reason=row[13],
            supervisor=row[14],
            labels=read_headers(row[15]),
            queue_limits=_bounds.decode(row[16]),
        )

    def event(self, row: Row) -> Event:
        """A change of a job from the columns of `events`."""
        return Event(
            seq=row[0],
            job=row[1],
            v=row[2],
            kind=row[3],
            state=None if row[4] is None else JobState(row[4]),
            token=row[5],
            by_token=row[6],
            session=row[7],
            attempt=row[8],
            at=self.moment(row[9]),
        )
