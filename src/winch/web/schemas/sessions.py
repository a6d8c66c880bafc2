"""Work in batches: a worker's session over HTTP, its claims, and how they end."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec

from winch.web.schemas.base import Body, Duration, GivenUuid, Name, Uuid
from winch.web.schemas.jobs import Enqueued, ErrorOut, NewJobBody
from winch.web.schemas.work import JobToRun

MOST_AT_ONCE = 500
Reason = Annotated[str, msgspec.Meta(max_length=8192)]


class ContractBody(Body, frozen=True, kw_only=True):
    """A task that this worker runs, for producers that do not have its code: the JSON Schema of its
    arguments, its queue, and what its jobs get unless the producer says otherwise."""

    task: Name
    schema: dict[str, Any]
    queue: Name | None = None
    timeout: Duration | None = None
    attempts: Annotated[int, msgspec.Meta(ge=1, le=1000)] | None = None


class NewSessionBody(Body, frozen=True, kw_only=True):
    """A worker that begins. `key` makes a repeat safe; the server draws one where there is none.

    `tasks`: the names that it runs; without it, any task of its queues. `slots`: how many jobs it runs
    at once. `lease`: its jobs go to others when no heartbeat has come for so long. `contracts`: tasks
    that producers may enqueue without their code.
    """

    worker: Annotated[str, msgspec.Meta(min_length=1, max_length=100)]
    queues: Annotated[list[Name], msgspec.Meta(min_length=1, max_length=100)]
    key: Uuid | None = None
    tasks: Annotated[list[Name], msgspec.Meta(max_length=10_000)] | None = None
    slots: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 1
    lease: Duration = "30s"
    release: Annotated[str, msgspec.Meta(max_length=100)] = ""
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    contracts: Annotated[list[ContractBody], msgspec.Meta(max_length=1000)] = msgspec.field(
        default_factory=list
    )


class SessionOut(msgspec.Struct, frozen=True, kw_only=True):
    """`key` names the session in later requests and is a secret; `id` names it in `GET /workers`.

    Send a heartbeat every `beat_seconds`.
    """

    key: str
    id: str
    now: datetime
    lease_seconds: float
    beat_seconds: float


class WorkBody(Body, frozen=True, kw_only=True):
    """`queues`: some of the session's, the first one first. `claim` is the token of the jobs."""

    max: Annotated[int, msgspec.Meta(ge=1, le=MOST_AT_ONCE)] = 1
    wait: Duration = "0s"
    queues: Annotated[list[Name], msgspec.Meta(min_length=1, max_length=100)] | None = None
    claim: Uuid | None = None


class NextBody(Body, frozen=True, kw_only=True):
    """A claim that goes with a finish: it does not wait."""

    max: Annotated[int, msgspec.Meta(ge=1, le=MOST_AT_ONCE)] = 1
    queues: Annotated[list[Name], msgspec.Meta(min_length=1, max_length=100)] | None = None
    claim: Uuid | None = None


class JobsOut(msgspec.Struct, frozen=True, kw_only=True):
    jobs: list[JobToRun]


class _End(Body, frozen=True, kw_only=True):
    id: GivenUuid
    token: GivenUuid


class CompleteEnd(_End, frozen=True, kw_only=True, tag_field="outcome", tag="complete"):
    """The job is done."""

    result: Any = None


class FailEnd(_End, frozen=True, kw_only=True, tag_field="outcome", tag="fail"):
    """The attempt failed; the job's retry policy decides what follows, unless `is_final`."""

    error: str | ErrorOut = "failed"
    is_final: bool = False


class RetryEnd(_End, frozen=True, kw_only=True, tag_field="outcome", tag="retry"):
    """The attempt failed, and the next one is to begin after this delay."""

    delay: Duration
    error: str | ErrorOut | None = None
    reason: Reason | None = None


class SnoozeEnd(_End, frozen=True, kw_only=True, tag_field="outcome", tag="snooze"):
    """The job runs again after this delay, which costs no attempt."""

    delay: Duration
    reason: Reason | None = None


class ReleaseEnd(_End, frozen=True, kw_only=True, tag_field="outcome", tag="release"):
    """The job goes back to its old place. `has_started`: its handler had begun."""

    has_started: bool = False


class CancelEnd(_End, frozen=True, kw_only=True, tag_field="outcome", tag="cancel"):
    """The job ends as cancelled."""

    reason: Reason | None = None


class DiscardEnd(_End, frozen=True, kw_only=True, tag_field="outcome", tag="discard"):
    """The job ends as dead, without a retry."""

    reason: Reason | None = None


End = CompleteEnd | FailEnd | RetryEnd | SnoozeEnd | ReleaseEnd | CancelEnd | DiscardEnd


class FinishBody(Body, frozen=True, kw_only=True):
    """How claims end. `claim`: take the next jobs with the same request."""

    outcomes: Annotated[list[End], msgspec.Meta(max_length=MOST_AT_ONCE)]
    claim: NextBody | None = None


class FinishAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`took`: this request ended the claim. `already`: an earlier one did, in the same way. `lost`: the
    claim had ended; drop what you have."""

    id: str
    answer: Literal["took", "already", "lost"]


class FinishOut(msgspec.Struct, frozen=True, kw_only=True):
    """The answers in the order of the outcomes, and the next jobs if they were asked for."""

    answers: list[FinishAnswer]
    jobs: list[JobToRun]


class RunningJob(Body, frozen=True, kw_only=True):
    id: GivenUuid
    token: GivenUuid


class NoteBody(_End, frozen=True, kw_only=True):
    """What a running handler reports; a field that is null stays as it is."""

    progress: Any = None
    checkpoint: Any = None
    log: Annotated[str, msgspec.Meta(max_length=8192)] | None = None


class NotesBody(Body, frozen=True, kw_only=True):
    notes: Annotated[list[NoteBody], msgspec.Meta(min_length=1, max_length=MOST_AT_ONCE)]


class NoteAnswer(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    answer: Literal["took", "lost"]


class NotesOut(msgspec.Struct, frozen=True, kw_only=True):
    answers: list[NoteAnswer]


class OrderAnswer(Body, frozen=True, kw_only=True):
    """What became of an order."""

    id: Annotated[str, msgspec.Meta(pattern="^[0-9]{8}-[0-9a-f]{16}$")]
    state: Literal["done", "failed"]
    text: Annotated[str, msgspec.Meta(max_length=100_000)] = ""


class SessionBeatBody(Body, frozen=True, kw_only=True):
    """`running`: all claims that the worker has. `answers`: to orders of earlier heartbeats."""

    running: Annotated[list[RunningJob], msgspec.Meta(max_length=10_000)] = msgspec.field(
        default_factory=list
    )
    answers: Annotated[list[OrderAnswer], msgspec.Meta(max_length=100)] = msgspec.field(
        default_factory=list
    )


class RefOut(msgspec.Struct, frozen=True, kw_only=True):
    """A claim: a job and the token that it runs under."""

    id: str
    token: str


class OrderOut(msgspec.Struct, frozen=True, kw_only=True):
    """An operator's command. `grace` is in seconds; `queues` is the text of `winch worker -Q`."""

    id: str
    do: str
    by: str
    grace: float | None = None
    concurrency: int | None = None
    queues: str | None = None


class SessionBeatOut(msgspec.Struct, frozen=True, kw_only=True):
    """`cancelled`: stop these, and end them as cancelled. `lost`: stop these; they are no longer yours.
    `unlisted`: the session holds these and the heartbeat did not name them: release those whose claim is
    not on its way. `orders`: what operators want of this worker."""

    now: datetime
    cancelled: list[RefOut]
    lost: list[RefOut]
    unlisted: list[RefOut]
    orders: list[OrderOut]


class ChildrenBody(Body, frozen=True, kw_only=True):
    """Jobs that a running job adds. `name` tells apart the calls of one job: the same name and position
    is the same child, also in a later attempt."""

    parent: RunningJob
    jobs: Annotated[list[NewJobBody], msgspec.Meta(min_length=1, max_length=MOST_AT_ONCE)]
    name: Annotated[str, msgspec.Meta(max_length=256)] = ""


class ChildrenOut(msgspec.Struct, frozen=True, kw_only=True):
    jobs: list[Enqueued]


class SessionEndOut(msgspec.Struct, frozen=True, kw_only=True):
    """How many running jobs went back to their queues."""

    returned: int
