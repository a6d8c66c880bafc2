"""Members that are waited for together: one key, no counter, and a look whether any of them is live.

An end is a transaction: it writes the key into the list, and both are seen by others with its commit. A
look takes keys up first and looks at the members in a later statement. A member that is live may add one
more. A looking process may die: then its keys are back in the list.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from tests.model.explore import Rule, Step

RUNS, FINAL, ABSENT = "runs", "final", "absent"


@dataclass(frozen=True)
class TogetherDesign:
    """The defaults are the protocol."""

    # What an end leaves out: nothing, or what it finds in the list already, committed by another.
    skips: Literal["nothing", "what is in the list"] = "nothing"
    # Whether the members are looked at after the keys were taken up, or in a look from before.
    looks: Literal["after the keys", "before the keys"] = "after the keys"
    # Whether a look finds the live members, or a number is read, and written back one lower at commit.
    counts: Literal["live members", "a number"] = "live members"
    # Which members may add others: a live one, or any.
    grows: Literal["while it is live", "whenever"] = "while it is live"


class Look(NamedTuple):
    is_taken: bool
    came: bool | None = None


class TogetherState(NamedTuple):
    members: tuple[str, ...]
    ending: tuple[
        tuple[int, bool, int], ...
    ] = ()  # member, whether it writes the key, the number as it was read
    left: int = 0
    keys: int = 0
    looks: tuple[Look, ...] = ()
    is_waiting: bool = False
    is_ready: bool = False
    deaths: int = 0


Steps = Iterator[Step[TogetherState]]


class TogetherModel:
    """One callback, two members, one more that the first may add, and two lookers."""

    def __init__(self, design: TogetherDesign) -> None:
        self.design = design

    def initial(self) -> TogetherState:
        return TogetherState(members=(RUNS, RUNS, ABSENT), left=2)

    def is_settled(self, state: TogetherState) -> bool:
        return state.is_ready and RUNS not in state.members

    def breaches(self, state: TogetherState) -> tuple[Rule, ...]:
        return (Rule.EARLY,) if state.is_ready and RUNS in state.members else ()

    def describe(self, state: TogetherState) -> str:
        job = "ready" if state.is_ready else "waits" if state.is_waiting else "is not stored"
        return f"the callback {job}; members {', '.join(state.members)}; {state.keys} key(s) in the list"

    def steps(self, state: TogetherState) -> Steps:
        if not state.is_waiting and not state.is_ready:
            yield Step("the callback is stored", state._replace(is_waiting=True, keys=state.keys + 1))
        under_way = [number for number, _, _ in state.ending]
        for number, member in enumerate(state.members):
            if member == RUNS and number not in under_way:
                writes = self.design.skips == "nothing" or not state.keys
                ending = tuple(sorted((*state.ending, (number, writes, state.left))))
                yield Step(f"member {number + 1} writes its end", state._replace(ending=ending))
        for one in state.ending:
            yield self._commit(state, one)
        if state.members[2] == ABSENT and self._may_grow(state, under_way):
            members = (*state.members[:2], RUNS)
            yield Step("a member is added", state._replace(members=members, left=state.left + 1))
        if self.design.counts == "live members":
            yield from self._looks(state)

    def _may_grow(self, state: TogetherState, under_way: list[int]) -> bool:
        # It locks its own row for that, and so does its end: the two come one after the other.
        return self.design.grows == "whenever" or (state.members[0] == RUNS and 0 not in under_way)

    def _commit(self, state: TogetherState, one: tuple[int, bool, int]) -> Step[TogetherState]:
        number, writes, read = one
        after = state._replace(
            members=tuple(FINAL if n == number else m for n, m in enumerate(state.members)),
            ending=tuple(other for other in state.ending if other != one),
            keys=state.keys + writes,
            left=read - 1,
        )
        if self.design.counts == "a number" and read == 1 and state.is_waiting:
            after = after._replace(is_waiting=False, is_ready=True)
        return Step(f"member {number + 1} is final", after)

    def _looks(self, state: TogetherState) -> Steps:
        has_come = RUNS not in state.members
        is_early = self.design.looks == "before the keys"
        if len(state.looks) < 2:
            if is_early:
                look = Look(is_taken=False, came=has_come)
                yield Step("one looks", state._replace(looks=_sorted((*state.looks, look))))
            elif state.keys:
                looks = _sorted((*state.looks, Look(is_taken=True)))
                yield Step("one takes the keys up", state._replace(keys=0, looks=looks))
        for look in dict.fromkeys(state.looks):
            others = _without(state.looks, look)
            if not look.is_taken:
                if state.keys:
                    looks = _sorted((*others, look._replace(is_taken=True)))
                    yield Step("it takes the keys up", state._replace(keys=0, looks=looks))
                continue
            if state.deaths < 1:
                dead = state._replace(looks=others, keys=state.keys + 1, deaths=state.deaths + 1)
                yield Step("a looker dies; its keys are back", dead)
            if look.came is None:
                looks = _sorted((*others, look._replace(came=has_come)))
                yield Step("a looker reads the live members", state._replace(looks=looks))
            elif look.came and state.is_waiting:
                yield Step(
                    "one makes the callback ready",
                    state._replace(looks=others, is_waiting=False, is_ready=True),
                )
            else:
                yield Step("one is done", state._replace(looks=others))


def _sorted(looks: tuple[Look, ...]) -> tuple[Look, ...]:
    return tuple(sorted(looks, key=repr))


def _without(looks: tuple[Look, ...], look: Look) -> tuple[Look, ...]:
    at = looks.index(look)
    return looks[:at] + looks[at + 1 :]
