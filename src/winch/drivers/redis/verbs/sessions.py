"""The sessions of workers: their leases, and what they hold."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from winch.core.job import CRASH_RULE, Failure, from_micros
from winch.core.lifecycle import JobState
from winch.core.values.fingerprint import trace
from winch.drivers.redis.records import MICROSECOND, micros
from winch.drivers.redis.session_records import SessionDetails
from winch.drivers.redis.verbs.base import Base, Body, read_rows, suspect_rule
from winch.storage.crash_report import CrashReport
from winch.storage.params import COMMANDS, MOST_COMMANDS, ClaimRef, NewSession, Pulse, Rescued
from winch.storage.verbs import Now, Verb

_encode = msgspec.msgpack.Encoder().encode


class SessionVerbs:
    """Begin, extend and end sessions; list what they hold."""

    def __init__(self, base: Base) -> None:
        self._call = base.call

    def start_session(self, session: NewSession, *, now: Now = None) -> Verb[datetime]:
        def body() -> Body[datetime]:
            details = SessionDetails(
                session.worker,
                session.host,
                session.pid,
                session.release,
                session.queues,
                session.tasks,
                session.slots,
                session.supervisor,
                session.labels,
                session.queue_limits,
            )
            at = yield self._call(
                "start_session",
                now=micros(now),
                id=session.id,
                blobs=[_encode(details)],
                lease=session.lease // MICROSECOND,
                schedules=[(one.name, one.definition, one.timing) for one in session.schedules],
            )
            return from_micros(at)

        return Verb("start_session", body)

    def beat(self, sessions: Sequence[str], *, now: Now = None) -> Verb[list[Pulse]]:
        def body() -> Body[list[Pulse]]:
            at, *found = yield self._call(
                "beat", now=micros(now), sessions=sessions, book=COMMANDS, most=MOST_COMMANDS
            )
            moment = from_micros(at)
            return [_pulse(session, moment, one) for session, one in zip(sessions, found, strict=True)]

        return Verb("beat", body)

    def end_session(
        self, session: str, crash: CrashReport | None = None, *, now: Now = None
    ) -> Verb[list[Rescued]]:
        def body() -> Body[list[Rescued]]:
            reply = yield self._call(
                "end_session",
                now=micros(now),
                session=session,
                reason=crash.cause if crash else "stopped",
                started={ref.id: ref.token for ref in crash.claims} if crash else {},
                cause=crash and crash.cause,
                trace=crash and trace(Failure("crashed", crash.cause)),
                rule=suspect_rule(crash.rule if crash else CRASH_RULE),
            )
            return [Rescued(row[0], row[1], session, JobState(row[2])) for row in read_rows(reply, 3)]

        return Verb("end_session", body)

    def held(self, session: str) -> Verb[list[ClaimRef]]:
        def body() -> Body[list[ClaimRef]]:
            reply = yield self._call("held", session=session)
            return [ClaimRef(*pair) for pair in read_rows(reply, 2)]

        return Verb("held", body, is_read=True)

    def cancels(self, sessions: Sequence[str]) -> Verb[list[ClaimRef]]:
        def body() -> Body[list[ClaimRef]]:
            reply = yield self._call("cancels", sessions=sessions)
            return read_cancels(reply, sessions)

        return Verb("cancels", body, is_read=True)


def _pulse(session: str, now: datetime, found: int | list[Any]) -> Pulse:
    if isinstance(found, int):
        return Pulse(session, is_live=found >= 0, beats=max(found, 0), now=now)
    beats, *words = found
    texts = [word.decode() for word in words]
    commands = tuple(zip(texts[::2], texts[1::2], strict=True))
    return Pulse(session, is_live=True, beats=beats, now=now, commands=commands)


def read_cancels(reply: Sequence[bytes], sessions: Sequence[str]) -> list[ClaimRef]:
    """Claims from the reply of `cancels`, in the order of the sessions, then by id."""
    order = {session: index for index, session in enumerate(sessions)}
    rows = sorted(read_rows(reply, 3), key=lambda row: (order[row[2]], row[0]))
    return [ClaimRef(row[0], row[1]) for row in rows]
