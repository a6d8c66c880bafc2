"""Waiting: a job that waits for others, the ends of these, and the looks at it.

No transaction locks what another writes. A change of something that a job may wait for writes its key,
in the same transaction, into the list; `unblock` takes that up once it is committed. Each verb is
walked as the statements of one transaction; what it writes is seen by others with the last one. An
`unblock` may die between any two: then its keys are back in the list.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from tests.model.explore import Rule, Step


@dataclass(frozen=True)
class WaitDesign:
    """The defaults are the protocol."""

    # Whether a wait that begins is looked at too: what it waits for may have come before.
    wait_is_looked_at: bool = True
    # Whether an end is always recorded, or only where a waiter is seen.
    records: Literal["always", "for a seen waiter"] = "always"
    # Whether what is left is read after the waiting job's row is locked, or in the look before.
    counts: Literal["after the lock", "before the lock"] = "after the lock"
    # Whether the keys leave the list with the rest of the transaction, or at once.
    takes_keys: Literal["with its commit", "at once"] = "with its commit"


@dataclass(frozen=True)
class WaitScope:
    name: str
    members: int = 2
    lookers: int = 2
    deaths: int = 1


class Look(NamedTuple):
    """An unblock under way."""

    keys: tuple[int, ...]
    came: tuple[int, ...] | None = None
    left: tuple[int, ...] | None = None  # as counted
    has_row: bool = False


class WaitState(NamedTuple):
    ended: tuple[bool, ...]
    ending: tuple[int, ...] = ()  # members whose finish has looked for waiters, and not committed
    seen: tuple[bool, ...] = ()  # what those have seen
    is_blocked: bool = False
    is_ready: bool = False
    rows: tuple[int, ...] = ()  # what the job waits for
    keys: tuple[int, ...] = ()  # to be looked at, committed and free
    looks: tuple[Look, ...] = ()
    deaths: int = 0


Steps = Iterator[Step[WaitState]]


class WaitModel:
    """One job that waits for some members."""

    def __init__(self, design: WaitDesign, scope: WaitScope) -> None:
        self.design = design
        self.scope = scope

    def initial(self) -> WaitState:
        return WaitState(ended=(False,) * self.scope.members)

    def is_settled(self, state: WaitState) -> bool:
        return state.is_ready and all(state.ended)

    def breaches(self, state: WaitState) -> tuple[Rule, ...]:
        return (Rule.EARLY,) if state.is_ready and not all(state.ended) else ()

    def describe(self, state: WaitState) -> str:
        job = "ready" if state.is_ready else "blocked" if state.is_blocked else "running"
        ended = ", ".join(
            f"member {n + 1} {'final' if e else 'runs'}" for n, e in enumerate(state.ended)
        )
        return f"the job {job}, waits for {[n + 1 for n in state.rows]}; {ended}; keys {state.keys}"

    def steps(self, state: WaitState) -> Steps:
        if not state.is_blocked and not state.is_ready:
            yield self._block(state)
        for number, is_ended in enumerate(state.ended):
            if not is_ended and number not in state.ending:
                yield from self._begin_end(state, number)
        for place, number in enumerate(state.ending):
            yield self._end(state, place, number)
        if state.keys and len(state.looks) < self.scope.lookers:
            for keys in {(state.keys[0],), state.keys}:  # some of them, or all
                rest = tuple(key for key in state.keys if key not in keys)
                looks = _sorted((*state.looks, Look(keys)))
                yield Step(
                    f"a looker takes up {len(keys)} key(s)", state._replace(keys=rest, looks=looks)
                )
        for look in dict.fromkeys(state.looks):
            yield from self._look(state, look)
            if state.deaths < self.scope.deaths:
                back = () if self.design.takes_keys == "at once" else look.keys
                others = _without(state.looks, look)
                keys = _sorted((*state.keys, *back))
                dead = state._replace(looks=others, keys=keys, deaths=state.deaths + 1)
                yield Step("a looker dies; its keys are back", dead)

    def _block(self, state: WaitState) -> Step[WaitState]:
        rows = tuple(range(self.scope.members))
        keys = _sorted((*state.keys, *rows)) if self.design.wait_is_looked_at else state.keys
        return Step("the job begins to wait", state._replace(is_blocked=True, rows=rows, keys=keys))

    def _begin_end(self, state: WaitState, number: int) -> Steps:
        if self.design.records == "always":
            yield self._final(state, number, is_recorded=True)
            return
        ending, seen = (*state.ending, number), (*state.seen, number in state.rows)
        yield Step(f"member {number + 1} looks for waiters", state._replace(ending=ending, seen=seen))

    def _end(self, state: WaitState, place: int, number: int) -> Step[WaitState]:
        is_recorded = state.seen[place]
        rest = state._replace(
            ending=state.ending[:place] + state.ending[place + 1 :],
            seen=state.seen[:place] + state.seen[place + 1 :],
        )
        return self._final(rest, number, is_recorded=is_recorded)

    def _final(self, state: WaitState, number: int, *, is_recorded: bool) -> Step[WaitState]:
        ended = tuple(e or n == number for n, e in enumerate(state.ended))
        keys = _sorted((*state.keys, number)) if is_recorded else state.keys
        return Step(f"member {number + 1} is final", state._replace(ended=ended, keys=keys))

    def _look(self, state: WaitState, look: Look) -> Steps:
        others = _without(state.looks, look)

        def then(label: str, after: Look) -> Step[WaitState]:
            return Step(label, state._replace(looks=_sorted((*others, after))))

        if look.came is None:
            came = tuple(n for n in look.keys if state.ended[n] and n in state.rows)
            left = tuple(n for n in state.rows if n not in came)
            yield then(f"one looks: {len(came)} have come", look._replace(came=came, left=left))
        elif not look.came:
            yield Step("one ends: nothing has come", state._replace(looks=others))
        elif not look.has_row:
            if not any(other.has_row for other in others):
                yield then("one locks the job", look._replace(has_row=True))
        elif not state.is_blocked:
            yield Step("one finds the job gone", state._replace(looks=others))
        else:
            left = tuple(n for n in state.rows if n not in look.came)
            if self.design.counts == "before the lock":
                left = look.left or ()
            rows = tuple(n for n in state.rows if n not in look.came)
            after = state._replace(looks=others, rows=rows)
            if left:
                yield Step("one leaves the job waiting", after)
            else:
                woken = after._replace(is_blocked=False, is_ready=True, rows=())
                yield Step("one makes the job ready", woken)


def _sorted(items: tuple) -> tuple:  # type: ignore[type-arg]  # numbers or looks
    return tuple(sorted(items, key=repr))


def _without(looks: tuple[Look, ...], look: Look) -> tuple[Look, ...]:
    at = looks.index(look)
    return looks[:at] + looks[at + 1 :]
