"""Reads, which change nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from winch.core.gates.uses import is_gated, queue_key
from winch.core.job import JobRecord, strict_place
from winch.core.lifecycle import JobState
from winch.core.policy.queue_settings import NO_RULE
from winch.drivers.memory.records import Session
from winch.drivers.memory.verbs.base import Base, verb
from winch.drivers.memory.verbs.unique_keys import holders, key_holder
from winch.storage.decide.gates import queue_info, scope_info
from winch.storage.gate_records import GateInfo, KeyHolder, ScopeInfo, TenantInfo
from winch.storage.params import (
    MOST_AHEAD,
    DeadGroup,
    Depth,
    Ending,
    Event,
    Facts,
    GroupFilter,
    JobFilter,
    Page,
    QueueInfo,
    SessionFacts,
    SessionInfo,
)
from winch.storage.verbs import Now, Verb


class ReadVerbs:
    """Reads, which change nothing."""

    def __init__(self, base: Base) -> None:
        self._base = base
        self._state = base.state

    def get(self, ids: Sequence[str]) -> Verb[list[JobRecord | None]]:
        def body() -> list[JobRecord | None]:
            return [self._state.live.get(i) or self._state.archive.get(i) for i in ids]

        return verb("get", body, is_read=True)

    def results(self, ids: Sequence[str]) -> Verb[list[Ending | None]]:
        def body() -> list[Ending | None]:
            jobs = (self._state.live.get(i) or self._state.archive.get(i) for i in ids)
            return [None if job is None else Ending(job.state, job.task, job.result) for job in jobs]

        return verb("results", body, is_read=True)

    def list_jobs(self, which: JobFilter) -> Verb[Page]:
        def body() -> Page:
            found = sorted(
                (job for job in self._all_jobs() if _matches(job, which)),
                key=lambda job: job.id,
                reverse=True,
            )
            page = found[: which.limit]
            return Page(tuple(page), page[-1].id if len(found) > which.limit else None)

        return verb("list_jobs", body, is_read=True)

    def groups(self, which: GroupFilter) -> Verb[list[DeadGroup]]:
        def body() -> list[DeadGroup]:
            alike: dict[str, list[JobRecord]] = {}
            for job in self._state.archive.values():
                is_asked_for = which.task in (None, job.task) and which.queue in (None, job.queue)
                if job.fingerprint is not None and is_asked_for:
                    alike.setdefault(job.fingerprint, []).append(job)
            found = []
            for jobs in alike.values():
                moments = [job.finished_at for job in jobs if job.finished_at is not None]
                sample = max(jobs, key=lambda job: job.id)
                found.append(DeadGroup.of(sample, len(jobs), min(moments), max(moments)))
            found.sort(key=lambda group: group.fingerprint)
            found.sort(key=lambda group: (group.count, group.last_at), reverse=True)
            return found[: which.limit]

        return verb("groups", body, is_read=True)

    def death_counts(
        self, fingerprints: Sequence[str], *, since: datetime, step: timedelta, count: int
    ) -> Verb[dict[str, list[int]]]:
        def body() -> dict[str, list[int]]:
            found = {fingerprint: [0] * count for fingerprint in fingerprints}
            for job in self._state.archive.values():
                if job.fingerprint in found and job.finished_at is not None:
                    place = (job.finished_at - since) // step
                    if 0 <= place < count:
                        found[job.fingerprint][place] += 1
            return found

        return verb("death_counts", body, is_read=True)

    def tenants(self, *, limit: int = 200) -> Verb[list[TenantInfo]]:
        def body() -> list[TenantInfo]:
            lines: dict[tuple[str, str], list[datetime]] = {}
            for job in self._state.live.values():
                if job.state is JobState.READY and job.tenant is not None and is_gated(job.options):
                    lines.setdefault((job.queue, job.tenant), []).append(job.run_at)
            found = [
                TenantInfo(queue=queue, tenant=tenant, ready=len(line), oldest_ready_at=min(line))
                for (queue, tenant), line in lines.items()
            ]
            found.sort(key=lambda one: (-one.ready, one.queue, one.tenant))
            return found[:limit]

        return verb("tenants", body, is_read=True)

    def scopes(self, *, limit: int = 200) -> Verb[list[ScopeInfo]]:
        def body() -> list[ScopeInfo]:
            gates = self._state.gates
            keys = sorted(key for key in gates.states if key.startswith("scope:"))
            found = [scope_info(key, gates.states[key], len(gates.waiting(key))) for key in keys]
            return [one for one in found if one is not None][:limit]

        return verb("scopes", body, is_read=True)

    def unique_keys(self, *, prefix: str = "", limit: int = 50) -> Verb[list[KeyHolder]]:
        def body() -> list[KeyHolder]:
            held = holders(self._state)
            keys = sorted(key for key in held if key.startswith(prefix))
            return [KeyHolder(key, held[key].id) for key in keys[:limit]]

        return verb("unique_keys", body, is_read=True)

    def _all_jobs(self) -> Iterable[JobRecord]:
        yield from self._state.live.values()
        yield from self._state.archive.values()

    def counts(self, *, cap: int = 10_000) -> Verb[Mapping[JobState, int]]:
        def body() -> Mapping[JobState, int]:
            found = Counter(job.state for job in self._all_jobs())
            return {state: min(found[state], cap) for state in JobState}

        return verb("counts", body, is_read=True)

    def queues(self, *, cap: int | None = None) -> Verb[list[QueueInfo]]:
        def body() -> list[QueueInfo]:
            serving = Counter(
                queue
                for session in self._state.sessions.values()
                if session.ended_at is None
                for queue in session.info.queues
            )
            names = {job.queue for job in self._state.live.values()}
            names |= set(self._state.paused) | set(serving)
            return [self._queue_info(name, serving[name]) for name in sorted(names)]

        return verb("queues", body, is_read=True)

    def _queue_info(self, name: str, sessions: int) -> QueueInfo:
        jobs = [job for job in self._state.live.values() if job.queue == name]
        ready = [job.run_at for job in jobs if job.state is JobState.READY]
        paused_at, reason = self._state.paused.get(name, (None, None))
        return QueueInfo(
            name=name,
            counts=dict(Counter(job.state for job in jobs)),
            paused_at=paused_at,
            pause_reason=reason,
            oldest_ready_at=min(ready, default=None),
            sessions=sessions,
        )

    def depth(self, queue: str, *, cap: int, now: Now = None) -> Verb[Depth]:
        def body() -> Depth:
            ready = [
                job.run_at
                for job in self._state.live.values()
                if job.queue == queue and job.state is JobState.READY
            ]
            oldest = self._base.now(now) - min(ready) if ready else None
            return Depth(min(len(ready), cap), oldest)

        return verb("depth", body, is_read=True)

    def sessions(self, *, is_ended_too: bool = False) -> Verb[list[SessionInfo]]:
        def body() -> list[SessionInfo]:
            found = [
                self._session_info(session)
                for session in self._state.sessions.values()
                if is_ended_too or session.ended_at is None
            ]
            return sorted(found, key=lambda s: (s.started_at, s.id), reverse=True)

        return verb("sessions", body, is_read=True)

    def _session_info(self, session: Session) -> SessionInfo:
        info = session.info
        return SessionInfo(
            **{name: getattr(info, name) for name in SessionFacts.__struct_fields__},
            started_at=session.started_at,
            lease_until=session.lease_until,
            beats=session.beats,
            running=len(self._base.running(info.id)),
            ended_at=session.ended_at,
            end_reason=session.end_reason,
        )

    def explain(self, job_id: str, *, now: Now = None) -> Verb[Facts | None]:
        def body() -> Facts | None:
            job = self._state.live.get(job_id) or self._state.archive.get(job_id)
            if job is None:
                return None
            live = [s for s in self._state.sessions.values() if s.ended_at is None]
            serving = [s for s in live if job.queue in s.info.queues]
            mine = (self._place(job), job.id)
            ahead = sum(
                1
                for other in self._state.live.values()
                if other.state is JobState.READY
                and other.queue == job.queue
                and (self._place(other), other.id) < mine
            )
            session = self._state.sessions.get(job.session or "")
            return Facts(
                job=job,
                now=self._base.now(now),
                is_paused=job.queue in self._state.paused,
                pause_reason=self._state.paused.get(job.queue, (None, None))[1],
                ahead=min(ahead, MOST_AHEAD) if job.state is JobState.READY else 0,
                session=None if session is None else self._session_info(session),
                serving=len(serving),
                knowing=sum(1 for s in serving if job.task in s.info.tasks),
                key_holder=key_holder(self._state, job),
                gate=self._state.gates.info(job) or self._full_queue(job),
            )

        return verb("explain", body, is_read=True)

    def _place(self, job: JobRecord) -> int:
        key = self._state.keys.get(job.id, 0)
        rule = self._state.rules.get(job.queue, NO_RULE)
        return strict_place(key, job.priority) if rule.is_strict else key

    def _full_queue(self, job: JobRecord) -> GateInfo | None:
        """The gate of its queue, where the job is ready and the queue has as many running as it may."""
        rule = self._state.rules.get(job.queue, NO_RULE)
        if job.state is not JobState.READY:
            return None
        holders = self._state.gates.holders(queue_key(job.queue))
        return queue_info(job.queue, rule.concurrency, len(holders), holders)

    def events(self, *, after: int = 0, limit: int = 10_000) -> Verb[list[Event]]:
        def body() -> list[Event]:
            return self._state.events[after : after + limit]

        return verb("events", body, is_read=True)


def _matches(job: JobRecord, which: JobFilter) -> bool:
    return (
        (not which.states or job.state in which.states)
        and (which.task is None or job.task == which.task)
        and (which.queue is None or job.queue == which.queue)
        and (which.tag is None or which.tag in job.tags)
        and (which.fingerprint is None or job.fingerprint == which.fingerprint)
        and (which.after is None or job.id < which.after)
        and (which.first is None or job.id >= which.first)
    )
