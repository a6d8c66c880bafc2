"""A driver put together from its families of verbs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from winch.core.gates.uses import GateSpec
from winch.core.job import CRASH_RULE, NO_CHANGES, Claim, JobRecord, Note, RetryChanges, SuspectRule
from winch.core.lifecycle import JobState
from winch.storage.decide.schedules import Change, Changed, ScheduleRun, Schedules
from winch.storage.decide.waits import Sent, Taken
from winch.storage.families import (
    ClaimVerbs,
    EnqueueVerbs,
    FinishVerbs,
    GateVerbs,
    KvVerbs,
    OperatorVerbs,
    ReadVerbs,
    ScheduleVerbs,
    SessionVerbs,
    UpkeepVerbs,
    WaitVerbs,
)
from winch.storage.params import (
    Acted,
    Answer,
    ClaimParams,
    ClaimRef,
    DeadGroup,
    Depth,
    Ending,
    Enqueued,
    Event,
    Facts,
    Finish,
    GroupFilter,
    JobFilter,
    KvFilter,
    KvRecord,
    LimitInfo,
    NewJob,
    NewSession,
    Page,
    Promoted,
    Pulse,
    QueueInfo,
    Rebinding,
    Rescued,
    SessionInfo,
    Standing,
    Trim,
    Wait,
)
from winch.storage.verbs import Verb


class ComposedDriver:
    """The verbs of a driver, each carried out by the family that it belongs to.

    A driver sets one attribute for each family. What a verb does is in verbs/ of its store; what it
    promises is in storage/families.py.
    """

    _enqueue_verbs: EnqueueVerbs
    _claim_verbs: ClaimVerbs
    _finish_verbs: FinishVerbs
    _session_verbs: SessionVerbs
    _upkeep_verbs: UpkeepVerbs
    _gate_verbs: GateVerbs
    _wait_verbs: WaitVerbs
    _schedule_verbs: ScheduleVerbs
    _operator_verbs: OperatorVerbs
    _read_verbs: ReadVerbs
    _kv_verbs: KvVerbs

    # -- enqueue ----------------------------------------------------------------------------------------

    def enqueue(
        self, jobs: Sequence[NewJob], *, is_repeat: bool = False, now: datetime | None = None
    ) -> Verb[list[Enqueued]]:
        return self._enqueue_verbs.enqueue(jobs, is_repeat=is_repeat, now=now)

    # -- claim ------------------------------------------------------------------------------------------

    def claim(self, params: ClaimParams, *, now: datetime | None = None) -> Verb[list[Claim]]:
        return self._claim_verbs.claim(params, now=now)

    # -- finish -----------------------------------------------------------------------------------------

    def finish(self, outcomes: Sequence[Finish], *, now: datetime | None = None) -> Verb[list[Answer]]:
        return self._finish_verbs.finish(outcomes, now=now)

    def release(
        self, claims: Sequence[ClaimRef], *, has_started: bool = False, now: datetime | None = None
    ) -> Verb[list[Answer]]:
        return self._finish_verbs.release(claims, has_started=has_started, now=now)

    def give_up(self, session: str, tokens: Sequence[str], *, now: datetime | None = None) -> Verb[int]:
        return self._finish_verbs.give_up(session, tokens, now=now)

    def crash(
        self,
        claims: Sequence[ClaimRef],
        *,
        cause: str,
        rule: SuspectRule = CRASH_RULE,
        now: datetime | None = None,
    ) -> Verb[list[Answer]]:
        return self._finish_verbs.crash(claims, cause=cause, rule=rule, now=now)

    def note(self, claim: ClaimRef, note: Note) -> Verb[Answer]:
        return self._finish_verbs.note(claim, note)

    def standing(self, claims: Sequence[ClaimRef]) -> Verb[list[Standing]]:
        return self._finish_verbs.standing(claims)

    # -- sessions ---------------------------------------------------------------------------------------

    def start_session(self, session: NewSession, *, now: datetime | None = None) -> Verb[datetime]:
        return self._session_verbs.start_session(session, now=now)

    def beat(self, sessions: Sequence[str], *, now: datetime | None = None) -> Verb[list[Pulse]]:
        return self._session_verbs.beat(sessions, now=now)

    def end_session(
        self,
        session: str,
        *,
        started: Sequence[ClaimRef] = (),
        cause: str | None = None,
        rule: SuspectRule = CRASH_RULE,
        now: datetime | None = None,
    ) -> Verb[list[Rescued]]:
        return self._session_verbs.end_session(session, started=started, cause=cause, rule=rule, now=now)

    def held(self, session: str) -> Verb[list[ClaimRef]]:
        return self._session_verbs.held(session)

    def cancels(self, sessions: Sequence[str]) -> Verb[list[ClaimRef]]:
        return self._session_verbs.cancels(sessions)

    # -- upkeep -----------------------------------------------------------------------------------------

    def rescue(
        self, *, limit: int = 1000, as_of: datetime | None = None, now: datetime | None = None
    ) -> Verb[list[Rescued]]:
        return self._upkeep_verbs.rescue(limit=limit, as_of=as_of, now=now)

    def promote(self, *, limit: int = 1000, now: datetime | None = None) -> Verb[Promoted]:
        return self._upkeep_verbs.promote(limit=limit, now=now)

    def prune(self, *, limit: int = 1000, now: datetime | None = None) -> Verb[int]:
        return self._upkeep_verbs.prune(limit=limit, now=now)

    def trim(self, which: Trim, *, now: datetime | None = None) -> Verb[int]:
        return self._upkeep_verbs.trim(which, now=now)

    # -- gates ------------------------------------------------------------------------------------------

    def admit(
        self, *, limit: int = 1000, is_sweep: bool = False, now: datetime | None = None
    ) -> Verb[Promoted]:
        return self._gate_verbs.admit(limit=limit, is_sweep=is_sweep, now=now)

    def set_limits(
        self,
        specs: Mapping[str, GateSpec | None],
        *,
        by: str,
        is_live: bool = True,
        now: datetime | None = None,
    ) -> Verb[None]:
        return self._gate_verbs.set_limits(specs, by=by, is_live=is_live, now=now)

    def rebind(self, changes: Sequence[Rebinding], *, now: datetime | None = None) -> Verb[list[bool]]:
        return self._gate_verbs.rebind(changes, now=now)

    def limits(self) -> Verb[list[LimitInfo]]:
        return self._gate_verbs.limits()

    def has_gated(self, queues: Sequence[str]) -> Verb[bool]:
        return self._gate_verbs.has_gated(queues)

    # -- waits ------------------------------------------------------------------------------------------

    def signal(self, name: str, payload: str, *, id: str, now: datetime | None = None) -> Verb[Sent]:
        return self._wait_verbs.signal(name, payload, id=id, now=now)

    def take_signal(
        self, claim: ClaimRef, name: str, *, wanted_by: str, now: datetime | None = None
    ) -> Verb[Taken]:
        return self._wait_verbs.take_signal(claim, name, wanted_by=wanted_by, now=now)

    def enqueue_after(
        self,
        jobs: Sequence[NewJob],
        waits: Sequence[tuple[str, Sequence[Wait]]],
        *,
        claim: ClaimRef | None = None,
        is_repeat: bool = False,
        now: datetime | None = None,
    ) -> Verb[list[Enqueued] | None]:
        return self._wait_verbs.enqueue_after(jobs, waits, claim=claim, is_repeat=is_repeat, now=now)

    def unblock(self, *, limit: int = 1000, now: datetime | None = None) -> Verb[Promoted]:
        return self._wait_verbs.unblock(limit=limit, now=now)

    # -- schedules --------------------------------------------------------------------------------------

    def due_schedules(self, *, limit: int = 100, now: datetime | None = None) -> Verb[Schedules]:
        return self._schedule_verbs.due_schedules(limit=limit, now=now)

    def change_schedule(
        self, name: str, change: Change, *, now: datetime | None = None
    ) -> Verb[Changed]:
        return self._schedule_verbs.change_schedule(name, change, now=now)

    def schedules(self, *, name: str | None = None, now: datetime | None = None) -> Verb[Schedules]:
        return self._schedule_verbs.schedules(name=name, now=now)

    def schedule_runs(self, name: str, *, limit: int = 50) -> Verb[list[ScheduleRun]]:
        return self._schedule_verbs.schedule_runs(name, limit=limit)

    # -- operators --------------------------------------------------------------------------------------

    def cancel(
        self, ids: Sequence[str], *, by: str, reason: str | None = None, now: datetime | None = None
    ) -> Verb[list[Acted]]:
        return self._operator_verbs.cancel(ids, by=by, reason=reason, now=now)

    def retry(
        self,
        ids: Sequence[str],
        *,
        by: str,
        changes: RetryChanges = NO_CHANGES,
        now: datetime | None = None,
    ) -> Verb[list[Acted]]:
        return self._operator_verbs.retry(ids, by=by, changes=changes, now=now)

    def delete(self, ids: Sequence[str], *, by: str, now: datetime | None = None) -> Verb[list[Acted]]:
        return self._operator_verbs.delete(ids, by=by, now=now)

    def pause(
        self, queue: str, *, by: str, reason: str | None = None, now: datetime | None = None
    ) -> Verb[None]:
        return self._operator_verbs.pause(queue, by=by, reason=reason, now=now)

    def resume(self, queue: str, *, by: str, now: datetime | None = None) -> Verb[None]:
        return self._operator_verbs.resume(queue, by=by, now=now)

    # -- reads ------------------------------------------------------------------------------------------

    def get(self, ids: Sequence[str]) -> Verb[list[JobRecord | None]]:
        return self._read_verbs.get(ids)

    def results(self, ids: Sequence[str]) -> Verb[list[Ending | None]]:
        return self._read_verbs.results(ids)

    def list_jobs(self, which: JobFilter) -> Verb[Page]:
        return self._read_verbs.list_jobs(which)

    def groups(self, which: GroupFilter) -> Verb[list[DeadGroup]]:
        return self._read_verbs.groups(which)

    def counts(self, *, cap: int = 10_000) -> Verb[Mapping[JobState, int]]:
        return self._read_verbs.counts(cap=cap)

    def queues(self) -> Verb[list[QueueInfo]]:
        return self._read_verbs.queues()

    def depth(self, queue: str, *, cap: int, now: datetime | None = None) -> Verb[Depth]:
        return self._read_verbs.depth(queue, cap=cap, now=now)

    def sessions(self, *, is_ended_too: bool = False) -> Verb[list[SessionInfo]]:
        return self._read_verbs.sessions(is_ended_too=is_ended_too)

    def explain(self, job_id: str, *, now: datetime | None = None) -> Verb[Facts | None]:
        return self._read_verbs.explain(job_id, now=now)

    def events(self, *, after: int = 0, limit: int = 10_000) -> Verb[list[Event]]:
        return self._read_verbs.events(after=after, limit=limit)

    # -- kv ---------------------------------------------------------------------------------------------

    def kv_put(self, records: Sequence[KvRecord], *, now: datetime | None = None) -> Verb[None]:
        return self._kv_verbs.kv_put(records, now=now)

    def kv_swap(
        self, record: KvRecord, *, instead_of: str | None = None, now: datetime | None = None
    ) -> Verb[str | None]:
        return self._kv_verbs.kv_swap(record, instead_of=instead_of, now=now)

    def kv_list(self, which: KvFilter, *, now: datetime | None = None) -> Verb[list[KvRecord]]:
        return self._kv_verbs.kv_list(which, now=now)

    def kv_delete(self, book: str, keys: Sequence[str]) -> Verb[int]:
        return self._kv_verbs.kv_delete(book, keys)
