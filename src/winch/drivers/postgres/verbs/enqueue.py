"""Store jobs: one or many, with drawn or given ids, with or without unique keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

import msgspec

from winch.core.errors import ConfigError
from winch.core.policy.unique import Duplicate
from winch.drivers.postgres.records import write_alike, write_jobs, write_one
from winch.drivers.postgres.statements import Body
from winch.drivers.postgres.verbs.base import SOON_SECONDS, Base
from winch.drivers.postgres.verbs.unique_keys import take_keys
from winch.storage.decide.unique import Holder, filled, planned, takes_over
from winch.storage.params import Enqueued, NewJob
from winch.storage.verbs import Verb


class EnqueueVerbs:
    """See storage/families.py for the contract. `fast/lone_enqueue.py` adds a fast path for one job."""

    def __init__(self, base: Base) -> None:
        self._base = base

    def enqueue(
        self, jobs: Sequence[NewJob], *, is_repeat: bool = False, now: datetime | None = None
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

        return self._base.write("enqueue", body, now)

    def _insert(
        self, jobs: Sequence[NewJob], is_repeat: bool, now: datetime | None
    ) -> Body[list[Enqueued]]:
        if is_repeat or any(job.is_given_id for job in jobs):
            return (yield from self._insert_checked(jobs, is_repeat, now))
        if len(jobs) == 1 and (one := write_one(jobs[0], now)):
            yield self._base.statement("enqueue.one", is_alone=True, **one)
        elif alike := write_alike(jobs):
            yield self._base.statement("enqueue.alike", is_alone=True, now=now, **alike)
        else:
            text = write_jobs(jobs)
            yield self._base.statement(
                "enqueue", is_alone=True, jobs=text, now=now, soon_seconds=SOON_SECONDS
            )
        return [Enqueued(job.id, True) for job in jobs]

    def _insert_checked(
        self, jobs: Sequence[NewJob], is_repeat: bool, now: datetime | None
    ) -> Body[list[Enqueued]]:
        """Store the jobs whose ids are not known yet."""
        rows = yield self._base.statement(
            "enqueue.checked",
            is_alone=not is_repeat,
            jobs=write_jobs(_each_once(jobs)),
            now=now,
            soon_seconds=SOON_SECONDS,
        )
        stored = {row[0] for row in rows}
        if is_repeat and stored:
            rows = yield self._base.statement("enqueue.final", ids=list(stored))
            if final := [row[0] for row in rows]:
                yield self._base.statement("enqueue.undo", ids=final)
                stored.difference_update(final)
        answers = []
        for job in jobs:
            answers.append(Enqueued(job.id, job.id in stored))
            stored.discard(job.id)
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
            text = write_jobs(changed)
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
