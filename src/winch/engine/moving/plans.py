"""Verbs that are carried out in two stores: which step goes where."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from winch.core.flow import FLOW_HEADER, tag_of
from winch.core.lifecycle import JobState
from winch.core.policy.unique import Duplicate
from winch.engine.moving.route import Route
from winch.storage.decide.unique import Holder, takes_over
from winch.storage.decide.waits import ALL, AWAITED_HEADER
from winch.storage.params import Enqueued, JobFilter, NewJob, Page
from winch.storage.protocol import Driver
from winch.storage.verbs import Verb

T = TypeVar("T")
Plan = Generator[Any, Any, T]


class RoutedVerb(Verb[T], frozen=True):
    """A verb for two stores: what to send where. `plain` is the same for the source alone."""

    plan: Callable[[], Plan[Any]] = NotImplemented
    plain: Verb[Any] | None = None


class On(msgspec.Struct, frozen=True):
    """A verb, and the store that carries it out."""

    driver: Driver
    verb: Verb[Any]


def answers_there(
    jobs: Sequence[NewJob], known: set[str], held: dict[str, Holder]
) -> dict[str, Enqueued] | None:
    """As storage/decide/unique.py has it, for holders that are not where the jobs go."""
    answers: dict[str, Enqueued] = {}
    is_refused = False
    for job in jobs:
        holder = None if job.unique_key is None else held.get(job.unique_key)
        if job.id in known:
            answers[job.id] = Enqueued(job.id, is_new=False)
        elif holder is not None and holder.state is JobState.RUNNING:
            if takes_over(job):
                continue  # a running job does not hold the key against this one
            answers[job.id] = Enqueued(job.id, is_new=False, holder=holder.id)
            is_refused |= job.on_duplicate is not Duplicate.RETURN
        elif holder is not None:
            if job.on_duplicate is not Duplicate.RETURN:
                return None
            answers[job.id] = Enqueued(job.id, is_new=False, holder=holder.id)
    if is_refused:
        return {job.id: answers.get(job.id, Enqueued(job.id, is_new=False)) for job in jobs}
    return answers


def parcels_now(route: Route) -> str:
    """The name of a move's parcels in this direction."""
    return parcels_of(route.move, is_back=route.step.is_back and not route.step.to_target)


def parcels_of(move: str, *, is_back: bool) -> str:
    """The name under which both stores number the parcels of a move in one direction."""
    return f"{move}-back" if is_back else move


def plain_of(verb: Verb[T]) -> Verb[T]:
    if isinstance(verb, RoutedVerb) and verb.plain is not None:
        return verb.plain
    return verb


def sent_to(driver: Driver, operation: Generator[Any, Any, T]) -> Plan[T]:
    """The steps of an operation, each for this store."""
    answer: Any = None
    while True:
        try:
            step = operation.send(answer)
        except StopIteration as stop:
            result: T = stop.value
            return result
        answer = yield On(driver, step)


def is_bound(job: NewJob) -> bool:
    """Whether it matters to which store the job goes: it has a key, a place in an order, or a given id,
    which one store must decide on."""
    return job.unique_key is not None or job.fifo is not None or job.is_given_id


def flows_of(jobs: Sequence[NewJob]) -> set[str]:
    """The flows that these jobs are members or callbacks of."""
    return {job.headers[FLOW_HEADER] for job in jobs if job.headers and FLOW_HEADER in job.headers}


def is_led(job: NewJob, route: Route) -> bool:
    """Whether the job goes where the route leads. A child goes where its parent runs: workers of this
    process claim from the source alone."""
    is_child = bool(job.headers) and not job.headers.get(AWAITED_HEADER, ALL).startswith(ALL)
    return not is_child and route.scope.covers(job.queue, job.tenant)


def begun_in(store: Driver, flows: set[str]) -> Plan[set[str]]:
    """Those of the flows that have jobs in this store."""
    found = set()
    for flow in sorted(flows):
        for tag in (tag_of(flow), f"{tag_of(flow)}:callback"):
            page: Page = yield On(store, store.list_jobs(JobFilter(tag=tag, limit=1)))
            if page.jobs:
                found.add(flow)
    return found


def stored_in(
    store: Driver, jobs: Sequence[NewJob], epoch: int | None, *, is_repeat: bool, now: datetime | None
) -> Plan[list[Enqueued] | None]:
    """The answers of this store; None: it refuses jobs of so old a route."""
    answers: list[Enqueued] | None
    if epoch is None:
        answers = yield On(store, store.enqueue(jobs, is_repeat=is_repeat, now=now))
    else:
        answers = yield On(store, store.enqueue_fenced(jobs, epoch, is_repeat=is_repeat, now=now))
    return answers
