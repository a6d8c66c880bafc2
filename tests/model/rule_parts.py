"""A rule of a queue that is set in every part of a cluster, by drivers that die half way or are late.

Home notes the rule with the next number, then each part gets it, then home forgets the note. A rescue
takes up what is noted. What a part does with its rule is tests/model/queue_rule.py; here is home and one
shard. A rule with a number of jobs begins at home, one that takes the number away begins in the shard.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tests.model.explore import Rule, Step

PARTS = ("home", "the shard")


@dataclass(frozen=True)
class PartsDesign:
    """The defaults are the protocol."""

    # Whether home notes what is to be set.
    notes: bool = True
    # Whether a part ignores a rule with a lower number than its own.
    compares: bool = True
    # Whether the end of a rule removes a note of its own number only.
    ends_its_own: bool = True


@dataclass(frozen=True)
class PartsScope:
    name: str
    rules: int = 3
    deaths: int = 2


class PartsState(NamedTuple):
    begun: int = 0
    note: int = 0
    numbers: tuple[int, ...] = (0, 0)
    # Drivers that set a rule: its number, and how many parts have it.
    drivers: tuple[tuple[int, int], ...] = ()
    deaths: int = 0


class PartsModel:
    def __init__(self, design: PartsDesign, scope: PartsScope) -> None:
        self.design = design
        self.scope = scope

    def initial(self) -> PartsState:
        return PartsState()

    def is_settled(self, state: PartsState) -> bool:
        return not state.note and not state.drivers and set(state.numbers) == {state.begun}

    def breaches(self, state: PartsState) -> tuple[Rule, ...]:
        return ()

    def describe(self, state: PartsState) -> str:
        drivers = "; ".join(f"rule {number}, {done} parts have it" for number, done in state.drivers)
        return (
            f"home has {state.numbers[0]}, the shard {state.numbers[1]}, noted {state.note}; {drivers}"
        )

    def steps(self, state: PartsState) -> Iterator[Step[PartsState]]:
        if state.begun < self.scope.rules:
            number = state.begun + 1
            begun = state._replace(begun=number, note=number if self.design.notes else 0)
            yield Step(f"rule {number} is begun", _with(begun, (number, 0)))
        if state.note and (state.note, 0) not in state.drivers:
            yield Step(f"a rescue takes up rule {state.note}", _with(state, (state.note, 0)))
        for driver in sorted(set(state.drivers)):
            number, done = driver
            over = _without(state, driver)
            if state.deaths < self.scope.deaths:
                yield Step(f"a driver of rule {number} dies", over._replace(deaths=state.deaths + 1))
            if done < len(PARTS):
                place = done if number % 2 else 1 - done
                after = _with(over, (number, done + 1))
                if not self.design.compares or number >= state.numbers[place]:
                    numbers = list(state.numbers)
                    numbers[place] = number
                    after = after._replace(numbers=tuple(numbers))
                yield Step(f"{PARTS[place]} gets rule {number}", after)
            else:
                is_own = state.note == number or not self.design.ends_its_own
                yield Step(f"rule {number} is ended", over._replace(note=0) if is_own else over)


def _with(state: PartsState, driver: tuple[int, int]) -> PartsState:
    return state._replace(drivers=tuple(sorted({*state.drivers, driver})))


def _without(state: PartsState, driver: tuple[int, int]) -> PartsState:
    return state._replace(drivers=tuple(one for one in state.drivers if one != driver))
