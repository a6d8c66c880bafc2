"""A flow that moves between two stores: two members, one that a member adds, and a callback after all.

The producer stores the callback, which waits until the flow is closed, then the members in several
calls, each where it has looked before. A member that runs may add one more. A callback that is claimed
looks at the members in its store: a live one makes it wait again. One that has moved arrives ready,
whatever it waited for. The mover looks which jobs there are, and takes them in a later step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from tests.model.explore import Rule, Step

FIRST, SECOND, ADDED, CALLBACK = range(4)
MEMBERS = (FIRST, SECOND, ADDED)
ORDER = (CALLBACK, FIRST, SECOND)


@dataclass(frozen=True)
class FamilyDesign:
    """The defaults are the protocol."""

    # What leaves together: all jobs of the family, those that are live, or whatever waits, alone.
    leaves: Literal["whole", "live ones", "each alone"] = "whole"
    # Whether the source is paused before the mover looks.
    pauses_source: bool = True
    # Whether a family leaves only once its producer has stored all of it.
    waits_until_closed: bool = True
    # Where a later call of the producer goes.
    goes_on: Literal["where it began", "where the route leads"] = "where it began"


@dataclass(frozen=True)
class FamilyScope:
    name: str
    calls: int = len(ORDER)  # so many calls of the producer; then it closes the flow

    @property
    def closed(self) -> int:
        return self.calls + 1


class Place(NamedTuple):
    store: int  # 0: the source, 1: the target
    is_final: bool = False
    is_running: bool = False
    is_gated: bool = False  # waits until the flow is closed


class FamilyState(NamedTuple):
    jobs: tuple[Place | None, ...] = (None, None, None, None)
    next: int = 0  # of ORDER: what the producer stores next; then it closes the flow
    look: int = -1  # where it will
    is_open: bool = False
    is_paused: bool = False
    taken: frozenset[int] | None = None  # what the mover has found
    has_fired: bool = False


Steps = Iterator[Step[FamilyState]]


class FamilyModel:
    def __init__(self, design: FamilyDesign, scope: FamilyScope) -> None:
        self.design = design
        self.scope = scope

    def initial(self) -> FamilyState:
        return FamilyState()

    def is_settled(self, state: FamilyState) -> bool:
        return state.has_fired

    def breaches(self, state: FamilyState) -> tuple[Rule, ...]:
        return ()

    def describe(self, state: FamilyState) -> str:
        return f"{state.jobs}; open {state.is_open}"

    def steps(self, state: FamilyState) -> Steps:
        yield from self._produces(state)
        for job, place in enumerate(state.jobs):
            if place is not None:
                yield from self._works(state, job, place)
        if not state.is_open:
            yield Step("the route is open", state._replace(is_open=True))
        else:
            yield from self._moves(state)

    def _produces(self, state: FamilyState) -> Steps:
        if state.next == self.scope.closed:
            return
        if state.next == self.scope.calls:
            jobs = tuple(place and place._replace(is_gated=False) for place in state.jobs)
            yield Step("the flow is closed", state._replace(jobs=jobs, next=self.scope.closed))
            return
        if state.look < 0:
            led = int(state.is_open)
            has_begun = any(place is not None and place.store == 0 for place in state.jobs)
            if self.design.goes_on == "where it began" and has_begun:
                led = 0
            yield Step("the producer looks", state._replace(look=led))
            return
        job = ORDER[state.next]
        stored = _put(state, job, Place(state.look, is_gated=job == CALLBACK))
        yield Step(f"{job} is stored", stored._replace(next=state.next + 1, look=-1))

    def _works(self, state: FamilyState, job: int, place: Place) -> Steps:
        if place.is_running:
            ended = _put(state, job, Place(place.store, is_final=True))
            yield Step(f"{job} ends", ended)
            if job == FIRST and state.jobs[ADDED] is None:
                yield Step(f"{job} adds a member", _put(state, ADDED, Place(place.store)))
        elif not (place.is_final or place.is_gated) and not (place.store == 0 and state.is_paused):
            if job != CALLBACK:
                yield Step(f"{job} is claimed", _put(state, job, place._replace(is_running=True)))
                return
            known = [state.jobs[one] for one in MEMBERS if state.jobs[one] is not None]
            here = [one for one in known if one is not None and one.store == place.store]
            if any(not one.is_final for one in here):
                return  # it waits again
            breaches: tuple[Rule, ...] = ()
            if state.next < self.scope.closed or any(
                one is not None and not one.is_final for one in known
            ):
                breaches = (Rule.EARLY,)
            elif len(here) < len(known):
                breaches = (Rule.MOVE_GONE,)
            fired = _put(state, job, place._replace(is_final=True))._replace(has_fired=True)
            yield Step("the callback runs", fired, breaches=breaches)

    def _moves(self, state: FamilyState) -> Steps:
        there = {job: place for job, place in enumerate(state.jobs) if place and place.store == 0}
        is_closed = state.next == self.scope.closed or not self.design.waits_until_closed
        if state.taken is None:
            if self.design.pauses_source and not state.is_paused:
                yield Step("the source is paused", state._replace(is_paused=True))
                return
            live = {job for job, place in there.items() if not place.is_final}
            runs = any(place.is_running for place in there.values())
            if self.design.leaves == "each alone":
                for job in sorted(live):
                    if not there[job].is_running:
                        yield Step(f"the mover finds {job}", state._replace(taken=frozenset({job})))
            elif live and is_closed and not runs:
                found = live if self.design.leaves == "live ones" else set(there)
                yield Step("the mover finds a family", state._replace(taken=frozenset(found)))
            return
        after = state._replace(taken=None)
        if all(job in there and not there[job].is_running for job in state.taken):
            for job in state.taken:
                after = _put(after, job, there[job]._replace(store=1, is_gated=False))
            yield Step("it leaves and comes", after)
        else:
            yield Step("it is refused", after)


def _put(state: FamilyState, job: int, place: Place) -> FamilyState:
    jobs = list(state.jobs)
    jobs[job] = place
    return state._replace(jobs=tuple(jobs))
