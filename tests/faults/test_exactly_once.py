"""I14 under fire: a job's rows and its completion are one commit, whatever dies or is lost."""

from __future__ import annotations

import random
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from urllib.parse import urlsplit

import pytest

from lab.proxy import Proxy
from tests.faults.fleet import Worker
from tests.faults.stage import STORES, Stage
from tests.servers import Databases
from winch.core.lifecycle import JobState

pytestmark = [
    pytest.mark.servers,
    pytest.mark.faults,
    pytest.mark.scenario,
    pytest.mark.parametrize("store", STORES),
]

SEED = 14


@dataclass(frozen=True)
class Size:
    """How many jobs, what is killed, how many replies are lost, and how many claims that must cost."""

    jobs: int
    supervisors: int
    children: int
    cuts: int
    taken: int

    @property
    def kills(self) -> int:
        return self.supervisors + self.children


SMALL = Size(jobs=80, supervisors=1, children=3, cuts=8, taken=3)
LARGE = Size(jobs=300, supervisors=3, children=8, cuts=25, taken=8)


@pytest.mark.parametrize(
    "size", [pytest.param(SMALL, id="80"), pytest.param(LARGE, id="300", marks=pytest.mark.slow)]
)
def test_transactional_jobs_take_effect_once_each(
    store: str, size: Size, postgres_server: Databases
) -> None:
    rng = random.Random(SEED)
    with Stage("exactly once", store, postgres_server) as stage, ExitStack() as stack:
        make_effects(stage)
        proxy, env = None, {}
        if store == "postgres":
            parts = urlsplit(stage.url)
            proxy = stack.enter_context(Proxy((parts.hostname or "", parts.port or 5432)))
            env = {"WINCH_URL": proxy.url(stage.url)}
        workers = [stage.fleet.worker(processes=2, concurrency=2, env=env) for _ in range(2)]
        for worker in workers:
            stage.ready(worker, 2)
        jobs: list[str] = []
        plan = ["child"] * size.children + ["supervisor"] * size.supervisors
        rng.shuffle(plan)
        next_kill = time.monotonic() + 0.5
        wanted, cuts = size.jobs, 0
        while len(jobs) < wanted or are_left(stage):
            if len(jobs) == wanted and (plan or taken(stage) < size.taken) and wanted < 4 * size.jobs:
                # The jobs were quicker than the kills: more of both.
                wanted += 15
                plan = plan or ["child"]
            for _ in range(min(15, wanted - len(jobs))):
                # One writer at a time holds a SQLite file, so there the transactions are short.
                held = rng.uniform(0.05, 0.2) if store == "postgres" else rng.uniform(0.005, 0.02)
                jobs += stage.enqueue(rng.choice(["once", "aonce"]), rng.uniform(0.05, 0.3), held)
            if proxy is not None and cuts < size.cuts:
                proxy.cut_after_request(r"insert into effect")
                cuts += 1
            time.sleep(rng.uniform(0.05, 0.2))
            if (
                plan
                and time.monotonic() > next_kill
                and kill(stage, rng, workers, plan[-1] == "child", env)
            ):
                plan.pop()
                next_kill = time.monotonic() + rng.uniform(0.2, 0.6)
        stage.until_final(40)
        seen = Counter(effects(stage))
        records = stage.jobs(jobs)
        assert {record.state for record in records} == {JobState.COMPLETED}
        assert seen.keys() == set(jobs), "an effect for each completed job, and none without one"
        assert set(seen.values()) == {1}
        # A COMMIT whose answer was lost is no failure of its job, and neither is a kill.
        failed = [entry for record in records for entry in record.history if entry.what == "failed"]
        assert failed == []
        if proxy is not None:
            assert proxy.counters["swallowed"] >= 0.8 * size.cuts
            stage.recorder.nemesis("cut", count=proxy.counters["swallowed"])
        verdict = stage.judge(takeover_limit=None)
        assert verdict.counters["killed"] >= 0.7 * size.kills
        again = taken(stage)
        assert again >= size.taken, "the kills hit workers with running jobs"
        stage.measured(f"{again} jobs claimed a second time")


def taken(stage: Stage) -> int:
    """How many claims were not the first of their job."""
    claims = stage.events("claimed")
    return len(claims) - len({claim.job for claim in claims})


def kill(
    stage: Stage, rng: random.Random, workers: list[Worker], is_child: bool, env: dict[str, str]
) -> bool:
    """Kill a process that runs jobs; False when none does."""
    busy = [(worker, s.pid) for worker in workers for s in stage.sessions_of(worker) if s.running]
    if not busy:
        return False
    worker, child = rng.choice(busy)
    if is_child:
        worker.kill_child(child)
    else:
        worker.kill_supervisor()
        workers.remove(worker)
        workers.append(stage.fleet.worker(processes=2, concurrency=2, env=env))
    return True


def are_left(stage: Stage) -> bool:
    counts = stage.app.driver.run(stage.app.driver.counts())
    return any(counts[state] for state in JobState if not state.is_final)


def make_effects(stage: Stage) -> None:
    """No unique key: a second effect must be seen, not refused."""
    stage.app.ready()
    with stage.app.transaction() as conn:
        conn.execute("CREATE TABLE effect (job TEXT, fence BIGINT)")


def effects(stage: Stage) -> list[str]:
    with stage.app.transaction() as conn:
        return [row[0] for row in conn.execute("SELECT job FROM effect").fetchall()]
