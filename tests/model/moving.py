"""A move between two stores: two members of one FIFO key, and everything that may happen to them.

A producer reads the route and stores a member by what it has read. Workers of both stores claim and end
members; a member may fail once and wait again. The mover pauses both stores, holds the route, opens it,
holds the key for a member that runs in the source, and carries what waits in numbered parcels. It may
die between any two steps: then another one continues, and what the dead one had sent may come late. A
final job may be forgotten by the target.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from tests.model.explore import Rule, Step

MEMBERS = range(2)
LIVE = ("waiting", "running")
# A design that leaves jobs where they were could copy them for ever.
MOST_COPIES = 2


@dataclass(frozen=True)
class StoreMoveDesign:
    """The defaults are the protocol."""

    # What a job is when it has left the source: kept there as a parcel, known to the mover alone, or
    # left where it was until it is in the target.
    leaves: Literal["as a parcel", "with the mover", "after its copy"] = "as a parcel"
    # What an import that comes again is recognised by.
    recognises: Literal["number", "id"] = "number"
    # Whether the route is open only once no producer can act on what it had read before the hold.
    waits_for_producers: bool = True
    holds_keys: bool = True
    target_waits: bool = True
    pauses_source: bool = True


@dataclass(frozen=True)
class StoreMoveScope:
    name: str
    members: int = 2
    deaths: int = 1
    failures: int = 1


class Parcel(NamedTuple):
    number: int
    jobs: frozenset[int]


class MoveState(NamedTuple):
    source: tuple[str, str] = ("", "")
    target: tuple[str, str] = ("", "")
    parcel: Parcel | None = None
    last_out: int = 0
    last_in: int = 0
    route: str = "announced"
    read: str = ""  # where the producer will store the next member
    stored: int = 0
    source_paused: bool = False
    target_paused: bool = True
    keys_held: bool = False
    holder: int = -1  # the member that runs in the source, whose key the target holds
    carried: Parcel | None = None  # what the mover knows
    late: Parcel | None = None  # an import of a dead mover, on its way
    ended: frozenset[int] = frozenset()
    deaths: int = 0
    failures: int = 0


Steps = Iterator[Step[MoveState]]


def put(places: tuple[str, str], job: int, what: str) -> tuple[str, str]:
    return (what, places[1]) if job == 0 else (places[0], what)


class StoreMoveModel:
    def __init__(self, design: StoreMoveDesign, scope: StoreMoveScope) -> None:
        self.design = design
        self.scope = scope

    def initial(self) -> MoveState:
        begin = MoveState(target_paused=self.design.target_waits)
        if self.scope.members == 1:  # order does not matter: the job is there already
            return begin._replace(source=("waiting", ""), stored=1)
        return begin

    def is_settled(self, state: MoveState) -> bool:
        return state.ended == frozenset(range(self.scope.members))

    def breaches(self, state: MoveState) -> tuple[Rule, ...]:
        found = []
        for job in range(state.stored):
            places = [state.source[job], state.target[job]]
            in_parcel = any(p is not None and job in p.jobs for p in (state.parcel, state.carried))
            if not any(places) and not in_parcel:
                found.append(Rule.MOVE_LOST)
            if all(place == "running" for place in places):
                found.append(Rule.MOVE_TWICE)
        return tuple(found)

    def describe(self, state: MoveState) -> str:
        return (
            f"{state.route}; source {state.source}, parcel {state.parcel}, target {state.target}; "
            f"holder {state.holder}"
        )

    def steps(self, state: MoveState) -> Steps:
        yield from self._produces(state)
        yield from self._works(state, "source", state.source, is_paused=state.source_paused)
        yield from self._works(state, "target", state.target, is_paused=state.target_paused)
        yield from self._opens(state)
        yield from self._carries(state)
        if state.late is not None:
            yield Step("a late import comes", self._imported(state, state.late)._replace(late=None))
        for job in MEMBERS:
            if state.target[job] == "final":
                gone = put(state.target, job, "forgotten")
                yield Step(f"the target forgets {job}", state._replace(target=gone))

    def _produces(self, state: MoveState) -> Steps:
        if state.stored == self.scope.members:
            return
        if not state.read:
            if state.route != "held":
                read = "source" if state.route == "announced" else "target"
                yield Step("the producer reads the route", state._replace(read=read))
            return
        job = state.stored
        if state.read == "source":
            after = state._replace(source=put(state.source, job, "waiting"))
        else:
            after = state._replace(target=put(state.target, job, "waiting"))
        yield Step(f"{job} is stored in the {state.read}", after._replace(read="", stored=job + 1))

    def _works(self, state: MoveState, store: str, places: tuple[str, str], *, is_paused: bool) -> Steps:
        for job, place in enumerate(places):
            if place == "waiting" and not is_paused and self._is_first(state, store, places, job):
                breaches: tuple[Rule, ...] = ()
                if job in state.ended:
                    breaches = (Rule.MOVE_TWICE,)
                elif job == 1 and 0 not in state.ended:
                    breaches = (Rule.FIFO,)
                yield Step(
                    f"the {store} claims {job}",
                    _at(state, store, put(places, job, "running")),
                    breaches=breaches,
                )
            if place == "running":
                after = _at(state, store, put(places, job, "final"))
                yield Step(f"{job} ends in the {store}", after._replace(ended=state.ended | {job}))
                if state.failures < self.scope.failures:
                    again = _at(state, store, put(places, job, "waiting"))
                    yield Step(f"{job} fails", again._replace(failures=state.failures + 1))

    def _is_first(self, state: MoveState, store: str, places: tuple[str, str], job: int) -> bool:
        if store == "target" and 0 <= state.holder < job:
            return False
        return job == 0 or places[0] not in LIVE

    # -- the mover ---------------------------------------------------------------------------------

    def _opens(self, state: MoveState) -> Steps:
        if state.route == "announced":
            if not state.source_paused and self.design.pauses_source:
                yield Step("the source is paused", state._replace(source_paused=True))
            else:
                yield Step("the route is held", state._replace(route="held"))
        elif state.route == "held":
            if not state.read or not self.design.waits_for_producers:
                yield Step("the route is open", state._replace(route="open"))
            taken_back = state._replace(route="announced")
            yield Step("a producer takes the hold back", taken_back, is_help=True)
        elif not state.keys_held:
            holder = next((job for job in MEMBERS if state.source[job] == "running"), -1)
            if not self.design.holds_keys:
                holder = -1
            yield Step("keys are held", state._replace(keys_held=True, holder=holder))

    def _carries(self, state: MoveState) -> Steps:
        if not state.keys_held:
            return
        if state.carried is None:
            yield from self._takes_out(state)
            return
        parcel = state.carried
        after = self._imported(state, parcel)
        if self.design.leaves == "after its copy":
            source = state.source
            for job in parcel.jobs:
                source = put(source, job, "") if source[job] == "waiting" else source
            copied = after._replace(carried=None)
            yield Step("the copy is stored", copied)
            yield Step("and what was copied is deleted", copied._replace(source=source))
        else:
            open_still = None if state.parcel == parcel else state.parcel
            yield Step("a parcel comes and is done", after._replace(parcel=open_still, carried=None))
            yield Step("a parcel comes; its answer is lost", after._replace(carried=None))
        if state.deaths < self.scope.deaths:
            dead = state._replace(carried=None, late=parcel, deaths=state.deaths + 1)
            yield Step("the mover dies", dead, is_help=True)

    def _takes_out(self, state: MoveState) -> Steps:
        waiting = frozenset(job for job in MEMBERS if state.source[job] == "waiting")
        if state.parcel is not None:
            yield Step("the open parcel is read", state._replace(carried=state.parcel))
        elif waiting:
            parcel = Parcel(state.last_out + 1, waiting)
            if self.design.leaves == "after its copy":
                if state.last_out < MOST_COPIES:
                    yield Step("jobs are copied", state._replace(carried=parcel, last_out=parcel.number))
                return
            source = state.source
            for job in waiting:
                source = put(source, job, "")
            after = state._replace(source=source, last_out=parcel.number, carried=parcel)
            if self.design.leaves == "as a parcel":
                after = after._replace(parcel=parcel)
            yield Step("jobs leave the source", after)
        elif state.target_paused:
            yield Step("the target runs", state._replace(target_paused=False))
        if state.holder >= 0 and state.parcel is None and state.source[state.holder] in ("", "final"):
            yield Step("the key is free", state._replace(holder=-1))

    def _imported(self, state: MoveState, parcel: Parcel) -> MoveState:
        if self.design.recognises == "number" and parcel.number <= state.last_in:
            return state
        target = state.target
        for job in parcel.jobs:
            if target[job] in ("", "forgotten"):
                target = put(target, job, "waiting")
        return state._replace(target=target, last_in=max(state.last_in, parcel.number))


def _at(state: MoveState, store: str, places: tuple[str, str]) -> MoveState:
    return state._replace(source=places) if store == "source" else state._replace(target=places)
