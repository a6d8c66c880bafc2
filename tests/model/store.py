"""The rows of the store and the verbs that change them, with the choices that make a design.

Everything here is a pure function from rows to rows, and each function is one statement: what it
reads and writes, it reads and writes at one moment. Which statements share a transaction, what they
lock and what may happen between them is the business of `protocol`.

Fields called ghosts are not in the real store. They carry history that the rules need, and nothing
that a design decides may look at them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from tests.model.explore import Rule

NONE = -1
FINAL = frozenset({"completed", "cancelled", "dead"})
CRASH_LIMIT = 2  # three in the real protocol; two shows the same in a smaller scope

Outcome = Literal["ok", "retry"]
Answer = Literal["took", "already", "lost"]


@dataclass(frozen=True)
class Design:
    """The protocol as a set of choices. The defaults are the protocol; any other value breaks it."""

    finish_fence: Literal["token", "attempt", "state", "id"] = "token"
    release_fence: Literal["token", "id"] = "token"
    # Random tokens are drawn by the worker; a counter is asked from the store, and rewinds with it.
    tokens: Literal["random", "counter"] = "random"
    fence_number: Literal["store time", "counter"] = "store time"
    # How a finish that did not take finds out whether an earlier one with its token did.
    lookup: Literal["later statement", "same statement", "live, then archive", "none"] = (
        "later statement"
    )
    # Which finishing tokens a job keeps: one per attempt, or that of a completed attempt only until
    # the next one.
    history: Literal["every attempt", "last completed only"] = "every attempt"
    lost_claim: Literal["give up", "repeat"] = "give up"
    give_up: Literal["while the session lasts", "once"] = "while the session lasts"
    # What a worker has released besides the tokens it knows to be lost: claims of its session that it
    # does not name and that are older than the last beat acknowledged when it sent the call. "asked"
    # holds as well and compares no times: the worker asks which tokens the store has for its
    # session and gives up those that it does not use.
    unnamed: Literal["older than sent", "older than last beat", "any age", "asked", "none"] = (
        "older than sent"
    )
    # How a rewound store is noticed: a beat carries the last count acknowledged and the store
    # refuses where it has counted fewer, or the worker compares the count it is answered with.
    rewind_check: Literal["carried", "answer lower", "answer not higher"] = "carried"
    rescue_ends_session: bool = True
    claim_locks_session: bool = True
    rescue_reads_jobs: Literal["after the lock", "before the lock"] = "after the lock"
    rescue_reads_lease: Literal["under the lock", "before the lock"] = "under the lock"
    # Running jobs of sessions that are not live: by the token read, by a condition on the session
    # that a re-check evaluates with the statement's old snapshot, or not at all.
    sweep: Literal["by token", "by session", "none"] = "by token"
    retry_clears_cancel: bool = True


class Session(NamedTuple):
    is_lapsed: bool = False  # the lease deadline has passed
    is_ended: bool = False
    beats: int = 0
    is_swept: bool = False  # ghost: a rescue has been through its jobs
    is_robbed: bool = False  # ghost: and has taken some


class Job(NamedTuple):
    state: str = "ready"
    attempt: int = 0
    token: int = 0
    session: int = NONE
    claimed_at: int = 0  # store time, counted in beats of the session
    fence: int = 0
    rescues: int = 0
    crashes: int = 0
    cancel_requested: bool = False
    history: tuple[int, ...] = ()  # finishing tokens
    ended_token: int = 0
    claim: int = 0  # ghost: the live claim, also where two claims share a token
    took: tuple[int, ...] = ()  # ghost: claims whose finish took

    @property
    def is_final(self) -> bool:
        return self.state in FINAL


class Store(NamedTuple):
    jobs: tuple[Job, ...]
    # None: a store restored from a backup does not know the session.
    sessions: tuple[Session | None, ...]
    counter: int = 0  # only for designs that hand out tokens from it

    def with_job(self, number: int, job: Job) -> Store:
        return self._replace(jobs=(*self.jobs[:number], job, *self.jobs[number + 1 :]))

    def with_session(self, number: int, session: Session) -> Store:
        return self._replace(sessions=(*self.sessions[:number], session, *self.sessions[number + 1 :]))

    def is_live(self, number: int) -> bool:
        session = self.sessions[number]
        return session is not None and not session.is_ended

    def running(self, session: int) -> list[int]:
        """Number the running jobs of a session."""
        return [
            number
            for number, job in enumerate(self.jobs)
            if job.session == session and job.state == "running"
        ]

    def orphans(self) -> list[int]:
        """Number the running jobs whose session is not live."""
        return [
            number
            for number, job in enumerate(self.jobs)
            if job.state == "running" and not self.is_live(job.session)
        ]


class Write(NamedTuple):
    """What a worker sends about a claim it holds."""

    job: int
    token: int
    attempt: int
    claim: int  # ghost
    outcome: Outcome = "ok"


def claimed(job: Job, token: int, session: int, at: int, claim: int, fence: int) -> Job:
    return job._replace(
        state="running",
        attempt=job.attempt + 1,
        token=token,
        session=session,
        claimed_at=at,
        claim=claim,
        fence=fence,
    )


def ended(job: Job, state: str, *, attempt: int) -> Job:
    """End the live claim; every way to end it clears the token, so that no later write can match."""
    return job._replace(state=state, attempt=attempt, token=0, session=NONE, claimed_at=0, claim=0)


def handed_back(job: Job) -> Job:
    """Make a claimed job ready again with its attempt not counted, unless it was to be cancelled."""
    state = "cancelled" if job.cancel_requested else "ready"
    return ended(job, state, attempt=job.attempt - 1)


def rescued(job: Job, limit: int) -> Job:
    """Hand a job back after a lease ran out; a limit of 0 leaves the rescues uncounted."""
    back = handed_back(job)
    if back.state != "ready" or not limit:
        return back
    back = back._replace(rescues=job.rescues + 1)
    return back._replace(state="dead") if back.rescues >= limit else back


def crashed(job: Job) -> Job:
    """Hand a job back after its process died while running it."""
    back = handed_back(job)
    if back.state != "ready":
        return back
    back = back._replace(crashes=job.crashes + 1)
    return back._replace(state="dead") if back.crashes >= CRASH_LIMIT else back


def finish_matches(design: Design, job: Job, write: Write) -> bool:
    match design.finish_fence:
        case "token":
            return job.state == "running" and job.token == write.token
        case "attempt":
            return job.state == "running" and job.attempt == write.attempt
        case "state":
            return job.state == "running"
        case "id":
            return True


def finished(design: Design, job: Job, write: Write) -> Job:
    runs_again = "cancelled" if job.cancel_requested else "ready"
    state = "completed" if write.outcome == "ok" else runs_again
    after = ended(job, state, attempt=job.attempt)
    if design.history == "every attempt" or write.outcome != "ok":
        after = after._replace(history=(*job.history, write.token))
    return after._replace(ended_token=write.token, took=(*job.took, write.claim))


def finish_breach(job: Job, write: Write, *, took: bool) -> Rule | None:
    """Judge a finish against the row it met."""
    if not took:
        return Rule.REFUSED if job.claim == write.claim else None
    if job.is_final:
        return Rule.FINAL
    if job.claim != write.claim:
        return Rule.FOREIGN_RUN if write.outcome == "ok" else Rule.FOREIGN_WRITE
    return None


def carries(job: Job, token: int) -> bool:
    """Return whether an earlier finish with this token left its mark on the job."""
    return job.ended_token == token or token in job.history


def answer_breach(job: Job, write: Write, answer: Answer) -> Rule | None:
    """Judge an answer that a worker reads against what really happened to its finish."""
    if answer == "lost":
        return Rule.FALSE_LOST if write.claim in job.took else None
    return None if write.claim in job.took else Rule.FALSE_TOOK


def release_matches(design: Design, job: Job, write: Write) -> bool:
    return job.state == "running" and (design.release_fence == "id" or job.token == write.token)


def cancelled(job: Job) -> Job | None:
    """Cancel a waiting job, ask a running one to stop; None where there is nothing to do."""
    if job.is_final or job.cancel_requested:
        return None
    if job.state == "running":
        return job._replace(cancel_requested=True)
    return job._replace(state="cancelled")


def retried(design: Design, job: Job) -> Job:
    """Bring a final job back; its history stays, so that a late finish is still recognised."""
    again = job._replace(state="ready", attempt=0, rescues=0, crashes=0)
    return again._replace(cancel_requested=False) if design.retry_clears_cancel else again
