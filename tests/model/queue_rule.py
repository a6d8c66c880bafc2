"""The concurrency of a queue in a cluster: set while jobs run and are claimed in a shard and at home.

Its number is kept at home, where permits are counted. Setting it is one script at home, one in the shard
(which closes the queue there and names the jobs that run), and the way home of those jobs. A claim looks
first, then takes where it looked: in an open queue also in the shard, else at home, after the way home
of a ready job. Each script is atomic in its part. The hand-over is tests/model/handover.py; here it is
one step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from tests.model.explore import Rule, Step


@dataclass(frozen=True)
class RuleDesign:
    """The defaults are the protocol."""

    # Whether the shard gives nothing of a queue with a number.
    closes_shard: bool = True
    # Whether jobs that run in the shard go home when the number is set.
    brings_running: bool = True
    # Whether a running job that arrives gets a permit.
    counts_arrivals: bool = True
    # When a claim at home knows how many run.
    counts: Literal["as it takes", "as it looks"] = "as it takes"
    # Which part is set first.
    first: Literal["home", "shard"] = "home"


@dataclass(frozen=True)
class RuleScope:
    name: str
    jobs: int = 3
    claimers: int = 2
    n: int = 1
    # Whether the setter may die half way, without a repeat.
    setter_dies: bool = False


class RuleState(NamedTuple):
    # Each job: ready, running (in the shard); at home, permit (runs there), uncounted (runs there); done
    jobs: tuple[str, ...]
    # What claims have seen: nothing, open, room, full
    claimers: tuple[str, ...]
    setter: str = "idle"  # idle, half, moving, returned, dead
    is_home_set: bool = False
    is_shard_set: bool = False


Steps = Iterator[Step[RuleState]]
RUNNING = ("running", "permit", "uncounted")


class RuleModel:
    def __init__(self, design: RuleDesign, scope: RuleScope) -> None:
        self.design = design
        self.scope = scope

    def initial(self) -> RuleState:
        return RuleState(("ready",) * self.scope.jobs, ("nothing",) * self.scope.claimers)

    def is_settled(self, state: RuleState) -> bool:
        return set(state.jobs) == {"done"}

    def breaches(self, state: RuleState) -> tuple[Rule, ...]:
        return ()

    def describe(self, state: RuleState) -> str:
        return (
            f"jobs {', '.join(state.jobs)}; set: {state.setter}; claims saw {', '.join(state.claimers)}"
        )

    def steps(self, state: RuleState) -> Steps:
        yield from self._set(state)
        for number, seen in enumerate(state.claimers):
            if seen not in state.claimers[:number]:
                yield from self._claim(state, number, seen)
        for place, job in enumerate(state.jobs):
            if job in RUNNING and job not in state.jobs[:place]:
                yield Step("a job ends", self._with(state, place, "done"))
                back = "ready" if job == "running" else "at home"
                yield Step("a job is given back", self._with(state, place, back), is_help=True)

    # -- the setter of the number ------------------------------------------------------------------

    def _set(self, state: RuleState) -> Steps:
        is_home_first = self.design.first == "home"
        if self.scope.setter_dies and state.setter in ("half", "moving"):
            yield Step("the setter dies", state._replace(setter="dead"))
        if state.setter == "idle":
            half = state._replace(setter="half")
            if is_home_first:
                yield Step("home has the number", self._set_home(half))
            else:
                yield Step("the shard is closed", self._set_shard(half))
        elif state.setter == "half":
            moving = state._replace(setter="moving")
            if is_home_first:
                yield Step("the shard is closed", self._set_shard(moving))
            else:
                yield Step("home has the number", self._set_home(moving))
        elif state.setter == "moving":
            place = state.jobs.index("running") if "running" in state.jobs else None
            if place is None or not self.design.brings_running:
                yield Step("the number is set", state._replace(setter="returned"))
            else:
                job = "permit" if self.design.counts_arrivals else "uncounted"
                yield Step("a running job goes home", self._with(state, place, job))

    @staticmethod
    def _set_home(state: RuleState) -> RuleState:
        jobs = tuple("permit" if job == "uncounted" else job for job in state.jobs)
        return state._replace(jobs=jobs, is_home_set=True)

    def _set_shard(self, state: RuleState) -> RuleState:
        return state._replace(is_shard_set=self.design.closes_shard)

    # -- claims ------------------------------------------------------------------------------------

    def _claim(self, state: RuleState, number: int, seen: str) -> Steps:
        if seen == "nothing":
            look = "open"
            if state.is_home_set:
                look = "room" if self._used(state) < self.scope.n else "full"
            yield Step("a claim looks", self._saw(state, number, look))
            return
        over = self._saw(state, number, "nothing")
        if seen == "open" and "ready" in state.jobs and not state.is_shard_set:
            yield self._taken(over, state.jobs.index("ready"), "running", "in the shard")
        if seen == "room" and "ready" in state.jobs:
            moved = self._with(state, state.jobs.index("ready"), "at home")
            yield Step("a ready job goes home", moved)
        is_counted = self.design.counts == "as it takes" or seen == "open"
        may_take = seen in ("room", "open") and (not is_counted or self._is_free(state))
        if "at home" in state.jobs and may_take:
            job = "permit" if state.is_home_set else "uncounted"
            yield self._taken(over, state.jobs.index("at home"), job, "at home")
        yield Step("a claim finds nothing", over)

    def _used(self, state: RuleState) -> int:
        return state.jobs.count("permit")

    def _is_free(self, state: RuleState) -> bool:
        return not state.is_home_set or self._used(state) < self.scope.n

    def _taken(self, state: RuleState, place: int, job: str, where: str) -> Step[RuleState]:
        after = self._with(state, place, job)
        running = sum(one in RUNNING for one in after.jobs)
        is_over = state.setter == "returned" and running > self.scope.n
        return Step(f"a claim takes {where}", after, breaches=(Rule.LIMIT,) if is_over else ())

    @staticmethod
    def _with(state: RuleState, place: int, job: str) -> RuleState:
        jobs = (*state.jobs[:place], job, *state.jobs[place + 1 :])
        return state._replace(jobs=tuple(sorted(jobs)))

    @staticmethod
    def _saw(state: RuleState, number: int, seen: str) -> RuleState:
        claimers = (*state.claimers[:number], seen, *state.claimers[number + 1 :])
        return state._replace(claimers=tuple(sorted(claimers)))
