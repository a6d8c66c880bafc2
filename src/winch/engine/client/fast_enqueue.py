"""The fast paths of `aenqueue` and `enqueue_many`. Each must equal the plain path of `Client`, which the
tests run with `WINCH_FAST=off`.

    aenqueue       calls that overlap are stored together (client/coalesce.py). With 50 callers on SQLite
                   a job takes half of the CPU time and half of the wall time.
    enqueue_many   while the store works on one chunk, the next chunk is packed. Measured on a busy
                   machine only: medians of 1.3x in wall time on PostgreSQL and Redis, 1.0x on SQLite.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from winch.core.errors import StorageUnavailable
from winch.engine.base import operation
from winch.engine.client.client import CHUNK, Client, new_jobs
from winch.engine.client.job import Job
from winch.engine.client.writer import as_stored, raise_duplicate
from winch.engine.tasks.task import Bound
from winch.storage.params import Enqueued, NewJob
from winch.storage.verbs import Sending

if TYPE_CHECKING:
    from winch.engine.client.coalesce import Coalescer

R = TypeVar("R")

# The first of several chunks is short, so that the store has work early.
FIRST_CHUNK = 250

_Packed = tuple[Sequence[NewJob], Sending[list[Enqueued]]]
_Stored = tuple[Sequence[NewJob], Sequence[Enqueued]]


class FastClient(Client):
    """A client that takes a fast path where the plain one would end the same."""

    _coalescer: Coalescer | None = None

    # -- calls of one event loop -------------------------------------------------------------------

    async def aenqueue(self, bound: Bound[R]) -> Job[R]:
        run, conn = self.surroundings.arun, bound.options.conn
        if bound.task.options.enqueue_rate is not None:
            await run(self._unchecked()[0], self._accepted([bound], conn))
        new = bound.lone_job(self.ids.draw())
        if conn is not None or new.is_given_id or new.unique_key is not None:
            # On the caller's own connection, or to be refused or answered as a call of its own.
            [answer] = await run(self._unchecked()[0], self.writer.store([new], conn))
            return self.handle_of(answer)
        _, answer = await self._store_together(new)
        return self.handle_of(answer)

    async def astore_one(self, job: NewJob) -> tuple[NewJob, Enqueued]:
        if job.is_given_id or job.unique_key is not None:
            return await super().astore_one(job)
        return await self._store_together(job)

    async def _store_together(self, new: NewJob) -> tuple[NewJob, Enqueued]:
        prepared = self.writer.prepared([new])
        try:
            answer = await self._coalesce_if_room(prepared)
        except BaseException as error:
            self.writer.call_stored_hooks(prepared, error)
            raise
        stored = as_stored(prepared, [answer])
        self.writer.call_stored_hooks(stored, None)
        return stored[0], answer

    async def _coalesce_if_room(self, prepared: Sequence[NewJob]) -> Enqueued:
        if not self.writer.admission.is_open(prepared):
            op = self.writer.admitted(prepared)
            [admitted] = await self.surroundings.arun(self._unchecked()[0], op)
            if admitted is None:
                return Enqueued(prepared[0].id, is_new=False, is_shed=True)
            prepared = [admitted]
        if self._coalescer is None:
            # It needs asyncio, which a synchronous producer never imports.
            from winch.engine.client.coalesce import Coalescer

            self._coalescer = Coalescer(self._send)
        answer = await self._coalescer.store(prepared[0])
        self.writer.count_stored(prepared, [answer])
        return answer

    async def _send(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        return await self.surroundings.arun(self._unchecked()[0], self.writer.send(jobs))

    # -- many jobs ---------------------------------------------------------------------------------

    def enqueue_many(self, calls: Iterable[Bound[Any]], conn: object = None) -> list[Job[Any]]:
        if self.surroundings.run is not operation.run or conn is not None or self._runtime.middleware:
            return super().enqueue_many(calls, conn)
        return self._enqueue_ahead(calls)

    def _enqueue_ahead(self, calls: Iterable[Bound[Any]]) -> list[Job[Any]]:
        """While the store works on a chunk, the next one is packed. It is sent when the chunk before it
        is stored, so a chunk that fails is the last that was tried."""
        handles: list[Job[Any]] = []
        under_way: _Packed | None = None
        try:
            for chunk in self._call_chunks(calls, CHUNK, FIRST_CHUNK):
                ids = self.ids.draw_many(len(chunk))
                packed = self._packed(chunk, ids)
                stored: _Stored | None = None
                if under_way is not None:
                    before, under_way = under_way, None
                    stored = self._answered(*before)
                if packed is not None:
                    packed[1].send()
                    under_way = packed
                if stored is not None:  # not before the next one is on its way
                    handles += self._counted(*stored)
                if packed is None:
                    op = self._enqueue_chunk(chunk, ids, None)
                    handles += operation.run(self._unchecked()[0], op)
        finally:  # also where a call is wrong: what was sent before it is stored
            if under_way is not None:
                handles += self._counted(*self._answered(*under_way))
        return handles

    def _packed(self, chunk: Sequence[Bound[Any]], ids: Sequence[str]) -> _Packed | None:
        """The chunk as it is sent; None where there is more to it than one verb."""
        driver, is_checked = self._unchecked()
        if (
            not is_checked
            or self._spool() is not None
            or any(bound.task.is_asked_first for bound in chunk)
        ):
            return None
        jobs = self.writer.sealed(new_jobs(chunk, ids))
        return (
            (jobs, driver.sending(driver.enqueue(jobs))) if self.writer.admission.is_open(jobs) else None
        )

    def _answered(self, jobs: Sequence[NewJob], sending: Sending[list[Enqueued]]) -> _Stored:
        try:
            answers = sending.answer()
        except StorageUnavailable as error:
            answers = operation.run(self._unchecked()[0], self.writer.send(jobs, error))
        else:
            raise_duplicate(jobs, answers)
        return jobs, answers

    def _counted(self, jobs: Sequence[NewJob], answers: Sequence[Enqueued]) -> list[Job[Any]]:
        self.writer.count_stored(jobs, answers)
        return self.stored_handles(answers)
