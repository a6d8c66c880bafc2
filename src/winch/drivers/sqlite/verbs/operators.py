"""The verbs of operators: cancel, retry, delete, pause, resume, move, hold_scope, release_key."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta

from winch.core.changes import cancelled, keyless, moved, retried
from winch.core.gates.scopes import braked, opened
from winch.core.gates.uses import SCOPE, GateUse
from winch.core.job import NO_CHANGES, JobRecord, RetryChanges, from_micros
from winch.core.lifecycle import TRANSITIONS, WAITING, JobState
from winch.core.values.codec import to_json
from winch.drivers.sqlite.connections.writer import store_time
from winch.drivers.sqlite.records import MICROSECOND, put_values
from winch.drivers.sqlite.statements import Ring, Step
from winch.drivers.sqlite.verbs import permits
from winch.drivers.sqlite.verbs.base import (
    HEAD_START_MICROS,
    Body,
    holders,
    query,
    read_jobs,
    ring_for,
)
from winch.drivers.sqlite.verbs.changed_jobs import store
from winch.storage.params import Acted
from winch.storage.verbs import Now, Verb

# More than any fleet has: a resumed queue wakes every worker that waits for it.
_ALL_WORKERS = 1_000_000


class OperatorVerbs:
    """See OperatorVerbs in storage/families.py for the contracts."""

    def cancel(
        self, ids: Sequence[str], *, by: str, reason: str | None = None, now: Now = None
    ) -> Verb[list[Acted]]:
        def body() -> Body[list[Acted]]:
            at = store_time(now)
            moment = from_micros(at)
            found = yield from read_jobs(ids, is_kept_too=True)
            before = {job.id: job.state for job in found.values()}
            answers, changed = _act("cancel", ids, found, lambda job: cancelled(job, by, reason, moment))
            asked = [job for job in changed if not job.state.is_final]
            if asked:
                yield Step.each("cancel", [put_values(job, at) for job in asked])
            leaving = [
                job
                for job in changed
                if job.state.is_final or before[job.id] not in (JobState.RUNNING, JobState.READY)
            ]
            yield from store(leaving, at)
            return answers

        return Verb("cancel", body)

    def retry(
        self, ids: Sequence[str], *, by: str, changes: RetryChanges = NO_CHANGES, now: Now = None
    ) -> Verb[list[Acted]]:
        def body() -> Body[list[Acted]]:
            at = store_time(now)
            moment = from_micros(at)
            found = yield from read_jobs(ids, is_kept_too=True)
            kept = {job.id for job in found.values() if job.state.is_final}
            held = yield from _held(ids, found)
            answers, changed = _act(
                "retry", ids, found, lambda job: retried(job, by, moment, changes), held
            )
            revived = [job for job in changed if job.id in kept]
            if revived:
                more = {
                    "head_start": HEAD_START_MICROS,
                    "keeps_steps": int(changes.from_step is not None),
                }
                rows = [{**put_values(job, at), **more} for job in revived]
                yield Step.each("retry", rows)
                yield from query("retry.leave", ids=to_json([job.id for job in revived]))
                yield ring_for(revived, at)
            early = [job for job in changed if job.id not in kept]
            if changes is not NO_CHANGES:
                yield Step.each("retry.change", [put_values(job, at) for job in early])
            yield from store(early, at)
            return answers

        return Verb("retry", body)

    def delete(self, ids: Sequence[str], *, by: str, now: Now = None) -> Verb[list[Acted]]:
        def body() -> Body[list[Acted]]:
            at = store_time(now)
            found = yield from read_jobs(ids, is_kept_too=True)
            states = {job.id: job.state for job in found.values()}
            answers, _ = _act("delete", ids, dict(found), lambda job: None)
            gone = [answer.id for answer in answers if answer.took]
            live = to_json([i for i in gone if not states[i].is_final])
            kept = to_json([i for i in gone if states[i].is_final])
            yield from query("delete", ids=live, now=at)
            yield from query("record.awaited", ids=live)
            yield from query("delete.live", ids=live)
            yield from query("delete.mark_kept", ids=kept, now=at)
            yield from query("delete.kept", ids=kept)
            yield from permits.left((found[i] for i in gone), at, is_deleted=True)
            return answers

        return Verb("delete", body)

    def pause(self, queue: str, *, by: str, reason: str | None = None, now: Now = None) -> Verb[None]:
        def body() -> Body[None]:
            yield from query("pause", queue=queue, reason=reason, now=store_time(now))

        return Verb("pause", body)

    def resume(self, queue: str, *, by: str, now: Now = None) -> Verb[None]:
        def body() -> Body[None]:
            yield from query("resume", queue=queue)
            ring = Ring()
            ring.ready[queue] += _ALL_WORKERS
            yield ring

        return Verb("resume", body)

    def move(self, ids: Sequence[str], queue: str, *, by: str, now: Now = None) -> Verb[list[Acted]]:
        def body() -> Body[list[Acted]]:
            at = store_time(now)
            found = yield from read_jobs(ids, is_kept_too=True)
            answers = []
            changed = {}
            for job_id in ids:
                job = found.get(job_id)
                took = job is not None and job.state in WAITING
                answers.append(Acted(job_id, None if job is None else job.state, took))
                if job is not None and took and job.queue != queue:
                    changed[job_id] = moved(job, queue, by, from_micros(at))
            if changed:
                rows = [
                    {"id": job.id, "queue": queue, "history": to_json(job.history)}
                    for job in changed.values()
                ]
                yield Step.each("move", rows)
                yield ring_for(changed.values(), at)
            return answers

        return Verb("move", body)

    def hold_scope(
        self, name: str, hold: timedelta | None, *, reason: str = "", now: Now = None
    ) -> Verb[bool]:
        def body() -> Body[bool]:
            at = store_time(now)
            key = f"scope:{name}"
            gate = (yield from permits.look([GateUse(key, SCOPE)]))[key]
            if hold is None:
                after = opened(gate.state, at)
            else:
                after = braked(gate.state, at + hold // MICROSECOND, reason)
            if after is None:
                return False
            gate.state = after
            yield from permits.keep([gate])
            yield from permits.open_gates([key], at)
            return True

        return Verb("hold_scope", body)

    def release_key(self, key: str, *, by: str, now: Now = None) -> Verb[str | None]:
        def body() -> Body[str | None]:
            at = store_time(now)
            yield from query("release_key.kept", key=key)
            holder = (yield from holders([key])).get(key)
            if holder is None:
                return None
            job = (yield from read_jobs([holder.id]))[holder.id]
            after = keyless(job, by, from_micros(at))
            yield from query("release_key", id=job.id, history=to_json(after.history))
            return job.id

        return Verb("release_key", body)


def _held(ids: Sequence[str], found: Mapping[str, JobRecord]) -> Body[dict[str, str]]:
    """The final jobs among these whose unique key another job has by now, or an earlier one will."""
    jobs = [found[job_id] for job_id in dict.fromkeys(ids) if job_id in found]
    keyed = [job for job in jobs if job.state.is_final and job.unique_key is not None]
    if not keyed:
        return {}
    live = yield from holders(job.unique_key or "" for job in keyed)
    taken = {key: holder.id for key, holder in live.items()}
    held = {}
    for job in keyed:
        holder = taken.setdefault(job.unique_key or "", job.id)
        if holder != job.id:
            held[job.id] = holder
    return held


def _act(
    name: str,
    ids: Sequence[str],
    found: dict[str, JobRecord],
    change: Callable[[JobRecord], JobRecord | None],
    held: Mapping[str, str] | None = None,
) -> tuple[list[Acted], list[JobRecord]]:
    """Apply a change to each job in turn: an id given twice meets the job as the first left it."""
    answers = []
    changed: dict[str, JobRecord] = {}
    for job_id in ids:
        job = found.get(job_id)
        if job is None:
            answers.append(Acted(job_id, None, took=False))
            continue
        holder = held.get(job_id) if held else None
        took = job.state in TRANSITIONS[name] and holder is None
        answers.append(Acted(job_id, job.state, took, holder))
        if took:
            after = change(job)
            if after is None:
                del found[job_id]
            elif after is not job:
                found[job_id] = changed[job_id] = after
    return answers, list(changed.values())
