"""Storing jobs."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from winch.core import changes
from winch.core.errors import ConfigError
from winch.core.job import from_micros, to_micros
from winch.core.values.codec import to_json
from winch.drivers.sqlite.connections.writer import store_time
from winch.drivers.sqlite.records import MICROSECOND, put_values
from winch.drivers.sqlite.statements import Ring, Step
from winch.drivers.sqlite.verbs.base import (
    HEAD_START_MICROS,
    RING_WITHIN_MICROS,
    Body,
    holders,
    kept_holders,
    query,
    read_jobs,
    ring_for,
)
from winch.storage.decide.enqueued import stored_at
from winch.storage.decide.unique import filled, planned
from winch.storage.params import Enqueued, NewJob
from winch.storage.verbs import Now, Verb

_astuple = msgspec.structs.astuple
# A NewJob's first fields are its id, task and arguments; all that follow are its envelope.
_ENVELOPE_AT = NewJob.__struct_fields__.index("args") + 1
# Fewer changes of envelope than this in one call are not worth looking for more alike.
_SCATTERED = 8


class EnqueueVerbs:
    """See EnqueueVerbs in storage/families.py for the contract."""

    def enqueue(
        self, jobs: Sequence[NewJob], *, is_repeat: bool = False, now: Now = None
    ) -> Verb[list[Enqueued]]:
        if len(jobs) == 1 and not is_repeat and _is_plain(jobs[0]):
            return Verb("enqueue", lambda: _store_plain(jobs[0], now), is_alone=True)
        if len(jobs) > 1 and not is_repeat and (texts := _args_alike(jobs)) is not None:
            return Verb("enqueue", lambda: _store_alike(jobs, texts, now), is_alone=True)

        def body() -> Body[list[Enqueued]]:
            at = store_time(now)
            known: set[str] = set()
            # Ids that Winch drew are looked up only when the first call's answer was lost.
            if checked := [job.id for job in jobs if is_repeat or job.is_given_id]:
                known = {row[0] for row in (yield from query("enqueue.known", ids=to_json(checked)))}
            keys = {job.unique_key for job in jobs if job.unique_key is not None}
            plan = None
            chosen = jobs
            if keys:
                held = yield from holders(keys)
                if within := {j.unique_key for j in jobs if j.unique_within is not None} - set(held):
                    held |= yield from kept_holders(within, at)
                plan = planned(jobs, held, known)
                chosen = plan.store
                if plan.take_over:
                    yield from query("enqueue.take_over", ids=to_json(list(plan.take_over.values())))
            fresh, answers = _fresh(chosen, known, from_micros(at), is_repeat=is_repeat)
            try:
                yield from _insert(fresh, at)
            except sqlite3.IntegrityError as error:
                raise drawn_twice(", ".join(job.id for job in fresh)) from error
            if plan is None:
                return answers
            kept = [job for job in fresh if job.unique_within is not None]
            if kept:
                yield Step.each("enqueue.keep", [_kept(job, at) for job in kept])
            if plan.replace:
                yield from _replace(plan.replace, at)
            return filled(plan, answers)

        return Verb("enqueue", body)


def _is_plain(job: NewJob) -> bool:
    """Whether it is ready at once and needs nothing more, and its id was drawn by Winch."""
    return not (
        job.is_given_id
        or job.unique_key is not None
        or job.delay is not None
        or job.run_at is not None
        or job.tenant is not None
        or job.fifo is not None
        or job.tags
        or job.headers
        or job.options is not None
        or job.expires is not None
    )


def _store_plain(job: NewJob, now: datetime | None) -> Body[list[Enqueued]]:
    """One plain job, by one statement."""
    at = store_time(now)
    keep = None if job.keep is None else job.keep // MICROSECOND
    sort_key = at - job.priority * HEAD_START_MICROS
    what = (job.id, job.task, job.version, job.args, job.queue, job.priority)
    values = (*what, job.max_attempts, keep, sort_key, at, at, at)
    try:
        yield Step("enqueue.plain", values)
    except sqlite3.IntegrityError as error:
        raise drawn_twice(job.id) from error
    yield Ring({job.queue: 1})
    return stored_at(from_micros(at), [job])


def _args_alike(jobs: Sequence[NewJob]) -> str | None:
    """The arguments of jobs that share their envelope, as `enqueue` takes them. None where they do not,
    or where something is looked up or numbered before they are stored."""
    first = jobs[0]
    if first.is_given_id or first.unique_key is not None or first.fifo is not None:
        return None
    task, envelope = first.task, _astuple(first)[_ENVELOPE_AT:]
    args = {}
    for job in jobs:
        if job.task != task or _astuple(job)[_ENVELOPE_AT:] != envelope:
            return None
        args[job.id] = job.args
    # Of an id that is there twice one would be lost without a word.
    return to_json(args) if len(args) == len(jobs) else None


def _store_alike(jobs: Sequence[NewJob], texts: str, now: datetime | None) -> Body[list[Enqueued]]:
    """Jobs that share their envelope, by one statement."""
    at = store_time(now)
    values = _values(jobs[0], texts, None, at)
    try:
        yield Step("enqueue", values)
    except sqlite3.IntegrityError as error:
        raise drawn_twice(", ".join(job.id for job in jobs)) from error
    yield _ring_for_new(values, len(jobs))
    return stored_at(from_micros(at), jobs)


def _fresh(
    jobs: Sequence[NewJob], known: set[str], moment: datetime, *, is_repeat: bool
) -> tuple[list[NewJob], list[Enqueued]]:
    """The jobs that are to be stored, and the answers for all."""
    if not known and len({job.id for job in jobs}) == len(jobs):
        return list(jobs), stored_at(moment, jobs)
    fresh: dict[str, NewJob] = {}
    answers = []
    for job in jobs:
        is_new = job.id not in known and job.id not in fresh
        if not is_new and not is_repeat and not (job.is_given_id and _is_given(job.id, fresh)):
            raise drawn_twice(job.id)
        if is_new:
            fresh[job.id] = job
        answers += stored_at(moment, [job]) if is_new else [Enqueued(job.id, False)]
    return list(fresh.values()), answers


def _insert(jobs: Sequence[NewJob], at: int) -> Body[None]:
    """Jobs that share an envelope go in one statement: in a bulk of one task all of them do."""
    numbers = yield from _numbers(jobs, at)
    for job, args in groups_of(jobs):
        values = _values(job, to_json(args), numbers.get(job.id), at)
        if job.fifo is None or len(args) == 1:
            yield Step("enqueue", values)
        else:  # each has a number of its own
            rows = [
                {**values, "jobs": to_json({job_id: text}), "seq": numbers[job_id]}
                for job_id, text in args.items()
            ]
            yield Step.each("enqueue", rows)
        yield _ring_for_new(values, len(args))


def _values(job: NewJob, texts: str, seq: int | None, at: int) -> dict[str, Any]:
    """What `enqueue` stores: one of the jobs that share an envelope, and the arguments of all of them as
    a JSON object by id."""
    due = at
    if job.delay is not None:
        due = at + job.delay // MICROSECOND
    elif job.run_at is not None:
        due = to_micros(job.run_at)
    run_at = max(due, at)
    return {
        "jobs": texts,
        "task": job.task,
        "version": job.version,
        "queue": job.queue,
        "priority": job.priority,
        "now": at,
        "run_at": run_at,
        "state": "scheduled" if due > at else "ready",
        "tenant": job.tenant,
        "fifo": job.fifo,
        "seq": seq,
        "unique_key": job.unique_key,
        "tags": to_json(job.tags) if job.tags else "[]",
        "headers": to_json(job.headers) if job.headers else "{}",
        "options": job.options,
        "expires_at": None if job.expires is None else at + job.expires // MICROSECOND,
        "max_attempts": job.max_attempts,
        "keep": None if job.keep is None else job.keep // MICROSECOND,
        "sort_key": run_at - job.priority * HEAD_START_MICROS,
    }


def _ring_for_new(values: Mapping[str, Any], jobs: int) -> Ring:
    """What so many new jobs of these values wake."""
    if values["state"] == "ready":
        return Ring({values["queue"]: jobs})
    return Ring(due=values["run_at"] - values["now"] < RING_WITHIN_MICROS)


def _numbers(jobs: Sequence[NewJob], at: int) -> Body[dict[str, int]]:
    """The numbers of those with a FIFO key, in the order of the call: greater than those of all live
    members of their keys, and no less than the moment. With one writer at a time no other call draws
    the same."""
    members = [job for job in jobs if job.fifo is not None]
    if not members:
        return {}
    keys = to_json(list({job.fifo for job in members}))
    ((last,),) = yield from query("enqueue.last", keys=keys)
    first = at if last is None else max(last + 1, at)
    return {job.id: first + index for index, job in enumerate(members)}


def _kept(job: NewJob, at: int) -> dict[str, object]:
    within = (job.unique_within or timedelta(0)) // MICROSECOND
    return {"key": job.unique_key, "job": job.id, "until": at + within}


def _replace(news: Mapping[str, NewJob], at: int) -> Body[None]:
    jobs = yield from read_jobs(news)
    moment = from_micros(at)
    after = [changes.replaced(jobs[holder], new, moment) for holder, new in news.items()]
    rows = [{**put_values(job, at), "priority": job.priority} for job in after]
    yield Step.each("enqueue.replace", rows)
    yield ring_for(after, at)


def groups_of(jobs: Sequence[NewJob]) -> Sequence[tuple[NewJob, dict[str, str]]]:
    """The jobs by their envelopes: one that has it, and the arguments of all of them by id."""
    groups: list[tuple[NewJob, dict[str, str]]] = []
    last: tuple[object, ...] = ()
    for job in jobs:
        envelope = _astuple(job)[_ENVELOPE_AT:]
        # Those of one enqueue_many share the very objects, so that this compares a few pointers.
        if groups and envelope == last and job.task == groups[-1][0].task:
            groups[-1][1][job.id] = job.args
        else:
            groups.append((job, {job.id: job.args}))
            last = envelope
    return groups if len(groups) < _SCATTERED else _gathered(groups)


def _gathered(
    groups: Sequence[tuple[NewJob, dict[str, str]]],
) -> Sequence[tuple[NewJob, dict[str, str]]]:
    """The same with those of one envelope together, wherever they stood in the call."""
    found: dict[object, tuple[NewJob, dict[str, str]]] = {}
    for job, args in groups:
        alike = _astuple(msgspec.structs.replace(job, id="", terms=(), args="", is_given_id=False))
        key = tuple(tuple(part.items()) if isinstance(part, dict) else part for part in alike)
        group = found.setdefault(key, (job, {}))
        group[1].update(args)
    return list(found.values())


def _is_given(job_id: str, fresh: Mapping[str, NewJob]) -> bool:
    return job_id not in fresh or fresh[job_id].is_given_id


def drawn_twice(ids: str) -> ConfigError:
    return ConfigError(f"job id {ids} was drawn twice")
