"""The sessions of workers: their leases, and the claims that they hold."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from winch.core import changes
from winch.core.job import from_micros
from winch.core.values.codec import to_json
from winch.drivers._shared.rows import read_pulses, session_values
from winch.drivers.sqlite.connections.writer import store_time
from winch.drivers.sqlite.records import MICROSECOND
from winch.drivers.sqlite.verbs.base import Body, query, read_jobs
from winch.drivers.sqlite.verbs.changed_jobs import store
from winch.storage.crash_report import CrashReport
from winch.storage.params import COMMANDS, MOST_COMMANDS, ClaimRef, NewSession, Pulse, Rescued
from winch.storage.verbs import Now, Verb


class SessionVerbs:
    """See SessionVerbs in storage/families.py for the contracts."""

    def start_session(self, session: NewSession, *, now: Now = None) -> Verb[datetime]:
        def body() -> Body[datetime]:
            at = store_time(now)
            yield from query(
                "start_session",
                **session_values(session),
                queues=to_json(session.queues),
                tasks=to_json(session.tasks),
                lease=session.lease // MICROSECOND,
                now=at,
            )
            for one in session.schedules:
                declared = {"name": one.name, "definition": one.definition}
                yield from query("start_session.declare", id=session.id, timing=one.timing, **declared)
                yield from query("start_session.schedule", now=at, **declared)
            return from_micros(at)

        return Verb("start_session", body)

    def beat(self, sessions: Sequence[str], *, now: Now = None) -> Verb[list[Pulse]]:
        def body() -> Body[list[Pulse]]:
            at = store_time(now)
            rows = yield from query(
                "beat", sessions=to_json(list(sessions)), book=COMMANDS, most=MOST_COMMANDS, now=at
            )
            return read_pulses(sessions, from_micros(at), rows)

        return Verb("beat", body)

    def end_session(
        self, session: str, crash: CrashReport | None = None, *, now: Now = None
    ) -> Verb[list[Rescued]]:
        def body() -> Body[list[Rescued]]:
            at = store_time(now)
            reason = crash.cause if crash else "stopped"
            yield from query("end_session", session=session, reason=reason, now=at)
            ids = [row[0] for row in (yield from query("end_session.running", session=session))]
            jobs = yield from read_jobs(ids)
            culprits = {(ref.id, ref.token) for ref in crash.claims} if crash else set()
            moment = from_micros(at)
            taken, back = [], []
            for job in (jobs[i] for i in ids):
                if crash and (job.id, job.token) in culprits:
                    changed = changes.suspected(job, "crashed", crash.cause, moment, crash.rule)
                else:
                    changed = changes.given_back(job, moment)
                taken.append(changed)
                back.append(Rescued(job.id, job.token or "", session, changed.state))
            yield from store(taken, at)
            return back

        return Verb("end_session", body)

    def held(self, session: str) -> Verb[list[ClaimRef]]:
        def body() -> Body[list[ClaimRef]]:
            return [ClaimRef(row[0], row[1]) for row in (yield from query("held", session=session))]

        return Verb("held", body, is_read=True)

    def cancels(self, sessions: Sequence[str]) -> Verb[list[ClaimRef]]:
        def body() -> Body[list[ClaimRef]]:
            rows = yield from query("cancels", sessions=to_json(list(sessions)))
            order = {session: index for index, session in enumerate(sessions)}
            rows.sort(key=lambda row: order[row[2]])
            return [ClaimRef(row[0], row[1]) for row in rows]

        return Verb("cancels", body, is_read=True)
