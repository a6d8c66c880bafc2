"""What a plain job costs Redis: CPU time of the servers, bytes of memory, and how even the shards are.

python scripts/redis_cost.py [JOBS]

One server and a cluster of three primaries without replicas, in turn, with the same jobs: enqueued
by the thousand as `enqueue_many` does, claimed and finished in batches of 500 as a busy worker does.
The output is the median of the rounds. CPU time only: it may run beside other work, at
a higher cost.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

# The harness is not installed with the package; it is found next to this script.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.redis_servers import RedisCluster, RedisServer
from winch.core.job import Claim
from winch.core.lifecycle import JobState
from winch.core.values.ids import RUN, job_ids, random_id
from winch.drivers.connect import redis_class
from winch.drivers.redis.cluster.shards import SHARDS, shard_of
from winch.storage.params import ClaimParams, Finish, NewJob, NewSession

BATCH = 500
CHUNK = 1000
ROUNDS = 3


def cpu(nodes: list[RedisServer]) -> float:
    """Seconds of CPU time that the servers have used."""
    found = 0.0
    for node in nodes:
        info = node.info("cpu")
        found += float(info["used_cpu_user"]) + float(info["used_cpu_sys"])
    return found


def memory(nodes: list[RedisServer]) -> int:
    return sum(int(node.info("memory")["used_memory"]) for node in nodes)


@dataclass
class Cost:
    """Of one job: µs of server CPU by verb, and bytes of memory by state."""

    steps: dict[str, float]
    sizes: dict[str, float]
    fullest: float

    @property
    def whole(self) -> float:
        return sum(self.steps.values())


def drawn(jobs: int) -> list[NewJob]:
    """Jobs with ids as a client draws them: a thousand at a time, the places in turn."""
    made, place = [], os.urandom(1)[0]
    for at in range(0, jobs, CHUNK):
        count = min(CHUNK, jobs - at)
        ids = job_ids(time.time_ns() * 4096 // 1_000_000, os.urandom(8 * count), place)
        made += [NewJob(id=one, task="mail.send", args='{"user":12345,"kind":"hi"}') for one in ids]
        place += -(-count // RUN)
    return made


def measure(url: str, nodes: list[RedisServer], jobs: int) -> Cost:
    driver = redis_class(url).from_url(url)
    driver.migrate()
    made = drawn(jobs)
    session = random_id(os.urandom(16))
    driver.run(
        driver.start_session(
            NewSession(
                id=session,
                worker="w",
                host="h",
                pid=1,
                release="1",
                queues=("default",),
                tasks=("mail.send",),
                slots=1,
                lease=timedelta(hours=1),
            )
        )
    )
    empty = memory(nodes)
    spent = {"": cpu(nodes)}
    sizes = {}
    for at in range(0, jobs, CHUNK):
        driver.run(driver.enqueue(made[at : at + CHUNK]))
    spent["enqueue"], sizes["ready"] = cpu(nodes), memory(nodes)
    claims: list[list[Claim]] = []
    while True:
        params = ClaimParams(
            session=session,
            token=random_id(os.urandom(16)),
            queues=("default",),
            limit=BATCH,
            tasks=("mail.send",),
            gated=0,
        )
        claims.append(driver.run(driver.claim(params)))
        if sum(map(len, claims)) >= jobs:
            break
    spent["claim"], sizes["running"] = cpu(nodes), memory(nodes)
    for some in claims:
        driver.run(
            driver.finish(
                [Finish(id=c.id, token=c.token, to=JobState.COMPLETED, what="completed") for c in some]
            )
        )
    spent["finish"], sizes["completed"] = cpu(nodes), memory(nodes)
    driver.erase()
    driver.close()
    counts = Counter(shard_of(job.id) for job in made)
    return Cost(
        {after: (spent[after] - spent[before]) / jobs * 1e6 for before, after in pairwise(spent)},
        {state: (size - empty) / jobs for state, size in sizes.items()},
        max(counts.values()) / (jobs / SHARDS),
    )


def middle(costs: Sequence[Cost]) -> Cost:
    """The round whose whole cost is the median."""
    return sorted(costs, key=lambda cost: cost.whole)[len(costs) // 2]


def show(name: str, cost: Cost) -> None:
    steps = ", ".join(f"{step} {spent:.2f}" for step, spent in cost.steps.items())
    kept = ", ".join(f"{state} {size:.0f}" for state, size in cost.sizes.items())
    sys.stdout.write(f"{name}: {cost.whole:.2f} µs of server CPU per job ({steps}); bytes: {kept}\n")


def main(jobs: int) -> None:
    with ExitStack() as stack:
        single = stack.enter_context(RedisServer())
        cluster = stack.enter_context(RedisCluster(replicas=0))
        alone: list[Cost] = []
        spread: list[Cost] = []
        for _ in range(ROUNDS):
            alone.append(measure(single.url, [single], jobs))
            spread.append(measure(cluster.url, cluster.nodes, jobs))
    show("one server", middle(alone))
    show("cluster", middle(spread))
    ratios = sorted(many.whole / one.whole for one, many in zip(alone, spread, strict=True))
    sys.stdout.write(f"a job in the cluster costs {ratios[ROUNDS // 2]:.2f} of one on one server")
    sys.stdout.write(f" (rounds: {', '.join(f'{ratio:.2f}' for ratio in ratios)})\n")
    sys.stdout.write(f"fullest shard: {spread[0].fullest:.2f} of the mean\n")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 50_000)
