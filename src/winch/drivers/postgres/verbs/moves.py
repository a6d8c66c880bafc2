"""Jobs that leave for another store, or come from one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from winch.core.job import JobRecord
from winch.core.lifecycle import JobState
from winch.core.values.codec import to_json
from winch.drivers.postgres.records import READ, write_span
from winch.drivers.postgres.statements import Body
from winch.drivers.postgres.verbs.base import Base
from winch.drivers.postgres.verbs.enqueue import EnqueueVerbs
from winch.drivers.postgres.verbs.unique_keys import take_keys
from winch.storage import parcels
from winch.storage.decide.unique import Holder
from winch.storage.params import Enqueued, NewJob
from winch.storage.parcels import NO_PARCEL, Parcel, arriving, is_movable, takes_whole
from winch.storage.verbs import Now, Verb

_NOT_WRITTEN = ("keep", "token", "gate")


class MoveVerbs:
    """What a move needs; see storage/parcels.py for the contracts."""

    def __init__(self, base: Base, enqueue: EnqueueVerbs) -> None:
        self._base = base
        self._enqueue = enqueue

    def move_out(
        self, move: str, number: int, ids: Sequence[str], *, is_whole: bool = False, now: Now = None
    ) -> Verb[Parcel]:
        def look() -> Body[Parcel]:
            rows = yield self._base.statement(
                "move_out.open", is_alone=True, open_key=parcels.open_key(move)
            )
            return parcels.read(rows[0][0]) if rows else NO_PARCEL

        def body() -> Body[Parcel]:
            ((last,),) = yield self._base.statement("move_out", last_key=parcels.last_key(move))
            rows = yield self._base.statement("move_out.open", open_key=parcels.open_key(move))
            if rows:
                return parcels.read(rows[0][0])
            if number <= int(last):
                return NO_PARCEL
            jobs = yield from self._movable(list(dict.fromkeys(ids)), is_whole=is_whole)
            yield from self._keep(parcels.last_key(move), str(number))
            if not jobs:
                return NO_PARCEL
            yield from self._keep(parcels.open_key(move), parcels.written(number, jobs))
            yield self._base.statement("delete", ids=[job.id for job in jobs])
            return Parcel(number, tuple(jobs))

        return Verb("move_out", body) if number else self._base.read("move_out", look)

    def _movable(self, ids: list[str], *, is_whole: bool) -> Body[list[JobRecord]]:
        """Those of the jobs that may leave. Live ones are locked until the verb has ended."""
        if not ids:
            return []
        locked = {row[0] for row in (yield self._base.statement("move_out.lock", ids=ids))}
        rows = yield self._base.statement("get.both", ids=ids)
        found = {row[0]: READ.job(row) for row in rows}
        jobs = [found[i] for i in ids if i in found and (i in locked or found[i].state.is_final)]
        if is_whole:
            return jobs if takes_whole(jobs, len(ids)) else []
        return [job for job in jobs if is_movable(job)]

    def _keep(self, key: str, body: str) -> Body[None]:
        yield self._base.statement("move_out.keep", key=key, body=body)

    def move_in(
        self, move: str, number: int, jobs: Sequence[JobRecord], *, now: Now = None
    ) -> Verb[bool]:
        def body() -> Body[bool]:
            key = parcels.in_key(move)
            ((last,),) = yield self._base.statement("move_in", key=key)
            if number <= int(last):
                return False
            yield from self._keep(key, str(number))
            yield self._base.statement("move_in.numbers")
            if not jobs:
                return True
            rows = yield self._base.statement("move_in.known", ids=[job.id for job in jobs])
            known = {row[0] for row in rows}
            fresh = [arriving(job) for job in jobs if job.id not in known]
            yield self._base.statement("move_in.ids", ids=[job.id for job in fresh])
            wanted = {
                job.unique_key: job.id
                for job in fresh
                if job.unique_key is not None and not job.state.is_final
            }
            held = yield from take_keys(self._base, wanted)
            live = [
                msgspec.structs.replace(job, unique_key=None) if job.unique_key in held else job
                for job in fresh
                if not job.state.is_final
            ]
            if live:
                yield self._base.statement("move_in.live", jobs=to_json(list(map(_values, live))))
            if final := [_values(job) for job in fresh if job.state.is_final]:
                yield self._base.statement("move_in.final", jobs=to_json(final))
            return True

        return Verb("move_in", body)

    def move_done(self, move: str, number: int) -> Verb[None]:
        def body() -> Body[None]:
            yield self._base.statement(
                "move_done", is_alone=True, key=parcels.open_key(move), begin=f"{number} "
            )

        return Verb("move_done", body)

    def raise_fence(self, number: int) -> Verb[bool]:
        def body() -> Body[bool]:
            ((is_free,),) = yield self._base.statement("raise_fence")
            if is_free:
                yield self._base.statement("raise_fence.keep", number=number)
            return bool(is_free)

        return Verb("raise_fence", body)

    def enqueue_fenced(
        self, jobs: Sequence[NewJob], number: int, *, is_repeat: bool = False, now: Now = None
    ) -> Verb[list[Enqueued] | None]:
        def body() -> Body[list[Enqueued] | None]:
            yield self._base.statement("enqueue_fenced")
            rows = yield self._base.statement("enqueue_fenced.look")
            if rows and int(rows[0][0]) > number:
                return None
            return (yield from self._enqueue.enqueue(jobs, is_repeat=is_repeat, now=now).steps())

        return Verb("enqueue_fenced", body)

    def key_holders(self, keys: Sequence[str]) -> Verb[list[Holder | None]]:
        def body() -> Body[list[Holder | None]]:
            rows = yield self._base.statement("key_holders", is_alone=True, keys=list(keys))
            held = {key: Holder(job_id, JobState(state)) for key, job_id, state in rows}
            return [held.get(key) for key in keys]

        return self._base.read("key_holders", body)


def _values(job: JobRecord) -> dict[str, Any]:
    """A job as the statements read it; what most jobs do not have is absent."""
    values = {
        name: value
        for name, value in msgspec.structs.asdict(job).items()
        if name not in _NOT_WRITTEN and value is not None and value not in ((), {})
    }
    values["keep_seconds"] = write_span(job.keep)
    if job.headers:
        values["headers"] = to_json(job.headers)
    return values
