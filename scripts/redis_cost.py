"""What a plain job costs Redis: CPU time of the servers, bytes of memory, and how even the shards are.

python scripts/redis_cost.py [JOBS]

One server, then a cluster of three primaries without replicas, with the same jobs in batches of 500 as a
busy worker sends them. Needs a quiet machine; ratios carry over to others, times do not.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections import Counter
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

# The harness is not installed with the package; it is found next to this script.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.redis_servers import RedisCluster, RedisServer
from winch.core.ids import job_id, random_id
from winch.core.job import Claim
from winch.core.lifecycle import JobState
from winch.drivers.redis.driver import RedisDriver
from winch.drivers.redis.shards import SHARDS, shard_of
from winch.storage.params import ClaimParams, Finish, NewJob, NewSession

BATCH = 500


def cpu(nodes: list[RedisServer]) -> float:
    """Seconds of CPU time that the servers have used."""
    found = 0.0
    for node in nodes:
        told = node.info("cpu")
        found += float(told["used_cpu_user"]) + float(told["used_cpu_sys"])
    return found


def memory(nodes: list[RedisServer]) -> int:
    return sum(int(node.info("memory")["used_memory"]) for node in nodes)


def measure(name: str, url: str, nodes: list[RedisServer], jobs: int) -> float:
    driver = RedisDriver.from_url(url)
    driver.migrate()
    made = [
        NewJob(
            id=job_id(time.time_ns() // 1_000_000, os.urandom(10)),
            task="mail.send",
            args='{"user":12345,"kind":"welcome"}',
        )
        for _ in range(jobs)
    ]
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
    empty, begun = memory(nodes), time.perf_counter()
    spent = {"": cpu(nodes)}
    sizes = {}
    for at in range(0, jobs, BATCH):
        driver.run(driver.enqueue(made[at : at + BATCH]))
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
    took = time.perf_counter() - begun
    names = list(spent)
    steps = ", ".join(
        f"{after} {(spent[after] - spent[before]) / jobs * 1e6:.2f}"
        for before, after in itertools.pairwise(names)
    )
    whole = (spent["finish"] - spent[""]) / jobs * 1e6
    kept = ", ".join(f"{state} {(size - empty) / jobs:.0f}" for state, size in sizes.items())
    sys.stdout.write(f"{name}: {whole:.2f} µs of server CPU per job ({steps}); {took:.1f} s\n")
    sys.stdout.write(f"{name}: bytes per job: {kept}\n")
    counts = Counter(shard_of(job.id) for job in made)
    if name == "cluster":
        sys.stdout.write(f"fullest shard: {max(counts.values()) / (jobs / SHARDS):.2f} of the mean\n")
    driver.close()
    return whole


def main(jobs: int) -> None:
    with ExitStack() as stack:
        single = stack.enter_context(RedisServer())
        cluster = stack.enter_context(RedisCluster(replicas=0))
        alone = measure("one server", single.url, [single], jobs)
        spread = measure("cluster", cluster.url, cluster.nodes, jobs)
        sys.stdout.write(f"a job in the cluster costs {spread / alone:.2f} of one on one server\n")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 50_000)
