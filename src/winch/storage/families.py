"""The verbs of a store by family. The docstrings are the contract; the conformance suite checks each
sentence. Each driver has a module for each family under verbs/.

Rules that hold for every verb:
- Batch-first and race-honest: a lost race is a return value here, never an exception.
- Every write about a claim names (id, token) and takes effect only while that claim is live.
- Time is the store's clock. `now` replaces it and exists for tests and simulations.
- Results come in the order of what was asked for.
- A verb either took effect whole or not at all. StorageUnavailable.maybe_applied means "unknown".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Protocol

from winch.core.gates.uses import GateSpec
from winch.core.job import NO_CHANGES, Claim, JobRecord, Note, RetryChanges
from winch.core.lifecycle import JobState
from winch.core.policy.queue_settings import QueueRule
from winch.storage.crash_report import CrashReport
from winch.storage.decide.schedules import Change, Changed, ScheduleRows, ScheduleRun
from winch.storage.decide.waits import Dependencies, KeptSignal, Sent, Taken
from winch.storage.gate_records import KeyHolder, LimitInfo, ScopeInfo, TenantInfo
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
    NewJob,
    NewSession,
    Page,
    Promoted,
    Pulse,
    QueueInfo,
    Rescued,
    SessionInfo,
    Standing,
    Trim,
)
from winch.storage.verbs import Now, Verb


class EnqueueVerbs(Protocol):
    """Producing: store new jobs."""

    def enqueue(
        self, jobs: Sequence[NewJob], *, is_repeat: bool = False, now: Now = None
    ) -> Verb[list[Enqueued]]:
        """Store the jobs: scheduled where they are due later, else ready. All of them or none.

        A job with a given id that exists already (live, final or in the same call) is left as it is
        and answered `is_new=False`. With `is_repeat` (the answer to an earlier call was lost) the
        same holds for every id. Waiting workers of the queues are woken at commit. The answer for a new
        job has its `created_at`, and its `state` as it was stored.

        At most one live job has a unique key, at any moment, whatever calls store, retry or roll back. A
        job whose key is held, by a live job or by one before it in the call, is not stored, and `holder`
        carries its id. A holder that is not committed yet is waited for: a rollback leaves the key free.
        With `on_duplicate` REPLACE a holder that waits gets the new arguments (with their version),
        priority and time, attempt 0, and an entry in its history. A key that is held keeps the whole
        call from being stored where a job has REJECT, or REPLACE and the holder cannot be replaced:
        then nothing is new, and `holder` is set where a key was held. The key is free again when its job
        is final or deleted.
        """
        ...


class ClaimVerbs(Protocol):
    """Take jobs to run."""

    def claim(self, params: ClaimParams, *, now: Now = None) -> Verb[list[Claim]]:
        """Take ready jobs: the first queue that has some, lowest sort key first, then the next queue.
        Between equal sort keys the lower id goes first, so that jobs stored together keep their order.

        Nothing from a paused queue, nothing for a session that is ended or unknown. Each job taken is
        running, with this token and session, attempt + 1, and a fence greater than any before it.

        A job with gates is taken only if all of them are open to it, and then has a permit of each
        limit and the turn of its FIFO key; else it is blocked at the first that is closed, and keeps its
        place. It gives its permits back when its claim ends, however it ends, and its turn when it is
        final; the next jobs that fit are ready in the same transaction. Between tenants of a queue those
        that had least for their weight go first; jobs without a tenant count as one tenant.

        What `set_queue` has set holds for every job of the queue, plain ones too. With a concurrency of
        n a claim takes no more jobs than fit: each has a permit of the gate `queue:NAME` until its claim
        ends, and workers that wait for the queue are woken then. Jobs that do not fit stay ready. A
        strict queue gives the highest priority first, then the lowest sort key. A claim of plain jobs
        only (`gated=0`) takes nothing from a queue with a rule.
        """
        ...


class FinishVerbs(Protocol):
    """What becomes of a claim: its end, its notes, and whether it still stands."""

    def finish(self, outcomes: Sequence[Finish], *, now: Now = None) -> Verb[list[Answer]]:
        """End claims. TOOK: this call ended it. ALREADY: an earlier call with this token ended it in the
        same way (`what`). LOST: another process ended the claim, or it ended in another way: a
        completion after a release or a failure is lost. Nothing is changed.

        Final jobs move to the archive; others may run again `delay` after now, and `counts=False` hands
        them the attempt back. A requested cancel beats every target that is not final. One outcome that
        does not take never keeps the others from taking. A job that is blocked by it waits for what
        `waits` names, at most for `timeout`. A job that dies carries a fingerprint: the outcome's, else
        that of its task and error (`core.fingerprint`). A `brake` that takes holds the scope until
        `delay` after now; a breaker counts completed and failed ends that take.
        """
        ...

    def finish_and_claim(
        self, outcomes: Sequence[Finish], then: ClaimParams, *, now: Now = None
    ) -> Verb[tuple[list[Answer], list[Claim]]]:
        """End claims as `finish` does, and take the next members of their FIFO keys in the same
        transaction, under the token and session of `then`. A driver with `continues_limits` also takes
        the next jobs under the limits of jobs that are final now, as far as there is room. One with
        `continues_small_limits` can, and a worker uses it for limits that are not larger than its slots.

        The next member of a key is taken only where an outcome took and made its job final, and the job
        left its turn. The member must be ready and have no other gate and no tenant. It must be what
        `claim` with these parameters would take first: no ready job of these queues and tasks stands
        before it, no job of a tenant is ready in its queue, the queue is not paused, the session is
        live. Every other next member is ready, as after `finish`, and its workers are woken.

        A repeated call takes nothing: an outcome that took before does not take again.
        """
        ...

    def release(
        self, claims: Sequence[ClaimRef], *, has_started: bool = False, now: Now = None
    ) -> Verb[list[Answer]]:
        """Give claimed jobs back unrun: ready again at their old place, the attempt handed back.
        A requested cancel is carried out instead. With `has_started` their handlers had begun, and each
        gets a line "released" in its history. Answers as `finish` does."""
        ...

    def give_up(self, session: str, tokens: Sequence[str], *, now: Now = None) -> Verb[int]:
        """Release what claims whose answer was lost may have taken: every job of this session that
        runs under one of these tokens. Returns how many. May be repeated; a delayed claim can land
        after the first try."""
        ...

    def crash(self, crash: CrashReport, *, now: Now = None) -> Verb[list[Answer]]:
        """End claims whose job killed the process it ran in, as `end_session` does: a crash counted,
        suspect, dead by the rule; one with something to undo at UNDO_LIVES times as many crashes.
        Answers as `finish` does, but ALREADY for every end by this token."""
        ...

    def note(self, claim: ClaimRef, note: Note) -> Verb[Answer]:
        """Keep what a running handler reports, while its claim is live: TOOK, else LOST. Fields that
        are None stay as they are; the log grows at its end. A new claim starts without progress and
        log, and with the last checkpoint. With a number that is not higher than the one of the claim's
        last note, TOOK and nothing is changed: what it reports is stored already."""
        ...

    def notes(self, notes: Sequence[tuple[ClaimRef, Note]]) -> Verb[list[Answer]]:
        """`note` for several claims in one round trip, each fenced by its own token: one that is lost
        keeps no other from taking. No claim is named twice."""
        ...

    def standing(self, claims: Sequence[ClaimRef]) -> Verb[list[Standing]]:
        """Where the claims stand. Waits for a write about them that is under way, so that the answer
        settles an unknown COMMIT: a finish that is not ENDED now will never be."""
        ...


class SessionVerbs(Protocol):
    """The sessions of workers: their leases, and what they hold."""

    def start_session(self, session: NewSession, *, now: Now = None) -> Verb[datetime]:
        """Begin a session with a fresh lease; returns the store's time. May be repeated.

        The schedules it declares are active while it lives. Of those that several declare, the
        definition of the session that started last is in effect; a new schedule's windows count from
        now on."""
        ...

    def beat(self, sessions: Sequence[str], *, now: Now = None) -> Verb[list[Pulse]]:
        """Extend the leases of live sessions by their whole length and count the beat; one statement
        whatever the number of sessions and of running jobs. An ended or unknown session stays so.

        The answer for a live session has the first MOST_COMMANDS records of the book COMMANDS whose keys
        begin with its id and "/", by key, without those whose time is over."""
        ...

    def end_session(
        self, session: str, crash: CrashReport | None = None, *, now: Now = None
    ) -> Verb[list[Rescued]]:
        """End a session and take its running jobs back at once.

        With a `crash` (the process died) the claims that it names and that still stand count a crash,
        become suspects, and are dead by its rule (at UNDO_LIVES times as many crashes with
        something to undo), with the fingerprint of (task, "crashed", cause); all others, and everything
        when there was no crash, go back to ready with the attempt handed back and nothing counted.
        May be repeated; an ended session has nothing left to take.
        """
        ...

    def held(self, session: str) -> Verb[list[ClaimRef]]:
        """The live claims of this session, by id. A worker gives up those whose token it does not use: a
        store that was set back has claims its worker has finished and forgotten. A supervisor releases
        those that a child which stands still has not started."""
        ...

    def cancels(self, sessions: Sequence[str]) -> Verb[list[ClaimRef]]:
        """The running jobs of these sessions for which a cancel was requested."""
        ...


class UpkeepVerbs(Protocol):
    """What keeps the store going: lost claims, due jobs, old jobs."""

    def rescue(
        self, *, limit: int = 1000, as_of: datetime | None = None, now: Now = None
    ) -> Verb[list[Rescued]]:
        """End sessions whose lease is over, then take up to `limit` running jobs of ended or unknown
        sessions: suspects, ready at their old place with the attempt handed back; dead by RESCUE_RULE
        (at UNDO_LIVES times as many rescues with something to undo), with the fingerprint of
        (task, "rescued", cause); cancelled where that was requested.

        With `as_of`, the last moment at which the caller knows the store to have been in reach, a lease
        must have been over by then and be over now: a delayed call ends no session because of its own
        delay.
        """
        ...

    def promote(self, *, limit: int = 1000, now: Now = None) -> Verb[Promoted]:
        """Make due scheduled and retrying jobs ready, earliest first; say when the next is due."""
        ...

    def prune(self, *, limit: int = 1000, now: Now = None) -> Verb[int]:
        """Delete final jobs whose keeping time is over, and old ended sessions; returns how many
        jobs went. Call again until it returns less than `limit`."""
        ...

    def trim(self, which: Trim, *, now: Now = None) -> Verb[int]:
        """Delete dead jobs that are too many, at most `limit`; returns how many went. Call again until
        it returns less. Newest is by the moment of death, then by id; the bytes of a job are those of
        its args, history, log and checkpoint, more or less. Costs little when there is nothing to do."""
        ...


class GateVerbs(Protocol):
    """Limits, rates, FIFO keys and tenants."""

    def admit(self, *, limit: int = 1000, is_sweep: bool = False, now: Now = None) -> Verb[Promoted]:
        """Open the gates whose moment has come: as many of their waiting jobs are ready as fit now. Says
        how many became ready, and when the next gate may open. With `is_sweep` every gate at which jobs
        wait is looked at, so that no job waits where there is room."""
        ...

    def set_limits(
        self, specs: Mapping[str, GateSpec | None], *, by: str | None, now: Now = None
    ) -> Verb[None]:
        """Set limits, rates and tenants' weights by name for the whole fleet, from now on; None takes
        the setting away. `by` is the person; what a person has set is not changed by what code declares
        (`by=None`). Jobs that fit now are ready."""
        ...

    def set_queue(self, queue: str, rule: QueueRule, *, now: Now = None) -> Verb[None]:
        """Set what claims of this queue read, from now on and for every job in it, whichever producer
        stored it. Jobs that run now count against the concurrency. No claim that began before takes a
        job after this call has returned without counting it. May be repeated."""
        ...

    def limits(self) -> Verb[list[LimitInfo]]:
        """Every name that is set, has permits out, or has jobs waiting; by name."""
        ...

    def has_gated(self, queues: Sequence[str]) -> Verb[bool]:
        """Whether one of these queues has a ready job with gates or a tenant, or a rule. Cheap."""
        ...


class WaitVerbs(Protocol):
    """Signals, and jobs that wait for them or for other jobs."""

    def signal(self, name: str, payload: str, *, id: str, now: Now = None) -> Verb[Sent]:
        """Keep a signal until a job takes it. One of this name with the same id changes nothing, also
        after it was taken (for KEEP_TAKEN). Jobs that wait for the name are ready after the next
        `unblock`, which is rung for."""
        ...

    def take_signal(self, claim: ClaimRef, name: str, *, wanted_by: str, now: Now = None) -> Verb[Taken]:
        """Take the oldest signal of this name that is not taken, while the claim is live; else
        nothing is changed and the answer is LOST. A job that has taken one for the same `wanted_by`
        gets that one again, in this claim and in every later one."""
        ...

    def untaken_signals(self, *, limit: int = 1000) -> Verb[list[KeptSignal]]:
        """The signals that no job has taken, the oldest first: what a move brings to another store."""
        ...

    def forget_signals(self, which: Sequence[KeptSignal]) -> Verb[int]:
        """Delete those of these signals that no job has taken; returns how many there were."""
        ...

    def enqueue_after(
        self, jobs: Sequence[NewJob], after: Dependencies, *, is_repeat: bool = False, now: Now = None
    ) -> Verb[list[Enqueued] | None]:
        """`enqueue`, and in the same transaction what jobs wait for: those of this call that are
        new are blocked, and one that is blocked already waits for more. With a `claim` that is not live
        nothing is stored and the answer is None: a job that adds to what others wait for must be
        unfinished."""
        ...

    def unblock(self, *, limit: int = 1000, now: Now = None) -> Verb[Promoted]:
        """Make blocked jobs ready for which what they wait for has come, or whose time to wait is over:
        where one of their `is_enough` has come, or all others, or neither is left. Looks at up to
        `limit` keys that were written down, and removes them. Says how many became ready (`limit`: call
        again), and when the next wait is over."""
        ...


class ScheduleVerbs(Protocol):
    """Schedules and their runs."""

    def due_schedules(self, *, limit: int = 100, now: Now = None) -> Verb[ScheduleRows]:
        """The schedules that want a tick, by name: active, not paused, and with a window that is due, a
        job that waits for an earlier one to end, or another timing in effect than their next window was
        found by. With the moment when the next of the others is due."""
        ...

    def change_schedule(self, name: str, change: Change, *, now: Now = None) -> Verb[Changed]:
        """Define, pause, resume, remove, tick, trigger or skip; see storage/decide/schedules.py.

        Changes of one schedule take effect one after the other. The jobs of a tick are stored with it,
        or nothing is; a window gets a job once, whichever processes tick, in any order and any number
        of times. The last window only advances.
        """
        ...

    def schedules(self, *, name: str | None = None, now: Now = None) -> Verb[ScheduleRows]:
        """All schedules by name, or the one of this name, with the definitions in effect."""
        ...

    def schedule_runs(self, name: str, *, limit: int = 50) -> Verb[list[ScheduleRun]]:
        """What became of the latest windows of a schedule, newest first."""
        ...


class OperatorVerbs(Protocol):
    """What people do to jobs and queues."""

    def cancel(
        self, ids: Sequence[str], *, by: str, reason: str | None = None, now: Now = None
    ) -> Verb[list[Acted]]:
        """Cancel waiting jobs; leave a request with running ones (asking twice changes nothing)."""
        ...

    def retry(
        self, ids: Sequence[str], *, by: str, changes: RetryChanges = NO_CHANGES, now: Now = None
    ) -> Verb[list[Acted]]:
        """Make the jobs ready now: scheduled and retrying ones early, final ones anew with attempt 0
        and their history kept. Counts of crashes and rescues start over. What `changes` names is
        changed in the jobs that are retried, and the entry in the history notes it. A final job takes
        its unique key again; where another job holds it by now, the retry does not take and `holder`
        says which."""
        ...

    def delete(self, ids: Sequence[str], *, by: str, now: Now = None) -> Verb[list[Acted]]:
        """Remove jobs that are not running, for good."""
        ...

    def pause(self, queue: str, *, by: str, reason: str | None = None, now: Now = None) -> Verb[None]:
        """No job of this queue is claimed until `resume`; running ones go on. The queue need not
        have jobs yet."""
        ...

    def resume(self, queue: str, *, by: str, now: Now = None) -> Verb[None]:
        """Claims go on; workers waiting for the queue are woken."""
        ...

    def move(self, ids: Sequence[str], queue: str, *, by: str, now: Now = None) -> Verb[list[Acted]]:
        """Put waiting jobs into another queue. Their state, their times and what they wait for stay.
        Running and final jobs are not changed."""
        ...

    def hold_scope(
        self, name: str, hold: timedelta | None, *, reason: str = "", now: Now = None
    ) -> Verb[bool]:
        """Hold the jobs of a scope for a time, never shorter than it is held already. With None the
        scope opens now and ramps up, as after a successful probe; attempts that were claimed before
        have no say any more. False: there was nothing to open."""
        ...

    def release_key(self, key: str, *, by: str, now: Now = None) -> Verb[str | None]:
        """Free a unique key: the live job that holds it goes on without it. Returns the id of that job;
        None where no job held the key."""
        ...


class ReadVerbs(Protocol):
    """Look at jobs, queues and workers; nothing changes."""

    def get(self, ids: Sequence[str]) -> Verb[list[JobRecord | None]]:
        """The jobs, live or kept; None where there is none."""
        ...

    def results(self, ids: Sequence[str]) -> Verb[list[Ending | None]]:
        """How these jobs stand, with their results; None where there is none. `get` for callers that
        take the results of very many."""
        ...

    def list_jobs(self, which: JobFilter) -> Verb[Page]:
        """A page of jobs, newest id first. Only dead jobs have a fingerprint to ask for."""
        ...

    def groups(self, which: GroupFilter) -> Verb[list[DeadGroup]]:
        """The dead jobs by fingerprint: most jobs first, then the latest death, then the fingerprint."""
        ...

    def death_counts(
        self, fingerprints: Sequence[str], *, since: datetime, step: timedelta, count: int
    ) -> Verb[dict[str, list[int]]]:
        """How many of the dead jobs of each of these groups died in each of `count` steps from `since`
        on."""
        ...

    def tenants(self, *, limit: int = 200) -> Verb[list[TenantInfo]]:
        """The tenants with ready jobs in each queue, the longest line first. A store may look at some
        thousand of the tenants of a queue only."""
        ...

    def scopes(self, *, limit: int = 200) -> Verb[list[ScopeInfo]]:
        """The scopes that are held, tripped or ramping up, by name."""
        ...

    def unique_keys(self, *, prefix: str = "", limit: int = 50) -> Verb[list[KeyHolder]]:
        """Some of the unique keys that live jobs hold and that begin so, with their holders; a key that
        is `prefix` itself is always among them. A store may look at some ten thousand keys only."""
        ...

    def counts(self, *, cap: int = 10_000) -> Verb[Mapping[JobState, int]]:
        """How many jobs are in each state, counted up to `cap` each."""
        ...

    def queues(self, *, cap: int | None = None) -> Verb[list[QueueInfo]]:
        """Every queue that has live jobs, settings, or a live session that serves it; by name. A store
        may look for the oldest ready job among the first in line only.

        With a cap, a store that would count row by row stops there: at so many ready jobs of a queue,
        and at so many jobs of the other states. `inexact` has the states whose number is then only a
        part, or the queue is not in the list because none of its jobs was met."""
        ...

    def depth(self, queue: str, *, cap: int, now: Now = None) -> Verb[Depth]:
        """How many ready jobs the queue has, counted up to `cap`, and how long the first in line has
        been ready; None where there is none, or where the store cannot find it cheaply."""
        ...

    def sessions(self, *, is_ended_too: bool = False) -> Verb[list[SessionInfo]]:
        """The sessions, latest start first."""
        ...

    def explain(self, job_id: str, *, now: Now = None) -> Verb[Facts | None]:
        """What there is to say about why this job is where it is."""
        ...

    def events(self, *, after: int = 0, limit: int = 10_000) -> Verb[list[Event]]:
        """The changes after this sequence number, where `events="full"` is on."""
        ...
