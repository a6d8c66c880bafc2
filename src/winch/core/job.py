"""The records: a job, a claim of it, and what happened to it. Frozen values, UTC datetimes."""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from winch.core.lifecycle import JobState

# A priority level is worth this head start, so that higher goes first and nothing starves.
HEAD_START = timedelta(seconds=60)
# In a queue of strict order a level is worth more µs than any two moments are apart.
STRICT_LEVEL = 10**18
PRIORITIES = {"critical": 20, "high": 10, "default": 0, "low": -10}
PRIORITY_RANGE = range(-1000, 1001)

# How long final jobs are kept unless the task sets another value.
KEEP = {
    JobState.COMPLETED: timedelta(days=7),
    JobState.CANCELLED: timedelta(days=7),
    JobState.DEAD: timedelta(days=180),
}
# Crashes and rescues count within this window; reaching the limit makes the job dead. An app may have
# settings of its own for crashes.
POISON_WINDOW = timedelta(hours=72)
MAX_CRASHES = 3
MAX_RESCUES = 10
# One that has something to undo is not dead then: it runs once more to do that. So many times the limit
# ends the undoing too.
UNDO_LIVES = 2
# A job that snoozes for ever must not grow for ever: only this many entries of its history are kept.
HISTORY_LIMIT = 100
# Characters of an attempt's log that are kept: the last ones.
LOG_LIMIT = 32_768


class SuspectRule(msgspec.Struct, frozen=True):
    """A job is dead when it has lost its process `most` times `within` this time."""

    most: int
    within: timedelta


CRASH_RULE = SuspectRule(MAX_CRASHES, POISON_WINDOW)
RESCUE_RULE = SuspectRule(MAX_RESCUES, POISON_WINDOW)


class Failure(msgspec.Struct, frozen=True, omit_defaults=True):
    """An error as data: its type, message and traceback."""

    type: str
    """The type's name, as it can be imported: "ValueError", "shop.Declined", "winch.JobTimeout"."""
    message: str
    traceback: str | None = None

    @property
    def name(self) -> str:
        """The type of the error in its short form: without the module for errors of Winch."""
        return self.type.rpartition(".")[2] if self.type.startswith("winch.") else self.type


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of a job's history: the end of an attempt, or an action of an operator.

    `what` is completed, failed, snoozed, slept, waited, compensating, cancelled, discarded, crashed,
    rescued or released for attempts. It is retried or cancel requested for operators, with `by`, and
    replaced after an enqueue with the same unique key. `token` is set when the attempt's own worker
    ended it.
    """

    what: str
    at: datetime
    attempt: int = 0
    token: str | None = None
    session: str | None = None
    claimed_at: datetime | None = None
    error: Failure | None = None
    by: str | None = None
    note: str | None = None
    log: str | None = None


def attempt_words(attempt: int, most: int | None, *, crashes: int = 0, rescues: int = 0) -> str:
    """How often the job was tried, as people read it: `2 of 5`, `0 of 12, 1 crash`.

    An attempt that ended with its worker is not counted, so it is named apart. An error or a queue may
    have a policy of its own that allows more attempts than the job's: then there is no `of`.
    """
    text = f"{attempt} of {most}" if most is not None and attempt <= most else f"{attempt}"
    for count, one, many in ((crashes, "crash", "crashes"), (rescues, "rescue", "rescues")):
        if count:
            text += f", {count} {one if count == 1 else many}"
    return text


class JobRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One job as the store keeps it. The envelope is written once; only verbs change the rest.

    - `fingerprint`: equal for dead jobs that died of the same error.
    - `gate`: where a blocked job waits.
    - `has_undo`: the job has steps to undo, so a cancel or a final crash lets it run once more.
    - `seq`: the number of a member of a FIFO key; members run in this order.
    """

    id: str
    task: str
    version: int
    args: str
    queue: str
    priority: int
    created_at: datetime
    run_at: datetime
    state: JobState
    tenant: str | None = None
    fifo: str | None = None
    unique_key: str | None = None
    tags: tuple[str, ...] = ()
    headers: dict[str, str] = {}
    options: str | None = None
    expires_at: datetime | None = None
    max_attempts: int | None = None
    keep: timedelta | None = None
    attempt: int = 0
    crashes: int = 0
    rescues: int = 0
    is_suspect: bool = False
    fence: int = 0
    token: str | None = None
    session: str | None = None
    claimed_at: datetime | None = None
    ended_token: str | None = None
    cancel_requested_at: datetime | None = None
    progress: str | None = None
    checkpoint: str | None = None
    log: str | None = None
    history: tuple[Entry, ...] = ()
    finished_at: datetime | None = None
    result: str | None = None
    reason: str | None = None
    fingerprint: str | None = None
    gate: str | None = None
    has_undo: bool = False
    seq: int | None = None

    @property
    def error(self) -> Failure | None:
        """The last error kept, if any attempt failed."""
        return next((e.error for e in reversed(self.history) if e.error is not None), None)


class RetryChanges(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator changes in the jobs that are retried; None leaves a field as it is.

    `version` goes with new `args`: they are written for the task as it is now. With `from_step` a
    completed job keeps its checkpoint; the worker cuts its steps, as `options` say.
    """

    args: str | None = None
    version: int | None = None
    queue: str | None = None
    options: str | None = None
    max_attempts: int | None = None
    from_step: str | None = None

    @property
    def note(self) -> str | None:
        """What is changed, in words, for the job's history."""
        changes = []
        if self.args is not None:
            changes.append("new args")
        if self.queue is not None:
            changes.append(f"queue {self.queue}")
        if self.max_attempts is not None:
            changes.append(f"{self.max_attempts} attempt{'s' if self.max_attempts > 1 else ''}")
        elif self.options is not None and self.from_step is None:
            changes.append("new options")
        if self.from_step is not None and not changes:
            return f"from step {self.from_step}"
        return f"with {', '.join(changes)}" if changes else None


NO_CHANGES = RetryChanges()


class Claim(msgspec.Struct, frozen=True, gc=False):
    """A job that a worker has taken, with the proof of it: every later write names (id, token)."""

    id: str
    token: str
    task: str
    version: int
    args: str
    queue: str
    attempt: int
    fence: int
    created_at: datetime
    run_at: datetime
    claimed_at: datetime
    is_suspect: bool = False
    expires_at: datetime | None = None
    headers: dict[str, str] = {}
    options: str | None = None
    checkpoint: str | None = None
    has_permit: bool = False
    """The job counts against the concurrency of its queue until its claim ends."""


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """What a running handler reports: JSON texts of its progress and checkpoint, lines for its log.

    `has_undo`: whether it has done what a cancel must undo. `forgets_cancel`: a requested cancel is
    being carried out and is no longer asked for. `number` grows with each note of a claim: a note whose
    number is not higher than the stored one of the same claim changes nothing.
    """

    progress: str | None = None
    checkpoint: str | None = None
    log: str | None = None
    has_undo: bool | None = None
    forgets_cancel: bool = False
    number: int | None = None


def keep_awaited(keep: timedelta | None) -> timedelta | None:
    """How long a job is kept that others wait for: its result must be there when the last of them is
    done, so at least as long as a completed job is by default."""
    return None if keep is None else max(keep, KEEP[JobState.COMPLETED])


def sort_key(arrival: datetime, priority: int) -> int:
    """Where a ready job stands in its queue, in µs: arrival minus a head start per priority level."""
    micros = to_micros(arrival)
    return micros - priority * (HEAD_START // timedelta(microseconds=1))


def strict_place(key: int, priority: int) -> int:
    """Where a job with this sort key stands in a queue of strict order: by priority first."""
    return key - priority * STRICT_LEVEL


def fifo_order(job: JobRecord) -> tuple[int, str]:
    """Where a member stands in its FIFO key. One that was stored before jobs had numbers counts by the
    moment of that, as numbers do: they are never less than it."""
    return to_micros(job.created_at) if job.seq is None else job.seq, job.id


def to_micros(moment: datetime) -> int:
    """µs since the epoch, exact (a float of seconds would round)."""
    return (moment - EPOCH) // _MICROSECOND


def from_micros(micros: int) -> datetime:
    """The moment. One after the last that Python has is the last: Redis rounds moments after the year
    2255 to some µs, and one job that is never due must not keep the others from being read."""
    try:
        return EPOCH + micros * _MICROSECOND  # in half of the time that a new timedelta takes
    except OverflowError:
        if micros < 0:
            raise
        return LAST_MOMENT


EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")
_MICROSECOND = timedelta(microseconds=1)
LAST_MOMENT = datetime.max.replace(tzinfo=EPOCH.tzinfo)
