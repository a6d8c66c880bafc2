"""The sessions of workers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from winch.drivers.memory.records import Session
from winch.drivers.memory.verbs.base import Base, verb
from winch.drivers.memory.verbs.schedules import ScheduleVerbs
from winch.drivers.memory.verbs.taking_back import give_back, suspect
from winch.storage.crash_report import CrashReport
from winch.storage.params import (
    COMMANDS,
    MOST_COMMANDS,
    ClaimRef,
    NewSession,
    Pulse,
    Rescued,
)
from winch.storage.verbs import Now, Verb


class SessionVerbs:
    """The sessions of workers: their leases, and what they hold."""

    def __init__(self, base: Base, schedules: ScheduleVerbs) -> None:
        self._base = base
        self._state = base.state
        self._schedules = schedules

    def start_session(self, session: NewSession, *, now: Now = None) -> Verb[datetime]:
        def body() -> datetime:
            at = self._base.now(now)
            if session.id not in self._state.sessions:
                self._state.sessions[session.id] = Session(session, at, at + session.lease)
                self._schedules.declare(session, at)
            return at

        return verb("start_session", body)

    def beat(self, sessions: Sequence[str], *, now: Now = None) -> Verb[list[Pulse]]:
        def body() -> list[Pulse]:
            at = self._base.now(now)
            pulses = []
            for session_id in sessions:
                session = self._state.sessions.get(session_id)
                if session is None or session.ended_at is not None:
                    pulses.append(Pulse(session_id, is_live=False, beats=0, now=at))
                    continue
                session.lease_until = at + session.info.lease
                session.beats += 1
                commands = self._commands(session_id, at)
                pulses.append(Pulse(session_id, True, session.beats, at, commands))
            return pulses

        return verb("beat", body)

    def _commands(self, session: str, at: datetime) -> tuple[tuple[str, str], ...]:
        found = [
            (key, body)
            for (book, key), (body, end) in self._state.records.items()
            if book == COMMANDS and key.startswith(f"{session}/") and (end is None or end > at)
        ]
        return tuple(sorted(found)[:MOST_COMMANDS])

    def end_session(
        self, session: str, crash: CrashReport | None = None, *, now: Now = None
    ) -> Verb[list[Rescued]]:
        def body() -> list[Rescued]:
            at = self._base.now(now)
            known = self._state.sessions.get(session)
            if known is not None and known.ended_at is None:
                known.ended_at, known.end_reason = at, crash.cause if crash else "stopped"
            culprits = {(ref.id, ref.token) for ref in crash.claims} if crash else set()
            back = []
            for job in self._base.running(session):
                if crash and (job.id, job.token) in culprits:
                    to = suspect(self._base, job, "crashed", crash.cause, at, crash.rule)
                else:
                    to = give_back(self._base, job, at, by_token=None)
                back.append(Rescued(job.id, job.token or "", session, to))
            return back

        return verb("end_session", body)

    def held(self, session: str) -> Verb[list[ClaimRef]]:
        def body() -> list[ClaimRef]:
            running = sorted(self._base.running(session), key=lambda job: job.id)
            return [ClaimRef(job.id, job.token or "") for job in running]

        return verb("held", body, is_read=True)

    def cancels(self, sessions: Sequence[str]) -> Verb[list[ClaimRef]]:
        def body() -> list[ClaimRef]:
            return [
                ClaimRef(job.id, job.token or "")
                for session in sessions
                for job in self._base.running(session)
                if job.cancel_requested_at is not None
            ]

        return verb("cancels", body, is_read=True)
