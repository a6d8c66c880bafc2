"""How a job changes: each function takes the job as it is and gives the job as it will be.

The memory and SQLite drivers store what these functions return; PostgreSQL does the same in SQL and is
compared with them by the conformance suite and the stateful machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Protocol

from msgspec.structs import replace

from winch.core.errors import SUSPECT_TYPES
from winch.core.job import (
    HISTORY_LIMIT,
    LOG_LIMIT,
    NO_CHANGES,
    UNDO_LIVES,
    Entry,
    Failure,
    JobRecord,
    Note,
    RetryChanges,
    SuspectRule,
    to_micros,
)
from winch.core.lifecycle import FINAL, JobState, after_claim
from winch.core.values.fingerprint import fingerprint

BLOCKED_REASON = "it waits for the jobs before it"


class AttemptOutcome(Protocol):
    """How an attempt ended, as settled by the worker."""

    @property
    def to(self) -> JobState: ...
    @property
    def what(self) -> str: ...
    @property
    def delay(self) -> timedelta: ...
    @property
    def counts(self) -> bool: ...
    @property
    def result(self) -> str | None: ...
    @property
    def error(self) -> Failure | None: ...
    @property
    def reason(self) -> str | None: ...
    @property
    def log(self) -> str | None: ...
    @property
    def fingerprint(self) -> str | None: ...


def claimed(job: JobRecord, token: str, session: str, at: datetime) -> JobRecord:
    """The job taken to run: a new attempt with a fence greater than any before it."""
    return replace(
        job,
        state=JobState.RUNNING,
        attempt=job.attempt + 1,
        fence=max(job.fence + 1, to_micros(at)),
        token=token,
        session=session,
        claimed_at=at,
        progress=None,
        log=None,
    )


def finished(job: JobRecord, token: str, outcome: AttemptOutcome, at: datetime) -> JobRecord:
    """The job after its claim has ended so."""
    job = replace(job, log=_longer(job.log, outcome.log))
    is_cancel_requested = job.cancel_requested_at is not None
    to = after_claim(outcome.to, cancel_requested=is_cancel_requested, has_undo=job.has_undo)
    delay = outcome.delay if to is outcome.to else timedelta(0)
    history = job.history
    if to is not JobState.COMPLETED:
        # The record's own fields describe a completed attempt; others are written down.
        what = "cancelled" if to is JobState.CANCELLED else outcome.what
        history = _grown(job, what, at, outcome.error, by_token=token)
    is_as_asked = to is JobState.CANCELLED and is_cancel_requested
    return replace(
        job,
        state=to,
        attempt=job.attempt if outcome.counts or to in FINAL else job.attempt - 1,
        token=None,
        ended_token=token,
        history=history,
        result=outcome.result if to is JobState.COMPLETED else None,
        # It ran to an end of its own, so it did not kill its process: innocent.
        is_suspect=job.is_suspect and to in FINAL,
        reason=job.reason if is_as_asked else outcome.reason,
        run_at=job.run_at if to in FINAL else at + delay,
        fingerprint=(
            outcome.fingerprint or fingerprint(job.task, died_of(outcome))
            if to is JobState.DEAD
            else None
        ),
    )


def died_of(outcome: AttemptOutcome) -> Failure:
    """The error of an attempt that was the job's last; made up where it has none."""
    return outcome.error or Failure(outcome.what, outcome.reason or "")


def given_back(
    job: JobRecord, at: datetime, *, by_holder: bool = False, has_started: bool = False
) -> JobRecord:
    """The job unrun: ready at its old place, or cancelled where that was requested.

    Only the holder's own release is remembered by its token: what others took back is lost to it.
    """
    to = after_claim(
        JobState.READY, cancel_requested=job.cancel_requested_at is not None, has_undo=job.has_undo
    )
    by_token = job.token if by_holder else None
    history = job.history
    if to is JobState.CANCELLED:
        history = _grown(job, "cancelled", at, by_token=by_token)
    elif has_started:
        history = _grown(job, RELEASED, at, by_token=by_token)
    return replace(
        job,
        state=to,
        attempt=job.attempt - 1,
        token=None,
        ended_token=by_token or job.ended_token,
        history=history,
    )


def suspected(
    job: JobRecord,
    what: str,
    cause: str,
    at: datetime,
    rule: SuspectRule,
    *,
    by_token: str | None = None,
) -> JobRecord:
    """The job after its process died under it: a suspect, and dead when that happened as often as the
    rule says. One that has something to undo may die so often again while it does that."""
    history = _grown(job, what, at, Failure(SUSPECT_TYPES[what], cause), by_token=by_token)
    times = _recent(history, what, at - rule.within)
    lives = UNDO_LIVES if job.has_undo else 1
    to = JobState.DEAD if times >= rule.most * lives else JobState.READY
    to = after_claim(to, cancel_requested=job.cancel_requested_at is not None, has_undo=job.has_undo)
    return replace(
        job,
        state=to,
        attempt=job.attempt - 1,
        crashes=times if what == "crashed" else job.crashes,
        rescues=times if what == "rescued" else job.rescues,
        is_suspect=True,
        token=None,
        ended_token=by_token or job.ended_token,
        history=history,
        reason=f"{what} {times} times; last cause: {cause}" if to is JobState.DEAD else job.reason,
        fingerprint=fingerprint(job.task, Failure(what, cause)) if to is JobState.DEAD else None,
    )


def cancelled(job: JobRecord, by: str, reason: str | None, at: datetime) -> JobRecord:
    """A waiting job is cancelled, a running one is asked to stop; asking twice changes nothing. A
    waiting job that has something to undo is asked too, and ready to do it."""
    why = reason or f"cancelled by {by}"
    if job.state is not JobState.RUNNING and not job.has_undo:
        history = _acted(job, "cancelled", by, reason, at)
        return replace(job, state=JobState.CANCELLED, reason=why, history=history)
    if job.cancel_requested_at is not None:
        return job
    history = _acted(job, "cancel requested", by, reason, at)
    asked = replace(job, cancel_requested_at=at, reason=why, history=history)
    if job.state in (JobState.RUNNING, JobState.READY):
        return asked
    return replace(asked, state=JobState.READY, run_at=at, gate=None)


def retried(job: JobRecord, by: str, at: datetime, changes: RetryChanges = NO_CHANGES) -> JobRecord:
    """The job ready now: a waiting one early, a final one anew; with what the operator changes."""
    if job.state is JobState.COMPLETED:
        # The record's fields described the attempt that completed; from now on they describe others, and
        # a repeat of its finish must still be recognised.
        job = replace(
            job,
            history=_grown(job, "completed", job.finished_at or at, by_token=job.ended_token),
            # It has come to its end: there is nowhere to go on from, unless a step is named.
            checkpoint=None if changes.from_step is None else job.checkpoint,
        )
    again = replace(
        job,
        state=JobState.READY,
        run_at=at,
        crashes=0,
        rescues=0,
        history=_acted(job, "retried", by, changes.note, at),
        args=job.args if changes.args is None else changes.args,
        version=job.version if changes.version is None else changes.version,
        queue=job.queue if changes.queue is None else changes.queue,
        options=job.options if changes.options is None else changes.options,
        max_attempts=job.max_attempts if changes.max_attempts is None else changes.max_attempts,
    )
    if job.state not in FINAL:
        return again
    return replace(
        again,
        # Later than its last run time, also where time stands still: a new life differs from a claim
        # that only continues after a crash.
        run_at=max(at, job.run_at + timedelta(microseconds=1)),
        attempt=0,
        cancel_requested_at=None,
        finished_at=None,
        result=None,
        reason=None,
        fingerprint=None,
    )


def blocked(job: JobRecord) -> JobRecord:
    """The job that waits for others from its beginning."""
    return replace(job, state=JobState.BLOCKED, reason=BLOCKED_REASON)


def woken(job: JobRecord, at: datetime) -> JobRecord:
    """The blocked job when what it waited for has come, or its time to wait is over."""
    return replace(job, state=JobState.READY, run_at=at, reason=None)


class Successor(Protocol):
    """What takes the place of a waiting job's work."""

    @property
    def args(self) -> str: ...
    @property
    def version(self) -> int: ...
    @property
    def priority(self) -> int: ...
    @property
    def delay(self) -> timedelta | None: ...
    @property
    def run_at(self) -> datetime | None: ...
    @property
    def max_wait(self) -> timedelta | None: ...


def replaced(job: JobRecord, new: Successor, at: datetime) -> JobRecord:
    """The waiting job with the arguments, priority and time of another, and all attempts before it."""
    due = at + new.delay if new.delay is not None else new.run_at
    if due is not None and new.max_wait is not None:
        due = min(due, job.created_at + new.max_wait)
    is_later = due is not None and due > at
    return replace(
        job,
        state=JobState.SCHEDULED if is_later else JobState.READY,
        args=new.args,
        version=new.version,
        priority=new.priority,
        run_at=due if is_later and due is not None else at,
        attempt=0,
        gate=None,
        reason=None,
        history=(*job.history, Entry(what="replaced", at=at))[-HISTORY_LIMIT:],
    )


def held(job: JobRecord, gate: str) -> JobRecord:
    """The ready job at a gate that is closed; it keeps its place in the queue."""
    return replace(job, state=JobState.BLOCKED, gate=gate)


def admitted(job: JobRecord) -> JobRecord:
    """The blocked job when its gate has opened."""
    return replace(job, state=JobState.READY, gate=None)


def noted(job: JobRecord, note: Note) -> JobRecord:
    """The job with what its handler reports; the log keeps its end."""
    return replace(
        job,
        progress=job.progress if note.progress is None else note.progress,
        checkpoint=job.checkpoint if note.checkpoint is None else note.checkpoint,
        log=_longer(job.log, note.log),
        has_undo=job.has_undo if note.has_undo is None else note.has_undo,
        cancel_requested_at=None if note.forgets_cancel else job.cancel_requested_at,
    )


def _longer(log: str | None, more: str | None) -> str | None:
    return log if more is None else ((log or "") + more)[-LOG_LIMIT:]


RELEASED = "released"
# The state that an end of a claim leads to, and the word for it in the history.
End = tuple[JobState, str]


def ended_as(
    token: str, state: JobState, ended_token: str | None, whats: Mapping[str, str]
) -> str | None:
    """How the holder of this token ended its claim; None where the holder did not end it. `whats` has
    the word of the history for each token; a completed attempt and a release may have no line there."""
    if token in whats:
        return whats[token]
    if token != ended_token:
        return None
    return "completed" if state is JobState.COMPLETED else RELEASED


def whats_of(history: Sequence[Entry]) -> dict[str, str]:
    """The endings that a history has, by the token of the claim that ended so."""
    return {entry.token: entry.what for entry in history if entry.token is not None}


def is_repeat(ended: str | None, end: End | None) -> bool:
    """Whether this end of a claim repeats how its holder ended it before; None: any end does. A
    requested cancel had turned every end that is not final into a cancelled job."""
    if end is None:
        return ended is not None
    to, what = end
    if to in (JobState.COMPLETED, JobState.CANCELLED):
        what = str(to)
    return ended == what or (ended == "cancelled" and to not in FINAL)


def moved(job: JobRecord, queue: str, by: str, at: datetime) -> JobRecord:
    """The waiting job in another queue."""
    note = f"from {job.queue} to {queue}"
    return replace(job, queue=queue, history=_noted(job, Entry(what="moved", at=at, by=by, note=note)))


def keyless(job: JobRecord, by: str, at: datetime) -> JobRecord:
    """The live job without its unique key."""
    return replace(job, unique_key=None, history=_noted(job, Entry(what="key released", at=at, by=by)))


def _noted(job: JobRecord, entry: Entry) -> tuple[Entry, ...]:
    return (*job.history, entry)[-HISTORY_LIMIT:]


def _grown(
    job: JobRecord,
    what: str,
    at: datetime,
    error: Failure | None = None,
    *,
    by_token: str | None,
) -> tuple[Entry, ...]:
    entry = Entry(
        what=what,
        at=at,
        attempt=job.attempt,
        token=by_token,
        session=job.session,
        claimed_at=job.claimed_at,
        error=error,
        log=job.log,
    )
    return (*job.history, entry)[-HISTORY_LIMIT:]


def _acted(job: JobRecord, what: str, by: str, note: str | None, at: datetime) -> tuple[Entry, ...]:
    return (*job.history, Entry(what=what, at=at, by=by, note=note))[-HISTORY_LIMIT:]


def _recent(history: Sequence[Entry], what: str, since: datetime) -> int:
    times = 0
    for entry in history:
        if entry.what == "retried":
            times = 0
        elif entry.what == what and entry.at > since:
            times += 1
    return times
