"""Jobs that leave for another store, or come from one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from winch.core.job import KEEP, JobRecord, sort_key, to_micros
from winch.core.values.codec import to_json
from winch.drivers.sqlite.connections.writer import store_time
from winch.drivers.sqlite.records import MICROSECOND, write_moment
from winch.drivers.sqlite.statements import Step
from winch.drivers.sqlite.verbs import permits
from winch.drivers.sqlite.verbs.base import Body, holders, query, read_jobs, ring_for
from winch.drivers.sqlite.verbs.enqueue import EnqueueVerbs
from winch.storage import parcels
from winch.storage.decide.unique import Holder
from winch.storage.params import Enqueued, NewJob
from winch.storage.parcels import NO_PARCEL, PARCELS, Parcel, arriving, is_movable, takes_whole
from winch.storage.verbs import Now, Verb


class MoveVerbs:
    """What a move needs; see storage/parcels.py for the contracts."""

    def __init__(self, enqueue: EnqueueVerbs) -> None:
        self._enqueue = enqueue

    def move_out(
        self, move: str, number: int, ids: Sequence[str], *, is_whole: bool = False, now: Now = None
    ) -> Verb[Parcel]:
        def look() -> Body[Parcel]:
            at = store_time(now)
            there = yield from _record(parcels.open_key(move), at)
            return NO_PARCEL if there is None else parcels.read(there)

        def body() -> Body[Parcel]:
            at = store_time(now)
            there = yield from _record(parcels.open_key(move), at)
            if there is not None:
                return parcels.read(there)
            if number <= int((yield from _record(parcels.last_key(move), at)) or 0):
                return NO_PARCEL
            found = yield from read_jobs(ids, is_kept_too=True)
            jobs = [found[i] for i in dict.fromkeys(ids) if i in found]
            if not is_whole:
                jobs = [job for job in jobs if is_movable(job)]
            elif not takes_whole(jobs, len(set(ids))):
                jobs = []
            yield from _keep(parcels.last_key(move), str(number))
            if not jobs:
                return NO_PARCEL
            yield from _keep(parcels.open_key(move), parcels.written(number, jobs))
            live = to_json([job.id for job in jobs if not job.state.is_final])
            kept = to_json([job.id for job in jobs if job.state.is_final])
            yield from query("delete", ids=live, now=at)
            yield from query("delete.live", ids=live)
            yield from query("delete.mark_kept", ids=kept, now=at)
            yield from query("delete.kept", ids=kept)
            yield from permits.left(jobs, at, is_deleted=True)
            return Parcel(number, tuple(jobs))

        return Verb("move_out", body) if number else Verb("move_out", look, is_read=True)

    def move_in(
        self, move: str, number: int, jobs: Sequence[JobRecord], *, now: Now = None
    ) -> Verb[bool]:
        def body() -> Body[bool]:
            at = store_time(now)
            key = parcels.in_key(move)
            last = yield from _record(key, at)
            if last is not None and number <= int(last):
                return False
            yield from _keep(key, str(number))
            known = {row[0] for row in (yield from query("enqueue.known", ids=_ids(jobs)))}
            fresh = [arriving(job) for job in jobs if job.id not in known]
            live = [job for job in fresh if not job.state.is_final]
            held = yield from holders(job.unique_key for job in live if job.unique_key is not None)
            live = [replace(job, unique_key=None) if job.unique_key in held else job for job in live]
            if live:
                yield Step.each("move_in", [_values(job, at) for job in live])
            if final := [job for job in fresh if job.state.is_final]:
                yield Step.each("move_in.final", [_values(job, at) for job in final])
            yield ring_for(live, at)
            return True

        return Verb("move_in", body)

    def move_done(self, move: str, number: int) -> Verb[None]:
        def body() -> Body[None]:
            at = store_time(None)
            key = parcels.open_key(move)
            there = yield from _record(key, at)
            if there is not None and there.startswith(f"{number} "):
                yield from query("strike_lines", book=PARCELS, keys=to_json([key]))

        return Verb("move_done", body)

    def raise_fence(self, number: int) -> Verb[bool]:
        def body() -> Body[bool]:
            at = store_time(None)
            if number > int((yield from _record(parcels.FENCE, at)) or 0):
                yield from _keep(parcels.FENCE, str(number))
            return True

        return Verb("raise_fence", body)

    def enqueue_fenced(
        self, jobs: Sequence[NewJob], number: int, *, is_repeat: bool = False, now: Now = None
    ) -> Verb[list[Enqueued] | None]:
        def body() -> Body[list[Enqueued] | None]:
            at = store_time(now)
            if number < int((yield from _record(parcels.FENCE, at)) or 0):
                return None
            return (yield from self._enqueue.enqueue(jobs, is_repeat=is_repeat, now=now).steps())

        return Verb("enqueue_fenced", body)

    def key_holders(self, keys: Sequence[str]) -> Verb[list[Holder | None]]:
        def body() -> Body[list[Holder | None]]:
            held = yield from holders(keys)
            return [held.get(key) for key in keys]

        return Verb("key_holders", body, is_read=True)


def _record(key: str, at: int) -> Body[str | None]:
    rows = yield from query("swap_line", book=PARCELS, key=key, now=at)
    return rows[0][0] if rows else None


def _keep(key: str, body: str) -> Body[None]:
    yield from query("write_lines", book=PARCELS, key=key, body=body, drop_at=None)


def _ids(jobs: Sequence[JobRecord]) -> str:
    return to_json([job.id for job in jobs])


def _values(job: JobRecord, at: int) -> dict[str, Any]:
    values: dict[str, Any] = {
        "id": job.id,
        "task": job.task,
        "version": job.version,
        "args": job.args,
        "queue": job.queue,
        "priority": job.priority,
        "created_at": to_micros(job.created_at),
        "run_at": to_micros(job.run_at),
        "state": job.state.value,
        "tenant": job.tenant,
        "fifo": job.fifo,
        "seq": job.seq,
        "unique_key": job.unique_key,
        "tags": to_json(job.tags),
        "headers": to_json(job.headers),
        "options": job.options,
        "expires_at": write_moment(job.expires_at),
        "max_attempts": job.max_attempts,
        "keep": None if job.keep is None else job.keep // MICROSECOND,
        "attempt": job.attempt,
        "crashes": job.crashes,
        "rescues": job.rescues,
        "is_suspect": int(job.is_suspect),
        "fence": job.fence,
        "session": job.session,
        "claimed_at": write_moment(job.claimed_at),
        "ended_token": job.ended_token,
        "cancel_requested_at": write_moment(job.cancel_requested_at),
        "progress": job.progress,
        "checkpoint": job.checkpoint,
        "log": job.log,
        "history": to_json(job.history),
        "reason": job.reason,
        "has_undo": int(job.has_undo),
    }
    if not job.state.is_final:
        return {**values, "sort_key": sort_key(job.run_at, job.priority), "now": at}
    ended = to_micros(job.finished_at) if job.finished_at is not None else at
    keep = KEEP[job.state] if job.keep is None else job.keep
    return {
        **values,
        "finished_at": ended,
        "result": job.result,
        "fingerprint": job.fingerprint,
        "drop_at": ended + keep // MICROSECOND,
    }
