"""Enqueue: the calls that store jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from winch.core.changes import BLOCKED_REASON
from winch.core.errors import ConfigError, EnqueueUncertain
from winch.core.gates.uses import is_gated
from winch.core.job import from_micros
from winch.drivers.redis.records import MICROSECOND, envelope, micros
from winch.drivers.redis.verbs.base import Base, Body, wait_rows
from winch.storage.decide.enqueued import stored_at
from winch.storage.decide.unique import takes_over
from winch.storage.decide.waits import ALL, AWAITED_HEADER, EACH
from winch.storage.params import ClaimRef, Enqueued, NewJob, Wait
from winch.storage.verbs import Now, Verb

# How many characters the ids on one page share: see lua/parts/pages.lua.
BEGIN = 12

_decode = msgspec.msgpack.Decoder().decode


class DrawnTwice(ConfigError):
    """A job of this id exists, and the caller did not announce a repeat."""


class GatesAtHome(ConfigError):
    """In a shard of a cluster: a family of gates of the jobs is at home. Nothing is stored."""

    def __init__(self, family: str) -> None:
        super().__init__(f"the gates {family} are in the home shard")
        self.family = family


class Fenced(ConfigError):
    """The fence is higher than the number of the call. Nothing is stored in this part."""

    def __init__(self) -> None:
        super().__init__("a move leads new jobs to another store")


class EnqueueVerbs:
    """Store new jobs."""

    def __init__(self, base: Base) -> None:
        self._call = base.call
        self._replicated = base.replicated

    def enqueue(
        self,
        jobs: Sequence[NewJob],
        *,
        is_repeat: bool = False,
        now: Now = None,
        fence: int | None = None,
    ) -> Verb[list[Enqueued]]:
        def body() -> Body[list[Enqueued]]:
            if not jobs:
                return []
            return (yield from self.store(jobs, is_repeat=is_repeat, now=now, fence=fence)) or []

        return Verb("enqueue", body)

    def store(
        self,
        jobs: Sequence[NewJob],
        *,
        waits: Sequence[tuple[str, Sequence[Wait]]] = (),
        claim: ClaimRef | None = None,
        is_repeat: bool = False,
        now: Now = None,
        fence: int | None = None,
    ) -> Body[list[Enqueued] | None]:
        """Store jobs and what they wait for. None: the claim is not live, and nothing is stored."""
        wanted = self._replicated
        is_plain = not (
            is_repeat or waits or claim is not None or fence is not None or any(map(is_special, jobs))
        )
        if not is_plain:
            what = self._call(
                "enqueue_special",
                blobs=[envelope(job) for job in jobs],
                confirmations=wanted,
                confirm=wanted > 0,
                now=micros(now),
                names=names_of(jobs),
                jobs=[new_row(job) for job in jobs],
                is_repeat=is_repeat,
                waits=[(job_id, wait_rows(some)) for job_id, some in waits],
                reason=BLOCKED_REASON,
                claim=None if claim is None else (claim.id, claim.token),
                fence=fence,
            )
        else:
            ids = [job.id for job in jobs]
            if len(ids) > 1 and len(set(ids)) < len(ids):
                (twice, _), *_ = Counter(ids).most_common(1)
                raise DrawnTwice(f"job id {twice} was drawn twice")
            begin = min(ids)[:BEGIN]  # where the greatest begins so, too, all of them do
            groups, blobs = _groups(jobs)
            what = self._call(
                "enqueue",
                blobs=blobs,
                confirmations=wanted,
                confirm=wanted > 0,
                now=micros(now),
                names=names_of(jobs),
                groups=groups,
                begin=begin if max(ids).startswith(begin) else None,
            )
        reply = yield what
        if wanted:
            reply, confirmed = reply
            if not isinstance(confirmed, int) or confirmed < wanted:
                raise EnqueueUncertain(
                    f"{confirmed if isinstance(confirmed, int) else 0} of {wanted} replicas have "
                    "confirmed the jobs; they are stored, but a failover may lose them. Enqueue "
                    "again with the same ids",
                    [job.id for job in jobs],
                )
        if is_plain:
            if not isinstance(reply, int):
                raise DrawnTwice(f"job id {reply.decode()} was drawn twice")
            return stored_at(from_micros(reply), jobs)
        found = _decode(reply)
        if "twice" in found:
            raise ConfigError(f"job id {found['twice']} was drawn twice")
        if "gone" in found:
            raise GatesAtHome(found["gone"])
        if "shut" in found:
            raise Fenced
        if "lost" in found:
            return None
        moment = from_micros(found["now"])
        return [_stored(job, answer, moment) for job, answer in zip(jobs, found["answers"], strict=True)]


def is_special(job: NewJob) -> bool:
    """Whether more is stored of this job than its envelope and its address in a queue."""
    return is_gated(job.options) or needs_more(job)


def needs_more(job: NewJob) -> bool:
    """Whether more is stored of it than that and what its gates need."""
    return (
        job.is_given_id
        or job.delay is not None
        or job.run_at is not None
        or job.unique_key is not None
        or job.keep is not None
        or (bool(job.headers) and _awaited(job) not in (False, _together(job)))
    )


def _awaited(job: NewJob) -> str | bool:
    """How its header has it awaited: with others by this key, alone (True), both, or not at all."""
    header = job.headers.get(AWAITED_HEADER)
    return False if header is None else header if header.startswith(ALL) else True


def _together(job: NewJob) -> str | bool:
    awaited = _awaited(job)
    return awaited if isinstance(awaited, str) and not awaited.endswith(EACH) else False


def names_of(jobs: Sequence[NewJob]) -> dict[str, list[str]]:
    """The tasks of each queue."""
    if len(jobs) == 1:
        return {jobs[0].queue: [jobs[0].task]}
    found: dict[str, dict[str, None]] = {}
    for queue, task in {(job.queue, job.task) for job in jobs}:
        found.setdefault(queue, {})[task] = None
    return {queue: list(tasks) for queue, tasks in found.items()}


def _groups(
    jobs: Sequence[NewJob],
) -> tuple[list[tuple[str, int, str | bool, list[str]]], list[bytes]]:
    """Plain jobs by queue, priority, which give the sort key, and what they are waited for by together;
    and their envelopes in order."""
    if len(jobs) == 1:
        job = jobs[0]
        return [(job.queue, job.priority, _together(job), [job.id])], [envelope(job)]
    found: dict[tuple[str, int, str | bool], list[NewJob]] = {}
    for job in jobs:
        together = _together(job) if job.headers else False
        found.setdefault((job.queue, job.priority, together), []).append(job)
    groups = [(*key, [job.id for job in group]) for key, group in found.items()]
    return groups, [envelope(job) for group in found.values() for job in group]


def new_row(job: NewJob) -> tuple[Any, ...]:
    """A job as lua/parts/put.lua reads it."""
    return (
        job.id,
        False,
        job.queue,
        job.priority,
        False if job.delay is None else job.delay // MICROSECOND,
        False if job.run_at is None else micros(job.run_at),
        job.is_given_id,
        job.unique_key or False,
        job.on_duplicate.value,
        False if job.keep is None else job.keep // MICROSECOND,
        _awaited(job),
        is_gated(job.options),
        takes_over(job),
        False if job.unique_within is None else job.unique_within // MICROSECOND,
        False if job.max_wait is None else job.max_wait // MICROSECOND,
    )


def _stored(job: NewJob, answer: Sequence[Any], moment: datetime) -> Enqueued:
    is_new, holder, is_replaced = (*answer, False, False)[:3]
    if is_new:
        [stored] = stored_at(moment, [job])
        return stored
    return Enqueued(job.id, False, holder or None, is_replaced)


def fenced(stored: Verb[list[Enqueued]]) -> Verb[list[Enqueued] | None]:
    """The verb whose answer is None where the fence refuses this one."""

    def body() -> Body[list[Enqueued] | None]:
        try:
            return (yield from stored.steps())
        except Fenced:
            return None

    return Verb("enqueue_fenced", body)
