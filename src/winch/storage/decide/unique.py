"""What becomes of the jobs of one enqueue that have unique keys: decided once, for every driver.

A driver returns the holders of the keys (and, where producers run side by side, has taken the free
ones before it asks); the rest follows from the order of the call.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from winch.core.lifecycle import TRANSITIONS, JobState
from winch.core.policy.unique import Duplicate, Until
from winch.storage.params import Enqueued, NewJob


@dataclass(frozen=True)
class Holder:
    """The job that has a key; `state` is None for one that is final and has it `within` a time."""

    id: str
    state: JobState | None


@dataclass(frozen=True)
class Plan:
    """`store` are the jobs to insert, `replace` the waiting jobs to change by what they are changed to,
    `take_over` the keys that running jobs lose to a job of `store`, with the jobs that lose them.
    `answers` has None where the insert decides. Refused: nothing of the call is stored."""

    answers: list[Enqueued | None]
    store: list[NewJob]
    replace: dict[str, NewJob]
    is_refused: bool
    take_over: dict[str, str] = field(default_factory=dict)


def planned(jobs: Sequence[NewJob], held: Mapping[str, Holder], known: Collection[str] = ()) -> Plan:
    """Go through the call in order. `held`: keys of other jobs; `known`: ids that exist already, whose
    jobs are answered as they are and take no key."""
    answers: list[Enqueued | None] = []
    store: list[NewJob] = []
    mine: dict[str, int] = {}  # key -> its place in `store`
    replace: dict[str, NewJob] = {}
    take_over: dict[str, str] = {}
    is_refused = False
    for job in jobs:
        key = job.unique_key
        holder = None if key is None or key in take_over else held.get(key)
        if key is not None and holder is not None and job.id not in known and _leaves(holder, job):
            take_over[key] = holder.id
            holder = None
        if job.id in known:
            answers.append(Enqueued(job.id, is_new=False))
        elif key is None or (holder is not None and holder.id == job.id):
            answers.append(None)
            store.append(job)
        elif holder is None and (key not in mine or store[mine[key]].id == job.id):
            answers.append(None)
            mine.setdefault(key, len(store))
            store.append(job)
        else:
            first = holder.id if holder is not None else store[mine[key]].id
            is_replaced = False
            if job.on_duplicate in (Duplicate.REPLACE, Duplicate.DEBOUNCE):
                if holder is None:
                    store[mine[key]] = _in_place_of(store[mine[key]], job)
                    is_replaced = True
                elif holder.state in TRANSITIONS["replace"]:
                    replace[holder.id] = job
                    is_replaced = True
            is_refused |= job.on_duplicate is not Duplicate.RETURN and not is_replaced
            answers.append(Enqueued(job.id, is_new=False, holder=first, is_replaced=is_replaced))
    if is_refused:
        answers = [
            Enqueued(job.id, is_new=False, holder=answer.holder if answer is not None else None)
            for job, answer in zip(jobs, answers, strict=True)
        ]
        return Plan(answers, [], {}, is_refused)
    return Plan(answers, store, replace, is_refused, take_over)


def takes_over(job: NewJob) -> bool:
    """Whether this job may take its key from one that runs."""
    return job.unique_until is Until.STARTED or job.on_duplicate is Duplicate.DEBOUNCE


def _leaves(holder: Holder, job: NewJob) -> bool:
    return holder.state is JobState.RUNNING and holder.id != job.id and takes_over(job)


def filled(plan: Plan, stored: Sequence[Enqueued]) -> list[Enqueued]:
    """The answers, with those of the inserts in their places."""
    inserted = iter(stored)
    return [next(inserted) if answer is None else answer for answer in plan.answers]


def _in_place_of(first: NewJob, job: NewJob) -> NewJob:
    return msgspec.structs.replace(
        first,
        args=job.args,
        version=job.version,
        priority=job.priority,
        delay=job.delay,
        run_at=job.run_at,
    )
