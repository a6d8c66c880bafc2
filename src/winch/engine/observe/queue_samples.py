"""Samples of the queues: how long each was, written by the upkeep of servers for charts and long queues.

Each minute has a line, kept for a day; each hour has one, kept for a month: a chart of a month reads
hundreds of lines, and not the forty thousand of its minutes. The last sample of a minute or hour counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import NamedTuple

import msgspec

from winch.core.lifecycle import JobState
from winch.engine.observe.throughput import HOUR, MINUTE, Span
from winch.storage.kv_records import KvRecord
from winch.storage.params import QueueInfo, SessionInfo

BACKLOG = "rate.backlog"
BACKLOG_HOURS = "rate.backlog.hour"
MOST_QUEUES = 200


class QueueSample(msgspec.Struct, frozen=True, omit_defaults=True):
    ready: int
    running: int
    others: dict[JobState, int] = {}
    """The jobs in the other states."""

    def count(self, state: JobState) -> int:
        if state is JobState.READY:
            return self.ready
        return self.running if state is JobState.RUNNING else self.others.get(state, 0)


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """What was there at one moment."""

    queues: dict[str, QueueSample]
    slots: int
    busy: int
    at: float = 0.0
    """Seconds since the epoch."""


class Book(NamedTuple):
    """Where samples of one resolution are, and for how long."""

    name: str
    span: Span
    keep: timedelta


MINUTES = Book(BACKLOG, MINUTE, MINUTE.keep)
HOURS = Book(BACKLOG_HOURS, HOUR, HOUR.keep)


def book_of(span: Span) -> Book:
    return HOURS if span is HOUR else MINUTES


def busy_slots(sessions: Sequence[SessionInfo]) -> int:
    """How many slots run a job. A worker may hold more jobs than that: it claims some ahead."""
    return sum(min(session.running, session.slots) for session in sessions)


def sample_of(queues: Sequence[QueueInfo], sessions: Sequence[SessionInfo], now: float) -> Sample:
    """What is there now; of very many queues the longest."""
    largest = sorted(queues, key=lambda queue: -sum(queue.counts.values()))[:MOST_QUEUES]
    return Sample(
        queues={
            queue.name: QueueSample(
                queue.counts.get(JobState.READY, 0),
                queue.counts.get(JobState.RUNNING, 0),
                {
                    state: number
                    for state, number in queue.counts.items()
                    if number and state not in (JobState.READY, JobState.RUNNING)
                },
            )
            for queue in sorted(largest, key=lambda queue: queue.name)
        },
        slots=sum(session.slots for session in sessions),
        busy=busy_slots(sessions),
        at=round(now, 1),
    )


def lines_of(sample: Sample, now: float) -> list[KvRecord]:
    """This minute's and this hour's sample, as records."""
    body = msgspec.json.encode(sample).decode()
    return [
        KvRecord(book=book.name, key=f"{int(now) // book.span.seconds:010}", body=body, keep=book.keep)
        for book in (MINUTES, HOURS)
    ]
