"""The client: enqueue, look, act. Each operation is written once, for sync and async callers."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from winch.core.errors import (
    ConfigError,
    StorageUnavailable,
)
from winch.core.job import Claim, JobRecord
from winch.core.lifecycle import JobState
from winch.core.values import codec
from winch.core.values.clock import Clock
from winch.core.values.duration import Duration, parse_duration
from winch.core.values.ids import JobIds
from winch.engine.base import operation
from winch.engine.base.encryption import revealed
from winch.engine.base.operation import Blocking, OnConnection, Operation, until_answered
from winch.engine.base.step_pages import with_pages
from winch.engine.client import operations
from winch.engine.client.job import Job
from winch.engine.client.needs import START
from winch.engine.client.spool import Spool
from winch.engine.client.writer import JobWriter, as_stored, raise_duplicate
from winch.engine.tasks.results import typed
from winch.engine.tasks.runtime import Runtime
from winch.engine.tasks.task import Bound, check_call, check_whole
from winch.engine.tasks.transaction import Statements
from winch.storage.decide.waits import Sent
from winch.storage.fast import is_fast
from winch.storage.params import Enqueued, JobFilter, NewJob
from winch.storage.protocol import Driver

T = TypeVar("T")
R = TypeVar("R")

CHUNK = 1000


@dataclass(frozen=True)
class Surroundings:
    """Where a client's time and randomness come from, and how it waits; tests bring their own."""

    clock: Clock
    random_bytes: Callable[[int], bytes] = os.urandom
    run: operation.RunOperation = operation.run
    arun: operation.ARunOperation = operation.arun


class Client:
    """Everything an application asks of the store."""

    def __init__(
        self,
        driver: Callable[[], Driver],
        surroundings: Surroundings,
        runtime: Runtime,
        *,
        unchecked: Callable[[], tuple[Driver, bool]] | None = None,
        spool: Callable[[], Spool | None] = lambda: None,
        start_worker: Callable[[], str] = lambda: START,
    ) -> None:
        """`driver` gives the driver of a store that was looked at; `unchecked` gives it without a look,
        and whether there has been one: an enqueue must get as far as its retries.
        `start_worker`: how people start a worker of this app, for messages."""
        self.start_worker = start_worker
        self._driver = driver
        self._unchecked = unchecked or (lambda: (driver(), True))
        self._spool = spool
        self._runtime = runtime
        self._is_fast = is_fast()
        self._direct: Driver | None = None
        self.surroundings: Surroundings = surroundings
        self.ids: JobIds = JobIds(surroundings.clock.time, surroundings.random_bytes)
        self.writer: JobWriter = JobWriter(
            driver, self._unchecked, spool, runtime, surroundings.clock, lambda: self.ids
        )

    def use(self, surroundings: Surroundings) -> None:
        """Take time, randomness and waits from here; tests bring others for a while."""
        self.surroundings = surroundings
        self.writer.use_clock(surroundings.clock)
        self._direct = None

    def run(self, op: Operation[T]) -> T:
        return self.surroundings.run(self._driver(), op)

    async def arun(self, op: Operation[T]) -> T:
        driver, is_checked = self._unchecked()
        if not is_checked:  # the first look at a store waits for a server or a disk
            import asyncio

            driver = await asyncio.to_thread(self._driver)
        return await self.surroundings.arun(driver, op)

    def draw_id(self) -> str:
        """An id greater than the one before it, so that jobs enqueued together keep their order."""
        return self.ids.draw()

    # -- enqueue -----------------------------------------------------------------------------------

    def enqueue(self, bound: Bound[R]) -> Job[R]:
        """Store one job. A plain job is one call of the driver. Any other takes the operation
        `_enqueue_one`, which must do the same, and does what else a job may need."""
        driver = self._direct or self._find_direct()
        if (
            driver is None
            or bound.task.is_asked_first
            or bound.options.conn is not None
            or self._runtime.middleware
            or self.surroundings.clock.monotonic() >= self.writer.admission.open_until
        ):
            return self.surroundings.run(self._unchecked()[0], self._enqueue_one(bound))
        jobs = [bound.lone_job(self.ids.draw())]
        try:
            answers = driver.run(driver.enqueue(jobs))
        except StorageUnavailable as error:
            answers = operation.run(driver, self.writer.send(jobs, error))
        [answer] = answers
        if not answer.is_new:
            raise_duplicate(jobs, answers)
        if self._runtime.events.is_heard:
            self.writer.count_stored(jobs, answers)
        elif (counted := self._runtime.counted) is not None and answer.is_new:
            # By `update`, in one step of the interpreter: the worker's loop takes counts away meanwhile.
            counted.update([(jobs[0].queue, jobs[0].task)])
        return Job(self, answer.id, _stored=answer) if answer.is_new else self.handle_of(answer)

    def _find_direct(self) -> Driver | None:
        """The driver of a checked store to which jobs go as they are made: it saves a third of a
        producer's CPU time on Redis. Settings, which name the keys and the spool, do not change once
        there is a driver. None with `WINCH_FAST=off`: every job takes the operation."""
        driver, is_checked = self._unchecked()
        if (
            self._is_fast
            and is_checked
            and self.surroundings.run is operation.run
            and self._spool() is None
            and self._runtime.keys() is None
        ):
            self._direct = driver
        return self._direct

    async def aenqueue(self, bound: Bound[R]) -> Job[R]:
        return await self.surroundings.arun(self._unchecked()[0], self._enqueue_one(bound))

    def enqueue_many(self, calls: Iterable[Bound[Any]], conn: object = None) -> list[Job[Any]]:
        return self.surroundings.run(self._unchecked()[0], self._enqueue_many(calls, conn))

    async def aenqueue_many(self, calls: Iterable[Bound[Any]], conn: object = None) -> list[Job[Any]]:
        return await self.surroundings.arun(self._unchecked()[0], self._enqueue_many(calls, conn))

    def _enqueue_one(self, bound: Bound[R]) -> Operation[Job[R]]:
        if bound.task.options.enqueue_rate is not None:
            yield from self._accepted([bound], bound.options.conn)
        new = bound.lone_job(self.ids.draw())
        [answer] = yield from self.writer.store([new], bound.options.conn)
        return self.handle_of(answer)

    def _accepted(self, bounds: Sequence[Bound[Any]], conn: object) -> Operation[None]:
        """Take the calls from the rates at which their tasks may be enqueued; raises QueueFull."""
        from winch.engine.client.enqueue_rate import accepted

        driver, is_checked = self._unchecked()
        if not is_checked:
            yield Blocking(self._driver)
        now = self.surroundings.clock.now()
        yield from accepted(driver, bounds, now, is_apart=conn is not None)

    def handle_of(self, answer: Enqueued) -> Job[Any]:
        """The handle of a job that an enqueue has answered for."""
        job: Job[Any] = Job(self, answer.holder or answer.id, is_new=answer.is_new, _stored=answer)
        job.is_shed = answer.is_shed
        return job

    def _enqueue_many(self, calls: Iterable[Bound[Any]], conn: object) -> Operation[list[Job[Any]]]:
        handles: list[Job[Any]] = []
        for chunk in self._call_chunks(calls, CHUNK):
            handles += yield from self._enqueue_chunk(chunk, self.ids.draw_many(len(chunk)), conn)
        return handles

    def _enqueue_chunk(
        self, chunk: Sequence[Bound[Any]], ids: Sequence[str], conn: object
    ) -> Operation[list[Job[Any]]]:
        if any(bound.task.options.enqueue_rate is not None for bound in chunk):
            yield from self._accepted(chunk, conn)
        return self.stored_handles((yield from self.writer.store(new_jobs(chunk, ids), conn)))

    def _call_chunks(
        self, calls: Iterable[Bound[Any]], size: int, first: int | None = None
    ) -> Iterator[list[Bound[Any]]]:
        """The calls by so many, each chunk checked before any of it is stored."""
        for chunk in _chunks(_iterable(calls), size, first):
            for call in chunk:
                if type(call) is not Bound or call.task.client is not self:
                    check_call(call, self, "enqueue_many")
                    check_whole(call, "enqueue_many")
                if call.options.conn is not None:
                    raise ConfigError(
                        f"enqueue_many: the call of {call.task.name} has a conn= of its own; pass conn= "
                        "to enqueue_many, for all of its calls"
                    )
            yield chunk

    def stored_handles(self, answers: Sequence[Enqueued]) -> list[Job[Any]]:
        """The handles of jobs as the verb `enqueue` has answered for them."""
        return [
            Job(self, answer.id, _stored=answer) if answer.is_new else self.handle_of(answer)
            for answer in answers
        ]

    def handles(self, answers: Sequence[Enqueued]) -> list[Job[Any]]:
        """The handles of jobs of a flow: some of them have become blocked since they were stored."""
        return [Job(self, answer.id) if answer.is_new else self.handle_of(answer) for answer in answers]

    def driver(self) -> Driver:
        """The driver of the store, looked at before."""
        return self._driver()

    def store(self, jobs: Sequence[NewJob], conn: object) -> Operation[list[Enqueued]]:
        """Store the jobs, trying again with the same ids while the store is out of reach."""
        return (yield from self.writer.store(jobs, conn))

    async def astore_one(self, job: NewJob) -> tuple[NewJob, Enqueued]:
        """Store this job; returns it as it is stored, and the answer."""
        prepared = self.writer.prepared([job])
        storing = self.writer.admit_and_send(prepared, None)
        with_hooks = self.writer.with_hooks(
            prepared, storing, lambda answers: as_stored(prepared, answers)
        )
        answers = await self.arun(with_hooks)
        [stored] = as_stored(prepared, answers)
        return stored, answers[0]

    def forward_spool(self) -> Operation[int]:
        """Hand what is spooled to the store; returns how many jobs."""
        return (yield from self.writer.forward_spool())

    def handle(self, job_id: str) -> Job[Any]:
        """The handle of a job that was enqueued before; asks the store for nothing."""
        return Job(self, job_id)

    # -- signals -----------------------------------------------------------------------------------

    def signal(self, name: str, payload: object, id: str | None, conn: object) -> Operation[bool]:
        """Store a signal for the job that waits for it; False: one with this id was there before."""
        codec.check_tree(name, "the name of a signal")
        if not name.strip() or len(name) > codec.MAX_NAME_CHARS:
            raise ConfigError(
                f"the name of a signal must have 1 to {codec.MAX_NAME_CHARS} characters, got {name!r}"
            )
        if id is not None and not 0 < len(id) <= codec.MAX_NAME_CHARS:
            raise ConfigError(f"the id of a signal must have 1 to {codec.MAX_NAME_CHARS} characters")
        what = "the payload of a signal"
        text = codec.dumps(payload, what=what)
        codec.check_kept(payload, codec.loads(text, what=what), what, has_type=False)
        known_id = self.ids.draw() if id is None else id
        if isinstance(conn, Statements):
            conn = conn.connection
        if conn is not None:
            sent = yield OnConnection(conn, self._driver().signal(name, text, id=known_id))
            return bool(sent.is_new)

        def send(is_repeat: bool) -> Operation[Sent]:
            found: Sent = yield self._driver().signal(name, text, id=known_id)
            return found

        sent, is_repeat = yield from until_answered(send)
        # A first try whose answer was lost has stored it: it is as new as the caller thinks.
        return sent.is_new or is_repeat

    # -- one job -----------------------------------------------------------------------------------

    def get(self, job_id: str) -> JobRecord:
        return self.run(operations.get(self._driver(), job_id))

    async def aget(self, job_id: str) -> JobRecord:
        return await self.arun(operations.get(self._driver(), job_id))

    def revealed(self, record: JobRecord) -> JobRecord:
        """The record with what is encrypted in it opened, as far as the app has the keys."""
        return revealed(self._runtime.keys(), record)

    def with_steps(self, record: JobRecord, *, reveal: bool) -> Operation[JobRecord]:
        """The record with all its steps in its checkpoint, also those in pages of their own."""
        keys = self._runtime.keys() if reveal else None
        return (yield from with_pages(self.driver(), keys, record))

    def result(self, job_id: str, timeout: Duration | None) -> tuple[JobRecord, Any]:
        """The job once it is final, and its result as plain JSON data."""
        return self.run(self._result(job_id, timeout))

    async def aresult(self, job_id: str, timeout: Duration | None) -> tuple[JobRecord, Any]:
        return await self.arun(self._result(job_id, timeout))

    def _result(self, job_id: str, timeout: Duration | None) -> Operation[tuple[JobRecord, Any]]:
        monotonic = self.surroundings.clock.monotonic
        record = yield from operations.ended(self._driver(), job_id, timeout, monotonic)
        return record, operations.result_of(record, self._runtime.keys())

    def typed(self, record: JobRecord, value: Any) -> Any:
        """A job's plain result in the type of its task's annotation; plain where the task is not known
        here."""
        if record.task not in self._runtime.tasks:
            return value
        return typed(self._runtime.tasks.get(record.task), value, record.id)

    def results(self, ids: Iterable[str], timeout: Duration | None) -> Operation[list[Any]]:
        """What the handlers of these jobs returned, in order; `timeout` is for all of them together."""
        driver, monotonic = self._driver(), self.surroundings.clock.monotonic
        limit = None if timeout is None else parse_duration(timeout, "timeout")
        began = monotonic()
        found: list[Any] = []
        for some in _chunks(ids, CHUNK):
            records: list[JobRecord | None] = yield driver.get(some)
            for one, record in zip(some, records, strict=True):
                end = record
                if end is None or not end.state.is_final:
                    left = None
                    if limit is not None:
                        left = max(limit - timedelta(seconds=monotonic() - began), timedelta(0))
                    end = yield from operations.ended(driver, one, left, monotonic)
                found.append(self.typed(end, operations.result_of(end, self._runtime.keys())))
        return found

    def why(self, job_id: str) -> str:
        return self.run(operations.why(self._driver(), job_id, self.start_worker()))

    async def awhy(self, job_id: str) -> str:
        return await self.arun(operations.why(self._driver(), job_id, self.start_worker()))

    # -- operators ---------------------------------------------------------------------------------

    def cancel(self, job_id: str, *, reason: str | None = None, by: str | None = None) -> JobState:
        return self.run(self.cancelling(job_id, reason, by))

    async def acancel(
        self, job_id: str, *, reason: str | None = None, by: str | None = None
    ) -> JobState:
        return await self.arun(self.cancelling(job_id, reason, by))

    def cancelling(self, job_id: str, reason: str | None, by: str | None) -> Operation[JobState]:
        """Cancel the job; subscribers hear of it where the store ends it at once. A running job ends in
        its worker, and its subscribers hear of it there."""
        before = yield from operations.cancel(self._driver(), job_id, reason, by)
        events = self._runtime.events
        if events.wants("cancelled") and before is not JobState.RUNNING:
            job = yield from operations.get(self._driver(), job_id)
            if job.state is JobState.CANCELLED:
                events.send("cancelled", job, reason=job.reason)
        return before

    def publish_progress(self, claim: Claim, percent: float, message: str | None) -> None:
        """Notify the subscribers in this process of a running job's progress."""
        self._runtime.events.send("progress", claim, percent=percent, reason=message)

    def retry(self, job_id: str, *, by: str | None = None, from_step: str | None = None) -> JobState:
        return self.run(self.retrying(job_id, by=by, from_step=from_step))

    async def aretry(
        self, job_id: str, *, by: str | None = None, from_step: str | None = None
    ) -> JobState:
        return await self.arun(self.retrying(job_id, by=by, from_step=from_step))

    def retrying(self, job_id: str, *, by: str | None, from_step: str | None) -> Operation[JobState]:
        keys = self._runtime.keys()
        return operations.retry(self._driver(), job_id, by, from_step=from_step, keys=keys)

    def delete(self, job_id: str, *, by: str | None = None) -> JobState:
        return self.run(operations.delete(self._driver(), job_id, by))

    async def adelete(self, job_id: str, *, by: str | None = None) -> JobState:
        return await self.arun(operations.delete(self._driver(), job_id, by))

    # -- lists -------------------------------------------------------------------------------------

    def page(self, which: JobFilter) -> Operation[tuple[list[Job[Any]], str | None]]:
        page = yield self._driver().list_jobs(which)
        return [Job(self, record.id, record) for record in page.jobs], page.next


def _iterable(calls: Iterable[T]) -> Iterable[T]:
    if isinstance(calls, Iterable):
        return calls
    raise ConfigError(
        f"enqueue_many takes an iterable of task.bind(…) calls, got a {type(calls).__name__}"
    )


def new_jobs(chunk: Sequence[Bound[Any]], ids: Sequence[str]) -> list[NewJob]:
    """The jobs to store for these calls."""
    return [bound.lone_job(drawn) for bound, drawn in zip(chunk, ids, strict=True)]


def _chunks(items: Iterable[T], size: int, first: int | None = None) -> Iterator[list[T]]:
    """The items by so many; where there is more than one chunk, `first` of them in the first one."""
    rest = iter(items)
    if first is not None:
        head = list(itertools.islice(rest, size + 1))
        if len(head) > size:
            yield head[:first]
            head = head[first:]
        rest = itertools.chain(head, rest)
    while chunk := list(itertools.islice(rest, size)):
        yield chunk
