"""What goes into the verbs and what comes out. Frozen values; see families.py for the contracts."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import StrEnum

import msgspec

from winch.core.job import Failure, JobRecord
from winch.core.lifecycle import JobState
from winch.core.policy.queue_limits import QueueLimit
from winch.core.policy.unique import Duplicate, Until
from winch.storage.gate_records import GateInfo


class NewJob(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A job to store. At most one of `delay` and `run_at` is set.

    - `is_given_id`: the caller chose the id, so a second job with this id is the same job.
    - `delay`, `expires`: counted from the store's clock.
    - `on_duplicate`: what happens when a live job holds the `unique_key`.
    - `unique_within`: a job stored less than this ago holds the key too.
    - `unique_until`: with STARTED, a running job does not hold the key.
    - `max_wait`: a debounced job runs at most this long after it was created.
    - `terms`: the words for searches. The client stores them beside the job; the store's verbs ignore
      them.
    """

    id: str
    task: str
    terms: tuple[str, ...] = ()
    args: str
    queue: str = "default"
    version: int = 1
    priority: int = 0
    delay: timedelta | None = None
    run_at: datetime | None = None
    tenant: str | None = None
    fifo: str | None = None
    unique_key: str | None = None
    on_duplicate: Duplicate = Duplicate.RETURN
    unique_until: Until = Until.FINAL
    unique_within: timedelta | None = None
    max_wait: timedelta | None = None
    tags: tuple[str, ...] = ()
    headers: dict[str, str] = {}
    options: str | None = None
    expires: timedelta | None = None
    max_attempts: int | None = None
    keep: timedelta | None = None
    is_given_id: bool = False


class Enqueued(msgspec.Struct, frozen=True, eq=False, gc=False):
    """The store's answer for one NewJob: stored now, or found.

    `holder` is the job that holds the unique key, where that kept this one out. `is_replaced`: the
    holder has taken the new arguments, priority and time. `is_shed`: the queue was full and the job
    was dropped. `created_at` and `state` are those of a new job as `enqueue` stored it, so that its
    producer need not read it. They are no part of what makes two answers equal.
    """

    id: str
    is_new: bool
    holder: str | None = None
    is_replaced: bool = False
    is_shed: bool = False
    created_at: datetime | None = None
    state: JobState | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Enqueued) and self._outcome == other._outcome

    def __hash__(self) -> int:
        return hash(self._outcome)

    @property
    def _outcome(self) -> tuple[object, ...]:
        return self.id, self.is_new, self.holder, self.is_replaced, self.is_shed

    @property
    def is_duplicate(self) -> bool:
        """Whether another job holds the unique key, so that this one was not stored."""
        return self.holder is not None


class ClaimParams(msgspec.Struct, frozen=True, kw_only=True):
    """Take up to `limit` ready jobs from `queues`, the first queue first. `tasks`: None is any.

    `gated`: 0 looks at plain jobs only. Else how many of them may be under a scope or a rate of fewer
    than 1,000 a second: those are not claimed ahead of a free slot. None is any number.

    `at_once`: the session never runs more of its jobs at once than this. A store may then give it more
    jobs under a limit than the limit's number, as long as no more of them can run. None: each job that
    is claimed may run at once with all others.

    `free`: how many slots of the worker are free. Jobs beyond these are claimed ahead, and a store need
    not block jobs at closed gates to find them: it may leave them ready. None: all are for free slots.
    """

    session: str
    token: str
    queues: tuple[str, ...]
    limit: int
    tasks: tuple[str, ...] | None = None
    gated: int | None = None
    at_once: int | None = None
    free: int | None = None


class Wait(msgspec.Struct, frozen=True):
    """What a blocked job waits for: a signal or another job, by its key (storage/decide/waits.py).

    `is_enough`: the job continues when this comes, whatever else it waits for; without it, when all such
    have come.
    """

    key: str
    is_enough: bool = False


class Finish(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The outcome of one claim. `delay` counts from the store's clock; `log` is the last part of the
    log.

    - `fingerprint`: for a job that dies. Without it the store derives one from task and error.
    - `waits`: what the job is blocked for, at most for the time of `timeout`.
    - `is_awaited`: another job waits for this one.
    - `brake`: a scope; all its jobs are held for `delay`.
    - `is_gated`: the job has gates, which are locked before its row.
    - `leaves_turn`: the turn of its FIFO key ends with the claim. The job waits for others before it,
      which may be members of that key.
    """

    id: str
    token: str
    to: JobState
    what: str
    delay: timedelta = timedelta(0)
    counts: bool = True
    result: str | None = None
    error: Failure | None = None
    reason: str | None = None
    log: str | None = None
    fingerprint: str | None = None
    waits: tuple[Wait, ...] = ()
    timeout: timedelta | None = None
    is_awaited: bool = False
    brake: str | None = None
    is_gated: bool = False
    leaves_turn: bool = False


class Ending(msgspec.Struct, frozen=True, gc=False):
    """How a job stands, and its result where it has one, for those that take it."""

    state: JobState
    task: str
    result: str | None = None

    @property
    def is_final(self) -> bool:
        return self.state.is_final


class Answer(StrEnum):
    """What a fenced write came to. ALREADY: this very token had ended the claim so before."""

    TOOK = "took"
    ALREADY = "already"
    LOST = "lost"


class ClaimRef(msgspec.Struct, frozen=True, gc=False):
    """The proof of a claim: the id of the job and the token."""

    id: str
    token: str


class Standing(StrEnum):
    """The state of a claim: live, ended by its own token, or ended by another process."""

    LIVE = "live"
    ENDED = "ended"
    LOST = "lost"


class Declared(msgspec.Struct, frozen=True):
    """A schedule that a session's code defines: the text of its definition, and its timing's key."""

    name: str
    definition: str
    timing: str


class SessionFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a session declares when it starts."""

    id: str
    worker: str
    host: str
    pid: int
    release: str
    queues: tuple[str, ...]
    tasks: tuple[str, ...]
    slots: int
    supervisor: str = ""
    """The same for all processes of one `winch worker`. Empty for a worker over HTTP, which takes no
    commands."""
    labels: dict[str, str] = {}
    queue_limits: dict[str, QueueLimit] = {}


class NewSession(SessionFacts, frozen=True, kw_only=True):
    """One start of a worker child. `worker` is a name; the id alone is the identity. `schedules` are
    those that its code defines, active while the session lives. A server that declares schedules has a
    session without queues. `supervisor` is the id of what acts on commands to it, the same for all
    processes of one worker; empty: it takes none. `labels` are what the worker offers to tasks that need
    something, and `queue_limits` what it bounds for single queues."""

    lease: timedelta
    schedules: tuple[Declared, ...] = ()


# The book of commands to workers, and how many of them one beat brings to a session.
COMMANDS = "command"
MOST_COMMANDS = 100


class Pulse(msgspec.Struct, frozen=True):
    """The answer to a beat. Not live: the session was ended, or the store does not know it.

    `beats` counts this session's beats; lower than acknowledged before means the store was rewound.
    `commands` are pairs of key and body: what operators have sent to this session, by key.
    """

    session: str
    is_live: bool
    beats: int
    now: datetime
    commands: tuple[tuple[str, str], ...] = ()


class Rescued(msgspec.Struct, frozen=True):
    """One running job taken back from an ended session."""

    id: str
    token: str
    session: str
    to: JobState


class Promoted(msgspec.Struct, frozen=True):
    """How many due jobs became ready, and the moment the next one is due, by the store's clock.

    `is_more` (unblock): there was something to look at, and another may be at it: a caller that has to
    know that nothing is left asks again."""

    count: int
    next_at: datetime | None
    now: datetime
    is_more: bool = False


class Acted(msgspec.Struct, frozen=True):
    """What an operator's verb came to. `state` before the call; None: no such job.

    `took` is False where the table of transitions forbids it; nothing was changed then. Nor where the
    job would need a unique key that `holder` has.
    """

    id: str
    state: JobState | None
    took: bool
    holder: str | None = None


class JobFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which jobs to list: all fields given must match. Newest first; `after` is a cursor, and `first`
    the lowest id: a store looks at no job below it. With `most`, a store may stop after it has looked at
    about so many jobs: the page is then cut."""

    states: tuple[JobState, ...] = ()
    task: str | None = None
    queue: str | None = None
    tag: str | None = None
    fingerprint: str | None = None
    limit: int = 50
    after: str | None = None
    first: str | None = None
    most: int | None = None


class Page(msgspec.Struct, frozen=True):
    """One page of a list; `next` is the cursor of the following one, None at the end. A page that is cut
    may have fewer jobs than were asked for, or none."""

    jobs: tuple[JobRecord, ...]
    next: str | None
    is_cut: bool = False


class GroupFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which dead jobs to group: all fields given must match."""

    task: str | None = None
    queue: str | None = None
    limit: int = 50


class DeadGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Dead jobs of one task that died of the same error. The sample is the job with the newest id."""

    fingerprint: str
    task: str
    error_type: str
    message: str
    count: int
    first_at: datetime
    last_at: datetime
    sample_id: str

    @property
    def error_name(self) -> str:
        """The type of the error in its short form."""
        return Failure(self.error_type, self.message).name

    @classmethod
    def of(cls, sample: JobRecord, count: int, first_at: datetime, last_at: datetime) -> DeadGroup:
        """The group of one dead job."""
        error = sample.error
        return cls(
            fingerprint=sample.fingerprint or "",
            task=sample.task,
            error_type="" if error is None else error.type,
            message=(sample.reason or "") if error is None else error.message,
            count=count,
            first_at=first_at,
            last_at=last_at,
            sample_id=sample.id,
        )

    def joined(self, other: DeadGroup) -> DeadGroup:
        """This group and the same group of another queue, added up."""
        newest = max(self, other, key=lambda group: group.sample_id)
        return msgspec.structs.replace(
            newest,
            count=self.count + other.count,
            first_at=min(self.first_at, other.first_at),
            last_at=max(self.last_at, other.last_at),
        )


class Trim(msgspec.Struct, frozen=True, kw_only=True):
    """Which dead jobs are too many: all but the newest `count` of each task, what goes past `bytes` of
    each task's newest, and those that died `older_than` ago. A rule that is None does not apply.

    Unless `is_forced`, the limits of a task are those in the options of its newest dead job, and the
    ones given here are for tasks that have none. `is_dry_run` counts, whatever the `limit`.
    """

    task: str | None = None
    queue: str | None = None
    count: int | None = None
    bytes: int | None = None
    older_than: timedelta | None = None
    is_forced: bool = False
    is_dry_run: bool = False
    limit: int = 1000


class QueueInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One queue: its live jobs by state, its settings, and the age of its oldest ready job."""

    name: str
    counts: Mapping[JobState, int]
    paused_at: datetime | None = None
    pause_reason: str | None = None
    oldest_ready_at: datetime | None = None
    sessions: int = 0
    inexact: frozenset[JobState] = frozenset()
    """States whose number in `counts` is not exact: their jobs were counted up to a cap, or some seconds
    ago."""
    is_sampled: bool = False
    """Whether the numbers that are not exact were counted some seconds ago; else there are more."""


class Depth(msgspec.Struct, frozen=True):
    """How full a queue is: its ready jobs, counted up to a cap, and how long the oldest has waited."""

    ready: int
    oldest: timedelta | None


class SessionInfo(SessionFacts, frozen=True, kw_only=True):
    """One session of a worker as the store knows it: one start of one process."""

    started_at: datetime
    lease_until: datetime
    beats: int
    running: int
    ended_at: datetime | None = None
    end_reason: str | None = None

    @property
    def is_worker(self) -> bool:
        """False for a server, which declares its app's schedules and serves no queue."""
        return bool(self.queues)


# How far a store counts the jobs before one that waits: that there are more is all one wants to know.
MOST_AHEAD = 10_000


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """Everything `why` needs to explain one job. `ahead` is counted up to MOST_AHEAD."""

    job: JobRecord
    now: datetime
    pause_reason: str | None
    is_paused: bool
    ahead: int
    session: SessionInfo | None
    serving: int
    knowing: int
    key_holder: str | None = None
    gate: GateInfo | None = None


class Event(msgspec.Struct, frozen=True):
    """One change of one job, written in the change's own transaction (`events="full"`).

    `seq` grows over all jobs, `v` counts one job's changes from 1. `kind` is one of enqueued,
    promoted, claimed, finished, released, rescued, cancelled, retried, replaced, deleted, held,
    admitted. `state` is the one after the change. `token` is the live claim's token before the change
    (after it, for `claimed`); `by_token` is the one the writer presented, where the verb carries one.
    """

    seq: int
    job: str
    v: int
    kind: str
    state: JobState | None
    token: str | None
    by_token: str | None
    session: str | None
    attempt: int
    at: datetime
