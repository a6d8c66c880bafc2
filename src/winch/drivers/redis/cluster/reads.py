"""Reads over all parts of a store in a cluster, upkeep, and which jobs live at home."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import msgspec

from winch.core.gates import is_gated
from winch.core.job import HEAD_START, JobRecord, from_micros, to_micros
from winch.core.lifecycle import JobState
from winch.drivers.redis.cluster.handover import Moving
from winch.drivers.redis.cluster.shards import EVERYWHERE, HOME, SHARDS, shard_of, tags
from winch.drivers.redis.facts import ServerFacts, parse_info, read_facts
from winch.drivers.redis.records import MICROSECOND, micros, read_events, read_job
from winch.drivers.redis.scripts import Batch, Call, command
from winch.drivers.redis.verbs.base import Body
from winch.drivers.redis.verbs.claim import STRETCH, TooMany
from winch.drivers.redis.wakeups.listen import WAITING
from winch.storage.decide.waits import AWAITED_HEADER
from winch.storage.params import (
    MOST_AHEAD,
    DeadGroup,
    Depth,
    Ending,
    Event,
    Facts,
    GroupFilter,
    JobFilter,
    NewJob,
    Page,
    QueueInfo,
    SessionInfo,
    Trim,
)
from winch.storage.verbs import Verb

# The number of an event tells its part: it is the rest of a division by this.
EVENT_PARTS = 128
ALL = 1_000_000_000
_REMOVE = "#!lua flags=allow-cross-slot-keys\nfor i = 1, #ARGV do redis.call('UNLINK', ARGV[i]) end"


def lives_at_home(job: NewJob) -> bool:
    """Whether a job has to do with others, who must be found in the same place."""
    return (
        job.unique_key is not None
        or job.tenant is not None
        or job.fifo is not None
        or AWAITED_HEADER in job.headers
        or (job.options is not None and is_gated(job.options))
    )


@dataclass
class _Stream:
    """The jobs of one part in their order, as far as they were read."""

    number: int
    jobs: list[JobRecord] = field(default_factory=list)
    after: str | None = None
    start: int = 0
    is_over: bool = False
    awaited: set[str] = field(default_factory=set)


class WideReads(Moving):
    """What changes nothing, or concerns the store as a whole."""

    def get(self, ids: Sequence[str]) -> Verb[list[JobRecord | None]]:
        return self._read("get", lambda: self._look_up(ids))

    def _look_up(self, ids: Sequence[str]) -> Body[list[JobRecord | None]]:
        return (
            yield from self._by_id(
                ids,
                str,
                lambda some: super(WideReads, self).get(some).steps(),
                lambda job: job is None,
            )
        )

    def results(self, ids: Sequence[str]) -> Verb[list[Ending | None]]:
        def body() -> Body[list[Ending | None]]:
            return (yield from self._by_id(ids, str, self._results, lambda end: end is None))

        return self._read("results", body)

    def list_jobs(self, which: JobFilter) -> Verb[Page]:
        def body() -> Body[Page]:
            streams = [_Stream(number, after=which.after) for number in EVERYWHERE]
            found: list[JobRecord] = []
            # Ids are spread evenly: of most parts a page has but a few.
            count = 4 + 2 * which.limit // SHARDS
            while len(found) <= which.limit:
                empty = [stream for stream in streams if not stream.jobs and not stream.is_over]
                pages = yield from self._scatter(
                    [
                        (
                            stream.number,
                            super(WideReads, self)
                            .list_jobs(msgspec.structs.replace(which, limit=count, after=stream.after))
                            .steps(),
                        )
                        for stream in empty
                    ]
                )
                for stream, page in zip(empty, self._whole(pages), strict=True):
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

        return self._read("list_jobs", body)

    def groups(self, which: GroupFilter) -> Verb[list[DeadGroup]]:
        def body() -> Body[list[DeadGroup]]:
            every = msgspec.structs.replace(which, limit=ALL)
            parts = yield from self._everywhere(lambda: super(WideReads, self).groups(every).steps())
            merged: dict[str, DeadGroup] = {}
            for group in (group for part in parts for group in part):
                other = merged.get(group.fingerprint)
                merged[group.fingerprint] = group if other is None else _together(group, other)
            found = sorted(merged.values(), key=lambda group: group.fingerprint)
            found.sort(key=lambda group: (group.count, group.last_at), reverse=True)
            return found[: which.limit]

        return self._read("groups", body)

    def counts(self, *, cap: int = 10_000) -> Verb[Mapping[JobState, int]]:
        def body() -> Body[Mapping[JobState, int]]:
            parts = yield from self._everywhere(lambda: super(WideReads, self).counts(cap=cap).steps())
            return {state: min(sum(part[state] for part in parts), cap) for state in JobState}

        return self._read("counts", body)

    def queues(self) -> Verb[list[QueueInfo]]:
        def body() -> Body[list[QueueInfo]]:
            home, *shards = yield from self._everywhere(lambda: super(WideReads, self).queues().steps())
            merged = {info.name: info for info in home}
            for info in (info for shard in shards for info in shard):
                other = merged.get(info.name)
                merged[info.name] = info if other is None else _added_up(other, info)
            return [merged[name] for name in sorted(merged)]

        return self._read("queues", body)

    def depth(self, queue: str, *, cap: int, now: datetime | None = None) -> Verb[Depth]:
        def body() -> Body[Depth]:
            parts = yield from self._everywhere(
                lambda: super(WideReads, self).depth(queue, cap=cap, now=now).steps()
            )
            ages = [part.oldest for part in parts if part.oldest is not None]
            return Depth(min(sum(part.ready for part in parts), cap), max(ages, default=None))

        return self._read("depth", body)

    def sessions(self, *, is_ended_too: bool = False) -> Verb[list[SessionInfo]]:
        """As home knows them; what they run is in every part."""

        def body() -> Body[list[SessionInfo]]:
            home, *shards = yield from self._everywhere(
                lambda: super(WideReads, self).sessions(is_ended_too=is_ended_too).steps()
            )
            running = Counter[str]()
            for info in (info for part in (home, *shards) for info in part):
                running[info.id] += info.running
            return [msgspec.structs.replace(info, running=running[info.id]) for info in home]

        return self._read("sessions", body)

    def explain(self, job_id: str, *, now: datetime | None = None) -> Verb[Facts | None]:
        def body() -> Body[Facts | None]:
            places = (shard_of(job_id), HOME)
            found = yield from self._scatter(
                [(where, super(WideReads, self).explain(job_id, now=now).steps()) for where in places]
            )
            for where, facts in zip(places, self._whole(found), strict=True):
                if facts is None:
                    continue
                job, ahead, session = facts.job, facts.ahead, facts.session
                if job.state is JobState.READY:
                    key = to_micros(job.run_at) - job.priority * (HEAD_START // MICROSECOND)
                    others = [number for number in EVERYWHERE if number != where]
                    asked = [
                        (number, self._call("before", queue=job.queue, key=key, id=job_id))
                        for number in others
                    ]
                    ahead += sum(self._whole((yield from self._ask(asked))))
                if session is not None:
                    every = yield from self.sessions(is_ended_too=True).steps()
                    session = next((one for one in every if one.id == session.id), session)
                return msgspec.structs.replace(facts, ahead=min(ahead, MOST_AHEAD), session=session)
            return None

        return self._read("explain", body)

    def events(self, *, after: int = 0, limit: int = 10_000) -> Verb[list[Event]]:
        """By time, and by part between equals. Only what no node can write before any more is told: a
        reader that goes on from the last number misses nothing."""

        def body() -> Body[list[Event]]:
            nodes = self._route.bells()
            clocks = yield from self._ask(
                [(number, self._call("explain", id="", queue="")) for number in nodes]
            )
            upto = min(reply[0] for reply in self._whole(clocks))
            asked = [
                (number, self._call("events", after=(after - number) // EVENT_PARTS, limit=limit))
                for number in EVERYWHERE
            ]
            replies = self._whole((yield from self._ask(asked)))
            found = [
                msgspec.structs.replace(event, seq=event.seq * EVENT_PARTS + number)
                for number, reply in zip(EVERYWHERE, replies, strict=True)
                for event in read_events(reply)
                if event.seq < upto
            ]
            found.sort(key=lambda event: event.seq)
            return found[:limit]

        return self._read("events", body)

    # -- dead jobs that are too many ---------------------------------------------------------------

    def trim(self, which: Trim, *, now: datetime | None = None) -> Verb[int]:
        def body() -> Body[int]:
            tasks = {which.task} if which.task is not None else set()
            if not tasks:
                asked = [(number, self._call("deaths")) for number in EVERYWHERE]
                for reply in self._whole((yield from self._ask(asked))):
                    tasks |= {task.decode() for task in reply}
            before = None
            if which.older_than is not None:
                at = micros(now)
                if at is None:
                    at, *_ = yield self._call("explain", id="", queue="")
                before = from_micros(at) - which.older_than
            gone = 0
            for task in sorted(tasks):
                over = yield from self._too_many_of(task, which, before)
                if which.is_dry_run:
                    gone += len(over)
                    continue
                over = over[: which.limit - gone]
                if over:
                    gone += yield from self._trimmed(over)
            return gone

        return self._write("trim", body)

    def _too_many_of(self, task: str, which: Trim, before: datetime | None) -> Body[list[JobRecord]]:
        """The dead jobs of a task in all parts that are past its limits, newest first."""
        rule = TooMany(which, before)
        streams = [_Stream(number) for number in EVERYWHERE]
        count = 8
        while streams:
            empty = [stream for stream in streams if not stream.jobs]
            asked = [
                (stream.number, self._call("deaths", task=task, start=stream.start, count=count))
                for stream in empty
            ]
            replies = self._whole((yield from self._ask(asked)))
            for stream, (ids, stored, states, awaited) in zip(empty, replies, strict=True):
                stream.start += len(ids)
                stream.is_over = len(ids) < count
                rows = zip(ids, stored, states, strict=True)
                stream.jobs = [read_job(i.decode(), e, s, None) for i, e, s in rows][::-1]
                stream.awaited = {i.decode() for i, is_so in zip(ids, awaited, strict=True) if is_so}
            streams = [stream for stream in streams if stream.jobs]
            while streams and all(stream.jobs for stream in streams):
                first = max(streams, key=lambda stream: _died(stream.jobs[-1]))
                job = first.jobs.pop()
                rule.look_at(job, is_awaited=job.id in first.awaited)
                if not first.jobs and first.is_over:
                    streams.remove(first)
            if rule.is_enough:
                break
            count = min(2 * count, STRETCH)
        return rule.over

    def _trimmed(self, over: Sequence[JobRecord]) -> Body[int]:
        groups: dict[int, list[JobRecord]] = {}
        for job in over:
            groups.setdefault(shard_of(job.id), []).append(job)
        # Which of the two places a job is in is not known here; in the other one there is none.
        asked = [
            (
                number,
                self._call(
                    "trim", ids=[job.id for job in some], died=[micros(job.finished_at) for job in some]
                ),
            )
            for number, some in ((HOME, over), *groups.items())
        ]
        return sum(self._whole((yield from self._ask(asked))))

    # -- upkeep ------------------------------------------------------------------------------------

    def _infos(self) -> Body[list[Mapping[str, str]]]:
        yield from self._learn()
        calls: list[Call] = [
            command("INFO", "everything", where=number) for number in self._route.bells()
        ]
        return [parse_info(reply) for reply in self._whole((yield Batch(calls)))]

    def _lay_out(self, **args: Any) -> Body[Any]:
        asked = [(number, self._call("migrate", **args)) for number in EVERYWHERE]
        return self._whole((yield from self._ask(asked)))[HOME]

    def erase(self) -> None:
        """Remove every key of this store: for tests."""
        self._run(self._learn())
        home, *_ = tags(self._place.schema)
        for number in self._route.bells():
            cursor = b"0"
            while True:
                cursor, keys = self._pool.run(
                    command("SCAN", cursor, "MATCH", f"{{{home}[.}}]*", "COUNT", 1000, where=number)
                )
                if keys:
                    self._pool.run(command("EVAL", _REMOVE, 1, keys[0], *keys, where=number))
                if cursor == b"0":
                    break
        self._is_ready = False
        self._claimed_at_home.clear()

    def facts(self) -> dict[str, ServerFacts]:
        self._run(self._learn())
        found = {}
        for number in self._route.bells():
            host, port = self._route.owners[number]
            found[f"{host}:{port}"] = read_facts(
                lambda what, where=number: self._pool.run(replace(what, where=where))  # type: ignore[misc]
            )
        return found

    def forget_scripts(self) -> None:
        self._run(self._learn())
        for number in self._route.bells():
            self._pool.run(command("SCRIPT", "FLUSH", where=number))

    def _bell_points(self) -> list[tuple[int, str]]:
        return [(number, self._keys[number].removesuffix("meta")) for number in self._route.bells()]

    async def _announce(self, waiter: str, names: Sequence[str]) -> None:
        def body() -> Body[None]:
            if self._route.is_stale:
                yield from self._learn()
            what = self._call("wait", waiter=waiter, names=names, seconds=WAITING)
            self._whole((yield from self._ask([(number, what) for number in self._route.bells()])))

        await self.arun(Verb("wait", body))


def _together(one: DeadGroup, other: DeadGroup) -> DeadGroup:
    newest = max(one, other, key=lambda group: group.sample_id)
    return msgspec.structs.replace(
        newest,
        count=one.count + other.count,
        first_at=min(one.first_at, other.first_at),
        last_at=max(one.last_at, other.last_at),
    )


def _added_up(home: QueueInfo, shard: QueueInfo) -> QueueInfo:
    """A queue in two parts; what was said about it is the same in both."""
    moments = [info.oldest_ready_at for info in (home, shard) if info.oldest_ready_at is not None]
    return msgspec.structs.replace(
        home,
        counts=dict(Counter(home.counts) + Counter(shard.counts)),
        oldest_ready_at=min(moments) if moments else None,
    )


def _died(job: JobRecord) -> tuple[int, str]:
    return micros(job.finished_at) or 0, job.id
