"""From new jobs to stored ones: hooks, encryption, admission, retries, the spool, the search index.

store     hooks -> seal -> admission -> send           one enqueue, on its own connection or a caller's
send      store, and try again with the same ids while the store is out of reach; then the spool.
          Where only the place of a drawn id is out of reach, with another id
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Sequence
from typing import TypeVar

import msgspec

from winch.core.errors import (
    ConfigError,
    DuplicateJob,
    EnqueueUncertain,
    StorageError,
    StorageUnavailable,
    WinchError,
)
from winch.core.policy.unique import Duplicate
from winch.core.values.clock import Clock
from winch.core.values.ids import PLACES, JobIds
from winch.engine.base import search_index
from winch.engine.base.encryption import seal, unseal
from winch.engine.base.log import log
from winch.engine.base.operation import PAUSES, Blocking, OnConnection, Operation, Sleep
from winch.engine.client.backpressure import QueueAdmission
from winch.engine.client.spool import Spool
from winch.engine.tasks.events import JobEvent
from winch.engine.tasks.runtime import Runtime
from winch.engine.tasks.transaction import Statements
from winch.storage.kv_records import KvRecord
from winch.storage.params import Enqueued, NewJob
from winch.storage.placing import NotPlaced
from winch.storage.protocol import Driver

T = TypeVar("T")

ENQUEUE_PAUSES = PAUSES
# So many times jobs get ids of other places before the next pause.
REDRAWS = 8


class JobWriter:
    """Stores the new jobs of one client."""

    def __init__(
        self,
        driver: Callable[[], Driver],
        unchecked: Callable[[], tuple[Driver, bool]],
        spool: Callable[[], Spool | None],
        runtime: Runtime,
        clock: Clock,
        ids: Callable[[], JobIds],
    ) -> None:
        self._driver = driver
        self._ids = ids
        self._unchecked = unchecked
        self._spool = spool
        self._runtime = runtime
        self._clock = clock
        self.admission: QueueAdmission = QueueAdmission(clock.monotonic)

    def use_clock(self, clock: Clock) -> None:
        """Take the time from this clock from now on."""
        self._clock = clock
        self.admission.monotonic = clock.monotonic

    def store(self, jobs: Sequence[NewJob], conn: object) -> Operation[list[Enqueued]]:
        """Store the jobs, trying again with the same ids while the store is out of reach."""
        jobs = self.prepared(jobs)
        return (
            yield from self.with_hooks(
                jobs, self.admit_and_send(jobs, conn), lambda answers: as_stored(jobs, answers)
            )
        )

    def with_hooks(
        self,
        jobs: Sequence[NewJob],
        storing: Operation[T],
        stored: Callable[[T], Sequence[NewJob]] | None = None,
    ) -> Operation[T]:
        """Store `prepared` jobs by `storing`, then call the hooks with the result. `stored`: the jobs as
        the answer has them, where that may differ."""
        if not self._runtime.middleware:
            return (yield from storing)
        try:
            answer = yield from storing
        except BaseException as error:
            self.call_stored_hooks(jobs, error)
            raise
        self.call_stored_hooks(jobs if stored is None else stored(answer), None)
        return answer

    def call_stored_hooks(self, jobs: Sequence[NewJob], error: BaseException | None) -> None:
        """Call `stored` of every middleware, the last one first."""
        if self._runtime.middleware:
            self._runtime.run_hooks("stored", jobs, error)

    def admit_and_send(self, jobs: Sequence[NewJob], conn: object) -> Operation[list[Enqueued]]:
        if self.admission.is_open(jobs):
            return (yield from self._stored(jobs, conn))
        admitted = yield from self.admitted(jobs, is_apart=conn is not None)
        kept = [job for job in admitted if job is not None]
        stored = iter((yield from self._stored(kept, conn)) if kept else ())
        return [
            Enqueued(job.id, is_new=False, is_shed=True) if one is None else next(stored)
            for job, one in zip(jobs, admitted, strict=True)
        ]

    def admitted(
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
        return (yield from self.admission.admit(driver, jobs, is_apart=is_apart))

    def _stored(self, jobs: Sequence[NewJob], conn: object) -> Operation[list[Enqueued]]:
        if isinstance(conn, Statements):
            conn = conn.connection
        if conn is not None:
            yield from self.index(jobs, conn)
            answers: list[Enqueued] = yield OnConnection(conn, self._driver().enqueue(jobs))
            raise_duplicate(jobs, answers)
            yield from self._index_replaced(jobs, answers, conn)
            return answers
        answers = yield from self.send(jobs)
        self.count_stored(jobs, answers)
        return answers

    def prepared(self, jobs: Sequence[NewJob]) -> Sequence[NewJob]:
        """The jobs as the hooks leave them and as they are stored."""
        for middleware in self._runtime.middleware:
            jobs = middleware.enqueue_all(jobs)
        return self.sealed(jobs)

    def store_prepared(self, jobs: Sequence[NewJob]) -> Operation[list[Enqueued]]:
        """Store jobs that are `prepared`, trying again while the store is out of reach."""
        answers = yield from self.send(jobs)
        self.count_stored(jobs, answers)
        return answers

    def send(
        self, jobs: Sequence[NewJob], failed: StorageUnavailable | None = None
    ) -> Operation[list[Enqueued]]:
        """Store the jobs; `failed`: how the first try has ended. An answer has the id that its job is
        stored under: another one, where the store could not take the job under the first."""
        stored: dict[int, Enqueued] = {}
        is_uncertain = False
        pauses = [*ENQUEUE_PAUSES]
        redraws = REDRAWS
        while True:
            left = [index for index in range(len(jobs)) if index not in stored]
            some = [jobs[index] for index in left] if stored else jobs
            try:
                if failed is not None:
                    first, failed = failed, None
                    raise first
                driver, is_checked = self._unchecked()
                if not is_checked:
                    yield Blocking(self._driver)
                yield from self._forward_members(driver, some)
                yield from self.index(some)
                answers: list[Enqueued] = yield driver.enqueue(some, is_repeat=is_uncertain)
            except StorageUnavailable as error:
                if isinstance(error, NotPlaced):
                    stored |= {
                        index: answer
                        for index, answer in zip(left, error.answers, strict=True)
                        if answer is not None
                    }
                    jobs = self._redrawn(jobs, stored, error.unfit)
                    redraws -= 1
                    if redraws and len(error.unfit) < PLACES:
                        continue
                else:
                    is_uncertain = is_uncertain or error.maybe_applied
                if pauses:
                    redraws = REDRAWS
                    yield Sleep(pauses.pop(0))
                    continue
                if (spool := self._spool()) is not None:
                    left = [index for index in left if index not in stored]
                    kept = yield from self._spooled(spool, [jobs[index] for index in left], error)
                    stored |= zip(left, kept, strict=True)
                    return [stored[index] for index in range(len(jobs))]
                if is_uncertain or stored:
                    raise EnqueueUncertain(
                        "the store went away while the jobs were being stored; they may or may not "
                        "be there. Enqueue again with the same id to be sure of exactly one",
                        [job.id for job in jobs],
                    ) from error
                raise
            except EnqueueUncertain as error:
                if stored:
                    raise EnqueueUncertain(str(error), [job.id for job in jobs]) from error
                raise
            if stored:
                stored |= zip(left, answers, strict=True)
                answers = [stored[index] for index in range(len(jobs))]
            raise_duplicate(jobs, answers)
            yield from self._index_replaced(jobs, answers)
            yield from self._forward_own(driver)
            return answers

    def _redrawn(
        self, jobs: Sequence[NewJob], stored: Container[int], unfit: Collection[int]
    ) -> list[NewJob]:
        """The jobs with other ids for those that are not stored. Winch has drawn all of these."""
        ids = self._ids()
        ids.avoid(unfit)
        keys = self._runtime.keys()
        found = list(jobs)
        places = [index for index in range(len(jobs)) if index not in stored]
        for index, drawn in zip(places, ids.draw_many(len(places)), strict=True):
            job = jobs[index]
            # What is encrypted is bound to the id of its job.
            opened = unseal(keys, job.args, job=job.id, task=job.task, field="args")
            args = seal(keys, opened, job=drawn, task=job.task, field="args")
            found[index] = msgspec.structs.replace(job, id=drawn, args=args)
        return found

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

    def sealed(self, jobs: Sequence[NewJob]) -> Sequence[NewJob]:
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
        yield from self._keep(search_index.lines_of_all(jobs, self._clock.now()), conn)

    def _index_replaced(
        self, jobs: Sequence[NewJob], answers: Sequence[Enqueued], conn: object = None
    ) -> Operation[None]:
        now = self._clock.now()
        yield from self._keep(search_index.lines_of_replaced(jobs, answers, now), conn)

    def _keep(self, lines: Sequence[KvRecord], conn: object) -> Operation[None]:
        if lines:
            verb = self._driver().kv_put(lines)
            yield verb if conn is None else OnConnection(conn, verb)

    def count_stored(self, jobs: Sequence[NewJob], answers: Sequence[Enqueued]) -> None:
        """Count the jobs that are new, and publish an event for each."""
        if (counted := self._runtime.counted) is not None:
            stored = (job for job, answer in zip(jobs, answers, strict=True) if answer.is_new)
            counted.update((job.queue, job.task) for job in stored)
        events = self._runtime.events
        if events.wants("enqueued"):
            for job, answer in zip(jobs, answers, strict=True):
                if not answer.is_duplicate:
                    events.publish(
                        JobEvent(kind="enqueued", job_id=answer.id, task=job.task, queue=job.queue)
                    )


def as_stored(jobs: Sequence[NewJob], answers: Sequence[Enqueued]) -> Sequence[NewJob]:
    """The jobs with the ids that they are stored under."""
    if all(job.id == answer.id for job, answer in zip(jobs, answers, strict=True)):
        return jobs
    return [
        job if job.id == answer.id else msgspec.structs.replace(job, id=answer.id)
        for job, answer in zip(jobs, answers, strict=True)
    ]


def raise_duplicate(jobs: Sequence[NewJob], answers: Sequence[Enqueued]) -> None:
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
