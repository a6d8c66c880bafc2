"""A family of gates goes home from its shard while its jobs are stored, claimed, ended and given back.

At first the gate is in the shard of its key, with the jobs that use it alone. The first job that uses it
together with something else makes it go home. That is: shut it at home; shut it in the shard; move the
jobs, one by one and twice for each (out of the shard, into home); open it at home. Each is one script in
one part. Drivers that do this die and are followed by others; producers know where the gate is, or think
that they do. Home is where the limit of one job at a time is counted after that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from tests.model.explore import Rule, Step


@dataclass(frozen=True)
class HomeDesign:
    """The defaults are the protocol."""

    # What is shut first.
    first: Literal["home", "shard"] = "home"
    # Whether a shard that is shut refuses new jobs, and whether it still lets jobs start.
    shard_refuses: bool = True
    shard_holds: bool = True
    # Whether home lets jobs start before all have come.
    home_holds: bool = True
    # Whether permits come with the jobs that hold them.
    brings_permits: bool = True
    # Whether jobs that have left and not arrived are waited for.
    awaits_messages: bool = True
    # Whether a job that must be at home is stored there before the gate is.
    stores: Literal["when it is open", "at once"] = "when it is open"
    # Whether others end what a driver began.
    is_continued: bool = True


@dataclass(frozen=True)
class HomeScope:
    name: str
    jobs: int = 3
    gatherers: int = 2
    deaths: int = 1


class HomeState(NamedTuple):
    # Each: new (not stored yet), shard, runs (in the shard), left (a message), left running, home,
    # runs at home; done
    jobs: tuple[str, ...]
    # A job that uses the gate with something else: new, home, runs at home; done
    other: str = "new"
    # Each: idle, home shut, both shut
    gatherers: tuple[str, ...] = ()
    home: str = "unknown"  # unknown, shut, open
    is_shard_shut: bool = False
    permits: int = 0  # counted at home
    deaths: int = 0


Steps = Iterator[Step[HomeState]]
RUNS = ("runs", "left running", "runs at home")


class HomeModel:
    def __init__(self, design: HomeDesign, scope: HomeScope) -> None:
        self.design = design
        self.scope = scope

    def initial(self) -> HomeState:
        return HomeState(("new",) * self.scope.jobs, gatherers=("idle",) * self.scope.gatherers)

    def is_settled(self, state: HomeState) -> bool:
        return set(state.jobs) == {"done"} and state.other == "done"

    def breaches(self, state: HomeState) -> tuple[Rule, ...]:
        running = sum(job in RUNS for job in (*state.jobs, state.other))
        return (Rule.LIMIT,) if running > 1 else ()

    def describe(self, state: HomeState) -> str:
        shard = "shut" if state.is_shard_shut else "open"
        return (
            f"jobs {', '.join(state.jobs)}, other {state.other}; home {state.home}, shard {shard}, "
            f"{state.permits} permits, gatherers {', '.join(state.gatherers)}"
        )

    def steps(self, state: HomeState) -> Steps:
        for number, gatherer in enumerate(state.gatherers):
            if gatherer not in state.gatherers[:number]:
                yield from self._gather(state, number, gatherer)
        yield from self._store(state)
        for place, job in enumerate(state.jobs):
            if job not in state.jobs[:place]:
                yield from self._run(state, place, job)
        yield from self._run_other(state)

    # -- those that bring the gate home ------------------------------------------------------------

    def _gather(self, state: HomeState, number: int, gatherer: str) -> Steps:
        design = self.design
        if gatherer == "idle":
            is_wanted = state.other == "new" or (design.is_continued and state.home == "shut")
            if state.home != "open" and is_wanted:
                if design.first == "home":
                    begun = self._as(state, number, "home shut")._replace(home="shut")
                    yield Step("a driver shuts the gate at home", begun)
                else:
                    begun = self._as(state, number, "home shut")._replace(is_shard_shut=True)
                    yield Step("a driver shuts the gate in its shard", begun)
            return
        if state.deaths < self.scope.deaths:
            dead = self._as(state, number, "idle")
            yield Step("a driver dies on the way", dead._replace(deaths=state.deaths + 1))
        if gatherer == "home shut":
            after = self._as(state, number, "both shut")
            if design.first == "home":
                yield Step("the gate is shut in its shard", after._replace(is_shard_shut=True))
            elif state.home == "unknown":
                yield Step("the gate is shut at home", after._replace(home="shut"))
            else:
                yield Step("the gate is known at home", after)
            return
        waits = ("shard", "runs", *(("left", "left running") if design.awaits_messages else ()))
        if not any(job in waits for job in state.jobs):
            opened = self._as(state, number, "idle")._replace(home="open")
            yield Step("the gate is opened at home", opened)

    @staticmethod
    def _as(state: HomeState, number: int, gatherer: str) -> HomeState:
        gatherers = (*state.gatherers[:number], gatherer, *state.gatherers[number + 1 :])
        return state._replace(gatherers=tuple(sorted(gatherers)))

    # -- jobs --------------------------------------------------------------------------------------

    def _store(self, state: HomeState) -> Steps:
        if "new" in state.jobs:
            place = state.jobs.index("new")
            if not state.is_shard_shut or not self.design.shard_refuses:
                yield Step("a job is stored in the shard", self._with(state, place, "shard"))
            elif state.home == "open":
                yield Step("a job is sent home by the shard", self._with(state, place, "home"))
        if state.other == "new" and state.deaths:
            # The job is not at fault: it is not stored, and the gate stays where its driver left it.
            yield Step("the producer of the other job dies too", state._replace(other="done"))
        if state.other == "new" and (state.home == "open" or self.design.stores == "at once"):
            yield Step("the other job is stored at home", state._replace(other="home"))

    def _run(self, state: HomeState, place: int, job: str) -> Steps:
        is_moving = "both shut" in state.gatherers
        if job == "shard":
            is_open = not state.is_shard_shut or not self.design.shard_holds
            if is_open and "runs" not in state.jobs:
                yield Step("a job starts in the shard", self._with(state, place, "runs"))
            if is_moving:
                yield Step("a job leaves the shard", self._with(state, place, "left"))
        elif job == "runs":
            yield Step("a job ends in the shard", self._with(state, place, "done"))
            yield Step("a job is given back", self._with(state, place, "shard"), is_help=True)
            if is_moving:
                yield Step("a running job leaves", self._with(state, place, "left running"))
        elif job == "left":
            yield Step("a job arrives at home", self._with(state, place, "home"))
        elif job == "left running":
            held = state._replace(permits=state.permits + self.design.brings_permits)
            yield Step("a running job arrives", self._with(held, place, "runs at home"))
        elif job == "home" and self._may_start(state):
            held = state._replace(permits=state.permits + 1)
            yield Step("a job starts at home", self._with(held, place, "runs at home"))
        elif job == "runs at home":
            freed = state._replace(permits=max(0, state.permits - 1))
            yield Step("a job ends at home", self._with(freed, place, "done"))

    def _run_other(self, state: HomeState) -> Steps:
        if state.other == "home" and self._may_start(state):
            held = state._replace(permits=state.permits + 1)
            yield Step("the other job starts", held._replace(other="runs at home"))
        elif state.other == "runs at home":
            freed = state._replace(permits=max(0, state.permits - 1))
            yield Step("the other job ends", freed._replace(other="done"))

    def _may_start(self, state: HomeState) -> bool:
        is_open = state.home == "open" or not self.design.home_holds
        if self.design.stores == "at once" and state.home == "unknown":
            is_open = True
        return is_open and state.permits < 1

    @staticmethod
    def _with(state: HomeState, place: int, job: str) -> HomeState:
        jobs = (*state.jobs[:place], job, *state.jobs[place + 1 :])
        return state._replace(jobs=tuple(sorted(jobs)))
