"""Store jobs: one or many, with drawn or given ids, with or without unique keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any

import msgspec

from winch.core.errors import ConfigError
from winch.core.policy.unique import Duplicate
from winch.drivers.postgres.records import write_span
from winch.drivers.postgres.statements import Body, Ids, Texts
from winch.drivers.postgres.verbs.base import SOON_SECONDS, Base
from winch.drivers.postgres.verbs.unique_keys import take_keys
from winch.storage.decide.enqueued import stored_at
from winch.storage.decide.unique import Holder, filled, planned, takes_over
from winch.storage.params import Enqueued, NewJob
from winch.storage.verbs import Now, Verb

_encode = msgspec.json.encode


class EnqueueVerbs:
    """See storage/families.py for the contract. `fast/handover.py` adds a fast path for one job."""

    def __init__(self, base: Base) -> None:
        self._base = base

    def enqueue(
        self, jobs: Sequence[NewJob], *, is_repeat: bool = False, now: Now = None
    ) -> Verb[list[Enqueued]]:
        def body() -> Body[list[Enqueued]]:
            if not jobs:
                return []
            if len({job.id for job in jobs}) < len(jobs):
                times = Counter(job.id for job in jobs)
                for job in jobs:
                    if times[job.id] > 1 and not (job.is_given_id or is_repeat):
                        raise ConfigError(f"job id {job.id} was drawn twice")
            if any(job.unique_key is not None for job in jobs):
                return (yield from self._insert_keyed(jobs, is_repeat, now))
            return (yield from self._insert(jobs, is_repeat, now))

        return Verb("enqueue", body)

    def _insert(
        self, jobs: Sequence[NewJob], is_repeat: bool, now: datetime | None
    ) -> Body[list[Enqueued]]:
        if is_repeat or any(job.is_given_id for job in jobs):
            return (yield from self._insert_checked(jobs, is_repeat, now))
        if alike := _write_alike(jobs):
            rows = yield self._base.statement("enqueue.alike", is_alone=True, now=now, **alike)
        else:
            text = _write_jobs(jobs)
            rows = yield self._base.statement(
                "enqueue", is_alone=True, jobs=text, now=now, soon_seconds=SOON_SECONDS
            )
        return stored_at(rows[0][0], jobs)

    def _insert_checked(
        self, jobs: Sequence[NewJob], is_repeat: bool, now: datetime | None
    ) -> Body[list[Enqueued]]:
        """Store the jobs whose ids are not known yet."""
        rows = yield self._base.statement(
            "enqueue.checked",
            is_alone=not is_repeat,
            jobs=_write_jobs(_each_once(jobs)),
            now=now,
            soon_seconds=SOON_SECONDS,
        )
        stored = {row[0]: row[1] for row in rows}
        if is_repeat and stored:
            rows = yield self._base.statement("enqueue.final", ids=list(stored))
            if final := [row[0] for row in rows]:
                yield self._base.statement("enqueue.undo", ids=final)
                for one in final:
                    del stored[one]
        answers = []
        for job in jobs:
            moment = stored.pop(job.id, None)
            answers += [Enqueued(job.id, False)] if moment is None else stored_at(moment, [job])
        return answers

    def _insert_keyed(
        self, jobs: Sequence[NewJob], is_repeat: bool, now: datetime | None
    ) -> Body[list[Enqueued]]:
        """Take the unique keys of the jobs, and store what `planned` makes of their holders."""
        known: set[str] = set()
        if looked_up := [job.id for job in jobs if is_repeat or job.is_given_id]:
            known = {row[0] for row in (yield self._base.statement("cancel.states", ids=looked_up))}
        wanted: dict[str, str] = {}
        replacing: set[str] = set()
        for job in jobs:
            if job.unique_key is not None and job.id not in known:
                wanted.setdefault(job.unique_key, job.id)
                if job.on_duplicate is Duplicate.REPLACE or takes_over(job):
                    replacing.add(job.unique_key)
        held = yield from take_keys(self._base, wanted, replacing)
        won = [key for key in wanted if key not in held]
        within = {job.unique_key for job in jobs if job.unique_within is not None}
        if looked_up := [key for key in won if key in within]:
            for key, holder in (yield self._base.statement("enqueue.kept", keys=looked_up, now=now)):
                held[key] = Holder(holder, None)
        plan = planned(jobs, held, known)
        if plan.is_refused:
            if won:
                yield self._base.statement("enqueue.unkey", keys=won)
            return filled(plan, [])
        if plan.take_over:
            winners = {job.unique_key: job.id for job in reversed(plan.store)}
            yield self._base.statement(
                "enqueue.take_over",
                keys=list(plan.take_over),
                losers=list(plan.take_over.values()),
                winners=[winners[key] for key in plan.take_over],
            )
        stored = (yield from self._insert(plan.store, is_repeat, now)) if plan.store else []
        if within:
            yield from self._keep_keys(plan.store, stored, now)
        if won and (within or not all(answer.is_new for answer in stored)):
            yield self._base.statement("enqueue.unkey", keys=won)
        if plan.replace:
            changed = [msgspec.structs.replace(new, id=i) for i, new in plan.replace.items()]
            text = _write_jobs(changed)
            yield self._base.statement("enqueue.replace", jobs=text, now=now, soon_seconds=SOON_SECONDS)
        return filled(plan, stored)

    def _keep_keys(
        self, jobs: Sequence[NewJob], stored: Sequence[Enqueued], now: datetime | None
    ) -> Body[None]:
        """Record until when the stored jobs hold their unique keys, final or not."""
        kept = {
            job.unique_key: job
            for job, answer in zip(jobs, stored, strict=True)
            if answer.is_new and job.unique_key is not None and job.unique_within is not None
        }
        if kept:
            yield self._base.statement(
                "enqueue.keep",
                keys=list(kept),
                jobs=[job.id for job in kept.values()],
                seconds=[(job.unique_within or timedelta(0)).total_seconds() for job in kept.values()],
                now=now,
            )


def _each_once(jobs: Sequence[NewJob]) -> Collection[NewJob]:
    """The first job of each id, in the order of the call: members of FIFO keys are numbered in it."""
    found: dict[str, NewJob] = {}
    for job in jobs:
        found.setdefault(job.id, job)
    return found.values()


# -- what is written ---------------------------------------------------------------------------------


class _NewRow(msgspec.Struct, omit_defaults=True):
    id: str
    task: str
    version: int
    args: str
    queue: str
    priority: int
    is_given_id: bool
    delay_seconds: float | None = None
    run_at: datetime | None = None
    tenant: str | None = None
    fifo: str | None = None
    unique_key: str | None = None
    tags: tuple[str, ...] | None = None
    headers: str | None = None
    options: str | None = None
    expires_seconds: float | None = None
    max_attempts: int | None = None
    keep_seconds: float | None = None
    max_wait_seconds: float | None = None


def _write_jobs(jobs: Iterable[NewJob]) -> str:
    """The jobs as the one JSON text that `enqueue` takes."""
    return _encode(
        [
            _NewRow(
                job.id,
                job.task,
                job.version,
                job.args,
                job.queue,
                job.priority,
                job.is_given_id,
                write_span(job.delay),
                job.run_at,
                job.tenant,
                job.fifo,
                job.unique_key,
                job.tags or None,
                _write_headers(job),
                job.options,
                write_span(job.expires),
                job.max_attempts,
                write_span(job.keep),
                write_span(job.max_wait),
            )
            for job in jobs
        ]
    ).decode()


# What jobs stored by `enqueue.alike` may differ in (terms are stored elsewhere), what they share, and
# what they must not have: all other fields, also those that a later release adds.
_OWN = ("id", "args", "headers", "terms")
_SHARED = ("task", "version", "queue", "priority", "options", "expires", "max_attempts", "keep", "tags")
_ABSENT = tuple(field for field in NewJob.__struct_fields__ if field not in (*_OWN, *_SHARED))
_plain_job = NewJob(id="", task="", args="")
_absent = attrgetter(*_ABSENT)
_without_own = attrgetter(*_SHARED, *_ABSENT)
_nothing = _absent(_plain_job)


def _write_alike(jobs: Sequence[NewJob]) -> dict[str, Any] | None:
    """The parameters of `enqueue.alike`; None where the jobs are not alike."""
    first = jobs[0]
    if _absent(first) != _nothing:
        return None
    if len(jobs) > 1:
        usual = _without_own(first)
        if any(_without_own(job) != usual for job in jobs):
            return None
    return {
        "ids": Ids(job.id for job in jobs),
        "args": Texts(job.args for job in jobs),
        "headers": _alike_headers(jobs),
        "tags": Texts(first.tags) if first.tags else None,
        "task": first.task,
        "version": first.version,
        "queue": first.queue,
        "priority": first.priority,
        "options": first.options,
        "expires_seconds": write_span(first.expires),
        "max_attempts": first.max_attempts,
        "keep_seconds": write_span(first.keep),
    }


def _alike_headers(jobs: Sequence[NewJob]) -> Texts | None:
    first = jobs[0].headers
    if all(job.headers is first for job in jobs):  # the members of a flow share the very object
        text = _write_headers(jobs[0])
        return None if text is None else Texts([text] * len(jobs))
    return Texts(map(_write_headers, jobs)) if any(job.headers for job in jobs) else None


def _write_headers(job: NewJob) -> str | None:
    return _encode(job.headers).decode() if job.headers else None
