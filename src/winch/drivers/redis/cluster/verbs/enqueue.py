"""Enqueue in a cluster, and which jobs live at home."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from winch.core.errors import EnqueueUncertain, StorageFull, StorageUnavailable, WinchError
from winch.core.gates.places import lone_place
from winch.core.gates.uses import is_gated
from winch.core.policy.unique import Duplicate
from winch.drivers.redis.cluster.fan_out import FanOut, whole
from winch.drivers.redis.cluster.homes import GateHomes
from winch.drivers.redis.cluster.shards import HOME, ClusterRoute
from winch.drivers.redis.cluster.verbs.reads import ClusterReadVerbs
from winch.drivers.redis.verbs.base import Body
from winch.drivers.redis.verbs.enqueue import DrawnTwice, EnqueueVerbs, GatesAtHome
from winch.drivers.redis.verbs.reads import ReadVerbs
from winch.storage.params import Enqueued, NewJob
from winch.storage.placing import NotPlaced
from winch.storage.verbs import Now, Verb

T = TypeVar("T")


class ClusterEnqueueVerbs:
    """Store each job in its shard, or at home."""

    def __init__(
        self,
        plain: EnqueueVerbs,
        fan_out: FanOut,
        plain_reads: ReadVerbs,
        reads: ClusterReadVerbs,
        route: ClusterRoute,
        replicated: int,
        homes: GateHomes,
    ) -> None:
        self._plain = plain
        self._fan_out = fan_out
        self._plain_reads = plain_reads
        self._reads = reads
        self._route = route
        self._replicated = replicated
        self._homes = homes

    def enqueue(
        self,
        jobs: Sequence[NewJob],
        *,
        is_repeat: bool = False,
        now: Now = None,
        fence: int | None = None,
    ) -> Verb[list[Enqueued]]:
        def at(chosen: Sequence[NewJob], *, again: bool = is_repeat) -> Body[list[Enqueued]]:
            return self._plain.enqueue(chosen, is_repeat=again, now=now, fence=fence).steps()

        def body() -> Body[list[Enqueued]]:
            groups: dict[int, list[int]] = {}
            answers: list[Any] = [None] * len(jobs)
            # First of all: members of a key that are not alike are stored together, in their order.
            yield from self._homes.gather_for(job for job in jobs if self._homes.of(job) == HOME)
            known = yield from self._known_at_home(jobs)
            for index, job in enumerate(jobs):
                where = self._homes.of(job)
                if where != HOME and job.id in known:
                    answers[index] = Enqueued(job.id, False)
                else:
                    groups.setdefault(where, []).append(index)
            if HOME in groups:
                indexes = groups.pop(HOME)
                found = yield from self._enqueue_at_home(
                    [jobs[index] for index in indexes], at, is_repeat
                )
                for index, answer in zip(indexes, found, strict=True):
                    answers[index] = answer
                if _is_refused([jobs[index] for index in indexes], found):
                    return [
                        answer or Enqueued(job.id, False)
                        for answer, job in zip(answers, jobs, strict=True)
                    ]
            firm, free = _firm_and_free(jobs, groups, is_repeat=is_repeat)
            results = yield from self._store_in_shards(
                [(where, [jobs[index] for index in group]) for where, group in firm], at
            )
            results += yield from self._store_where_fit(
                [(where, [jobs[index] for index in group]) for where, group in free], at
            )
            for place, (_, group) in enumerate((*firm, *free)):
                if isinstance(gone := results[place], GatesAtHome):  # another driver has brought them
                    some = [jobs[i] for i in group]
                    later = self.enqueue(some, is_repeat=is_repeat, now=now, fence=fence)
                    try:
                        yield from self._homes.gather(gone.family)
                        results[place] = yield from later.steps()
                    except WinchError as error:  # other jobs of the call may be stored
                        results[place] = error
                if isinstance(result := results[place], list):
                    for index, answer in zip(group, result, strict=True):
                        answers[index] = answer
            self._raise_errors(jobs, answers, results, len(firm))
            return answers

        return Verb("enqueue", body)

    def _store_in_shards(
        self,
        chosen: Sequence[tuple[int, Sequence[NewJob]]],
        at: Callable[..., Body[list[Enqueued]]],
        *,
        is_brief: bool = False,
    ) -> Body[list[list[Enqueued] | WinchError]]:
        results = yield from self._fan_out.scatter(
            [(where, at(some)) for where, some in chosen], is_brief=is_brief
        )
        again = [
            (where, at(some, again=True))
            for (where, some), result in zip(chosen, results, strict=True)
            if isinstance(result, DrawnTwice)
        ]
        if again:  # a job that exists stays as it is and keeps no other job out
            repeats = iter(map(_partly, (yield from self._fan_out.scatter(again))))
            results = [next(repeats) if isinstance(r, DrawnTwice) else r for r in results]
        return results

    def _store_where_fit(
        self,
        chosen: Sequence[tuple[int, Sequence[NewJob]]],
        at: Callable[..., Body[list[Enqueued]]],
    ) -> Body[list[list[Enqueued] | WinchError]]:
        """Under ids that Winch has drawn and can draw again: a node that does not answer, or has too
        few replicas, is not waited for."""
        wanted = self._replicated

        def checking(some: Sequence[NewJob], *, again: bool = False) -> Body[list[Enqueued]]:
            return _with_replicas(wanted, at(some, again=again))

        found: dict[int, list[Enqueued] | WinchError] = {}
        fit = [(where, some) for where, some in chosen if not self._route.is_unfit(where)]
        results = yield from self._store_in_shards(fit, checking if wanted else at, is_brief=True)
        found.update(zip((where for where, _ in fit), results, strict=True))
        passed_over = StorageUnavailable(
            f"{self._route.address.describe()}: a node that could not take jobs just now is passed over"
        )
        return [found.get(where, passed_over) for where, _ in chosen]

    def _raise_errors(
        self,
        jobs: Sequence[NewJob],
        answers: Sequence[Enqueued | None],
        results: Sequence[list[Enqueued] | WinchError],
        firm: int,
    ) -> None:
        """Raise where some of the jobs are not stored. The first `firm` results are of ids that cannot
        be drawn again."""
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
        errors = [result for result in results if isinstance(result, WinchError)]
        is_free = not any(isinstance(result, WinchError) for result in results[:firm])
        if is_free and errors and all(map(_is_surely_not_stored, errors)):
            raise NotPlaced(str(errors[0]), answers, self._route.unfit_places()) from errors[0]
        whole(results)

    def _known_at_home(self, jobs: Sequence[NewJob]) -> Body[set[str]]:
        """Jobs that stand alone, under ids of the caller's that are at home: they were stored there with
        more to say, or have moved."""
        given = [job.id for job in jobs if job.is_given_id and self._homes.of(job) != HOME]
        if not given:
            return set()
        (found,) = whole(
            (yield from self._fan_out.scatter([(HOME, self._plain_reads.get(given).steps())]))
        )
        return {job.id for job in found if job is not None}

    def _enqueue_at_home(
        self, jobs: Sequence[NewJob], at: Callable[..., Body[list[Enqueued]]], is_repeat: bool
    ) -> Body[list[Enqueued]]:
        """Those with an id of the caller's may be in a shard already, as jobs that stand alone. So may
        those of a repeat, whose gates have gone home since."""
        given = [
            job.id
            for job in jobs
            if job.is_given_id or (is_repeat and lone_place(job.options) is not None)
        ]
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


def _is_surely_not_stored(error: WinchError) -> bool:
    return isinstance(error, StorageUnavailable) and not error.maybe_applied


def _partly(result: T | WinchError) -> T | WinchError:
    """What storing jobs came to of which some were there before."""
    if isinstance(result, WinchError) and _is_surely_not_stored(result):
        return StorageUnavailable(str(result), maybe_applied=True)
    return result


_Groups = list[tuple[int, list[int]]]


def _firm_and_free(
    jobs: Sequence[NewJob], groups: Mapping[int, Sequence[int]], *, is_repeat: bool
) -> tuple[_Groups, _Groups]:
    """Jobs by shard, as places in the call: those that must be there, and those that may be elsewhere
    under another id, because Winch has drawn theirs and no try to store them may have succeeded."""
    firm: _Groups = []
    free: _Groups = []

    def is_firm(job: NewJob) -> bool:
        return is_repeat or job.is_given_id or is_gated(job.options)

    for where, group in groups.items():
        given = [index for index in group if is_firm(jobs[index])]
        drawn = [index for index in group if not is_firm(jobs[index])]
        firm += [(where, given)] if given else []
        free += [(where, drawn)] if drawn else []
    return firm, free


def _with_replicas(wanted: int, body: Body[T]) -> Body[T]:
    """An enqueue that stores nothing on a node with fewer replicas than this."""
    what: Any = next(body)
    while True:
        what.args["replicas"] = wanted
        try:
            what = body.send((yield what))
        except StopIteration as stop:
            result: T = stop.value
            return result
