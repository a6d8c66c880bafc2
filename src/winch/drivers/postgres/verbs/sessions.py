"""The sessions of workers: their leases, and the claims they hold."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from winch.core.lifecycle import JobState
from winch.drivers._shared.rows import read_pulses, session_values
from winch.drivers.postgres.records import read_moment
from winch.drivers.postgres.statements import Body
from winch.drivers.postgres.verbs.base import Base
from winch.drivers.postgres.verbs.crashes import crash_statement
from winch.storage.crash_report import CrashReport
from winch.storage.params import COMMANDS, MOST_COMMANDS, ClaimRef, NewSession, Pulse, Rescued
from winch.storage.verbs import Now, Verb


class SessionVerbs:
    """See storage/families.py for the contracts."""

    def __init__(self, base: Base) -> None:
        self._base = base

    def start_session(self, session: NewSession, *, now: Now = None) -> Verb[datetime]:
        def body() -> Body[datetime]:
            ((moment,),) = yield self._base.statement(
                "start_session",
                is_alone=not session.schedules,
                **session_values(session),
                queues=list(session.queues),
                tasks=list(session.tasks),
                lease_seconds=session.lease.total_seconds(),
                now=now,
            )
            if session.schedules:
                text = msgspec.json.encode(session.schedules).decode()
                yield self._base.statement(
                    "start_session.declare", id=session.id, schedules=text, now=now
                )
            return read_moment(moment)

        return Verb("start_session", body)

    def beat(self, sessions: Sequence[str], *, now: Now = None) -> Verb[list[Pulse]]:
        def body() -> Body[list[Pulse]]:
            rows = yield self._base.statement(
                "beat",
                is_alone=True,
                sessions=list(sessions),
                book=COMMANDS,
                most=MOST_COMMANDS,
                now=now,
            )
            return read_pulses(sessions, read_moment(rows[0][0]), (row[1:] for row in rows))

        return Verb("beat", body)

    def end_session(
        self, session: str, crash: CrashReport | None = None, *, now: Now = None
    ) -> Verb[list[Rescued]]:
        def body() -> Body[list[Rescued]]:
            reason = crash.cause if crash else "stopped"
            yield self._base.statement("end_session", session=session, reason=reason, now=now)
            yield self._base.statement("admit.lock_running", session=session)
            rows = yield crash_statement(self._base, session, crash, now)
            return [Rescued(row[0], row[1], session, JobState(row[2])) for row in rows]

        return Verb("end_session", body)

    def held(self, session: str) -> Verb[list[ClaimRef]]:
        def body() -> Body[list[ClaimRef]]:
            rows = yield self._base.statement("held", is_alone=True, session=session)
            return [ClaimRef(row[0], row[1]) for row in rows]

        return self._base.read("held", body)

    def cancels(self, sessions: Sequence[str]) -> Verb[list[ClaimRef]]:
        def body() -> Body[list[ClaimRef]]:
            rows = yield self._base.statement("cancels", is_alone=True, sessions=list(sessions))
            place = {session: number for number, session in enumerate(sessions)}
            rows.sort(key=lambda row: place[row[2]])
            return [ClaimRef(row[0], row[1]) for row in rows]

        return self._base.read("cancels", body)
