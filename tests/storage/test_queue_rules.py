"""What is set for a queue, with real processes and servers: its concurrency is never exceeded."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from tests.redis_servers import RedisCluster, RedisServer
from tests.servers import Databases
from tests.storage.test_redis_cluster import new_job
from winch.core.policy.queue_settings import QueueRule
from winch.drivers.connect import connect
from winch.engine.base.system_clock import SystemClock

# Claims, holds each job for a moment, and ends it, until a file is there. Prints when it held which.
CLAIMER = """
import json, os, random, sys, time
from tests.storage.test_redis_cluster import completed, new_id, start
from winch.engine.base.system_clock import SystemClock
from winch.drivers.connect import connect
from winch.storage.params import ClaimParams, ClaimRef
store = connect(sys.argv[1], clock=SystemClock())
session, held = start(store, lease=600), []
print("ready", flush=True)
while not os.path.exists(sys.argv[2]):
    limit = random.choice([1, 3, 20])
    asked = ClaimParams(session=session, token=new_id(), queues=("default",), limit=limit)
    claims = store.run(store.claim(asked))
    since = time.monotonic()
    time.sleep(random.choice([0, 0.002, 0.01]))
    for claim in claims:
        held.append((claim.id, since, time.monotonic()))
        store.run(store.finish([completed(ClaimRef(claim.id, claim.token))]))
print(json.dumps(held))
store.close()
"""


@pytest.fixture(params=["sqlite", "postgres", "redis", "redis+cluster"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with ExitStack() as stack:
        match request.param:
            case "sqlite":
                yield f"sqlite:///{tmp_path}/jobs.db"
            case "postgres":
                databases: Databases = request.getfixturevalue("postgres_server")
                yield databases.new_store()
            case "redis":
                yield stack.enter_context(RedisServer()).url
            case _:
                yield stack.enter_context(RedisCluster()).url


@pytest.mark.servers
def test_processes_that_claim_at_once_never_exceed_it(store_url: str, tmp_path: Path) -> None:
    stop = tmp_path / "stop"
    with closing(connect(store_url, clock=SystemClock())) as store:
        store.migrate()
        store.run(store.enqueue([new_job(priority=place % 3) for place in range(12_000)]))
        claimers = [
            subprocess.Popen(
                [sys.executable, "-c", CLAIMER, store_url, str(stop)], stdout=subprocess.PIPE, text=True
            )
            for _ in range(2)
        ]
        for claimer in claimers:
            assert claimer.stdout is not None
            assert claimer.stdout.readline() == "ready\n"
        time.sleep(0.5)
        changes: list[tuple[int, float, float]] = []
        for n in (3, 1, 2):
            sent = time.monotonic()
            store.run(store.set_queue("default", QueueRule(concurrency=n, is_strict=n == 2)))
            changes.append((n, sent, time.monotonic()))
            time.sleep(0.9)
        stop.touch()
        held = [
            (since, until)
            for claimer in claimers
            for _, since, until in json.loads(claimer.communicate(timeout=60)[0])
        ]
    ends = [sent for _, sent, _ in changes[1:]]
    for (n, _, began), ended in zip(changes, [*ends, float("inf")], strict=True):
        # A claim takes effect before its reply: one that was on its way is not counted as a start.
        starts = [since for since, _ in held if began + 0.3 < since < ended]
        assert starts, "jobs go on"
        for moment in starts:
            at_once = sum(since <= moment < until for since, until in held)
            assert at_once <= n, (n, moment - began, ended - moment)
