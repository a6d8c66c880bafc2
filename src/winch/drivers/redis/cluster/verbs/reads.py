"""Reads over all parts of a store in a cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import msgspec

from winch.core.job import JobRecord, to_micros
from winch.core.lifecycle import JobState
from winch.drivers.redis.cluster.fan_out import ClusterBase, FanOut, whole
from winch.drivers.redis.cluster.handover import Handover
from winch.drivers.redis.cluster.shards import EVERYWHERE, HOME, SHARDS, ClusterRoute, shard_of
from winch.drivers.redis.records import read_events
from winch.drivers.redis.verbs.base import Body
from winch.drivers.redis.verbs.gates import GateVerbs
from winch.drivers.redis.verbs.reads import ReadVerbs
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

# The number of an event contains its part: the rest of a division by this.
EVENT_PARTS = 128
ALL = 1_000_000_000


@dataclass
class _Stream:
    """The jobs of one part in their order, as far as they were read."""

    number: int
    jobs: list[JobRecord] = field(default_factory=list)
    after: str | None = None
    is_over: bool = False


class ClusterReadVerbs:
    """Reads over all parts of the store."""

    def __init__(
        self,
        plain: ReadVerbs,
        base: ClusterBase,
        fan_out: FanOut,
        handover: Handover,
        route: ClusterRoute,
        gates: GateVerbs,
    ) -> None:
        self._plain = plain
        self._gate_of = gates.gate_of
        self._call = base.call
        self._fan_out = fan_out
        self._by_id = handover.by_id
        self._route = route

    def get(self, ids: Sequence[str]) -> Verb[list[JobRecord | None]]:
        def body() -> Body[list[JobRecord | None]]:
            return (
                yield from self._by_id(
                    ids, str, lambda some: self._plain.get(some).steps(), lambda job: job is None
                )
            )

        return Verb("get", body, is_read=True)

    def results(self, ids: Sequence[str]) -> Verb[list[Ending | None]]:
        def body() -> Body[list[Ending | None]]:
            return (
                yield from self._by_id(
                    ids, str, lambda some: self._plain.results(some).steps(), lambda end: end is None
                )
            )

        return Verb("results", body, is_read=True)

    def list_jobs(self, which: JobFilter) -> Verb[Page]:
        def body() -> Body[Page]:
            streams = [_Stream(number, after=which.after) for number in EVERYWHERE]
            found: list[JobRecord] = []
            # Ids are spread evenly: of most parts a page has but a few.
            count = 4 + 2 * which.limit // SHARDS
            while len(found) <= which.limit:
                empty = [stream for stream in streams if not stream.jobs and not stream.is_over]
                pages = yield from self._fan_out.scatter(
                    [
                        (
                            stream.number,
                            self._plain.list_jobs(
                                msgspec.structs.replace(
                                    which, limit=count, after=stream.after, most=None
                                )
                            ).steps(),
                        )
                        for stream in empty
                    ]
                )
                for stream, page in zip(empty, whole(pages), strict=True):
                    stream.jobs = list(page.jobs)[::-1]
                    stream.after, stream.is_over = page.next, page.next is None
                streams = [stream for stream in streams if stream.jobs or not stream.is_over]
                if not streams:
                    break
                while len(found) <= which.limit and all(stream.jobs for stream in streams):
                    first = max(streams, key=lambda stream: stream.jobs[-1].id)
                    found.append(first.jobs.pop())
                    if not first.jobs and first.is_over:
                        streams.remove(first)
                        if not streams:
                            break
                count *= 2
            jobs = tuple(found[: which.limit])
            return Page(jobs, jobs[-1].id if len(found) > which.limit else None)

        return Verb("list_jobs", body, is_read=True)

    def groups(self, which: GroupFilter) -> Verb[list[DeadGroup]]:
        def body() -> Body[list[DeadGroup]]:
            every = msgspec.structs.replace(which, limit=ALL)
            parts = yield from self._fan_out.everywhere(lambda: self._plain.groups(every).steps())
            merged: dict[str, DeadGroup] = {}
            for group in (group for part in parts for group in part):
                other = merged.get(group.fingerprint)
                merged[group.fingerprint] = group if other is None else _together(group, other)
            found = sorted(merged.values(), key=lambda group: group.fingerprint)
            found.sort(key=lambda group: (group.count, group.last_at), reverse=True)
            return found[: which.limit]

        return Verb("groups", body, is_read=True)

    def death_counts(
        self, fingerprints: Sequence[str], *, since: datetime, step: timedelta, count: int
    ) -> Verb[dict[str, list[int]]]:
        def body() -> Body[dict[str, list[int]]]:
            parts = yield from self._fan_out.everywhere(
                lambda: self._plain.death_counts(
                    fingerprints, since=since, step=step, count=count
                ).steps()
            )
            return {
                name: [sum(numbers) for numbers in zip(*(part[name] for part in parts), strict=True)]
                for name in dict.fromkeys(fingerprints)
            }

        return Verb("death_counts", body, is_read=True)

    def tenants(self, *, limit: int = 200) -> Verb[list[TenantInfo]]:
        """Jobs of tenants are at home."""
        return self._plain.tenants(limit=limit)

    def scopes(self, *, limit: int = 200) -> Verb[list[ScopeInfo]]:
        def body() -> Body[list[ScopeInfo]]:
            parts = yield from self._fan_out.everywhere(lambda: self._plain.scopes(limit=ALL).steps())
            found: dict[str, ScopeInfo] = {}
            for one in (one for part in parts for one in part):
                other = found.get(one.name)
                latest = one if other is None else max(one, other, key=lambda scope: scope.until)
                waiting = one.waiting + (0 if other is None else other.waiting)
                found[one.name] = msgspec.structs.replace(latest, waiting=waiting)
            return [found[name] for name in sorted(found)][:limit]

        return Verb("scopes", body, is_read=True)

    def unique_keys(self, *, prefix: str = "", limit: int = 50) -> Verb[list[KeyHolder]]:
        """Jobs with unique keys are at home."""
        return self._plain.unique_keys(prefix=prefix, limit=limit)

    def counts(self, *, cap: int = 10_000) -> Verb[Mapping[JobState, int]]:
        def body() -> Body[Mapping[JobState, int]]:
            parts = yield from self._fan_out.everywhere(lambda: self._plain.counts(cap=cap).steps())
            return {state: min(sum(part[state] for part in parts), cap) for state in JobState}

        return Verb("counts", body, is_read=True)

    def queues(self, *, cap: int | None = None) -> Verb[list[QueueInfo]]:
        def body() -> Body[list[QueueInfo]]:
            home, *shards = yield from self._fan_out.everywhere(lambda: self._plain.queues().steps())
            merged = {info.name: info for info in home}
            for info in (info for shard in shards for info in shard):
                other = merged.get(info.name)
                merged[info.name] = info if other is None else _added_up(other, info)
            return [merged[name] for name in sorted(merged)]

        return Verb("queues", body, is_read=True)

    def depth(self, queue: str, *, cap: int, now: Now = None) -> Verb[Depth]:
        def body() -> Body[Depth]:
            parts = yield from self._fan_out.everywhere(
                lambda: self._plain.depth(queue, cap=cap, now=now).steps()
            )
            ages = [part.oldest for part in parts if part.oldest is not None]
            return Depth(min(sum(part.ready for part in parts), cap), max(ages, default=None))

        return Verb("depth", body, is_read=True)

    def sessions(self, *, is_ended_too: bool = False) -> Verb[list[SessionInfo]]:
        """As home knows them; what they run is in every part."""

        def body() -> Body[list[SessionInfo]]:
            home, *shards = yield from self._fan_out.everywhere(
                lambda: self._plain.sessions(is_ended_too=is_ended_too).steps()
            )
            running = Counter[str]()
            for info in (info for part in (home, *shards) for info in part):
                running[info.id] += info.running
            return [msgspec.structs.replace(info, running=running[info.id]) for info in home]

        return Verb("sessions", body, is_read=True)

    def explain(self, job_id: str, *, now: Now = None) -> Verb[Facts | None]:
        def body() -> Body[Facts | None]:
            places = (shard_of(job_id), HOME)
            found = yield from self._fan_out.scatter(
                [(where, self._plain.explain(job_id, now=now).steps()) for where in places]
            )
            for where, facts in zip(places, whole(found), strict=True):
                if facts is None:
                    continue
                job, ahead, session, gate = facts.job, facts.ahead, facts.session, facts.gate
                if job.state is JobState.READY:
                    before = self._call(
                        "before",
                        queue=job.queue,
                        id=job_id,
                        run_at=to_micros(job.run_at),
                        priority=job.priority,
                    )
                    others = [number for number in EVERYWHERE if number != where]
                    asked = [(number, before) for number in others]
                    ahead += sum(whole((yield from self._fan_out.ask(asked))))
                    (gate,) = whole((yield from self._fan_out.scatter([(HOME, self._gate_of(job))])))
                if session is not None:
                    every = yield from self.sessions(is_ended_too=True).steps()
                    session = next((one for one in every if one.id == session.id), session)
                ahead = min(ahead, MOST_AHEAD)
                return msgspec.structs.replace(facts, ahead=ahead, session=session, gate=gate)
            return None

        return Verb("explain", body, is_read=True)

    def events(self, *, after: int = 0, limit: int = 10_000) -> Verb[list[Event]]:
        """By time, and by part between equals. Only events that no node can write before any
        more are returned: a reader that continues from the last number misses nothing."""

        def body() -> Body[list[Event]]:
            nodes = self._route.bells()
            clocks = yield from self._fan_out.ask(
                [(number, self._call("explain", id="", queue="")) for number in nodes]
            )
            upto = min(reply[0] for reply in whole(clocks))
            asked = [
                (number, self._call("events", after=(after - number) // EVENT_PARTS, limit=limit))
                for number in EVERYWHERE
            ]
            replies = whole((yield from self._fan_out.ask(asked)))
            found = [
                msgspec.structs.replace(event, seq=event.seq * EVENT_PARTS + number)
                for number, reply in zip(EVERYWHERE, replies, strict=True)
                for event in read_events(reply)
                if event.seq < upto
            ]
            found.sort(key=lambda event: event.seq)
            return found[:limit]

        return Verb("events", body, is_read=True)


def _together(one: DeadGroup, other: DeadGroup) -> DeadGroup:
    newest = max(one, other, key=lambda group: group.sample_id)
    return msgspec.structs.replace(
        newest,
        count=one.count + other.count,
        first_at=min(one.first_at, other.first_at),
        last_at=max(one.last_at, other.last_at),
    )


def _added_up(home: QueueInfo, shard: QueueInfo) -> QueueInfo:
    """A queue in two parts; its settings are the same in both."""
    moments = [info.oldest_ready_at for info in (home, shard) if info.oldest_ready_at is not None]
    return msgspec.structs.replace(
        home,
        counts=dict(Counter(home.counts) + Counter(shard.counts)),
        oldest_ready_at=min(moments) if moments else None,
    )
