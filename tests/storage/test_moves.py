"""A whole move between stores of different kinds: every job arrives as it was, and runs in its order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from winch.core.gates.uses import FIFO, LIMIT, GateUse, with_gates
from winch.core.job import JobRecord
from winch.core.lifecycle import JobState
from winch.engine.moving import mover as mover_module
from winch.engine.moving.carrying import LIVE, jobs_of
from winch.engine.moving.holding import SHUT
from winch.engine.moving.mover import Mover
from winch.engine.moving.route import ALL, MoveStep
from winch.storage.protocol import Driver
from winch.testing.conformance import Target
from winch.testing.conformance.bench import HOUR, Bench

PAIRS = (
    ("memory", "sqlite"),
    ("sqlite", "postgres"),
    ("postgres", "redis"),
    ("redis", "redis+cluster"),
    ("redis+cluster", "redis"),
    ("redis", "postgres"),
    ("postgres", "sqlite"),
)
LIMITED = with_gates(None, [GateUse("limit:x", LIMIT, name="limit:x", n=1)])
WAITING = (JobState.SCHEDULED, JobState.READY, JobState.RETRYING)


def all_of(driver: Driver) -> dict[str, JobRecord]:
    return {job.id: job for job in jobs_of(driver, ALL, (*LIVE, JobState.DEAD))}


def member(bench: Bench, key: str) -> str:
    return bench.add(fifo=key, options=with_gates(None, [GateUse(f"fifo:{key}", FIFO)]))


@pytest.mark.servers
@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_jobs_arrive_as_they_were_and_run_in_order(
    pair: tuple[str, str],
    target_of: Callable[[str], Target],
    runner: asyncio.Runner,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mover_module, "IDLE_LAG", 0.0)
    targets = [target_of(name) for name in pair]
    source, target = (one.fresh() for one in targets)
    bench = Bench(targets[0], source, "sync", runner, "moves")
    there = Bench(targets[1], target, "sync", runner, "moves there")
    bench.now = there.now = None  # the stores' own clocks
    for state in WAITING:
        bench.make_job(state, tags=("a",), headers={"trace": "7"}, priority=2, expires=HOUR)
    bench.kill()
    unique = bench.add(unique_key="k", queue="uniques")
    limited = bench.add(options=LIMITED, queue="limits")
    keys = [[member(bench, f"acct:{n}") for _ in range(4)] for n in range(3)]
    before = all_of(source)
    mover = Mover(source, target)
    route = mover.advance(mover.begin())
    keys[0].append(member(there, "acct:0"))  # of a producer that follows the route
    late = keys[0][-1]
    route = mover.drain(route)
    assert all_of(source) == {}
    after = all_of(target)
    assert set(after) == {*before, late}
    for job_id, job in before.items():
        was = replace(job, state=JobState.READY, gate=None) if job.gate is not None else job
        assert after[job_id] == was, "as it was"
    [answer] = there.enqueue(there.new_job(unique_key="k", queue="uniques"))
    assert answer.holder == unique
    assert [claim.id for claim in there.claim("limits")] == [limited]
    ran: list[str] = []
    while claims := there.claim("default", limit=100):
        ran += [claim.id for claim in claims]
        for claim in claims:
            there.complete(claim)
    for ids in keys:
        assert [one for one in ran if one in ids] == ids
    assert mover.cut_over(route).step is MoveStep.DONE
    source.close()
    target.close()


@pytest.mark.servers
@pytest.mark.parametrize("name", ["memory", "sqlite", "postgres", "redis", "redis+cluster"])
def test_a_limit_of_nothing_lets_no_job_run(
    name: str, target_of: Callable[[str], Target], runner: asyncio.Runner
) -> None:
    target = target_of(name)
    driver = target.fresh()
    bench = Bench(target, driver, "sync", runner, "shut")
    job_id = bench.add(options=LIMITED)
    bench.call(driver.set_limits({"limit:x": SHUT}, by="winch move", now=bench.now))
    assert bench.claim(limit=9) == []
    assert bench.claim(limit=9) == []
    bench.call(driver.set_limits({"limit:x": None}, by="winch move", now=bench.now))
    assert [claim.id for claim in bench.claim(limit=9)] == [job_id]
    driver.close()
