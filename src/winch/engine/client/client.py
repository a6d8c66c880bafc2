"""The client: enqueue, look, act. No loops of its own; each operation is written once for both doors."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from winch.core.errors import (
    ConfigError,
    DuplicateJob,
    EnqueueUncertain,
    StorageError,
    StorageUnavailable,
    WinchError,
)
from winch.core.job import Claim, JobRecord
from winch.core.lifecycle import JobState
from winch.core.policy.unique import Duplicate
from winch.core.values import codec
from winch.core.values.clock import Clock
from winch.core.values.duration import Duration, parse_duration
from winch.core.values.ids import RUN, job_id, job_ids
from winch.engine.base import operation, search_index
from winch.engine.base.encryption import revealed
from winch.engine.base.log import log
from winch.engine.base.operation import Blocking, OnConnection, Operation, Pause
from winch.engine.client import operations
from winch.engine.client.backpressure import Door
from winch.engine.client.ids import entropy
from winch.engine.client.job import Job
from winch.engine.client.spool import Spool
from winch.engine.tasks.events import JobEvent
from winch.engine.tasks.results import typed
from winch.engine.tasks.runtime import Runtime
from winch.engine.tasks.task import Bound, check_call, check_whole
from winch.engine.tasks.transaction import Statements
from winch.storage.params import Enqueued, JobFilter, KvRecord, NewJob
from winch.storage.protocol import Driver
from winch.storage.verbs import Sending

if TYPE_CHECKING:
    from winch.engine.client.coalesce import Joining

T = TypeVar("T")
R = TypeVar("R")

_Written = tuple[Sequence[NewJob], Sending[list[Enqueued]]]
_Stored = tuple[Sequence[NewJob], Sequence[Enqueued]]

CHUNK = 1000
# The first of several chunks is short, so that the store has work early.
FIRST_CHUNK = 250
# Store down at enqueue: about two seconds of trying, then the caller decides.
ENQUEUE_PAUSES = (0.05, 0.15, 0.3, 0.6, 1.0)


@dataclass(frozen=True)
class Surroundings:
    """Where a client's time and randomness come from, and how it waits; tests bring their own."""

    clock: Clock
    entropy: Callable[[int], bytes] = entropy
    run: operation.Run = operation.run
    arun: operation.ARun = operation.arun


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
    ) -> None:
        """`driver` gives the driver of a store that was looked at; `unchecked` gives it without a look,
        and whether there has been one: an enqueue must get as far as its retries."""
        self._driver = driver
        self._unchecked = unchecked or (lambda: (driver(), True))
        self._spool = spool
        self._runtime = runtime
        self._door = Door(surroundings.clock.monotonic)
        self._around = surroundings
        # The driver, once it is known that a plain enqueue needs nothing but that.
        self._short_way: Driver | None = None
        self.last_tick: int = 0
        # Ids drawn by one client take the places in turn, so that all of them get the same share.
        self.next_place: int | None = None
        self._joining: Joining | None = None

    @property
    def surroundings(self) -> Surroundings:
        return self._around

    @surroundings.setter
    def surroundings(self, around: Surroundings) -> None:
        """Tests bring others for a while, and a store with them."""
        self._around = around
        self._door.monotonic = around.clock.monotonic
        self._short_way = None

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
        around = self._around
        tick = int(around.clock.time() * 4_096_000)
        if tick <= self.last_tick:
            tick = self.last_tick + 1
        self.last_tick = tick
        random = around.entropy(8)
        place = random[0] if self.next_place is None else self.next_place
        self.next_place = place + 1
        return job_id(tick, random, place)

    def draw_ids(self, count: int) -> list[str]:
        """So many ids, each greater than the one before it."""
        tick = max(int(self.surroundings.clock.time() * 4_096_000), self.last_tick + 1)
        self.last_tick = tick + count - 1
        random = self.surroundings.entropy(8 * count)
        place = self.next_place
        if place is None:
            place = random[0] if random else 0
        self.next_place = place + -(-count // RUN)
        return job_ids(tick, random, place)

    # -- enqueue -----------------------------------------------------------------------------------

    def enqueue(self, bound: Bound[R]) -> Job[R]:
        driver = self._short_way or self._found_short_way()
        if (
            driver is None
            or bound.task.is_asked_first
            or bound.options.conn is not None
            or self._runtime.middleware
        ):
            return self._around.run(self._unchecked()[0], self._enqueue_one(bound))
        # What most callers wait for, with as few calls as can be: between two waits for a store Python
        # runs with cold caches, three times slower than in a loop.
        jobs = [bound.new_job(self.draw_id())]
        if not self._door.is_open(jobs):
            [answer] = operation.run(driver, self._through_door(jobs, None))
            return self._handle(answer)
        try:
            answers = driver.run(driver.enqueue(jobs))
        except StorageUnavailable as error:
            answers = operation.run(driver, self._send(jobs, error))
        [answer] = answers
        if not answer.is_new:
            _raise_duplicate(jobs, answers)
        if self._runtime.counted is not None or self._runtime.events.is_heard:
            self._tell_enqueued(jobs, answers)
        return Job(self, answer.id) if answer.is_new else self._handle(answer)

    def _found_short_way(self) -> Driver | None:
        """The driver of a store that was looked at, where jobs go as they are made. Settings, which
        tell about keys and the spool, do not change once there is a driver."""
        driver, is_checked = self._unchecked()
        if (
            self._around.run is operation.run
            and is_checked
            and self._spool() is None
            and self._runtime.keys() is None
        ):
            self._short_way = driver
        return self._short_way

    async def aenqueue(self, bound: Bound[R]) -> Job[R]:
        conn = bound.options.conn
        if bound.task.options.enqueue_rate is not None:
            op = self._accepted([bound], conn)
            await self.surroundings.arun(self._unchecked()[0], op)
        new = bound.new_job(self.draw_id())
        if conn is not None or new.is_given_id or new.unique_key is not None:
            # On the caller's own connection, or to be refused or answered as a call of its own.
            [answer] = await self.surroundings.arun(self._unchecked()[0], self.store([new], conn))
        else:
            prepared = self._prepared([new])
            try:
                answer = await self._join_if_room(prepared)
            except BaseException as error:
                self._tell_hooks(prepared, error)
                raise
            self._tell_hooks(prepared, None)
        return self._handle(answer)

    async def _join_if_room(self, prepared: Sequence[NewJob]) -> Enqueued:
        if not self._door.is_open(prepared):
            op = self._admitted(prepared)
            [admitted] = await self.surroundings.arun(self._unchecked()[0], op)
            if admitted is None:
                return Enqueued(prepared[0].id, is_new=False, is_shed=True)
            prepared = [admitted]
        answer = await self._join(prepared[0])
        self._tell_enqueued(prepared, [answer])
        return answer

    async def _join(self, new: NewJob) -> Enqueued:
        if self._joining is None:
            from winch.engine.client.coalesce import (
                Joining,  # asyncio, which a synchronous producer never needs
            )

            async def send(jobs: Sequence[NewJob]) -> list[Enqueued]:
                return await self.surroundings.arun(self._unchecked()[0], self._send(jobs))

            self._joining = Joining(send)
        return await self._joining.store(new)

    def enqueue_many(self, calls: Iterable[Bound[Any]], conn: object = None) -> list[Job[Any]]:
        run = self.surroundings.run
        if run is not operation.run or conn is not None or self._runtime.middleware:
            return run(self._unchecked()[0], self._enqueue_many(calls, conn))
        return self._enqueue_ahead(calls)

    def _enqueue_ahead(self, calls: Iterable[Bound[Any]]) -> list[Job[Any]]:
        """`enqueue_many` of who waits for it: while the store works on a chunk, the next is written. It
        is sent when the one before it is stored, so a chunk that fails is the last that was tried."""
        handles: list[Job[Any]] = []
        under_way: _Written | None = None
        try:
            for chunk in self._call_chunks(calls, CHUNK, FIRST_CHUNK):
                ids = self.draw_ids(len(chunk))
                written = self._written(chunk, ids)
                stored: _Stored | None = None
                if under_way is not None:
                    before, under_way = under_way, None
                    stored = self._stored_ahead(*before)
                if written is not None:
                    written[1].send()
                    under_way = written
                if stored is not None:  # not before the next one is on its way
                    handles += self._told_ahead(*stored)
                if written is None:
                    op = self._enqueue_chunk(chunk, ids, None)
                    handles += operation.run(self._unchecked()[0], op)
        finally:  # also where a call is wrong: what was sent before it is stored
            if under_way is not None:
                handles += self._told_ahead(*self._stored_ahead(*under_way))
        return handles

    def _written(self, chunk: Sequence[Bound[Any]], ids: Sequence[str]) -> _Written | None:
        """The chunk as it is sent; None where there is more to it than one verb."""
        driver, is_checked = self._unchecked()
        if (
            not is_checked
            or self._spool() is not None
            or any(bound.task.is_asked_first for bound in chunk)
        ):
            return None
        jobs = self._sealed(_new_jobs(chunk, ids))
        return (jobs, driver.sending(driver.enqueue(jobs))) if self._door.is_open(jobs) else None

    def _stored_ahead(self, jobs: Sequence[NewJob], sending: Sending[list[Enqueued]]) -> _Stored:
        try:
            answers = sending.answer()
        except StorageUnavailable as error:
            answers = operation.run(self._unchecked()[0], self._send(jobs, error))
        else:
            _raise_duplicate(jobs, answers)
        return jobs, answers

    def _told_ahead(self, jobs: Sequence[NewJob], answers: Sequence[Enqueued]) -> list[Job[Any]]:
        self._tell_enqueued(jobs, answers)
        return self.handles(answers)

    async def aenqueue_many(self, calls: Iterable[Bound[Any]], conn: object = None) -> list[Job[Any]]:
        return await self.surroundings.arun(self._unchecked()[0], self._enqueue_many(calls, conn))

    def _enqueue_one(self, bound: Bound[R]) -> Operation[Job[R]]:
        if bound.task.options.enqueue_rate is not None:
            yield from self._accepted([bound], bound.options.conn)
        new = bound.new_job(self.draw_id())
        [answer] = yield from self.store([new], bound.options.conn)
        return self._handle(answer)

    def _accepted(self, bounds: Sequence[Bound[Any]], conn: object) -> Operation[None]:
        """Take the calls from the rates at which their tasks may be enqueued; raises QueueFull."""
        from winch.engine.client.enqueue_rate import accepted

        driver, is_checked = self._unchecked()
        if not is_checked:
            yield Blocking(self._driver)
        now = self.surroundings.clock.now()
        yield from accepted(driver, bounds, now, is_apart=conn is not None)

    def _handle(self, answer: Enqueued) -> Job[Any]:
        job: Job[Any] = Job(self, answer.holder or answer.id, is_new=answer.is_new)
        job.is_shed = answer.is_shed
        return job

    def _enqueue_many(self, calls: Iterable[Bound[Any]], conn: object) -> Operation[list[Job[Any]]]:
        handles: list[Job[Any]] = []
        for chunk in self._call_chunks(calls, CHUNK):
            handles += yield from self._enqueue_chunk(chunk, self.draw_ids(len(chunk)), conn)
        return handles

    def _enqueue_chunk(
        self, chunk: Sequence[Bound[Any]], ids: Sequence[str], conn: object
    ) -> Operation[list[Job[Any]]]:
        if any(bound.task.options.enqueue_rate is not None for bound in chunk):
            yield from self._accepted(chunk, conn)
        return self.handles((yield from self.store(_new_jobs(chunk, ids), conn)))

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

    def handles(self, answers: Sequence[Enqueued]) -> list[Job[Any]]:
        """The handles of jobs that an enqueue has answered for."""
        return [Job(self, answer.id) if answer.is_new else self._handle(answer) for answer in answers]

    def store(self, jobs: Sequence[NewJob], conn: object) -> Operation[list[Enqueued]]:
        """Store the jobs, trying again with the same ids while the store is out of reach."""
        jobs = self._prepared(jobs)
        return (yield from self.told(jobs, self._through_door(jobs, conn)))

    def told(self, jobs: Sequence[NewJob], storing: Operation[T]) -> Operation[T]:
        """Store `prepared` jobs, and tell the hooks how it went."""
        if not self._runtime.middleware:
            return (yield from storing)
        try:
            answer = yield from storing
        except BaseException as error:
            self._tell_hooks(jobs, error)
            raise
        self._tell_hooks(jobs, None)
        return answer

    def _tell_hooks(self, jobs: Sequence[NewJob], error: BaseException | None) -> None:
        for middleware in reversed(self._runtime.middleware):
            middleware.stored(jobs, error)

    def _through_door(self, jobs: Sequence[NewJob], conn: object) -> Operation[list[Enqueued]]:
        if self._door.is_open(jobs):
            return (yield from self._stored(jobs, conn))
        admitted = yield from self._admitted(jobs, is_apart=conn is not None)
        kept = [job for job in admitted if job is not None]
        stored = iter((yield from self._stored(kept, conn)) if kept else ())
        return [
            Enqueued(job.id, is_new=False, is_shed=True) if one is None else next(stored)
            for job, one in zip(jobs, admitted, strict=True)
        ]

    def _admitted(
        self, jobs: Sequence[NewJob], *, is_apart: bool = False
    ) -> Operation[list[NewJob | None]]:
        """The jobs that their queues have room for. Asked on a connection of our own, also for a
        caller's transaction, which a refused question must not spoil."""
        driver, is_checked = self._unchecked()
        if not is_checked:
            try:
                yield Blocking(self._driver)
            except StorageError:
                return list(jobs)  # the enqueue itself will say so, when it has tried long enough
        return (yield from self._door.admit(driver, jobs, is_apart=is_apart))

    def _stored(self, jobs: Sequence[NewJob], conn: object) -> Operation[list[Enqueued]]:
        if isinstance(conn, Statements):
            conn = conn.connection
        if conn is not None:
            yield from self.index(jobs, conn)
            answers: list[Enqueued] = yield OnConnection(conn, self._driver().enqueue(jobs))
            _raise_duplicate(jobs, answers)
            yield from self._index_replaced(jobs, answers, conn)
            return answers
        answers = yield from self._send(jobs)
        self._tell_enqueued(jobs, answers)
        return answers

    def _prepared(self, jobs: Sequence[NewJob]) -> Sequence[NewJob]:
        """The jobs as the hooks leave them and as they are stored."""
        for middleware in self._runtime.middleware:
            jobs = middleware.enqueue_all(jobs)
        return self._sealed(jobs)

    def _send(
        self, jobs: Sequence[NewJob], failed: StorageUnavailable | None = None
    ) -> Operation[list[Enqueued]]:
        """Store the jobs; `failed`: how the first try has ended."""
        is_uncertain = False
        for pause in (*ENQUEUE_PAUSES, None):
            try:
                if failed is not None:
                    first, failed = failed, None
                    raise first
                driver, is_checked = self._unchecked()
                if not is_checked:
                    yield Blocking(self._driver)
                yield from self._forward_members(driver, jobs)
                yield from self.index(jobs)
                answers: list[Enqueued] = yield driver.enqueue(jobs, is_repeat=is_uncertain)
            except StorageUnavailable as error:
                is_uncertain = is_uncertain or error.maybe_applied
                if pause is not None:
                    yield Pause(pause)
                    continue
                if (spool := self._spool()) is not None:
                    return (yield from self._spooled(spool, jobs, error))
                if is_uncertain:
                    raise EnqueueUncertain(
                        "the store went away while the jobs were being stored; they may or may not "
                        "be there. Enqueue again with the same id to be sure of exactly one",
                        [job.id for job in jobs],
                    ) from error
                raise
            else:
                _raise_duplicate(jobs, answers)
                yield from self._index_replaced(jobs, answers)
                yield from self._forward_own(driver)
                return answers
        raise AssertionError("unreachable")  # pragma: no cover  # the last round returns or raises

    def _spooled(
        self, spool: Spool, jobs: Sequence[NewJob], error: StorageUnavailable
    ) -> Operation[list[Enqueued]]:
        """Keep the jobs on this machine's disk; the store takes each of them once, later."""
        try:
            yield Blocking(lambda: spool.append(tuple(jobs)))
        except OSError as full:
            raise EnqueueUncertain(
                f"the store is out of reach ({error}) and the spool {spool.path} cannot be written: "
                f"{full}",
                [job.id for job in jobs],
            ) from error
        log.warning(
            "the store is out of reach; %d jobs are kept in %s: %s", len(jobs), spool.path, error
        )
        return [Enqueued(job.id, is_new=True) for job in jobs]

    def _forward_members(self, driver: Driver, jobs: Sequence[NewJob]) -> Operation[None]:
        """A member of a FIFO key comes after those that this process has spooled before it."""
        spool = self._spool()
        if spool is not None and spool.has_waiting and any(job.fifo is not None for job in jobs):
            yield from self._forward_own(driver)

    def _forward_own(self, driver: Driver) -> Operation[None]:
        """The store answers again: hand it what this process has spooled."""
        spool = self._spool()
        if spool is None or not spool.has_waiting:
            return
        try:
            yield from spool.forward(driver)
        except (WinchError, OSError) as error:  # the enqueue itself has worked
            log.warning("the spool %s is not forwarded yet: %s", spool.path, error)

    def forward_spool(self) -> Operation[int]:
        """Hand what is spooled to the store; returns how many jobs."""
        spool = self._spool()
        if spool is None:
            raise ConfigError("there is no spool to forward; name one with App(spool=…) or WINCH_SPOOL")
        return (yield from spool.forward(self._driver()))

    def _sealed(self, jobs: Sequence[NewJob]) -> Sequence[NewJob]:
        """The jobs as they are stored: the last thing done to them, after middleware has seen them."""
        keys = self._runtime.keys()
        if keys is None:
            return jobs
        return [
            msgspec.structs.replace(
                job,
                args=keys.seal(job.args, job=job.id, task=job.task, field="args"),
                terms=search_index.sealed(keys, job.terms),
            )
            for job in jobs
        ]

    def index(self, jobs: Sequence[NewJob], conn: object = None) -> Operation[None]:
        """Write down what the jobs are found under, before they are stored."""
        yield from self._keep(search_index.lines_of_all(jobs, self.surroundings.clock.now()), conn)

    def _index_replaced(
        self, jobs: Sequence[NewJob], answers: Sequence[Enqueued], conn: object = None
    ) -> Operation[None]:
        now = self.surroundings.clock.now()
        yield from self._keep(search_index.lines_of_replaced(jobs, answers, now), conn)

    def _keep(self, lines: Sequence[KvRecord], conn: object) -> Operation[None]:
        if lines:
            verb = self._driver().kv_put(lines)
            yield verb if conn is None else OnConnection(conn, verb)

    def _tell_enqueued(self, jobs: Sequence[NewJob], answers: Sequence[Enqueued]) -> None:
        if (counted := self._runtime.counted) is not None:
            stored = (job for job, answer in zip(jobs, answers, strict=True) if answer.is_new)
            counted.update((job.queue, job.task) for job in stored)
        events = self._runtime.events
        if events.wants("enqueued"):
            for job, answer in zip(jobs, answers, strict=True):
                if not answer.is_duplicate:
                    events.tell(JobEvent(kind="enqueued", job_id=job.id, task=job.task, queue=job.queue))

    def driver(self) -> Driver:
        """The driver of the store, looked at before."""
        return self._driver()

    def prepared(self, jobs: Sequence[NewJob]) -> Sequence[NewJob]:
        """The jobs as the hooks leave them and as they are stored."""
        return self._prepared(jobs)

    def marked(self, jobs: Sequence[NewJob], conn: object) -> Operation[Sequence[NewJob]]:
        """Members of a flow as the settings of their queues make them."""
        return (yield from self._door.mark(self._driver(), jobs, is_apart=conn is not None))

    def store_prepared(self, jobs: Sequence[NewJob]) -> Operation[list[Enqueued]]:
        """Store jobs that are `prepared`, trying again while the store is out of reach."""
        answers = yield from self._send(jobs)
        self._tell_enqueued(jobs, answers)
        return answers

    def handle(self, job_id: str) -> Job[Any]:
        """The handle of a job that was enqueued before; asks the store for nothing."""
        return Job(self, job_id)

    # -- signals -----------------------------------------------------------------------------------

    def signal(self, name: str, payload: object, id: str | None, conn: object) -> Operation[bool]:
        """Keep a signal for whoever waits for it; False: one with this id was there before."""
        codec.check_tree(name, "the name of a signal")
        if not name.strip() or len(name) > codec.MAX_NAME_CHARS:
            raise ConfigError(
                f"the name of a signal must have 1 to {codec.MAX_NAME_CHARS} characters, got {name!r}"
            )
        if id is not None and not 0 < len(id) <= codec.MAX_NAME_CHARS:
            raise ConfigError(f"the id of a signal must have 1 to {codec.MAX_NAME_CHARS} characters")
        text = codec.dumps(payload, what="the payload of a signal")
        known_id = self.draw_id() if id is None else id
        if isinstance(conn, Statements):
            conn = conn.connection
        if conn is not None:
            sent = yield OnConnection(conn, self._driver().signal(name, text, id=known_id))
            return bool(sent.is_new)
        is_repeat = False
        for pause in (*ENQUEUE_PAUSES, None):
            try:
                sent = yield self._driver().signal(name, text, id=known_id)
            except StorageUnavailable as error:
                if pause is None:
                    raise
                is_repeat = is_repeat or error.maybe_applied
                yield Pause(pause)
            else:
                # A first try whose answer was lost has stored it: it is as new as the caller thinks.
                return bool(sent.is_new) or is_repeat
        raise AssertionError("unreachable")  # pragma: no cover  # the last round returns or raises

    # -- one job -----------------------------------------------------------------------------------

    def get(self, job_id: str) -> JobRecord:
        return self.run(operations.get(self._driver(), job_id))

    async def aget(self, job_id: str) -> JobRecord:
        return await self.arun(operations.get(self._driver(), job_id))

    def revealed(self, record: JobRecord) -> JobRecord:
        """The record with what is encrypted in it opened, as far as the app has the keys."""
        return revealed(self._runtime.keys(), record)

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
        """A job's plain result as its task's annotation says; plain where the task is not known here."""
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
        return self.run(operations.why(self._driver(), job_id))

    async def awhy(self, job_id: str) -> str:
        return await self.arun(operations.why(self._driver(), job_id))

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
                events.tell(
                    JobEvent(
                        kind="cancelled",
                        job_id=job.id,
                        task=job.task,
                        queue=job.queue,
                        attempt=job.attempt,
                        reason=job.reason,
                    )
                )
        return before

    def tell_progress(self, claim: Claim, percent: float, message: str | None) -> None:
        """Tell the subscribers in this process how far a running job is."""
        if self._runtime.events.wants("progress"):
            self._runtime.events.tell(
                JobEvent(
                    kind="progress",
                    job_id=claim.id,
                    task=claim.task,
                    queue=claim.queue,
                    attempt=claim.attempt,
                    percent=percent,
                    reason=message,
                )
            )

    def retry(self, job_id: str, *, by: str | None = None) -> JobState:
        return self.run(operations.retry(self._driver(), job_id, by))

    async def aretry(self, job_id: str, *, by: str | None = None) -> JobState:
        return await self.arun(operations.retry(self._driver(), job_id, by))

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


def _new_jobs(chunk: Sequence[Bound[Any]], ids: Sequence[str]) -> list[NewJob]:
    return [bound.new_job(drawn) for bound, drawn in zip(chunk, ids, strict=True)]


def _raise_duplicate(jobs: Sequence[NewJob], answers: Sequence[Enqueued]) -> None:
    """Raise where a held key kept the call from being stored; the store has left nothing of it."""
    for answer in answers:
        if answer.holder is not None:
            break
    else:
        return
    for job, answer in zip(jobs, answers, strict=True):
        if answer.holder is None or answer.is_replaced or job.on_duplicate is Duplicate.RETURN:
            continue
        words = (
            "cannot be replaced: it does not wait any more"
            if job.on_duplicate in (Duplicate.REPLACE, Duplicate.DEBOUNCE)
            else "holds it"
        )
        raise DuplicateJob(
            f"unique key {job.unique_key!r}: job {answer.holder} {words}; nothing was enqueued",
            existing=answer.holder,
        )


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
