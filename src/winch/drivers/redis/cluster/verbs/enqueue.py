"""Enqueue in a cluster, and which jobs live at home."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from winch.core.errors import EnqueueUncertain, StorageFull
from winch.core.gates.uses import is_gated
from winch.core.policy.unique import Duplicate
from winch.drivers.redis.cluster.fan_out import FanOut, whole
from winch.drivers.redis.cluster.shards import HOME, shard_of
from winch.drivers.redis.cluster.verbs.reads import ClusterReadVerbs
from winch.drivers.redis.verbs.base import Body
from winch.drivers.redis.verbs.enqueue import DrawnTwice, EnqueueVerbs
from winch.drivers.redis.verbs.reads import ReadVerbs
from winch.storage.decide.waits import AWAITED_HEADER
from winch.storage.params import Enqueued, NewJob
from winch.storage.verbs import Verb


def lives_at_home(job: NewJob) -> bool:
    """Whether a job has to do with others, which must be found in the same part."""
    return (
        job.unique_key is not None
        or job.tenant is not None
        or job.fifo is not None
        or AWAITED_HEADER in job.headers
        or (job.options is not None and is_gated(job.options))
    )


class ClusterEnqueueVerbs:
    """Store each job in its shard, or at home."""

    def __init__(
        self,
        plain: EnqueueVerbs,
        fan_out: FanOut,
        plain_reads: ReadVerbs,
        reads: ClusterReadVerbs,
    ) -> None:
        self._plain = plain
        self._fan_out = fan_out
        self._plain_reads = plain_reads
        self._reads = reads

    def enqueue(
        self, jobs: Sequence[NewJob], *, is_repeat: bool = False, now: datetime | None = None
    ) -> Verb[list[Enqueued]]:
        def at(chosen: Sequence[NewJob], *, again: bool = is_repeat) -> Body[list[Enqueued]]:
            return self._plain.enqueue(chosen, is_repeat=again, now=now).steps()

        def body() -> Body[list[Enqueued]]:
            groups: dict[int, list[int]] = {}
            answers: list[Any] = [None] * len(jobs)
            known = yield from self._known_at_home(jobs)
            for index, job in enumerate(jobs):
                where = HOME if lives_at_home(job) else shard_of(job.id)
                if where != HOME and job.id in known:
                    answers[index] = Enqueued(job.id, False)
                else:
                    groups.setdefault(where, []).append(index)
            if HOME in groups:
                indexes = groups.pop(HOME)
                found = yield from self._enqueue_at_home([jobs[index] for index in indexes], at)
                for index, answer in zip(indexes, found, strict=True):
                    answers[index] = answer
                if _is_refused([jobs[index] for index in indexes], found):
                    return [
                        answer or Enqueued(job.id, False)
                        for answer, job in zip(answers, jobs, strict=True)
                    ]
            chosen = {where: [jobs[index] for index in group] for where, group in groups.items()}
            results = yield from self._fan_out.scatter(
                [(where, at(some)) for where, some in chosen.items()]
            )
            again = [
                (where, at(some, again=True))
                for (where, some), result in zip(chosen.items(), results, strict=True)
                if isinstance(result, DrawnTwice)
            ]
            if again:  # a job that exists stays as it is and keeps no other job out
                repeats = iter((yield from self._fan_out.scatter(again)))
                results = [next(repeats) if isinstance(r, DrawnTwice) else r for r in results]
            if any(isinstance(result, EnqueueUncertain) for result in results):
                raise EnqueueUncertain(
                    "not all nodes have confirmed the jobs; they are stored, but a failover may lose "
                    "them. Enqueue again with the same ids",
                    [job.id for job in jobs],
                )
            full = next((result for result in results if isinstance(result, StorageFull)), None)
            if full is not None and not all(isinstance(result, StorageFull) for result in results):
                raise EnqueueUncertain(
                    f"some of the jobs are stored, others are not: {full}. Enqueue again with the same "
                    "ids when there is room",
                    [job.id for job in jobs],
                ) from full
            for group, found in zip(groups.values(), whole(results), strict=True):
                for index, answer in zip(group, found, strict=True):
                    answers[index] = answer
            return answers

        return Verb("enqueue", body)

    def _known_at_home(self, jobs: Sequence[NewJob]) -> Body[set[str]]:
        """Jobs that stand alone, under ids of the caller's that are at home: they were stored there with
        more to say, or have moved."""
        given = [job.id for job in jobs if job.is_given_id and not lives_at_home(job)]
        if not given:
            return set()
        (found,) = whole(
            (yield from self._fan_out.scatter([(HOME, self._plain_reads.get(given).steps())]))
        )
        return {job.id for job in found if job is not None}

    def _enqueue_at_home(
        self, jobs: Sequence[NewJob], at: Callable[..., Body[list[Enqueued]]]
    ) -> Body[list[Enqueued]]:
        """Those with an id of the caller's may be in a shard already, as jobs that stand alone."""
        given = [job.id for job in jobs if job.is_given_id]
        known: set[str] = set()
        if given:
            found = yield from self._reads.get(given).steps()
            known = {job.id for job in found if job is not None}
        new = [job for job in jobs if job.id not in known]
        stored = iter((yield from at(new)) if new else ())
        return [Enqueued(job.id, False) if job.id in known else next(stored) for job in jobs]


def _is_refused(jobs: Sequence[NewJob], answers: Sequence[Enqueued]) -> bool:
    """Whether a key that is held has kept the whole call from being stored."""
    return any(
        answer.holder is not None and not answer.is_replaced and job.on_duplicate is not Duplicate.RETURN
        for job, answer in zip(jobs, answers, strict=True)
    )
