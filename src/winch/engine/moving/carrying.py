"""Carries waiting and final jobs from one store to another, parcel by parcel."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta

import msgspec

from winch.core.gates.uses import is_gated
from winch.core.job import JobRecord, to_micros
from winch.core.lifecycle import JobState
from winch.core.steps import PAGE_BOOK, PAGED_BOOK, page_span
from winch.engine.moving.families import FLOW_BOOKS, Family, families, flow_records, flows_of_job
from winch.engine.moving.route import Scope
from winch.storage.kv_records import KvFilter, KvRecord
from winch.storage.params import JobFilter
from winch.storage.parcels import Parcel, is_movable, is_tied
from winch.storage.protocol import Driver

WAITING = (JobState.SCHEDULED, JobState.BLOCKED, JobState.READY, JobState.RETRYING)
# Jobs of one parcel, and of one page that is read.
PARCEL = 250
PAGE = 500
# How long a claim may take that had begun before its queue was paused.
SETTLED = 0.1
LIVE = (*WAITING, JobState.RUNNING)
# How long the target knows the flows that came.
NOTES_KEPT = timedelta(days=180)
# The task of jobs that hold a FIFO key in the target while a member of it still runs in the source.
HOLDER = "winch.move"
RUNNER = "winch-move"


def is_ordered(job: JobRecord) -> bool:
    """Whether the job must not run while others of its gates, key or tenant run in the other store."""
    return (
        is_gated(job.options)
        or job.fifo is not None
        or job.unique_key is not None
        or job.tenant is not None
    )


class Carrier:
    """One direction of one move. `name` is that of its parcels; `still_mine` keeps other movers out."""

    def __init__(
        self,
        source: Driver,
        target: Driver,
        name: str,
        scope: Scope,
        still_mine: Callable[[], None] = lambda: None,
    ) -> None:
        self.source = source
        self.target = target
        self.scope = scope
        self.moved: int = 0
        self._name = name
        self.still_mine = still_mine
        self._number = 0

    def jobs(self, states: Sequence[JobState], task: str | None = None) -> Iterator[JobRecord]:
        """The jobs of the move in these states, newest first."""
        for place, job in enumerate(jobs_of(self.source, self.scope, states, task)):
            if place % PAGE == 0:
                self.still_mine()
            yield job

    def settle(self) -> None:
        """Bring the parcel to its end that is open: that of a mover that died, or of a lost answer."""
        self._deliver(self.source.run(self.source.move_out(self._name, 0, ())))

    def prepare(self) -> None:
        """Have the target number members of FIFO keys after those that the source has numbered."""
        self.put(())

    def carry(self, wanted: Callable[[JobRecord], bool], states: Sequence[JobState] = WAITING) -> int:
        """Move the jobs that are wanted, oldest first; returns how many went."""
        self.settle()
        ids = [
            job.id for job in self.jobs(states) if is_movable(job) and job.task != HOLDER and wanted(job)
        ]
        ids.reverse()
        before = self.moved
        for start in range(0, len(ids), PARCEL):
            self.send(ids[start : start + PARCEL])
        return self.moved - before

    def carry_families(self, pause: Callable[[], None]) -> int:
        """Move the jobs that wait for each other, each family in one parcel; returns how many went. One
        of which a member runs stays for now: it may add members."""
        self.settle()
        before = self.moved
        if self._ready_families():
            pause()
            time.sleep(SETTLED)  # a claim that had begun is seen from now on
            for family in self._ready_families():
                self.send([job.id for job in family.jobs], is_whole=True)
        return self.moved - before

    def _ready_families(self) -> list[Family]:
        found = families(self.source, self.jobs(LIVE), self._covers)
        return [one for one in found if one.stays is None and not one.is_running]

    def _covers(self, job: JobRecord) -> bool:
        return self.scope.covers(job.queue, job.tenant)

    def send(self, ids: Sequence[str], *, is_whole: bool = False) -> None:
        """One parcel."""
        self.still_mine()
        parcel = self.source.run(self.source.move_out(self._name, self._next(), ids, is_whole=is_whole))
        self._deliver(parcel)

    def put(self, jobs: Sequence[JobRecord]) -> None:
        """Store jobs in the target that no parcel has: those that hold a key there."""
        self.target.run(self.target.move_in(f"{self._name}-holders", self._next(), jobs))

    def _deliver(self, parcel: Parcel) -> None:
        if not parcel.number:
            return
        for job in parcel.jobs:
            self._copy_pages(job)
        self._copy_notes(parcel.jobs)
        self.target.run(self.target.move_in(self._name, parcel.number, parcel.jobs))
        self.source.run(self.source.move_done(self._name, parcel.number))
        self.moved += len(parcel.jobs)

    def _copy_pages(self, job: JobRecord) -> None:
        """The pages of a long step history, which are records beside the job."""
        if job.checkpoint is None:
            return
        after, before = page_span(job.id)
        pages = list(records_of(self.source, PAGE_BOOK, after, before))
        if pages:
            line = KvRecord(book=PAGED_BOOK, key=job.id, body="true")
            self.target.run(self.target.kv_put([line, *pages]))

    def _copy_notes(self, jobs: Sequence[JobRecord]) -> None:
        """What is kept about the flows and batches of these jobs, beside them."""
        for flow in sorted({flow for job in jobs for flow in flows_of_job(job)}):
            self.still_mine()
            for book in FLOW_BOOKS:
                copy_records(self.target, flow_records(self.source, book, flow), NOTES_KEPT)

    def _next(self) -> int:
        """Greater than every number before, also those of a mover that died: by the source's clock."""
        clock = to_micros(store_time(self.source))
        self._number = max(self._number + 1, clock)
        return self._number

    # -- what stays for a while --------------------------------------------------------------------

    def running(self) -> list[JobRecord]:
        """The jobs of the move that run in the source."""
        return list(self.jobs((JobState.RUNNING,)))

    def staying(self) -> Iterator[JobRecord]:
        """The jobs that end in the source, or wait there again before they move: those that run, and
        those that wait for others or are waited for."""
        return (job for job in self.jobs(LIVE) if job.state is JobState.RUNNING or is_tied(job))

    def tied(self) -> int:
        """How many live jobs end in the source, because of what they wait for."""
        found = families(self.source, self.jobs(LIVE), self._covers)
        return sum(not job.state.is_final for one in found if one.stays for job in one.jobs)

    def left(self) -> int:
        """How many live jobs of the move are in the source, or on their way."""
        parcel = self.source.run(self.source.move_out(self._name, 0, ()))
        return len(parcel.jobs) + sum(job.task != HOLDER for job in self.jobs(LIVE))

    def holders(self) -> list[JobRecord]:
        """The jobs in the target that hold FIFO keys for members that run in the source."""
        return list(jobs_of(self.target, self.scope, WAITING, HOLDER))

    def end_holders(self) -> int:
        """Take those away whose member does not run in the source any more, and is not there; returns
        how many are left."""
        held = self.holders()
        if not held:
            return 0
        members = [job.headers[RUNNER] for job in held]
        found = self.source.run(self.source.get(members))
        over = [
            job.id
            for job, member in zip(held, found, strict=True)
            if member is None or member.state.is_final
        ]
        if over:
            self.target.run(self.target.delete(over, by="winch move"))
        return len(held) - len(over)


def jobs_of(
    driver: Driver, scope: Scope, states: Sequence[JobState], task: str | None = None
) -> Iterator[JobRecord]:
    """The jobs in scope, newest first in each queue."""
    for queue in scope.queues or (None,):
        after = None
        while True:
            which = JobFilter(states=tuple(states), queue=queue, task=task, limit=PAGE, after=after)
            page = driver.run(driver.list_jobs(which))
            # A job that holds the key of a tenant's job has no tenant.
            yield from (
                job for job in page.jobs if scope.covers(job.queue, job.tenant) or job.task == HOLDER
            )
            if (after := page.next) is None:
                break


def records_of(
    driver: Driver, book: str, after: str | None = None, before: str | None = None
) -> Iterator[KvRecord]:
    """The records of a book."""
    while True:
        found = driver.run(driver.kv_list(KvFilter(book=book, after=after, before=before)))
        yield from found
        if len(found) < KvFilter(book=book).limit:
            return
        after = found[-1].key


def store_time(driver: Driver) -> datetime:
    """The store's clock."""
    return driver.run(driver.due_schedules(limit=1)).now


def copy_records(target: Driver, records: Iterable[KvRecord], keep: timedelta | None) -> None:
    """Keep these records in the target where it has none of the key."""
    for record in records:
        target.run(target.kv_swap(msgspec.structs.replace(record, keep=record.keep or keep)))
