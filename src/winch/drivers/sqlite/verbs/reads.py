"""The verbs that only read: jobs, counts, queues, sessions, events."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from winch.core.gates.uses import queue_key
from winch.core.job import JobRecord, from_micros, to_micros
from winch.core.lifecycle import FINAL, LIVE, JobState
from winch.core.values.codec import to_json
from winch.drivers.sqlite.connections.writer import store_time
from winch.drivers.sqlite.records import MICROSECOND, READ, read_moment
from winch.drivers.sqlite.verbs import permits
from winch.drivers.sqlite.verbs.base import Body, holders, query, read_jobs
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

# After every id: ids are made of 0-9, a-f and dashes.
_PAST_ALL_IDS = "g"
# Lists that walk over all live, or all kept, jobs.
_WALKS = {"list_jobs": "list_jobs.floor", "list_jobs.kept": "list_jobs.kept_floor"}
_UNUSUAL = frozenset({JobState.CANCELLED, JobState.DEAD})
_DUE = frozenset({JobState.SCHEDULED, JobState.RETRYING})
# Up to so many waiting jobs are listed by their own indexes; to find the newest, all are looked at.
_MOST_WAITING = 100_000


class ReadVerbs:
    """See ReadVerbs in storage/families.py for the contracts."""

    def get(self, ids: Sequence[str]) -> Verb[list[JobRecord | None]]:
        def body() -> Body[list[JobRecord | None]]:
            found = yield from read_jobs(ids, is_kept_too=True)
            return [found.get(i) for i in ids]

        return Verb("get", body, is_read=True)

    def results(self, ids: Sequence[str]) -> Verb[list[Ending | None]]:
        def body() -> Body[list[Ending | None]]:
            if not ids:
                return []
            if lie_together(ids):
                rows = yield from query("results.together", first=min(ids), last=max(ids))
            else:
                rows = yield from query("results", ids=to_json(list(ids)))
            found = {row[0]: Ending(JobState(row[1]), row[2], row[3]) for row in rows}
            return [found.get(job_id) for job_id in ids]

        return Verb("results", body, is_read=True)

    def list_jobs(self, which: JobFilter) -> Verb[Page]:
        def body() -> Body[Page]:
            values = {
                "after": _PAST_ALL_IDS if which.after is None else which.after,
                "first": which.first or "",
                "states": to_json(list(which.states)) if which.states else None,
                "task": which.task,
                "queue": which.queue,
                "tag": which.tag,
                "fingerprint": which.fingerprint,
                "limit": which.limit + 1,
            }
            names = list(_lists(which))
            if names == ["list_jobs"] and frozenset(which.states) <= _DUE | {JobState.BLOCKED}:
                names = yield from _waiting(which)
                due = _DUE & frozenset(which.states)
                values["state"] = next(iter(due)) if len(due) == 1 else None
            floor: str | None = None
            if which.most is not None:
                for name in _WALKS.keys() & names:
                    below = yield from query(_WALKS[name], after=values["after"], most=which.most)
                    floor = max([floor or "", *(row[0] for row in below)]) or None
                values["first"] = max(which.first or "", floor or "")
            ids: list[str] = []
            for name in names:
                ids += [row[0] for row in (yield from query(name, **values))]
            ids.sort(reverse=True)
            page = ids[: which.limit]
            found = yield from read_jobs(page, is_kept_too=True)
            has_more = len(ids) > which.limit
            if floor is not None and not has_more and floor >= (which.first or ""):
                return Page(tuple(found[i] for i in page), floor, is_cut=True)
            return Page(tuple(found[i] for i in page), page[-1] if has_more and page else None)

        return Verb("list_jobs", body, is_read=True)

    def groups(self, which: GroupFilter) -> Verb[list[DeadGroup]]:
        def body() -> Body[list[DeadGroup]]:
            rows = yield from query("groups", task=which.task, queue=which.queue, limit=which.limit)
            samples = yield from read_jobs([row[4] for row in rows], is_kept_too=True)
            return [
                DeadGroup.of(samples[sample], count, from_micros(first), from_micros(last))
                for _, count, first, last, sample in rows
            ]

        return Verb("groups", body, is_read=True)

    def death_counts(
        self, fingerprints: Sequence[str], *, since: datetime, step: timedelta, count: int
    ) -> Verb[dict[str, list[int]]]:
        def body() -> Body[dict[str, list[int]]]:
            found = {fingerprint: [0] * count for fingerprint in fingerprints}
            rows = yield from query(
                "death_counts",
                fingerprints=to_json(list(found)),
                since=to_micros(since),
                step=step // MICROSECOND,
                count=count,
            )
            for fingerprint, place, deaths in rows:
                found[fingerprint][place] = deaths
            return found

        return Verb("death_counts", body, is_read=True)

    def tenants(self, *, limit: int = 200) -> Verb[list[TenantInfo]]:
        def body() -> Body[list[TenantInfo]]:
            return [
                TenantInfo(
                    queue=row[0], tenant=row[1], ready=row[2], oldest_ready_at=read_moment(row[3])
                )
                for row in (yield from query("tenants", limit=limit))
            ]

        return Verb("tenants", body, is_read=True)

    def scopes(self, *, limit: int = 200) -> Verb[list[ScopeInfo]]:
        def body() -> Body[list[ScopeInfo]]:
            found = [scope_info(*row) for row in (yield from query("scopes"))]
            return [one for one in found if one is not None][:limit]

        return Verb("scopes", body, is_read=True)

    def unique_keys(self, *, prefix: str = "", limit: int = 50) -> Verb[list[KeyHolder]]:
        def body() -> Body[list[KeyHolder]]:
            rows = yield from query("unique_keys", prefix=prefix, limit=limit)
            return [KeyHolder(key, job) for key, job in rows]

        return Verb("unique_keys", body, is_read=True)

    def counts(self, *, cap: int = 10_000) -> Verb[Mapping[JobState, int]]:
        def body() -> Body[Mapping[JobState, int]]:
            found: dict[str, int] = dict((yield from query("counts", cap=cap)))
            return {state: found.get(state.value, 0) for state in JobState}

        return Verb("counts", body, is_read=True)

    def queues(self, *, cap: int | None = None) -> Verb[list[QueueInfo]]:
        def body() -> Body[list[QueueInfo]]:
            jobs = yield from query("queues", cap=-1 if cap is None else cap)
            paused = {name: (at, why) for name, at, why in (yield from query("queues.paused"))}
            served: dict[str, int] = dict((yield from query("queues.served")))
            counts: dict[str, Counter[JobState]] = defaultdict(Counter)
            oldest: dict[str, int] = {}
            for queue, state, count, first_run_at in jobs:
                counts[queue][JobState(state)] += count
                if first_run_at is not None:
                    oldest[queue] = min(first_run_at, oldest.get(queue, first_run_at))
            infos = []
            cut = cut_short(counts.values(), cap)
            for name in sorted({*counts, *paused, *served}):
                paused_at, reason = paused.get(name, (None, None))
                infos.append(
                    QueueInfo(
                        name=name,
                        counts=dict(counts.get(name, {})),
                        paused_at=read_moment(paused_at),
                        pause_reason=reason,
                        oldest_ready_at=read_moment(oldest.get(name)),
                        sessions=served.get(name, 0),
                        inexact=inexact(counts.get(name, {}), cap, cut),
                    )
                )
            return infos

        return Verb("queues", body, is_read=True)

    def depth(self, queue: str, *, cap: int, now: Now = None) -> Verb[Depth]:
        def body() -> Body[Depth]:
            ((ready, oldest),) = yield from query("depth", queue=queue, cap=cap)
            at = store_time(now)
            waited = None if oldest is None else from_micros(at) - from_micros(oldest)
            return Depth(ready, waited)

        return Verb("depth", body, is_read=True)

    def sessions(self, *, is_ended_too: bool = False) -> Verb[list[SessionInfo]]:
        def body() -> Body[list[SessionInfo]]:
            rows = yield from query("sessions", is_ended_too=int(is_ended_too))
            return [READ.session(row) for row in rows]

        return Verb("sessions", body, is_read=True)

    def explain(self, job_id: str, *, now: Now = None) -> Verb[Facts | None]:
        def body() -> Body[Facts | None]:
            job = (yield from read_jobs([job_id], is_kept_too=True)).get(job_id)
            if job is None:
                return None
            paused = yield from query("explain.paused", queue=job.queue)
            ahead = yield from query("explain", id=job.id, most=MOST_AHEAD)
            serving = yield from query("explain.serving", queue=job.queue, task=job.task)
            session = yield from query("sessions.one", session=job.session)
            gate = yield from permits.info(job)
            if job.state is JobState.READY:
                for concurrency, is_strict, used in (yield from query("claim.rule", queue=job.queue)):
                    key = queue_key(job.queue)
                    rows = yield from query("admit.holders", key=key, limit=NAMED)
                    gate = queue_info(job.queue, concurrency, used, [row[0] for row in rows])
                    if is_strict:
                        ahead = yield from query("explain.strict", id=job.id, most=MOST_AHEAD)
            holder = None
            if job.unique_key is not None and job.state in FINAL:
                held = (yield from holders([job.unique_key])).get(job.unique_key)
                holder = None if held is None else held.id
            return Facts(
                job=job,
                now=from_micros(store_time(now)),
                is_paused=bool(paused),
                pause_reason=paused[0][0] if paused else None,
                ahead=min(ahead[0][0], MOST_AHEAD),
                session=READ.session(session[0]) if session else None,
                serving=serving[0][0],
                knowing=serving[0][1],
                key_holder=holder,
                gate=gate,
            )

        return Verb("explain", body, is_read=True)

    def events(self, *, after: int = 0, limit: int = 10_000) -> Verb[list[Event]]:
        def body() -> Body[list[Event]]:
            rows = yield from query("events", after=after, limit=limit)
            return list(map(READ.event, rows))

        return Verb("events", body, is_read=True)


def _waiting(which: JobFilter) -> Body[list[str]]:
    """The statements that find waiting jobs: by their own indexes, or a walk where they are many."""
    ((due, blocked),) = yield from query("list_jobs.waiting", most=_MOST_WAITING)
    names, number = [], 0
    if _DUE & frozenset(which.states):
        is_plain = which.task is None and which.queue is None and which.tag is None
        names, number = ["list_jobs.due" if is_plain else "list_jobs.some_due"], due
    if JobState.BLOCKED in which.states:
        names, number = [*names, "list_jobs.blocked"], max(number, blocked)
    return names if number < _MOST_WAITING else ["list_jobs"]


def _lists(which: JobFilter) -> Iterator[str]:
    """The statements that find such jobs: what is rare among much has an index of its own."""
    wanted = frozenset(which.states) or frozenset(JobState)
    if which.fingerprint is not None:
        yield "list_jobs.alike"
        return
    if wanted & LIVE:
        yield "list_jobs.running" if wanted & LIVE == {JobState.RUNNING} else "list_jobs"
    if wanted & FINAL:
        yield "list_jobs.unusual" if wanted & FINAL <= _UNUSUAL else "list_jobs.kept"
