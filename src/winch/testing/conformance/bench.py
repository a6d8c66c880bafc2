"""What a case works with: a driver on an empty store, a clock, and factories that use real verbs."""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, TypeVar

import msgspec

from winch.core.errors import ConfigError
from winch.core.gates.places import lone_place
from winch.core.job import CRASH_RULE, Claim, Failure, JobRecord, RetryChanges, SuspectRule, to_micros
from winch.core.lifecycle import JobState
from winch.core.values.ids import job_id, random_id, with_place
from winch.storage.crash_report import CrashReport
from winch.storage.params import (
    Acted,
    Answer,
    ClaimParams,
    ClaimRef,
    DeadGroup,
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
    Trim,
)
from winch.storage.protocol import Driver
from winch.storage.verbs import Verb
from winch.testing.conformance.target import Target

T = TypeVar("T")
Mode = Literal["sync", "async"]
MODES: tuple[Mode, ...] = ("sync", "async")

LEASE = timedelta(seconds=30)
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)

# What the worker writes down for each way to end an attempt.
WHAT = {
    JobState.COMPLETED: "completed",
    JobState.RETRYING: "failed",
    JobState.READY: "failed",
    JobState.SCHEDULED: "snoozed",
    JobState.BLOCKED: "waited",
    JobState.CANCELLED: "cancelled",
    JobState.DEAD: "discarded",
}


class RolledBack(Exception):
    """Raised inside `Bench.transaction` to roll it back; goes no further."""


class Bench:
    """One case's own store, in one mode. `now` is handed to every verb; None is the store's clock."""

    def __init__(
        self, target: Target, driver: Driver, mode: Mode, runner: asyncio.Runner, seed: str
    ) -> None:
        self.target = target
        self.driver = driver
        self.mode = mode
        self._runner = runner
        self._rng = random.Random(seed)
        self._queues = 0
        self._last_tick = 0
        self._default_session: str | None = None
        # A fraction of a second that a float or a column of milliseconds would not keep.
        self.now: datetime | None = datetime.now(UTC).replace(microsecond=123_457)

    # -- running verbs -----------------------------------------------------------------------------

    def call(self, verb: Verb[T]) -> T:
        """Run a verb through the mode under test."""
        if self.mode == "sync":
            return self.driver.run(verb)
        return self.run(self.driver.arun(verb))

    async def acall(self, verb: Verb[T]) -> T:
        """The same inside a coroutine; in sync mode the verb runs in a thread, as a producer's would."""
        if self.mode == "sync":
            return await asyncio.to_thread(self.driver.run, verb)
        return await self.driver.arun(verb)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        # `Runner.run` sets and resets the handler of Ctrl-C around each call: more work than most verbs.
        return self._runner.get_loop().run_until_complete(coroutine)

    def together(self, verbs: Sequence[Verb[T]]) -> list[T]:
        """Run the verbs at the same time, each in a thread or a coroutine of its own."""
        if self.mode == "sync":
            with ThreadPoolExecutor(len(verbs)) as threads:
                return list(threads.map(self.driver.run, verbs))

        async def gather() -> list[T]:
            return list(await asyncio.gather(*map(self.driver.arun, verbs)))

        return self.run(gather())

    def call_on(self, conn: object, verb: Verb[T]) -> T:
        """Run a verb on a caller's connection through the mode under test."""
        if self.mode == "sync":
            return self.driver.run_on(conn, verb)
        return self.run(self.driver.arun_on(conn, verb))

    def refusal(self, conn: object, verb: Verb[Any]) -> str:
        """The message with which this connection is refused."""
        try:
            self.call_on(conn, verb)
        except ConfigError as error:
            return str(error)
        raise AssertionError(f"{conn!r} was taken for a connection")

    @contextmanager
    def transaction(self) -> Iterator[object]:
        """A caller's connection in a transaction: committed at the end, rolled back by RolledBack."""
        if self.mode == "sync":
            context: AbstractContextManager[object] = self.target.connection()
        else:
            context = _Driven(self._runner, self.target.aconnection())
        try:
            with context as conn:
                yield conn
        except RolledBack:
            pass

    # -- time --------------------------------------------------------------------------------------

    @property
    def at(self) -> datetime:
        assert self.now is not None, "this case uses the store's clock"
        return self.now

    def advance(self, by: timedelta) -> datetime:
        self.now = self.at + by
        return self.now

    # -- making things -----------------------------------------------------------------------------

    def new_id(self) -> str:
        """An id greater than the one before it, as clients draw them."""
        tick = to_micros(self.now or datetime.now(UTC)) * 4096 // 1000
        self._last_tick = max(tick, self._last_tick + 1)
        return job_id(self._last_tick, self._rng.randbytes(8))

    def new_token(self) -> str:
        return random_id(self._rng.randbytes(16))

    def new_job(self, **fields: Any) -> NewJob:
        job = NewJob(**{"id": self.new_id(), "task": "mail.send", "args": '{"to":7}', **fields})
        # As clients draw them: a job of one keyed gate has the place of the gate.
        place = None if "id" in fields else lone_place(job.options)
        return job if place is None else msgspec.structs.replace(job, id=with_place(job.id, place))

    def new_jobs(self, count: int, **fields: Any) -> list[NewJob]:
        return [self.new_job(**fields) for _ in range(count)]

    def new_queue(self) -> str:
        self._queues += 1
        return f"queue-{self._queues}"

    def new_session(self, **fields: Any) -> NewSession:
        """A session with an id of its own in each run of a case. A driver may remember how far the
        claims of a session have come."""
        return NewSession(
            **{
                "id": random_id(secrets.token_bytes(16)),
                "worker": "worker-1",
                "host": "host-1",
                "pid": 4711,
                "release": "1.2.3",
                "queues": ("default",),
                "tasks": ("mail.send",),
                "slots": 8,
                "lease": LEASE,
                **fields,
            }
        )

    def make_job(self, state: JobState, **fields: Any) -> JobRecord:
        """A job in any reachable state, brought there by real verbs, in a queue of its own."""
        fields = {"queue": self.new_queue(), **fields}
        if state is JobState.SCHEDULED:
            return self.get(self.add(**{"delay": HOUR, **fields}))
        job = self.get(self.add(**fields))
        if state is JobState.READY:
            return job
        if state is JobState.CANCELLED:
            self.cancel(job.id)
            return self.get(job.id)
        claim = self.take(job.queue)
        if state is not JobState.RUNNING:
            delay = HOUR if state is JobState.RETRYING else timedelta(0)
            result = '{"sent":true}' if state is JobState.COMPLETED else None
            assert self.finish(self.outcome(claim, state, delay=delay, result=result)) == [Answer.TOOK]
        made = self.get(job.id)
        assert made.state is state
        return made

    def outcome(
        self, claim: Claim | ClaimRef, to: JobState = JobState.COMPLETED, **fields: Any
    ) -> Finish:
        if to in (JobState.RETRYING, JobState.DEAD):
            fields = {"error": Failure("ValueError", "no such user", "Traceback …"), **fields}
        return Finish(**{"id": claim.id, "token": claim.token, "to": to, "what": WHAT[to], **fields})

    # -- the verbs, called -------------------------------------------------------------------------

    def enqueue(self, *jobs: NewJob, is_repeat: bool = False) -> list[Enqueued]:
        return self.call(self.driver.enqueue(jobs, is_repeat=is_repeat, now=self.now))

    def add(self, **fields: Any) -> str:
        """Enqueue one new job and return its id."""
        (stored,) = self.enqueue(self.new_job(**fields))
        assert stored.is_new
        return stored.id

    def add_many(self, count: int, **fields: Any) -> list[str]:
        return [stored.id for stored in self.enqueue(*self.new_jobs(count, **fields))]

    @property
    def session(self) -> str:
        """A session that was started when first asked for."""
        if self._default_session is None:
            self._default_session = self.start_session()
        return self._default_session

    def start_session(self, **fields: Any) -> str:
        session = self.new_session(**fields)
        self.call(self.driver.start_session(session, now=self.now))
        return session.id

    def claim(self, *queues: str, **fields: Any) -> list[Claim]:
        return self.call(self.driver.claim(self.claiming(*queues, **fields), now=self.now))

    def claiming(self, *queues: str, **fields: Any) -> ClaimParams:
        """A claim by the bench's own session with a new token, unless one is given."""
        if "session" not in fields:
            fields["session"] = self.session
        return ClaimParams(
            **{"token": self.new_token(), "queues": queues or ("default",), "limit": 100, **fields}
        )

    def take(self, *queues: str, **fields: Any) -> Claim:
        """Claim one job, which must be there."""
        taken = self.claim(*queues, **{"limit": 1, **fields})
        assert len(taken) == 1, f"expected one job to claim, got {taken}"
        return taken[0]

    def finish(self, *outcomes: Finish) -> list[Answer]:
        return self.call(self.driver.finish(outcomes, now=self.now))

    def finish_and_claim(self, *outcomes: Finish, then: ClaimParams) -> tuple[list[Answer], list[Claim]]:
        return self.call(self.driver.finish_and_claim(outcomes, then, now=self.now))

    def complete(self, claim: Claim | ClaimRef, **fields: Any) -> Answer:
        (answer,) = self.finish(self.outcome(claim, JobState.COMPLETED, **fields))
        return answer

    def release(self, *claims: Claim | ClaimRef, has_started: bool = False) -> list[Answer]:
        refs = [ClaimRef(claim.id, claim.token) for claim in claims]
        return self.call(self.driver.release(refs, has_started=has_started, now=self.now))

    def give_up(self, session: str, *tokens: str) -> int:
        return self.call(self.driver.give_up(session, tokens, now=self.now))

    def cancels(self, *sessions: str) -> list[ClaimRef]:
        return self.call(self.driver.cancels(sessions))

    def beat(self, *sessions: str) -> list[Pulse]:
        return self.call(self.driver.beat(sessions, now=self.now))

    def end_session(
        self,
        session: str,
        *started: Claim | ClaimRef,
        cause: str | None = None,
        rule: SuspectRule = CRASH_RULE,
    ) -> list[Rescued]:
        refs = [ClaimRef(claim.id, claim.token) for claim in started]
        crash = None if cause is None else CrashReport(refs, cause, rule)
        verb = self.driver.end_session(session, crash, now=self.now)
        taken = self.call(verb)
        return sorted(taken, key=lambda rescued: rescued.id)

    def rescue(self, limit: int = 1000, as_of: datetime | None = None) -> list[Rescued]:
        taken = self.call(self.driver.rescue(limit=limit, as_of=as_of, now=self.now))
        return sorted(taken, key=lambda rescued: rescued.id)

    def promote(self, limit: int = 1000) -> Promoted:
        return self.call(self.driver.promote(limit=limit, now=self.now))

    def prune(self, limit: int = 1000) -> int:
        return self.call(self.driver.prune(limit=limit, now=self.now))

    def trim(self, **fields: Any) -> int:
        return self.call(self.driver.trim(Trim(**fields), now=self.now))

    def cancel(self, *ids: str, by: str = "ada", reason: str | None = None) -> list[Acted]:
        return self.call(self.driver.cancel(ids, by=by, reason=reason, now=self.now))

    def retry(self, *ids: str, by: str = "ada", **changes: Any) -> list[Acted]:
        verb = self.driver.retry(ids, by=by, changes=RetryChanges(**changes), now=self.now)
        return self.call(verb)

    def delete(self, *ids: str, by: str = "ada") -> list[Acted]:
        return self.call(self.driver.delete(ids, by=by, now=self.now))

    def pause(self, queue: str, reason: str | None = None) -> None:
        self.call(self.driver.pause(queue, by="ada", reason=reason, now=self.now))

    def resume(self, queue: str) -> None:
        self.call(self.driver.resume(queue, by="ada", now=self.now))

    def find(self, *ids: str) -> list[JobRecord | None]:
        return self.call(self.driver.get(ids))

    def get(self, job_id: str) -> JobRecord:
        (job,) = self.find(job_id)
        assert job is not None, f"job {job_id} is gone"
        return job

    def jobs(self, ids: Sequence[str]) -> list[JobRecord]:
        found = [job for job in self.find(*ids) if job is not None]
        assert len(found) == len(ids), f"{len(ids) - len(found)} of {len(ids)} jobs are gone"
        return found

    def list_jobs(self, **fields: Any) -> Page:
        return self.call(self.driver.list_jobs(JobFilter(**fields)))

    def groups(self, **fields: Any) -> list[DeadGroup]:
        return self.call(self.driver.groups(GroupFilter(**fields)))

    def kill(self, error: Failure | None = None, **fields: Any) -> JobRecord:
        """A job that died of this error."""
        queue = fields.pop("queue", None) or self.new_queue()
        job_id = self.add(queue=queue, **fields)
        died = self.outcome(self.take(queue), JobState.DEAD)
        if error is not None:
            died = msgspec.structs.replace(died, error=error)
        assert self.finish(died) == [Answer.TOOK]
        return self.get(job_id)

    def counts(self, cap: int = 10_000) -> Mapping[JobState, int]:
        return self.call(self.driver.counts(cap=cap))

    def queues(self, cap: int | None = None) -> list[QueueInfo]:
        return self.call(self.driver.queues(cap=cap))

    def sessions(self, *, is_ended_too: bool = False) -> list[SessionInfo]:
        return self.call(self.driver.sessions(is_ended_too=is_ended_too))

    def session_info(self, session: str) -> SessionInfo:
        return next(info for info in self.sessions(is_ended_too=True) if info.id == session)

    def explain(self, job_id: str) -> Facts:
        facts = self.call(self.driver.explain(job_id, now=self.now))
        assert facts is not None
        return facts

    def events(self, after: int = 0, limit: int = 10_000) -> list[Event]:
        return self.call(self.driver.events(after=after, limit=limit))


class _Driven(AbstractContextManager[object]):
    """An async context manager entered and left from sync code, on the bench's own event loop."""

    def __init__(self, runner: asyncio.Runner, context: AbstractAsyncContextManager[object]) -> None:
        self._runner = runner
        self._context = context

    def __enter__(self) -> object:
        async def enter() -> object:
            return await self._context.__aenter__()

        return self._runner.run(enter())

    def __exit__(self, *error: Any) -> bool | None:
        async def leave() -> bool | None:
            return await self._context.__aexit__(*error)

        return self._runner.run(leave())
