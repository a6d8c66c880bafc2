"""Verbs that are carried out in two stores: which step goes where."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

import msgspec

from winch.core.lifecycle import JobState
from winch.core.policy.unique import Duplicate
from winch.engine.moving.route import Route
from winch.storage.decide.unique import Holder, takes_over
from winch.storage.params import Enqueued, NewJob
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


def filled(
    found: list[T],
    left: Sequence[int],
    ids: Sequence[str],
    ask: Callable[[Driver, Sequence[str]], Plan[list[T]]],
    store: Driver,
    is_absent: Callable[[T], bool],
) -> Plan[list[int]]:
    """Ask a store for the jobs at these places, and return the places of those that it does not have."""
    if not left:
        return []
    more = yield from ask(store, [ids[place] for place in left])
    for place, one in zip(left, more, strict=True):
        found[place] = one
    return [place for place in left if is_absent(found[place])]
