"""Stored sessions, to records and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from winch.core.job import from_micros
from winch.core.policy.queue_limits import QueueLimit
from winch.storage.params import SessionInfo


class SessionDetails(msgspec.Struct, array_like=True):
    """What a session declares when it begins."""

    worker: str
    host: str
    pid: int
    release: str
    queues: tuple[str, ...]
    tasks: tuple[str, ...]
    slots: int
    supervisor: str = ""
    labels: dict[str, str] = {}
    queue_limits: dict[str, QueueLimit] = {}


class _Ended(msgspec.Struct):
    at: int
    reason: str | None = None
    lease_until: int = 0


_details = msgspec.msgpack.Decoder(SessionDetails)
_ended = msgspec.msgpack.Decoder(_Ended)


def read_details(data: bytes) -> tuple[int, int, SessionDetails]:
    """When a session began, its lease in µs, and what it details."""
    # Two msgpack numbers stand in front: the first byte of each gives its length.
    started, at = _number(data, 0)
    lease, at = _number(data, at)
    return started, lease, _details.decode(memoryview(data)[at:])


_WIDTHS = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}


def _number(data: bytes, at: int) -> tuple[int, int]:
    head = data[at]
    if head < 0x80:
        return head, at + 1
    width = _WIDTHS[head]
    return int.from_bytes(data[at + 1 : at + 1 + width]), at + 1 + width


def read_session(row: Sequence[Any]) -> SessionInfo:
    """A session from a row of `sessions`."""
    started, _, details = read_details(row[1])
    ended = None if row[5] is None else _ended.decode(row[5])
    return SessionInfo(
        id=row[0].decode(),
        worker=details.worker,
        host=details.host,
        pid=details.pid,
        release=details.release,
        queues=details.queues,
        tasks=details.tasks,
        slots=details.slots,
        started_at=from_micros(started),
        lease_until=from_micros(int(float(row[2])) if ended is None else ended.lease_until),
        beats=int(row[3]),
        running=row[4],
        ended_at=None if ended is None else from_micros(ended.at),
        end_reason=None if ended is None else ended.reason,
        supervisor=details.supervisor,
        labels=details.labels,
        queue_limits=details.queue_limits,
    )
