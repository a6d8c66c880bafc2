"""The reference driver: everything in this process, written for clarity.

Other drivers are compared with this one by the property tests, so it spells out each rule of the
protocol in the plainest way. A verb is one function that runs under one lock.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeVar

from msgspec.structs import replace

from winch.core import changes
from winch.core.changes import retried
from winch.core.clock import Clock
from winch.core.errors import ConfigError
from winch.core.gates import GateSpec, is_gated
from winch.core.job import EPOCH, KEEP, NO_CHANGES, Claim, JobRecord, Note, RetryChanges, sort_key
from winch.core.lifecycle import FINAL, TRANSITIONS, JobState
from winch.core.retention import dead_bytes, dead_limits
from winch.drivers.memory_gates import Gates
from winch.drivers.memory_schedules import MemorySchedules, ScheduleState
from winch.drivers.memory_waits import MemoryWaits, WaitState
from winch.storage.capabilities import Capabilities
from winch.storage.params import (
    MOST_AHEAD,
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
    LimitInfo,
    Line,
    Lines,
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
)
from winch.storage.unique import Holder, filled, planned
from winch.storage.verbs import Sending, Unhurried, Verb

T = TypeVar("T")

# A job due sooner than the promoter's own poll rings the bell; a later one is met by the poll.
RING_WITHIN = timedelta(seconds=2)
KEEP_SESSIONS = timedelta(days=1)


@dataclass
class _Session:
    info: NewSession
    started_at: datetime
    lease_until: datetime
    beats: int = 0
    ended_at: datetime | None = None
    end_reason: str | None = None


@dataclass
class _State:
    """All that the store holds."""

    live: dict[str, JobRecord] = field(default_factory=dict)
    keys: dict[str, int] = field(default_factory=dict)  # ready jobs' places in their queues
    archive: dict[str, JobRecord] = field(default_factory=dict)
    drop_at: dict[str, datetime] = field(default_factory=dict)
    sessions: dict[str, _Session] = field(default_factory=dict)
    paused: dict[str, tuple[datetime, str | None]] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    books: dict[tuple[str, str], tuple[str, datetime | None]] = field(default_factory=dict)
    changes: Counter[str] = field(default_factory=Counter)
    kept_keys: dict[str, tuple[str, datetime]] = field(default_factory=dict)
    schedules: ScheduleState = field(default_factory=ScheduleState)
    waits: WaitState = field(default_factory=WaitState)

    def __post_init__(self) -> None:
        self.gates = Gates(self.live, self.keys)


class MemoryDriver(MemorySchedules, MemoryWaits):
    """`memory://`: for tests and for embedded workers in one process."""

    name = "memory"
    capabilities: Capabilities = Capabilities(
        is_durable=False,
        shares_processes=False,
        joins_transactions=False,
        keeps_events=True,
        keeps_books=True,
        migrates_itself=True,
    )

    def __init__(self, clock: Clock, *, events: bool = False) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._state = _State()
        self._keeps_events = events
        self._bells: dict[_Bell, None] = {}  # rung in the order in which they were made

    # -- runners -----------------------------------------------------------------------------------

    def run(self, verb: Verb[T]) -> T:
        # A body yields once, under the lock, and is then run to its end: see _verb.
        with self._lock:
            steps = verb.steps()
            while True:
                try:
                    next(steps)
                except StopIteration as stop:
                    result: T = stop.value
                    return result

    def sending(self, verb: Verb[T]) -> Sending[T]:
        return Unhurried(self.run, verb)

    async def arun(self, verb: Verb[T]) -> T:
        return self.run(verb)

    def run_on(self, conn: object, verb: Verb[T]) -> T:
        raise ConfigError(
            f"conn= needs a store that shares the caller's database; {self.describe()} has no "
            "transactions to join. Use a sqlite:/// or postgresql:// URL"
        )

    async def arun_on(self, conn: object, verb: Verb[T]) -> T:
        return self.run_on(conn, verb)

    def _verb(self, name: str, body: Callable[[], T], *, is_read: bool = False) -> Verb[T]:
        def steps() -> Generator[Any, Any, T]:
            yield name
            return body()

        return Verb(name, steps, is_read)

    def _now(self, now: datetime | None) -> datetime:
        return self._clock.now() if now is None else now

    # -- producing ---------------------------------------------------------------------------------

    def enqueue(
        self, jobs: Sequence[NewJob], *, is_repeat: bool = False, now: datetime | None = None
    ) -> Verb[list[Enqueued]]:
        def body() -> list[Enqueued]:
            at = self._now(now)
            ids = Counter(new.id for new in jobs)
            for new in jobs:  # before anything is stored: all of them or none
                is_known = self._is_known(new.id) or ids[new.id] > 1
                if is_known and not (new.is_given_id or is_repeat):
                    raise ConfigError(f"job id {new.id} was drawn twice")
            known = {new.id for new in jobs if self._is_known(new.id)}
            plan = planned(jobs, self._holding(jobs, at), known)
            stored = []
            for holder in plan.take_over.values():
                self._state.live[holder] = replace(self._state.live[holder], unique_key=None)
            for new in plan.store:
                is_new = not self._is_known(new.id)
                if is_new:
                    self._insert(new, at)
                if is_new and new.unique_key is not None and new.unique_within is not None:
                    self._state.kept_keys[new.unique_key] = (new.id, at + new.unique_within)
                stored.append(Enqueued(new.id, is_new))
            for holder, new in plan.replace.items():
                self._replace(self._state.live[holder], new, at)
            return filled(plan, stored)

        return self._verb("enqueue", body)

    def _holders(self) -> dict[str, Holder]:
        """Who has the unique keys: a live job has its own."""
        return {
            job.unique_key: Holder(job.id, job.state)
            for job in self._state.live.values()
            if job.unique_key is not None
        }

    def _key_holder(self, job: JobRecord) -> str | None:
        """Who has the unique key of a final job by now."""
        holder = self._holders().get(job.unique_key or "")
        return holder.id if holder is not None and job.state in FINAL else None

    def _holding(self, jobs: Sequence[NewJob], at: datetime) -> dict[str, Holder]:
        """Who has the keys of these jobs; with `unique_within` a final job may."""
        found = self._holders()
        for new in jobs:
            key = new.unique_key
            if key is not None and new.unique_within is not None and key not in found:
                job_id, until = self._state.kept_keys.get(key, ("", at))
                if until > at and job_id in self._state.archive:
                    found[key] = Holder(job_id, None)
        return found

    def _replace(self, job: JobRecord, new: NewJob, at: datetime) -> None:
        after = changes.replaced(job, new, at)
        if after.state is job.state:
            self._state.live[job.id] = after
            if after.state is JobState.READY:
                self._state.keys[job.id] = sort_key(after.run_at, after.priority)
        else:
            self._put(after, "replaced", at)

    def _is_known(self, job_id: str) -> bool:
        return job_id in self._state.live or job_id in self._state.archive

    def _insert(self, new: NewJob, at: datetime) -> None:
        due = at + new.delay if new.delay is not None else new.run_at
        is_later = due is not None and due > at
        job = JobRecord(
            id=new.id,
            task=new.task,
            version=new.version,
            args=new.args,
            queue=new.queue,
            priority=new.priority,
            created_at=at,
            run_at=due if is_later and due is not None else at,
            state=JobState.SCHEDULED if is_later else JobState.READY,
            tenant=new.tenant,
            fifo=new.fifo,
            unique_key=new.unique_key,
            tags=new.tags,
            headers=new.headers,
            options=new.options,
            expires_at=None if new.expires is None else at + new.expires,
            max_attempts=new.max_attempts,
            keep=new.keep,
        )
        self._put(job, "enqueued", at)

    # -- working -----------------------------------------------------------------------------------

    def claim(self, params: ClaimParams, *, now: datetime | None = None) -> Verb[list[Claim]]:
        def body() -> list[Claim]:
            at = self._now(now)
            session = self._state.sessions.get(params.session)
            if session is None or session.ended_at is not None:
                return []
            taken: list[Claim] = []
            for queue in params.queues:
                if queue in self._state.paused:
                    continue
                taken += self._draw(queue, params, params.limit - len(taken), at)
            return taken

        return self._verb("claim", body)

    def _draw(self, queue: str, params: ClaimParams, limit: int, at: datetime) -> list[Claim]:
        """Take up to `limit` jobs of one queue; those whose gates are closed are blocked there."""
        ready = sorted(
            (job for job in self._state.live.values() if self._fits(job, queue, params)),
            key=lambda job: (self._state.keys[job.id], job.id),
        )
        plain = [job for job in ready if not is_gated(job.options)]
        if params.gated == 0 or len(plain) == len(ready):
            return [self._take(job, params, at) for job in plain[:limit]]
        gated = limit if params.gated is None else params.gated
        admission, drawn = self._state.gates.draw(queue, ready, params, limit, gated, at)
        if any(look.open_at is not None for look in admission.changed.values()):
            self._ring(set(), due=True)  # whoever opens gates may have to do so sooner than it sleeps
        for job_id, key in admission.held.items():
            self._put(changes.held(self._state.live[job_id], key), "held", at)
        chosen = drawn.arranged({i: self._state.live[i] for i in admission.taken}, plain)
        return [self._take(job, params, at) for job in chosen]

    def _fits(self, job: JobRecord, queue: str, params: ClaimParams) -> bool:
        return (
            job.state is JobState.READY
            and job.queue == queue
            and (params.tasks is None or job.task in params.tasks)
        )

    def _take(self, job: JobRecord, params: ClaimParams, at: datetime) -> Claim:
        running = changes.claimed(job, params.token, params.session, at)
        self._put(running, "claimed", at)
        return Claim(
            id=job.id,
            token=params.token,
            task=job.task,
            version=job.version,
            args=job.args,
            queue=job.queue,
            attempt=running.attempt,
            fence=running.fence,
            created_at=job.created_at,
            run_at=job.run_at,
            claimed_at=at,
            is_suspect=job.is_suspect,
            expires_at=job.expires_at,
            headers=job.headers,
            options=job.options,
            checkpoint=job.checkpoint,
        )

    def finish(self, outcomes: Sequence[Finish], *, now: datetime | None = None) -> Verb[list[Answer]]:
        def body() -> list[Answer]:
            at = self._now(now)
            return [self._finish_one(outcome, at) for outcome in outcomes]

        return self._verb("finish", body)

    def _finish_one(self, outcome: Finish, at: datetime) -> Answer:
        job = self._state.live.get(outcome.id)
        if job is None or job.state is not JobState.RUNNING or job.token != outcome.token:
            return self._look_up(outcome.id, outcome.token)
        ended = changes.finished(job, outcome.token, outcome, at)
        self._put(ended, "finished", at, by_token=outcome.token)
        if ended.state is JobState.BLOCKED:
            self._begin_wait(outcome, at)
        self._open(self._state.gates.finished(job, outcome, at), at)
        return Answer.TOOK

    def _look_up(self, job_id: str, token: str) -> Answer:
        job = self._state.live.get(job_id) or self._state.archive.get(job_id)
        if job is None:
            return Answer.LOST
        is_own = changes.was_ended_by(token, job.ended_token, job.history)
        return Answer.ALREADY if is_own else Answer.LOST

    def release(self, claims: Sequence[ClaimRef], *, now: datetime | None = None) -> Verb[list[Answer]]:
        def body() -> list[Answer]:
            at = self._now(now)
            answers = []
            for ref in claims:
                job = self._state.live.get(ref.id)
                if job is None or job.state is not JobState.RUNNING or job.token != ref.token:
                    answers.append(self._look_up(ref.id, ref.token))
                    continue
                self._give_back(job, at, by_token=ref.token, by_holder=True)
                answers.append(Answer.TOOK)
            return answers

        return self._verb("release", body)

    def _give_back(
        self, job: JobRecord, at: datetime, *, by_token: str | None, by_holder: bool = False
    ) -> JobState:
        freed = changes.given_back(job, at, by_holder=by_holder)
        self._put(freed, "released", at, by_token=by_token)
        return freed.state

    def give_up(self, session: str, tokens: Sequence[str], *, now: datetime | None = None) -> Verb[int]:
        def body() -> int:
            at = self._now(now)
            mine = [job for job in self._running(session) if job.token in tokens]
            for job in mine:
                self._give_back(job, at, by_token=job.token)
            return len(mine)

        return self._verb("give_up", body)

    def crash(
        self, claims: Sequence[ClaimRef], *, cause: str, now: datetime | None = None
    ) -> Verb[list[Answer]]:
        def body() -> list[Answer]:
            at = self._now(now)
            answers = []
            for ref in claims:
                job = self._state.live.get(ref.id)
                if job is None or job.state is not JobState.RUNNING or job.token != ref.token:
                    answers.append(self._look_up(ref.id, ref.token))
                    continue
                self._suspect(job, "crashed", cause, at, by_token=ref.token)
                answers.append(Answer.TOOK)
            return answers

        return self._verb("crash", body)

    def note(self, claim: ClaimRef, note: Note) -> Verb[Answer]:
        def body() -> Answer:
            job = self._state.live.get(claim.id)
            if job is None or job.state is not JobState.RUNNING or job.token != claim.token:
                return Answer.LOST
            self._state.live[job.id] = changes.noted(job, note)
            return Answer.TOOK

        return self._verb("note", body)

    def standing(self, claims: Sequence[ClaimRef]) -> Verb[list[Standing]]:
        def body() -> list[Standing]:
            found = []
            for ref in claims:
                job = self._state.live.get(ref.id)
                if job is not None and job.state is JobState.RUNNING and job.token == ref.token:
                    found.append(Standing.LIVE)
                elif self._look_up(ref.id, ref.token) is Answer.ALREADY:
                    found.append(Standing.ENDED)
                else:
                    found.append(Standing.LOST)
            return found

        return self._verb("standing", body)

    def held(self, session: str) -> Verb[list[ClaimRef]]:
        def body() -> list[ClaimRef]:
            running = sorted(self._running(session), key=lambda job: job.id)
            return [ClaimRef(job.id, job.token or "") for job in running]

        return self._verb("held", body, is_read=True)

    def cancels(self, sessions: Sequence[str]) -> Verb[list[ClaimRef]]:
        def body() -> list[ClaimRef]:
            return [
                ClaimRef(job.id, job.token or "")
                for session in sessions
                for job in self._running(session)
                if job.cancel_requested_at is not None
            ]

        return self._verb("cancels", body, is_read=True)

    def _running(self, session: str) -> list[JobRecord]:
        return [
            job
            for job in self._state.live.values()
            if job.state is JobState.RUNNING and job.session == session
        ]

    # -- sessions ----------------------------------------------------------------------------------

    def start_session(self, session: NewSession, *, now: datetime | None = None) -> Verb[datetime]:
        def body() -> datetime:
            at = self._now(now)
            if session.id not in self._state.sessions:
                self._state.sessions[session.id] = _Session(session, at, at + session.lease)
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
                    to = self._suspect(job, "crashed", cause, at)
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
                    self._suspect(job, "rescued", "lease over", at),
                )
                for job in orphans[:limit]
            ]

        return self._verb("rescue", body)

    def _is_live(self, session_id: str | None) -> bool:
        session = self._state.sessions.get(session_id or "")
        return session is not None and session.ended_at is None

    def _suspect(
        self, job: JobRecord, what: str, cause: str, at: datetime, *, by_token: str | None = None
    ) -> JobState:
        taken = changes.suspected(job, what, cause, at, by_token=by_token)
        self._put(taken, "rescued", at, by_token=by_token)
        return taken.state

    # -- time --------------------------------------------------------------------------------------

    def promote(self, *, limit: int = 1000, now: datetime | None = None) -> Verb[Promoted]:
        def body() -> Promoted:
            at = self._now(now)
            waiting = sorted(
                (job for job in self._state.live.values() if job.state in TRANSITIONS["promote"]),
                key=lambda job: (job.run_at, job.id),
            )
            due = [job for job in waiting if job.run_at <= at][:limit]
            for job in due:
                self._put(replace(job, state=JobState.READY), "promoted", at)
            later = waiting[len(due) :]
            return Promoted(len(due), later[0].run_at if later else None, at)

        return self._verb("promote", body)

    def admit(
        self, *, limit: int = 1000, is_sweep: bool = False, now: datetime | None = None
    ) -> Verb[Promoted]:
        def body() -> Promoted:
            at = self._now(now)
            gates = self._state.gates
            keys = gates.due(at)
            if is_sweep:
                gates.forget(self._is_known)
                keys = gates.waited_at()
            count = self._open(keys, at)
            return Promoted(count, gates.next_at(), at)

        return self._verb("admit", body)

    def _open(self, keys: Iterable[str], at: datetime) -> int:
        """Make ready whom these gates let through now."""
        return sum(self._admitted(self._state.gates.opened(key, at), at) for key in keys)

    def _admitted(self, jobs: Sequence[JobRecord], at: datetime) -> int:
        for job in jobs:
            self._put(changes.admitted(job), "admitted", at)
        return len(jobs)

    def prune(self, *, limit: int = 1000, now: datetime | None = None) -> Verb[int]:
        def body() -> int:
            at = self._now(now)
            over = [
                job_id
                for job_id, drop_at in self._state.drop_at.items()
                if drop_at <= at and not self._is_still_awaited(self._state.archive[job_id])
            ]
            for job_id in over[:limit]:
                del self._state.archive[job_id], self._state.drop_at[job_id]
            for session_id, session in list(self._state.sessions.items()):
                if session.ended_at is not None and session.ended_at <= at - KEEP_SESSIONS:
                    del self._state.sessions[session_id]
            self._prune_waits(at)
            kept = self._state.kept_keys
            for key in [key for key, (_, until) in kept.items() if until <= at]:
                del kept[key]
            return len(over[:limit])

        return self._verb("prune", body)

    def trim(self, which: Trim, *, now: datetime | None = None) -> Verb[int]:
        def body() -> int:
            at = self._now(now)
            by_task: dict[str, list[JobRecord]] = {}
            for job in self._state.archive.values():
                is_asked_for = which.task in (None, job.task) and which.queue in (None, job.queue)
                if job.state is JobState.DEAD and is_asked_for:
                    by_task.setdefault(job.task, []).append(job)
            over = [
                job
                for _, jobs in sorted(by_task.items())
                for job in _too_many(jobs, which, at)
                if not self._is_still_awaited(job)
            ]
            if which.is_dry_run:
                return len(over)
            for job in over[: which.limit]:
                del self._state.archive[job.id], self._state.drop_at[job.id]
            return len(over[: which.limit])

        return self._verb("trim", body)

    # -- operators ---------------------------------------------------------------------------------

    def cancel(
        self, ids: Sequence[str], *, by: str, reason: str | None = None, now: datetime | None = None
    ) -> Verb[list[Acted]]:
        def act(job: JobRecord, at: datetime) -> None:
            asked = changes.cancelled(job, by, reason, at)
            if asked.state is job.state:
                self._state.live[job.id] = asked
            else:
                self._put(asked, "cancelled", at)

        return self._operate("cancel", ids, now, act)

    def retry(
        self,
        ids: Sequence[str],
        *,
        by: str,
        changes: RetryChanges = NO_CHANGES,
        now: datetime | None = None,
    ) -> Verb[list[Acted]]:
        def act(job: JobRecord, at: datetime) -> None:
            if job.state in FINAL:
                del self._state.archive[job.id], self._state.drop_at[job.id]
            self._put(retried(job, by, at, changes), "retried", at)

        def holder(job: JobRecord) -> str | None:
            held = self._holders().get(job.unique_key or "")
            return held.id if held is not None and job.state in FINAL else None

        return self._operate("retry", ids, now, act, holder)

    def delete(self, ids: Sequence[str], *, by: str, now: datetime | None = None) -> Verb[list[Acted]]:
        def act(job: JobRecord, at: datetime) -> None:
            if self._state.live.pop(job.id, None) is not None:
                self._tell_waiting(job)
            self._state.keys.pop(job.id, None)
            self._state.archive.pop(job.id, None)
            self._state.drop_at.pop(job.id, None)
            self._witness(job, "deleted", None, at, None)
            self._admitted(self._state.gates.left(job, None), at)

        return self._operate("delete", ids, now, act)

    def _operate(
        self,
        verb: str,
        ids: Sequence[str],
        now: datetime | None,
        act: Callable[[JobRecord, datetime], None],
        holder_of: Callable[[JobRecord], str | None] = lambda job: None,
    ) -> Verb[list[Acted]]:
        def body() -> list[Acted]:
            at = self._now(now)
            answers = []
            for job_id in ids:
                job = self._state.live.get(job_id) or self._state.archive.get(job_id)
                if job is None:
                    answers.append(Acted(job_id, None, took=False))
                    continue
                holder = holder_of(job)
                took = job.state in TRANSITIONS[verb] and holder is None
                if took:
                    act(job, at)
                answers.append(Acted(job_id, job.state, took, holder))
            return answers

        return self._verb(verb, body)

    def pause(
        self, queue: str, *, by: str, reason: str | None = None, now: datetime | None = None
    ) -> Verb[None]:
        def body() -> None:
            self._state.paused[queue] = (self._now(now), reason)

        return self._verb("pause", body)

    def resume(self, queue: str, *, by: str, now: datetime | None = None) -> Verb[None]:
        def body() -> None:
            self._state.paused.pop(queue, None)
            self._ring({queue})

        return self._verb("resume", body)

    def set_limits(
        self,
        specs: Mapping[str, GateSpec | None],
        *,
        by: str,
        is_live: bool = True,
        now: datetime | None = None,
    ) -> Verb[None]:
        def body() -> None:
            at = self._now(now)
            self._open(self._state.gates.set(specs, by, is_live, at), at)

        return self._verb("set_limits", body)

    def rebind(self, changes: Sequence[Rebinding], *, now: datetime | None = None) -> Verb[list[bool]]:
        def body() -> list[bool]:
            return [self._rebound(change) for change in changes]

        return self._verb("rebind", body)

    def _rebound(self, change: Rebinding) -> bool:
        job = self._state.live.get(change.id)
        if job is None or job.state is JobState.RUNNING:
            return False
        if (job.options, job.priority) != (change.options, change.priority):
            return False
        ahead = sort_key(EPOCH, change.to_priority) - sort_key(EPOCH, job.priority)
        if job.id in self._state.keys:  # else it gets one when it is ready
            self._state.keys[job.id] += ahead
        self._state.live[job.id] = replace(job, options=change.to_options, priority=change.to_priority)
        return True

    # -- books -------------------------------------------------------------------------------------

    def write_lines(self, lines: Sequence[Line], *, now: datetime | None = None) -> Verb[None]:
        def body() -> None:
            at, books = self._now(now), self._state.books
            for place in [place for place, (_, end) in books.items() if end is not None and end <= at]:
                del books[place]
            for line in lines:
                end = None if line.keep is None else at + line.keep
                books[line.book, line.key] = (line.body, end)

        return self._verb("write_lines", body)

    def swap_line(
        self, line: Line, *, instead_of: str | None = None, now: datetime | None = None
    ) -> Verb[str | None]:
        def body() -> str | None:
            at, books = self._now(now), self._state.books
            there, end = books.get((line.book, line.key), (None, None))
            is_over = there is None or (end is not None and end <= at)
            is_known = there is not None and instead_of is not None and there.startswith(instead_of)
            if not (is_over or is_known):
                return there
            books[line.book, line.key] = (line.body, None if line.keep is None else at + line.keep)
            return None

        return self._verb("swap_line", body)

    def read_lines(self, which: Lines, *, now: datetime | None = None) -> Verb[list[Line]]:
        def body() -> list[Line]:
            at = self._now(now)
            found = [
                Line(book=book, key=key, body=text)
                for (book, key), (text, end) in self._state.books.items()
                if book == which.book
                and (end is None or end > at)
                and (which.after is None or key > which.after)
                and (which.before is None or key < which.before)
            ]
            found.sort(key=lambda line: line.key, reverse=which.is_newest_first)
            return found[: which.limit]

        return self._verb("read_lines", body, is_read=True)

    def strike_lines(self, book: str, keys: Sequence[str]) -> Verb[int]:
        def body() -> int:
            gone = [self._state.books.pop((book, key), None) for key in dict.fromkeys(keys)]
            return sum(line is not None for line in gone)

        return self._verb("strike_lines", body)

    # -- reading -----------------------------------------------------------------------------------

    def limits(self) -> Verb[list[LimitInfo]]:
        return self._verb("limits", self._state.gates.limits, is_read=True)

    def has_gated(self, queues: Sequence[str]) -> Verb[bool]:
        def body() -> bool:
            return any(
                job.state is JobState.READY and job.queue in queues and is_gated(job.options)
                for job in self._state.live.values()
            )

        return self._verb("has_gated", body, is_read=True)

    def get(self, ids: Sequence[str]) -> Verb[list[JobRecord | None]]:
        def body() -> list[JobRecord | None]:
            return [self._state.live.get(i) or self._state.archive.get(i) for i in ids]

        return self._verb("get", body, is_read=True)

    def results(self, ids: Sequence[str]) -> Verb[list[Ending | None]]:
        def body() -> list[Ending | None]:
            jobs = (self._state.live.get(i) or self._state.archive.get(i) for i in ids)
            return [None if job is None else Ending(job.state, job.task, job.result) for job in jobs]

        return self._verb("results", body, is_read=True)

    def list_jobs(self, which: JobFilter) -> Verb[Page]:
        def body() -> Page:
            found = sorted(
                (job for job in self._all_jobs() if _matches(job, which)),
                key=lambda job: job.id,
                reverse=True,
            )
            page = found[: which.limit]
            return Page(tuple(page), page[-1].id if len(found) > which.limit else None)

        return self._verb("list_jobs", body, is_read=True)

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

        return self._verb("groups", body, is_read=True)

    def _all_jobs(self) -> Iterable[JobRecord]:
        yield from self._state.live.values()
        yield from self._state.archive.values()

    def counts(self, *, cap: int = 10_000) -> Verb[Mapping[JobState, int]]:
        def body() -> Mapping[JobState, int]:
            found = Counter(job.state for job in self._all_jobs())
            return {state: min(found[state], cap) for state in JobState}

        return self._verb("counts", body, is_read=True)

    def queues(self) -> Verb[list[QueueInfo]]:
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

        return self._verb("queues", body, is_read=True)

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

    def depth(self, queue: str, *, cap: int, now: datetime | None = None) -> Verb[Depth]:
        def body() -> Depth:
            ready = [
                job.run_at
                for job in self._state.live.values()
                if job.queue == queue and job.state is JobState.READY
            ]
            held = sum(
                job.state is JobState.BLOCKED and job.queue == queue for job in self._state.live.values()
            )
            oldest = self._now(now) - min(ready) if ready else None
            return Depth(min(len(ready) + held, cap), oldest)

        return self._verb("depth", body, is_read=True)

    def sessions(self, *, is_ended_too: bool = False) -> Verb[list[SessionInfo]]:
        def body() -> list[SessionInfo]:
            found = [
                self._session_info(session)
                for session in self._state.sessions.values()
                if is_ended_too or session.ended_at is None
            ]
            return sorted(found, key=lambda s: (s.started_at, s.id), reverse=True)

        return self._verb("sessions", body, is_read=True)

    def _session_info(self, session: _Session) -> SessionInfo:
        info = session.info
        return SessionInfo(
            id=info.id,
            worker=info.worker,
            host=info.host,
            pid=info.pid,
            release=info.release,
            queues=info.queues,
            tasks=info.tasks,
            slots=info.slots,
            started_at=session.started_at,
            lease_until=session.lease_until,
            beats=session.beats,
            running=len(self._running(info.id)),
            ended_at=session.ended_at,
            end_reason=session.end_reason,
        )

    def explain(self, job_id: str, *, now: datetime | None = None) -> Verb[Facts | None]:
        def body() -> Facts | None:
            job = self._state.live.get(job_id) or self._state.archive.get(job_id)
            if job is None:
                return None
            live = [s for s in self._state.sessions.values() if s.ended_at is None]
            serving = [s for s in live if job.queue in s.info.queues]
            mine = (self._state.keys.get(job.id, 0), job.id)
            ahead = sum(
                1
                for other in self._state.live.values()
                if other.state is JobState.READY
                and other.queue == job.queue
                and (self._state.keys[other.id], other.id) < mine
            )
            session = self._state.sessions.get(job.session or "")
            return Facts(
                job=job,
                now=self._now(now),
                is_paused=job.queue in self._state.paused,
                pause_reason=self._state.paused.get(job.queue, (None, None))[1],
                ahead=min(ahead, MOST_AHEAD) if job.state is JobState.READY else 0,
                session=None if session is None else self._session_info(session),
                serving=len(serving),
                knowing=sum(1 for s in serving if job.task in s.info.tasks),
                key_holder=self._key_holder(job),
                gate=self._state.gates.info(job),
            )

        return self._verb("explain", body, is_read=True)

    def events(self, *, after: int = 0, limit: int = 10_000) -> Verb[list[Event]]:
        def body() -> list[Event]:
            return self._state.events[after : after + limit]

        return self._verb("events", body, is_read=True)

    # -- changing one job --------------------------------------------------------------------------

    def _put(self, job: JobRecord, kind: str, at: datetime, *, by_token: str | None = None) -> None:
        """Store the job in its new state: the one place where a job's state changes."""
        before = self._state.live.get(job.id)
        if job.state is JobState.READY and kind in (
            "enqueued",
            "promoted",
            "retried",
            "replaced",
            "finished",
            "cancelled",
            "admitted",
        ):
            self._state.keys[job.id] = sort_key(job.run_at, job.priority)
        if job.state in FINAL:
            keep = KEEP[job.state] if job.keep is None else job.keep
            self._state.live.pop(job.id, None)
            self._state.keys.pop(job.id, None)
            self._state.archive[job.id] = replace(job, token=None, gate=None, finished_at=at)
            self._state.drop_at[job.id] = at + keep
            self._tell_waiting(job)
        else:
            self._state.live[job.id] = job
        self._witness(job, kind, job.state, at, by_token, before)
        if before is not None and is_gated(job.options):
            self._admitted(self._state.gates.left(before, job), at)
        if job.state is JobState.READY:
            self._ring({job.queue})
        elif job.state in TRANSITIONS["promote"] and job.run_at - at < RING_WITHIN:
            self._ring(set(), due=True)

    def _witness(
        self,
        job: JobRecord,
        kind: str,
        state: JobState | None,
        at: datetime,
        by_token: str | None,
        before: JobRecord | None = None,
    ) -> None:
        if not self._keeps_events:
            return
        self._state.changes[job.id] += 1
        token = job.token if kind == "claimed" else (before.token if before else None)
        self._state.events.append(
            Event(
                seq=len(self._state.events) + 1,
                job=job.id,
                v=self._state.changes[job.id],
                kind=kind,
                state=state,
                token=token,
                by_token=by_token,
                session=job.session,
                attempt=job.attempt,
                at=at,
            )
        )

    # -- waking ------------------------------------------------------------------------------------

    def _ring(self, queues: set[str], *, due: bool = False) -> None:
        for bell in list(self._bells):
            if (due and bell.due) or queues & bell.queues:
                bell.ring()

    def bell(self, queues: Sequence[str], *, due: bool = False) -> _Bell:
        bell = _Bell(self._bells, frozenset(queues), due)
        self._bells[bell] = None
        return bell

    # -- upkeep ------------------------------------------------------------------------------------

    def check_schema(self) -> _NoSchema:
        return _NoSchema()

    def migrate(self) -> list[str]:
        return []

    def migration_sql(self) -> str:
        return ""

    def describe(self) -> str:
        return "memory://"

    def close(self) -> None:
        """Nothing to give back; the jobs stay as long as the driver."""

    async def aclose(self) -> None:
        self.close()


@dataclass(frozen=True)
class _NoSchema:
    current: int | None = 0
    newest: int = 0
    is_ready: bool = True


class _Bell:
    """Rings across threads: the enqueuing thread pokes the waiting event loop."""

    def __init__(self, bells: dict[_Bell, None], queues: frozenset[str], due: bool) -> None:
        self._bells = bells
        self.queues = queues
        self.due = due
        self._rang = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def ring(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._rang.set)
        except RuntimeError:  # the loop has closed: nobody waits there any more
            self._bells.pop(self, None)

    async def arm(self) -> None:
        self._rang.clear()

    async def wait(self, timeout: float) -> bool:
        try:
            async with asyncio.timeout(timeout):
                await self._rang.wait()
        except TimeoutError:
            return False
        return True

    async def aclose(self) -> None:
        self._bells.pop(self, None)


def _too_many(jobs: list[JobRecord], which: Trim, at: datetime) -> list[JobRecord]:
    """The dead jobs of one task that are past its limits."""
    newest = sorted(jobs, key=lambda job: (job.finished_at, job.id), reverse=True)
    count, most_bytes = which.count, which.bytes
    if not which.is_forced:
        own = dead_limits(newest[0].options)
        count = which.count if own.dead_count is None else own.dead_count
        most_bytes = which.bytes if own.dead_bytes is None else own.dead_bytes
    over, total = [], 0
    for place, job in enumerate(newest, start=1):
        total += dead_bytes(job)
        died_at = job.finished_at or at
        if (
            (count is not None and place > count)
            or (most_bytes is not None and total > most_bytes)
            or (which.older_than is not None and died_at <= at - which.older_than)
        ):
            over.append(job)
    return over


def _matches(job: JobRecord, which: JobFilter) -> bool:
    return (
        (not which.states or job.state in which.states)
        and (which.task is None or job.task == which.task)
        and (which.queue is None or job.queue == which.queue)
        and (which.tag is None or which.tag in job.tags)
        and (which.fingerprint is None or job.fingerprint == which.fingerprint)
        and (which.after is None or job.id < which.after)
    )
