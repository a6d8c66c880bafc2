"""Random flows and batches on real workers that are killed: order, callbacks, ends by the policies.

What happened is read from the store's own events; what should have happened follows, member by member,
from how those before it ended.
"""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from tests.faults.stage import STORES, Stage
from tests.servers import Databases
from winch import batch, flow
from winch.core.job import JobRecord
from winch.core.lifecycle import FINAL, JobState

pytestmark = [pytest.mark.servers, pytest.mark.faults]

ENDS = {"ok": JobState.COMPLETED, "flaky": JobState.COMPLETED, "grow": JobState.COMPLETED}


class Plan:
    """A random DAG: its edges, their policies, and how each member behaves."""

    def __init__(self, dice: random.Random, size: int) -> None:
        self.size = size
        self.how = [dice.choice(["ok", "ok", "ok", "flaky", "flaky", "dead"]) for _ in range(size)]
        self.before = [
            sorted(dice.sample(range(n), min(n, dice.choice([0, 1, 1, 2, 3])))) for n in range(size)
        ]
        self.policy = [dice.choice(["skip", "fail", "continue", "continue"]) for _ in range(size)]

    def enqueue(self, app: Any, name: str) -> str:
        member = app.tasks.get("member")
        made = flow(name)
        nodes: list[Any] = []
        for n in range(self.size):
            after = [nodes[before] for before in self.before[n]]
            call = member.bind(str(n), self.how[n])
            nodes.append(made.add(call, after=after, on_failure=self.policy[n]))  # type: ignore[call-overload]
        return str(made.enqueue().id)

    def check(self, jobs: dict[str, JobRecord], asked: set[str]) -> None:
        """Every member's end, given the ends of its predecessors. An `asked` member may be cancelled."""
        assert sorted(jobs, key=int) == [str(n) for n in range(self.size)], "none lost, none doubled"
        for n in range(self.size):
            job = jobs[str(n)]
            missed = [b for b in self.before[n] if jobs[str(b)].state is not JobState.COMPLETED]
            if missed and self.policy[n] != "continue":
                expected = JobState.CANCELLED if self.policy[n] == "skip" else JobState.DEAD
            else:
                expected = ENDS.get(self.how[n], JobState.DEAD)
            allowed = {expected, JobState.CANCELLED} if job.id in asked else {expected}
            assert job.state in allowed, (n, self.how[n], missed, self.policy[n], job.state, job.reason)


def found(stage: Stage, flow_id: str) -> list[JobRecord]:
    return [job.record for job in stage.app.jobs.list(tag=f"flow:{flow_id}", limit=1000)]


def by_name(jobs: list[JobRecord], task: str, key: str) -> dict[str, JobRecord]:
    named = [(json.loads(job.args)[key], job) for job in jobs if job.task == task]
    assert len({name for name, _ in named}) == len(named), "one job for each"
    return dict(named)


def moments(stage: Stage) -> tuple[dict[str, int], dict[str, int]]:
    """By job: the place in the store's history of its first claim, and of its end."""
    begun: dict[str, int] = {}
    ended: dict[str, int] = {}
    for event in stage.events():
        if event.kind == "claimed":
            begun.setdefault(event.job, event.seq)
        if event.state in FINAL:
            ended[event.job] = event.seq
    return begun, ended


def act(store: str, server: Databases, seed: int, size: int, flows: int) -> None:
    dice = random.Random(seed)
    with Stage(f"random flows, seed {seed}", store, server) as stage:
        workers = [stage.worker(concurrency=3, processes=2) for _ in range(2)]
        called = stage.app.tasks.get("called")
        member = stage.app.tasks.get("member")
        plans = [Plan(dice, size) for _ in range(flows)]
        made = [plan.enqueue(stage.app, f"flow {n}") for n, plan in enumerate(plans)]
        kinds = ("success", "complete", "death")
        hows = [dice.choice([["grow", "ok", "flaky"], ["grow", "dead", "ok"], []]) for _ in range(flows)]
        batches = []
        for number, how in enumerate(hows):
            callbacks: Any = {f"on_{kind}": called.bind(kind) for kind in kinds}
            with batch(f"batch {number}", **callbacks) as members:
                members.enqueue(*[member.bind(str(n), one) for n, one in enumerate(how)])
            batches.append(members.id)
        asked: set[str] = set()
        driver = stage.app.driver

        def claims() -> int:
            return len(stage.events("claimed"))

        def is_over() -> bool:
            counts = driver.run(driver.counts())
            return not any(counts[state] for state in JobState if state not in FINAL)

        for strike in range(4):
            more = claims() + 4
            stage.until(lambda more=more: is_over() or claims() >= more, 30, "claims")  # type: ignore[misc]
            waiting = [job for one in made for job in found(stage, one) if not job.state.is_final]
            if waiting:
                chosen = dice.choice(waiting).id
                asked.add(chosen)
                driver.run(driver.cancel([chosen], by="test"))
            place = dice.randrange(len(workers))
            if strike % 2:
                # Once or twice only: a job whose process dies three times is dead, and rightly so.
                children = workers[place].children()
                if children:
                    workers[place].kill_child(dice.choice(children))
            else:
                workers[place].kill_all()
                workers[place] = stage.worker(concurrency=3, processes=2)
        stage.until_final(90)
        begun, ended = moments(stage)
        for plan, one in zip(plans, made, strict=True):
            jobs = by_name(found(stage, one), "member", "name")
            plan.check(jobs, asked)
            for n in range(plan.size):
                for before in plan.before[n]:
                    if (at := begun.get(jobs[str(n)].id)) is not None:
                        assert ended[jobs[str(before)].id] < at, f"{n} began before {before} had ended"
        for how, one in zip(hows, batches, strict=True):
            jobs = by_name(found(stage, one), "member", "name")
            assert len(jobs) == len(how) + 2 * how.count("grow")
            calls = by_name(found(stage, f"{one}:callback"), "called", "kind")
            is_dead = any(job.state is JobState.DEAD for job in jobs.values())
            assert is_dead == ("dead" in how)
            ends = {kind: calls[kind].state for kind in kinds}
            done, not_done = JobState.COMPLETED, JobState.CANCELLED
            assert ends == {
                "success": not_done if is_dead else done,
                "complete": done,
                "death": done if is_dead else not_done,
            }
            last = max((ended[job.id] for job in jobs.values()), default=0)
            for kind in ("success", "complete"):
                assert begun.get(calls[kind].id, last + 1) > last, f"on_{kind} came before the last end"
        stage.measured(
            f"{flows} flows of {size}, {flows} batches, {len(asked)} cancels, 4 kills: as they should"
        )


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("store", STORES)
def test_random_flows_end_by_their_policies(store: str, seed: int, postgres_server: Databases) -> None:
    act(store, postgres_server, seed, size=40, flows=3)
