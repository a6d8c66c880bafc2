"""A unique key while its queue moves between two stores: two producers, slow transactions, one mover.

A producer reads the route, looks for a holder where jobs come from (the other store, then the open
parcel), and stores its job where the route leads. Its transaction compares the number of the route with
the fence of that store, and may be committed much later. The mover holds the route, raises the fence of
the store that jobs leave, opens the route, and carries what is there. It may lose a hold to a producer.
It may go back. The holder may end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from tests.model.explore import Rule, Step

STORES = ("source", "target")


@dataclass(frozen=True)
class KeyMoveDesign:
    """The defaults are the protocol."""

    # When the number of the route is compared with the fence: in the transaction that stores the job,
    # before it, or never (a producer is trusted to be quick).
    compares: Literal["in the transaction", "before it", "never"] = "in the transaction"
    # Whether the fence waits for transactions under way that compared a lower number.
    waits_for_open: bool = True
    # Whether the fence only rises, or is what was written last.
    only_rises: bool = True
    # In which order a producer looks for a holder.
    looks: Literal["source, parcel", "parcel, source", "nowhere"] = "source, parcel"


@dataclass(frozen=True)
class KeyMoveScope:
    name: str
    turns: int = 2  # how often the route is opened, there and back
    holds: int = 3  # how often it is held


class Producer(NamedTuple):
    """`at`: idle, read, looked once, looked twice, storing, done."""

    at: str = "idle"
    epoch: int = 0
    to: int = 0


class KeyState(NamedTuple):
    jobs: tuple[int, int] = (0, 0)  # live jobs with the key in each store
    parcel: int = 0
    way: int = 0  # the store that new jobs go to
    is_held: bool = False
    epoch: int = 0
    fences: tuple[int, int] = (0, 0)
    mover: str = "idle"
    own: int = 0  # the number that the mover has put into the route
    late: int = -1  # a raise of a mover that lost its hold, on its way
    turns: int = 0
    producers: tuple[Producer, Producer] = (Producer(), Producer())


Steps = Iterator[Step[KeyState]]


class KeyMoveModel:
    def __init__(self, design: KeyMoveDesign, scope: KeyMoveScope) -> None:
        self.design = design
        self.scope = scope

    def initial(self) -> KeyState:
        return KeyState()

    def is_settled(self, state: KeyState) -> bool:
        return all(one.at == "done" for one in state.producers)

    def breaches(self, state: KeyState) -> tuple[Rule, ...]:
        return (Rule.MOVE_KEY,) if sum(state.jobs) + state.parcel > 1 else ()

    def describe(self, state: KeyState) -> str:
        return f"jobs {state.jobs}, parcel {state.parcel}, way {state.way}, fences {state.fences}"

    def steps(self, state: KeyState) -> Steps:
        for number, producer in enumerate(state.producers):
            yield from self._produces(state, number, producer)
        yield from self._moves(state)
        for store in (0, 1):
            if state.jobs[store]:
                yield Step(f"the holder ends in the {STORES[store]}", _stored(state, store, -1))

    def _produces(self, state: KeyState, number: int, one: Producer) -> Steps:
        def now(**fields: object) -> KeyState:
            changed = list(state.producers)
            changed[number] = one._replace(**fields)  # type: ignore[arg-type]  # of a named tuple
            return state._replace(producers=(changed[0], changed[1]))

        name = f"producer {number}"
        other = 1 - one.to
        if one.at == "idle" and not state.is_held:
            # Before the first move there is no other store to look in.
            yield Step(
                f"{name} reads the route",
                now(at="read" if state.turns else "looked", epoch=state.epoch, to=state.way),
            )
        elif one.at in ("read", "looked once"):
            is_first = one.at == "read"
            in_store = is_first == (self.design.looks == "source, parcel")
            found = state.jobs[other] if in_store else state.parcel
            if self.design.looks == "nowhere":
                found = 0
            then = "looked once" if is_first else "looked"
            yield Step(f"{name} looks for a holder", now(at="done" if found else then))
        elif one.at == "looked":
            if self.design.compares != "never" and state.fences[one.to] > one.epoch:
                yield Step(f"{name} is refused", now(at="idle"))
            elif state.jobs[one.to]:
                yield Step(f"{name} finds the holder", now(at="done"))
            else:
                yield Step(f"{name} begins to store", now(at="storing"))
        elif one.at == "storing":
            if state.jobs[one.to]:  # the key of one store has one winner
                yield Step(f"{name} finds the holder", now(at="done"))
            else:
                yield Step(f"{name} commits", _stored(now(at="done"), one.to, 1))

    def _moves(self, state: KeyState) -> Steps:
        leaves, comes = state.way, 1 - state.way
        if state.late >= 0:
            yield Step("a late raise comes", self._raised(state, 0, state.late)._replace(late=-1))
        if state.mover == "idle" and self._goes_on(state):
            held = state._replace(is_held=True, epoch=state.epoch + 1, own=state.epoch + 1, mover="held")
            yield Step("the route is held", held)
        elif state.mover == "held":
            if not self._is_open(state, leaves):
                raised = self._raised(state, leaves, state.own)
                yield Step("the fence rises", raised._replace(mover="fenced"))
            back = state._replace(is_held=False, mover="idle")
            yield Step("a producer takes the hold back", back, is_help=True)
            if leaves == 0 and state.late < 0:
                yield Step("and a raise is late", back._replace(late=state.own), is_help=True)
        elif state.mover == "fenced":
            opened = state._replace(way=comes, is_held=False, mover="carrying", turns=state.turns + 1)
            yield Step("the route is open", opened)
            yield Step(
                "a producer takes the hold back",
                state._replace(is_held=False, mover="idle"),
                is_help=True,
            )
        elif state.mover == "carrying":
            if state.jobs[comes]:  # new jobs go to `way`, so what is carried is in the other store
                yield Step("a job leaves", _stored(state, comes, -1)._replace(parcel=1))
            if state.parcel:
                yield Step("it comes", _stored(state, state.way, 1)._replace(parcel=0))
            if not state.jobs[comes] and not state.parcel:
                yield Step("all is carried", state._replace(mover="idle"))

    def _goes_on(self, state: KeyState) -> bool:
        return state.turns < self.scope.turns and state.epoch < self.scope.holds

    def _is_open(self, state: KeyState, store: int) -> bool:
        """Whether a transaction is under way in this store that compared a lower number."""
        is_compared = self.design.compares == "in the transaction" and self.design.waits_for_open
        return is_compared and any(one.at == "storing" and one.to == store for one in state.producers)

    def _raised(self, state: KeyState, store: int, number: int) -> KeyState:
        fences = list(state.fences)
        fences[store] = max(fences[store], number) if self.design.only_rises else number
        return state._replace(fences=(fences[0], fences[1]))


def _stored(state: KeyState, store: int, count: int) -> KeyState:
    jobs = list(state.jobs)
    jobs[store] += count
    return state._replace(jobs=(jobs[0], jobs[1]))
