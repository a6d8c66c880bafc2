"""Look at jobs, queues and workers; nothing changes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from winch.core.flow import TAG
from winch.core.job import JobRecord
from winch.core.lifecycle import FINAL, LIVE, JobState
from winch.drivers.postgres.records import READ, read_moment, read_queue
from winch.drivers.postgres.statements import Body
from winch.drivers.postgres.verbs.base import Base
from winch.drivers.postgres.verbs.permits import read_gate
from winch.storage.decide.counts import cut_short, inexact
from winch.storage.decide.gates import NAMED, queue_info, scope_info
from winch.storage.decide.waits import lie_together
from winch.storage.gate_records import KeyHolder, ScopeInfo, TenantInfo
from winch.storage.params import (
    MOST_AHEAD,
    DeadGroup,
    Depth,
    Ending,
    Event,
    Facts,
    GroupFilter,
    JobFilter,
    Page,
    QueueInfo,
    SessionInfo,
)
from winch.storage.verbs import Now, Verb

_STATES = {state.value: state for state in JobState}
# States whose jobs are few among very many others have statements of their own.
_FEW = {
    "list_jobs.unusual": FINAL - {JobState.COMPLETED},
    "list_jobs.running": {JobState.RUNNING},
    "list_jobs.waiting": LIVE - {JobState.READY, JobState.RUNNING},
}
# Up to so many waiting jobs are found by their own indexes and sorted.
_MOST_WAITING = 100_000


class ReadVerbs:
    """See storage/families.py for the contracts."""

    def __init__(self, base: Base) -> None:
        self._base = base

    def get(self, ids: Sequence[str]) -> Verb[list[JobRecord | None]]:
        return self._base.read("get", lambda: self._find(ids))

    def _find(self, ids: Sequence[str]) -> Body[list[JobRecord | None]]:
        found: dict[str, JobRecord] = {}
        for name in ("get", "get.both"):
            if left := [job_id for job_id in dict.fromkeys(ids) if job_id not in found]:
                rows = yield self._base.statement(name, is_alone=True, ids=left)
                found.update((row[0], READ.job(row)) for row in rows)
        return [found.get(job_id) for job_id in ids]

    def results(self, ids: Sequence[str]) -> Verb[list[Ending | None]]:
        def body() -> Body[list[Ending | None]]:
            if not ids:
                return []
            if lie_together(ids):
                rows = yield self._base.statement(
                    "results.together", is_alone=True, first=min(ids), last=max(ids)
                )
            else:
                rows = yield self._base.statement("results", is_alone=True, ids=list(ids))
            found = {row[0]: Ending(_STATES[row[1]], row[2], row[3]) for row in rows}
            return [found.get(job_id) for job_id in ids]

        return self._base.read("results", body)

    def list_jobs(self, which: JobFilter) -> Verb[Page]:
        states = frozenset(which.states) or frozenset(JobState)
        name = next((name for name, few in _FEW.items() if states <= few), "list_jobs")
        if which.fingerprint is not None:
            name = "list_jobs.alike"
        elif name == "list_jobs.unusual" and which.tag is not None and which.tag.startswith(TAG):
            name = "list_jobs.of_flow"

        def body() -> Body[Page]:
            first, floor = which.first, None
            if which.most is not None and name == "list_jobs":
                ((floor,),) = yield self._base.statement(
                    "list_jobs.floor",
                    is_alone=True,
                    is_live=bool(states & LIVE),
                    is_kept=bool(states & FINAL),
                    after=which.after,
                    most=which.most,
                )
                first = max(filter(None, (first, floor)), default=None)
            given: dict[str, Any] = {
                "states": sorted(states) if which.states else None,
                "task": which.task,
                "queue": which.queue,
                "tag": which.tag,
                "after": which.after,
                "first": first,
                "limit": which.limit + 1,
            }
            rows: list[Any] = []
            is_walk = True
            if name == "list_jobs.waiting":
                rows = yield self._base.statement(
                    "list_jobs.few_waiting", is_alone=True, most=_MOST_WAITING, **given
                )
                is_walk = not rows and (yield from self._are_many(states))
            if is_walk:
                rows = yield self._base.statement(
                    name,
                    is_alone=True,
                    is_live=bool(states & LIVE),
                    is_kept=bool(states & FINAL),
                    fingerprint=which.fingerprint,
                    **given,
                )
            rows.sort(key=lambda row: str(row[0]), reverse=True)
            page = tuple(READ.job(row) for row in rows[: which.limit])
            if floor is not None and len(rows) <= which.limit and floor >= (which.first or ""):
                return Page(page, floor, is_cut=True)
            return Page(page, page[-1].id if len(rows) > which.limit else None)

        return self._base.read("list_jobs", body)

    def _are_many(self, states: Collection[JobState]) -> Body[bool]:
        ((are_many,),) = yield self._base.statement(
            "list_jobs.are_many", is_alone=True, states=sorted(states), most=_MOST_WAITING
        )
        return bool(are_many)

    def oldest_snapshot(self) -> Verb[timedelta]:
        """As `SnapshotStore` has it."""

        def body() -> Body[timedelta]:
            ((seconds,),) = yield self._base.statement("oldest_snapshot", is_alone=True)
            return timedelta(seconds=float(seconds))

        return self._base.read("oldest_snapshot", body)

    def groups(self, which: GroupFilter) -> Verb[list[DeadGroup]]:
        def body() -> Body[list[DeadGroup]]:
            rows = yield self._base.statement(
                "groups", is_alone=True, task=which.task, queue=which.queue, limit=which.limit
            )
            samples = yield from self._find([row[4] for row in rows])
            return [
                DeadGroup.of(sample, row[1], read_moment(row[2]), read_moment(row[3]))
                for row, sample in zip(rows, samples, strict=True)
                # Between the two looks an operator may have retried or deleted the last of a group.
                if sample is not None and sample.fingerprint is not None
            ]

        return self._base.read("groups", body)

    def death_counts(
        self, fingerprints: Sequence[str], *, since: datetime, step: timedelta, count: int
    ) -> Verb[dict[str, list[int]]]:
        def body() -> Body[dict[str, list[int]]]:
            found = {fingerprint: [0] * count for fingerprint in fingerprints}
            rows = yield self._base.statement(
                "death_counts",
                is_alone=True,
                fingerprints=list(found),
                since=since,
                step=step.total_seconds(),
                count=count,
            )
            for fingerprint, place, deaths in rows:
                found[fingerprint][place] = deaths
            return found

        return self._base.read("death_counts", body)

    def tenants(self, *, limit: int = 200) -> Verb[list[TenantInfo]]:
        def body() -> Body[list[TenantInfo]]:
            return [
                TenantInfo(
                    queue=row[0],
                    tenant=row[1],
                    ready=row[2],
                    oldest_ready_at=None if row[3] is None else read_moment(row[3]),
                )
                for row in (yield self._base.statement("tenants", is_alone=True, limit=limit))
            ]

        return self._base.read("tenants", body)

    def scopes(self, *, limit: int = 200) -> Verb[list[ScopeInfo]]:
        def body() -> Body[list[ScopeInfo]]:
            rows = yield self._base.statement("scopes", is_alone=True)
            found = [scope_info(*row) for row in rows]
            return [one for one in found if one is not None][:limit]

        return self._base.read("scopes", body)

    def unique_keys(self, *, prefix: str = "", limit: int = 50) -> Verb[list[KeyHolder]]:
        def body() -> Body[list[KeyHolder]]:
            rows = yield self._base.statement("unique_keys", is_alone=True, prefix=prefix, limit=limit)
            return sorted((KeyHolder(key, job) for key, job in rows), key=lambda one: one.key)

        return self._base.read("unique_keys", body)

    def counts(self, *, cap: int = 10_000) -> Verb[Mapping[JobState, int]]:
        def body() -> Body[Mapping[JobState, int]]:
            rows = yield self._base.statement("counts", is_alone=True, cap=cap)
            found = {row[0]: row[1] for row in rows}
            return {state: found[state] for state in JobState}

        return self._base.read("counts", body)

    def queues(self, *, cap: int | None = None) -> Verb[list[QueueInfo]]:
        def body() -> Body[list[QueueInfo]]:
            if cap is None:
                rows = yield self._base.statement("queues", is_alone=True)
            else:
                rows = yield self._base.statement("queues.capped", is_alone=True, cap=cap)
            found = [read_queue(row) for row in rows]
            cut = cut_short((queue.counts for queue in found), cap)
            if cap is not None:
                found = [
                    msgspec.structs.replace(queue, inexact=inexact(queue.counts, cap, cut))
                    for queue in found
                ]
            # By code point, as other stores do; the database's own order depends on its locale.
            return sorted(found, key=lambda queue: queue.name)

        return self._base.read("queues", body)

    def depth(self, queue: str, *, cap: int, now: Now = None) -> Verb[Depth]:
        def body() -> Body[Depth]:
            ((ready, waited),) = yield self._base.statement(
                "depth", is_alone=True, queue=queue, cap=cap, now=now
            )
            return Depth(ready, None if waited is None else timedelta(seconds=float(waited)))

        return self._base.read("depth", body)

    def sessions(self, *, is_ended_too: bool = False) -> Verb[list[SessionInfo]]:
        def body() -> Body[list[SessionInfo]]:
            rows = yield self._base.statement("sessions", is_alone=True, is_ended_too=is_ended_too)
            return list(map(READ.session, rows))

        return self._base.read("sessions", body)

    def explain(self, job_id: str, *, now: Now = None) -> Verb[Facts | None]:
        def body() -> Body[Facts | None]:
            (job,) = yield from self._find([job_id])
            if job is None:
                return None
            ((at, paused_at, reason, ahead, serving, knowing),) = yield self._base.statement(
                "explain",
                is_alone=True,
                id=job.id,
                queue=job.queue,
                task=job.task,
                most=MOST_AHEAD,
                now=now,
            )
            rows = []
            if job.session is not None:
                rows = yield self._base.statement("explain.session", is_alone=True, session=job.session)
            gate = yield from read_gate(self._base, job, now)
            if job.state is JobState.READY:
                rules = yield self._base.statement(
                    "explain.rule", is_alone=True, queue=job.queue, most=NAMED
                )
                for concurrency, is_strict, used, of_queue in rules:
                    gate = queue_info(job.queue, concurrency, used, of_queue)
                    if is_strict:
                        ((ahead,),) = yield self._base.statement(
                            "explain.strict", is_alone=True, id=job.id, most=MOST_AHEAD
                        )
            holder = None
            if job.unique_key is not None and job.state in FINAL:
                held = yield self._base.statement(
                    "enqueue.holders", is_alone=True, keys=[job.unique_key]
                )
                holder = next((row[1] for row in held if row[2] is not None), None)
            return Facts(
                job=job,
                now=read_moment(at),
                is_paused=paused_at is not None,
                pause_reason=reason,
                ahead=min(ahead, MOST_AHEAD),
                session=READ.session(rows[0]) if rows else None,
                serving=serving,
                knowing=knowing,
                key_holder=holder,
                gate=gate,
            )

        return self._base.read("explain", body)

    def events(self, *, after: int = 0, limit: int = 10_000) -> Verb[list[Event]]:
        def body() -> Body[list[Event]]:
            rows = yield self._base.statement("events", is_alone=True, after=after, limit=limit)
            return list(map(READ.event, rows))

        return self._base.read("events", body)
