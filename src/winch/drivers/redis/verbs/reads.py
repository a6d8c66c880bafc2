"""The verbs that read: get, list_jobs, groups, counts, queues, sessions, explain, events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

import msgspec

from winch.core.job import JobRecord, from_micros, to_micros
from winch.core.lifecycle import JobState
from winch.drivers.redis.records import (
    MICROSECOND,
    micros,
    read_endings,
    read_events,
    read_jobs,
    read_pause,
    read_queue_of,
)
from winch.drivers.redis.session_records import read_details, read_session
from winch.drivers.redis.verbs.base import Base, Body, read_rows
from winch.drivers.redis.verbs.gates import GateVerbs
from winch.storage.decide.gates import scope_info
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

# Sets of up to this size are sorted by the server for a page; larger ones are met by walking all jobs.
SMALL = 5000
STRETCH = 500
# How many of a queue's ready jobs are asked for their age: those are first in line, as in other stores.
FIRST = 100
# How many of a queue's tenants are looked at.
LOOK = 1000
# How many entries of a hash are met in search of keys.
MOST_KEYS = 20_000

_decode = msgspec.msgpack.Decoder().decode


class ReadVerbs:
    """Read jobs, queues and sessions; nothing changes."""

    def __init__(self, base: Base, gates: GateVerbs) -> None:
        self._call = base.call
        self._gate_of = gates.gate_of

    def get(self, ids: Sequence[str]) -> Verb[list[JobRecord | None]]:
        return Verb("get", lambda: self._find(ids), is_read=True)

    def _find(self, ids: Sequence[str]) -> Body[list[JobRecord | None]]:
        if not ids:
            return []
        return read_jobs((yield self._call("get", ids=ids)), ids)

    def results(self, ids: Sequence[str]) -> Verb[list[Ending | None]]:
        return Verb("results", lambda: self._results(ids), is_read=True)

    def _results(self, ids: Sequence[str]) -> Body[list[Ending | None]]:
        if not ids:
            return []
        return read_endings((yield self._call("results", ids=ids)), len(ids))

    def list_jobs(self, which: JobFilter) -> Verb[Page]:
        def body() -> Body[Page]:
            found: list[JobRecord] = []
            after = which.after
            # Filters beside the state are looked at here, so a stretch may give less than a page.
            is_exact = not (which.task or which.queue or which.tag)
            count = which.limit + 1 if is_exact else max(STRETCH, which.limit + 1)
            looked = 0
            while len(found) <= which.limit:
                ids, *parts, further = yield self._call(
                    "list_jobs",
                    states={state.value: True for state in which.states},
                    fingerprint=which.fingerprint,
                    after=after,
                    count=count,
                    small=SMALL,
                )
                jobs = read_jobs(parts, [job_id.decode() for job_id in ids])
                found += [job for job in jobs if job is not None and _matches(job, which)]
                if not further or (which.first is not None and further.decode() < which.first):
                    break
                after = further.decode()
                looked += len(ids)
                if which.most is not None and len(found) <= which.limit and looked >= which.most:
                    return Page(tuple(found), after, is_cut=True)
                count = STRETCH
            page = tuple(found[: which.limit])
            return Page(page, page[-1].id if len(found) > which.limit else None)

        return Verb("list_jobs", body, is_read=True)

    def groups(self, which: GroupFilter) -> Verb[list[DeadGroup]]:
        def body() -> Body[list[DeadGroup]]:
            found: list[DeadGroup] = []
            start = 0
            while True:
                rows = yield self._call("groups", start=start, count=STRETCH)
                samples = yield from self._find([row[4].decode() for row in rows])
                for row, sample in zip(rows, samples, strict=True):
                    if sample is None or sample.fingerprint is None:
                        continue  # retried or deleted between the two looks
                    if which.task is not None and sample.task != which.task:
                        continue
                    if which.queue is None:
                        first, last = from_micros(row[2]), from_micros(row[3])
                        found.append(DeadGroup.of(sample, row[1], first, last))
                    else:
                        found += yield from self._group_of(row[0].decode(), which.queue)
                start += len(rows)
                if len(rows) < STRETCH:
                    break
            found.sort(key=lambda group: group.fingerprint)
            found.sort(key=lambda group: (group.count, group.last_at), reverse=True)
            return found[: which.limit]

        return Verb("groups", body, is_read=True)

    def death_counts(
        self, fingerprints: Sequence[str], *, since: datetime, step: timedelta, count: int
    ) -> Verb[dict[str, list[int]]]:
        def body() -> Body[dict[str, list[int]]]:
            names = list(dict.fromkeys(fingerprints))
            rows = yield self._call(
                "death_counts",
                fingerprints=names,
                since=to_micros(since),
                step=step // MICROSECOND,
                count=count,
            )
            return {name: [int(one) for one in row] for name, row in zip(names, rows, strict=True)}

        return Verb("death_counts", body, is_read=True)

    def tenants(self, *, limit: int = 200) -> Verb[list[TenantInfo]]:
        def body() -> Body[list[TenantInfo]]:
            rows = yield self._call("tenants", look=LOOK)
            found = [
                TenantInfo(
                    queue=queue.decode(),
                    tenant=tenant.decode(),
                    ready=ready,
                    oldest_ready_at=None if oldest < 0 else from_micros(oldest),
                )
                for queue, tenant, ready, oldest in rows
            ]
            found.sort(key=lambda one: (-one.ready, one.queue, one.tenant))
            return found[:limit]

        return Verb("tenants", body, is_read=True)

    def scopes(self, *, limit: int = 200) -> Verb[list[ScopeInfo]]:
        def body() -> Body[list[ScopeInfo]]:
            rows = yield self._call("scopes", most=MOST_KEYS)
            found = [
                scope_info(key.decode(), msgspec.json.encode(_decode(state)).decode(), waiting)
                for key, state, waiting in rows
            ]
            shown = [one for one in found if one is not None]
            return sorted(shown, key=lambda one: one.name)[:limit]

        return Verb("scopes", body, is_read=True)

    def unique_keys(self, *, prefix: str = "", limit: int = 50) -> Verb[list[KeyHolder]]:
        def body() -> Body[list[KeyHolder]]:
            rows = yield self._call("unique_keys", prefix=prefix, limit=limit, most=MOST_KEYS)
            return [KeyHolder(key, job) for key, job in sorted(read_rows(rows, 2))]

        return Verb("unique_keys", body, is_read=True)

    def _group_of(self, fingerprint: str, queue: str) -> Body[list[DeadGroup]]:
        """What of a group is in this queue: one group or none."""
        alike: list[JobRecord] = []
        after = None
        while True:
            ids, *parts, further = yield self._call(
                "list_jobs", states={}, fingerprint=fingerprint, after=after, count=STRETCH, small=0
            )
            names = [job_id.decode() for job_id in ids]
            alike += [job for job in read_jobs(parts, names) if job is not None and job.queue == queue]
            if not further:
                break
            after = further.decode()
        moments = [job.finished_at for job in alike if job.finished_at is not None]
        if not moments:
            return []
        return [DeadGroup.of(alike[0], len(alike), min(moments), max(moments))]

    def counts(self, *, cap: int = 10_000) -> Verb[Mapping[JobState, int]]:
        def body() -> Body[Mapping[JobState, int]]:
            reply = yield self._call("counts")
            ready, scheduled, retrying, blocked, running, cancelled, dead, everything = reply
            live = ready + scheduled + retrying + blocked + running
            found = {
                JobState.SCHEDULED: scheduled,
                JobState.BLOCKED: blocked,
                JobState.READY: ready,
                JobState.RUNNING: running,
                JobState.RETRYING: retrying,
                JobState.COMPLETED: everything - live - cancelled - dead,
                JobState.CANCELLED: cancelled,
                JobState.DEAD: dead,
            }
            return {state: min(found[state], cap) for state in JobState}

        return Verb("counts", body, is_read=True)

    def queues(self, *, cap: int | None = None) -> Verb[list[QueueInfo]]:
        def body() -> Body[list[QueueInfo]]:
            rows, claims, sessions = yield self._call("queues", look=FIRST)
            running = Counter(map(read_queue_of, claims))
            serving = Counter(
                queue for data in sessions if data is not None for queue in read_details(data)[2].queues
            )
            found = {
                name: _queue(name, running[name], sessions=count) for name, count in serving.items()
            }
            for name, ready, scheduled, retrying, blocked, oldest, paused in rows:
                queue = name.decode()
                paused_at, reason = read_pause(paused)
                info = _queue(
                    queue,
                    running[queue],
                    ready,
                    scheduled,
                    retrying,
                    blocked,
                    sessions=serving[queue],
                    paused_at=paused_at,
                    reason=reason,
                    oldest=None if oldest < 0 else from_micros(oldest),
                )
                if info.counts or paused_at is not None or info.sessions:
                    found[queue] = info
            return [found[name] for name in sorted(found)]

        return Verb("queues", body, is_read=True)

    def depth(self, queue: str, *, cap: int, now: Now = None) -> Verb[Depth]:
        def body() -> Body[Depth]:
            at, count, since = yield self._call("depth", now=micros(now), queue=queue)
            oldest = None if since < 0 else from_micros(at) - from_micros(since)
            return Depth(min(count, cap), oldest)

        return Verb("depth", body, is_read=True)

    def sessions(self, *, is_ended_too: bool = False) -> Verb[list[SessionInfo]]:
        def body() -> Body[list[SessionInfo]]:
            rows = yield self._call("sessions", is_ended_too=is_ended_too)
            return sorted(map(read_session, rows), key=lambda s: (s.started_at, s.id), reverse=True)

        return Verb("sessions", body, is_read=True)

    def explain(self, job_id: str, *, now: Now = None) -> Verb[Facts | None]:
        def body() -> Body[Facts | None]:
            (job,) = yield from self._find([job_id])
            if job is None:
                return None
            at, paused, ahead, sessions, holder = yield self._call(
                "explain",
                now=micros(now),
                id=job_id,
                queue=job.queue,
                key=job.unique_key if job.state.is_final else None,
            )
            paused_at, reason = read_pause(paused)
            live = [read_details(data)[2] for data in sessions if data is not None]
            serving = [one for one in live if job.queue in one.queues]
            own = []
            if job.session is not None:
                own = yield self._call("sessions", only=job.session)
            return Facts(
                job=job,
                now=from_micros(at),
                is_paused=paused_at is not None,
                pause_reason=reason,
                ahead=min(max(ahead, 0), MOST_AHEAD) if job.state is JobState.READY else 0,
                session=read_session(own[0]) if own else None,
                serving=len(serving),
                knowing=sum(job.task in one.tasks for one in serving),
                key_holder=holder.decode() or None,
                gate=(yield from self._gate_of(job)),
            )

        return Verb("explain", body, is_read=True)

    def events(self, *, after: int = 0, limit: int = 10_000) -> Verb[list[Event]]:
        def body() -> Body[list[Event]]:
            return read_events((yield self._call("events", after=after, limit=limit)))

        return Verb("events", body, is_read=True)


def _queue(
    name: str,
    running: int,
    ready: int = 0,
    scheduled: int = 0,
    retrying: int = 0,
    blocked: int = 0,
    *,
    sessions: int,
    paused_at: datetime | None = None,
    reason: str | None = None,
    oldest: datetime | None = None,
) -> QueueInfo:
    counts = {
        JobState.SCHEDULED: scheduled,
        JobState.BLOCKED: blocked,
        JobState.READY: ready,
        JobState.RUNNING: running,
        JobState.RETRYING: retrying,
    }
    return QueueInfo(
        name=name,
        counts={state: count for state, count in counts.items() if count},
        paused_at=paused_at,
        pause_reason=reason,
        oldest_ready_at=oldest,
        sessions=sessions,
    )


def _matches(job: JobRecord, which: JobFilter) -> bool:
    return (
        (which.first is None or job.id >= which.first)
        and (not which.states or job.state in which.states)
        and (which.task is None or job.task == which.task)
        and (which.queue is None or job.queue == which.queue)
        and (which.tag is None or which.tag in job.tags)
        and (which.fingerprint is None or job.fingerprint == which.fingerprint)
    )
