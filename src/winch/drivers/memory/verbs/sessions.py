"""Sessions, and the rescue of what those that ended have left."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from winch.core.job import CRASH_RULE, RESCUE_RULE, SuspectRule
from winch.core.lifecycle import JobState
from winch.drivers.memory.records import Session
from winch.drivers.memory.verbs.claim import Working
from winch.drivers.memory.verbs.schedules import Planning
from winch.storage.params import (
    ClaimRef,
    NewSession,
    Pulse,
    Rescued,
)
from winch.storage.verbs import Verb


class Sessions(Working, Planning):
    """Mixed into the memory driver."""

    def start_session(self, session: NewSession, *, now: datetime | None = None) -> Verb[datetime]:
        def body() -> datetime:
            at = self._now(now)
            if session.id not in self._state.sessions:
                self._state.sessions[session.id] = Session(session, at, at + session.lease)
                self._declare(session, at)
            return at

        return self._verb("start_session", body)

    def beat(self, sessions: Sequence[str], *, now: datetime | None = None) -> Verb[list[Pulse]]:
        def body() -> list[Pulse]:
            at = self._now(now)
            pulses = []
            for session_id in sessions:
                session = self._state.sessions.get(session_id)
                if session is None or session.ended_at is not None:
                    pulses.append(Pulse(session_id, is_live=False, beats=0, now=at))
                    continue
                session.lease_until = at + session.info.lease
                session.beats += 1
                pulses.append(Pulse(session_id, is_live=True, beats=session.beats, now=at))
            return pulses

        return self._verb("beat", body)

    def end_session(
        self,
        session: str,
        *,
        started: Sequence[ClaimRef] = (),
        cause: str | None = None,
        rule: SuspectRule = CRASH_RULE,
        now: datetime | None = None,
    ) -> Verb[list[Rescued]]:
        def body() -> list[Rescued]:
            at = self._now(now)
            known = self._state.sessions.get(session)
            if known is not None and known.ended_at is None:
                known.ended_at, known.end_reason = at, cause or "stopped"
            guilty = {(ref.id, ref.token) for ref in started}
            back = []
            for job in self._running(session):
                if cause is not None and (job.id, job.token) in guilty:
                    to = self._suspect(job, "crashed", cause, at, rule)
                else:
                    to = self._give_back(job, at, by_token=None)
                back.append(Rescued(job.id, job.token or "", session, to))
            return back

        return self._verb("end_session", body)

    def rescue(
        self, *, limit: int = 1000, as_of: datetime | None = None, now: datetime | None = None
    ) -> Verb[list[Rescued]]:
        def body() -> list[Rescued]:
            at = self._now(now)
            judged = at if as_of is None else min(at, as_of)
            for session in self._state.sessions.values():
                if session.ended_at is None and session.lease_until <= judged:
                    session.ended_at, session.end_reason = at, "lease over"
            orphans = [
                job
                for job in self._state.live.values()
                if job.state is JobState.RUNNING and not self._is_live(job.session)
            ]
            orphans.sort(key=lambda job: job.id)
            return [
                Rescued(
                    job.id,
                    job.token or "",
                    job.session or "",
                    self._suspect(job, "rescued", "lease over", at, RESCUE_RULE),
                )
                for job in orphans[:limit]
            ]

        return self._verb("rescue", body)

    def _is_live(self, session_id: str | None) -> bool:
        session = self._state.sessions.get(session_id or "")
        return session is not None and session.ended_at is None
