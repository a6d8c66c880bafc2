"""Upkeep in a cluster: the limits of a call hold over all parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from winch.core.job import JobRecord
from winch.drivers.redis.cluster.fan_out import ClusterBase, FanOut, whole
from winch.drivers.redis.cluster.handover import Handover
from winch.drivers.redis.cluster.shards import EVERYWHERE, HOME, shard_of
from winch.drivers.redis.cluster.verbs.gates import ClusterGateVerbs
from winch.drivers.redis.records import micros, read_job
from winch.drivers.redis.verbs.base import Body
from winch.drivers.redis.verbs.upkeep import STRETCH, TooMany, UpkeepVerbs, died_before, trim_tasks
from winch.storage.params import Promoted, Rescued, Trim
from winch.storage.verbs import Now, Verb


@dataclass
class _DeadStream:
    """The dead jobs of one part, newest last, as far as they were read."""

    number: int
    jobs: list[JobRecord] = field(default_factory=list)
    start: int = 0
    is_over: bool = False
    awaited: set[str] = field(default_factory=set)


class ClusterUpkeepVerbs:
    """Rescue, promote, prune and trim in all parts."""

    def __init__(
        self,
        plain: UpkeepVerbs,
        base: ClusterBase,
        fan_out: FanOut,
        handover: Handover,
        gates: ClusterGateVerbs,
    ) -> None:
        self._plain = plain
        self._call = base.call
        self._fan_out = fan_out
        self._handover = handover
        self._gates = gates

    def rescue(
        self, *, limit: int = 1000, as_of: datetime | None = None, now: Now = None
    ) -> Verb[list[Rescued]]:
        def body() -> Body[list[Rescued]]:
            results = yield from self._fan_out.scatter(
                [
                    (
                        number,
                        self._plain.rescue(limit=limit, as_of=as_of, now=now).steps(),
                    )
                    for number in EVERYWHERE
                ],
                budget=limit,
            )
            found = whole(results)
            yield from self._handover.settle()
            yield from self._gates.settle(now)
            return sorted((one for some in found for one in some), key=lambda one: one.id)

        return Verb("rescue", body)

    def promote(self, *, limit: int = 1000, now: Now = None) -> Verb[Promoted]:
        """Earliest first over all parts: how many of each is found out before."""

        def body() -> Body[Promoted]:
            asked = [(number, self._call("due", now=micros(now), limit=limit)) for number in EVERYWHERE]
            replies = whole((yield from self._fan_out.ask(asked)))
            moments = sorted(
                (at, number) for number, due in zip(EVERYWHERE, replies, strict=True) for at in due
            )
            shares = dict.fromkeys(EVERYWHERE, 0)
            for _, number in moments[:limit]:
                shares[number] += 1
            results = yield from self._fan_out.scatter(
                [
                    (number, self._plain.promote(limit=share, now=now).steps())
                    for number, share in shares.items()
                ]
            )
            found = whole(results)
            following = [one.next_at for one in found if one.next_at is not None]
            return Promoted(
                sum(one.count for one in found),
                min(following) if following else None,
                max(one.now for one in found),
            )

        return Verb("promote", body)

    def prune(self, *, limit: int = 1000, now: Now = None) -> Verb[int]:
        def body() -> Body[int]:
            results = yield from self._fan_out.scatter(
                [(number, self._plain.prune(limit=limit, now=now).steps()) for number in EVERYWHERE],
                budget=limit,
            )
            return sum(whole(results))

        return Verb("prune", body)

    def trim(self, which: Trim, *, now: Now = None) -> Verb[int]:
        def body() -> Body[int]:
            tasks = {which.task} if which.task is not None else set()
            if not tasks:
                asked = [(number, self._call("deaths")) for number in EVERYWHERE]
                for reply in whole((yield from self._fan_out.ask(asked))):
                    tasks |= {task.decode() for task in reply}
            before = yield from died_before(self._call, which, now)
            return (
                yield from trim_tasks(
                    tasks, which, lambda task: self._too_many(task, which, before), self._trimmed
                )
            )

        return Verb("trim", body)

    def _too_many(self, task: str, which: Trim, before: datetime | None) -> Body[list[JobRecord]]:
        """The dead jobs of a task in all parts that are past its limits, newest first."""
        rule = TooMany(which, before)
        streams = [_DeadStream(number) for number in EVERYWHERE]
        count = 8
        while streams:
            empty = [stream for stream in streams if not stream.jobs]
            asked = [
                (stream.number, self._call("deaths", task=task, start=stream.start, count=count))
                for stream in empty
            ]
            replies = whole((yield from self._fan_out.ask(asked)))
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
        return sum(whole((yield from self._fan_out.ask(asked))))


def _died(job: JobRecord) -> tuple[int, str]:
    return micros(job.finished_at) or 0, job.id
