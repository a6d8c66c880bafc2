"""Redis dies, fails over, forgets its scripts, moves its slot: what each mode promises is kept.

`appendfsync always` loses nothing that was acknowledged. `everysec` may lose the last second.
In a cluster `replicated=1` keeps every acknowledged enqueue through a failover; the end of a job may be
taken back, so a finished job may run once more. No token is accepted twice in any of them.
"""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import suppress

import pytest

from lab.history import read
from lab.history.lines import Replied
from tests.faults import test_gates as gates
from tests.faults import test_kills as kills
from tests.faults import test_schedulers as schedulers
from tests.faults.stage import Stage
from tests.redis_servers import RedisCluster, RedisServer, WatchedRedis
from tests.servers import Databases, wait_until
from tests.storage import test_redis_cluster as parts
from winch.core.gates.places import place_of
from winch.core.gates.uses import GateSpec
from winch.core.lifecycle import JobState
from winch.drivers.redis.cluster.driver import RedisClusterDriver
from winch.drivers.redis.cluster.shards import HOME, shard_of, slot_of, tags
from winch.drivers.redis.connections.routing import ConnectionLost
from winch.storage.params import Answer

pytestmark = [pytest.mark.servers, pytest.mark.faults, pytest.mark.scenario]


# -- workers die (F1, F3, F4) ------------------------------------------------------------------------


def test_the_jobs_of_a_killed_worker_are_taken_over(postgres_server: Databases) -> None:
    kills.test_the_jobs_of_a_killed_worker_are_taken_over("redis", postgres_server)


def test_a_worker_that_slept_past_its_lease_changes_nothing(postgres_server: Databases) -> None:
    kills.test_a_worker_that_slept_past_its_lease_changes_nothing("redis", postgres_server)


@pytest.mark.slow
def test_a_handler_that_holds_the_gil_is_not_run_twice(postgres_server: Databases) -> None:
    kills.test_a_handler_that_holds_the_gil_is_not_run_twice("redis", postgres_server)


@pytest.mark.slow
def test_each_window_has_one_job_whichever_worker_ticks(postgres_server: Databases) -> None:
    schedulers.test_each_window_has_one_job_whichever_worker_ticks("redis", postgres_server)


def test_a_killed_holder_neither_leaks_nor_doubles_a_permit(postgres_server: Databases) -> None:
    gates.test_a_killed_holder_neither_leaks_nor_doubles_a_permit("redis", postgres_server)


@pytest.mark.slow
def test_a_zombie_holds_no_permit(postgres_server: Databases) -> None:
    gates.test_a_zombie_holds_no_permit("redis", postgres_server)


def test_ends_that_take_the_next_jobs_of_a_limit_keep_it(postgres_server: Databases) -> None:
    """Two workers whose ends take the next jobs (`continues_limits`) keep a limit, also a lower one."""
    with Stage("a hot limit", "redis", postgres_server) as stage:
        workers = [stage.fleet.worker(concurrency=4) for _ in range(2)]
        for worker in workers:
            stage.ready(worker)
        jobs = stage.enqueue("limited", 0.03, times=60)
        stage.until(lambda: len(stage.runs()) >= 20, 20, "twenty starts")
        driver = stage.app.driver
        driver.run(driver.set_limits({"limit:limited": GateSpec(1)}, by="ada"))
        later = stage.enqueue("limited", 0.03, times=20)
        stage.until_final(60)
        gates.settled(stage, jobs + later)
        assert _most_at_once(stage, set(jobs)) == 2
        assert _most_at_once(stage, set(later)) == 1, "a lower number takes the second permit away"
        # What one script did has one moment: an end, and the claim that continued it.
        ended = {event.at for event in stage.events("finished")}
        continued = [event for event in stage.events("claimed") if event.at in ended]
        assert len(continued) > len(jobs) / 2


# -- the server dies (F14) ---------------------------------------------------------------------------


def test_a_server_that_syncs_always_loses_nothing_when_it_is_killed(postgres_server: Databases) -> None:
    with (
        RedisServer(fsync="always") as server,
        Stage("kill -9 of Redis", "redis", postgres_server, server.url) as stage,
    ):
        recoveries = _under_load(stage, lambda: _crash(stage, server), times=2)
        stage.until_final(60)
        verdict = stage.judge(takeover_limit=None)
        assert verdict.counters["outage"] == 2
        assert max(recoveries) < 5.0
        stage.measured(f"work went on after {', '.join(f'{s:.2f}' for s in recoveries)} s")


@pytest.mark.slow
def test_a_server_that_syncs_each_second_loses_no_more_than_that(postgres_server: Databases) -> None:
    with (
        RedisServer(fsync="everysec") as server,
        Stage("kill -9 of Redis, everysec", "redis", postgres_server, server.url) as stage,
    ):
        _under_load(stage, lambda: _crash(stage, server), times=2)
        # What is written is in the system's cache, which a killed process does not take along: nothing
        # is lost here. `everysec` risks a power cut, and doctor reports that.
        stage.until_final(60)
        stage.judge(takeover_limit=None)


@pytest.mark.slow
def test_forgotten_scripts_are_loaded_again_under_load(postgres_server: Databases) -> None:
    with (
        RedisServer() as server,
        Stage("SCRIPT FLUSH", "redis", postgres_server, server.url) as stage,
    ):

        def flush() -> None:
            for _ in range(20):
                server.ask("SCRIPT", "FLUSH")
                time.sleep(0.02)
            stage.recorder.nemesis("outage", note="20 flushes")

        _under_load(stage, flush, times=1)
        stage.until_final(30)
        assert stage.judge(takeover_limit=None).counters["rescued"] == 0


# -- failover (F15) ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_cluster_that_replicates_loses_no_acknowledged_job_when_a_primary_dies(
    postgres_server: Databases,
) -> None:
    with (
        RedisCluster() as cluster,
        Stage(
            "kill -9 of a primary", "redis+cluster", postgres_server, f"{cluster.url}?replicated=1"
        ) as stage,
    ):
        # First the one that has the home shard, then another.
        keys = iter(("{winch}:meta", f"{{{_shard_elsewhere(cluster)}}}:meta"))

        def fail_over() -> None:
            key = next(keys)
            primary = cluster.primary_of(key)
            primary.kill9()
            stage.recorder.nemesis("outage", note=f"kill -9 of the primary on {primary.port}")
            assert wait_until(lambda: cluster.primary_of(key) is not primary, 30)
            primary.start()  # comes back as a replica, and loses what it alone had
            cluster.wait_until_whole()

        _under_load(stage, fail_over, times=2, seconds=40)
        _judge_rewound(stage)


@pytest.mark.slow
def test_a_manual_failover_loses_no_acknowledged_job(postgres_server: Databases) -> None:
    with (
        RedisCluster() as cluster,
        Stage(
            "CLUSTER FAILOVER TAKEOVER", "redis+cluster", postgres_server, f"{cluster.url}?replicated=1"
        ) as stage,
    ):

        def take_over() -> None:
            primary = cluster.primary_of("{winch}:meta")
            cluster.replica_of(primary).ask("CLUSTER", "FAILOVER", "TAKEOVER")
            stage.recorder.nemesis("outage", note=f"takeover from {primary.port}")
            assert wait_until(lambda: cluster.primary_of("{winch}:meta") is not primary, 30)
            cluster.wait_until_whole()

        _under_load(stage, take_over, times=2, seconds=40)
        _judge_rewound(stage)


@pytest.mark.slow
def test_a_slot_that_moves_under_load_takes_its_jobs_along(postgres_server: Databases) -> None:
    with (
        RedisCluster() as cluster,
        Stage("resharding", "redis+cluster", postgres_server, f"{cluster.url}?replicated=1") as stage,
    ):

        def move() -> None:
            for tag in tags("winch")[::8]:  # home, and every eighth shard
                source = cluster.primary_of(f"{{{tag}}}:meta")
                target = next(node for node in cluster.primaries() if node is not source)
                cluster.move_slot(slot_of(tag), source, target)
            stage.recorder.nemesis("outage", note="nine slots moved")

        _under_load(stage, move, times=2, seconds=40)
        stage.until_final(60)
        verdict = stage.judge(takeover_limit=None)
        stage.measured(f"{verdict.counters['acked']} acknowledged, 0 lost")


@pytest.mark.slow
def test_limits_and_fifo_keys_go_on_after_a_failover(postgres_server: Databases) -> None:
    """Home, where these gates are, fails over while permits are out and turns are taken."""
    with (
        RedisCluster() as cluster,
        Stage(
            "failover under a limit", "redis+cluster", postgres_server, f"{cluster.url}?replicated=1"
        ) as stage,
    ):
        for worker in [stage.fleet.worker(concurrency=4) for _ in range(2)]:
            stage.ready(worker)
        jobs = gates.shared(stage)
        stage.until(lambda: len(stage.runs()) >= 2, 20, "two starts")
        primary = cluster.primary_of("{winch}:meta")
        primary.kill9()
        stage.recorder.nemesis("outage", note=f"kill -9 of the primary on {primary.port}")
        assert wait_until(lambda: cluster.primary_of("{winch}:meta") is not primary, 30)
        primary.start()
        cluster.wait_until_whole()
        jobs += gates.shared(stage)
        stage.until_final(60)
        gates.settled(stage, jobs)
        # Whatever was taken back, no two members of a key ran at one time and no third job beside two.
        limited = set(jobs[:8]) | set(jobs[14:22])
        assert _most_at_once(stage, limited) <= 2
        for members in (jobs[8:14:2], jobs[9:14:2], jobs[22::2], jobs[23::2]):
            assert _most_at_once(stage, set(members)) == 1


@pytest.mark.slow
def test_fifo_keys_in_their_shards_go_on_after_a_failover(postgres_server: Databases) -> None:
    """A primary with shards in which keys live is killed while members run."""
    with (
        RedisCluster() as cluster,
        Stage(
            "failover of gates", "redis+cluster", postgres_server, f"{cluster.url}?replicated=1"
        ) as stage,
    ):
        for worker in [stage.fleet.worker(concurrency=4) for _ in range(2)]:
            stage.ready(worker)
        tag = _shard_elsewhere(cluster)
        primary = cluster.primary_of(f"{{{tag}}}:meta")
        named = enumerate(tags("winch"))
        mine = {number for number, one in named if cluster.primary_of(f"{{{one}}}:meta") is primary}
        keys = [key for key in map("acct:{}".format, range(100)) if 1 + place_of(key) in mine][:6]
        slow = stage.producer.tasks.get("slow")
        members = {key: [slow.using(fifo=key).enqueue(0.3).id for _ in range(5)] for key in keys}
        assert {shard_of(one) for ids in members.values() for one in ids} <= mine
        stage.until(lambda: len(stage.runs()) >= 4, 20, "some starts")
        primary.kill9()
        stage.recorder.nemesis("outage", note=f"kill -9 of the primary on {primary.port}")
        assert wait_until(lambda: cluster.primary_of(f"{{{tag}}}:meta") is not primary, 30)
        primary.start()
        cluster.wait_until_whole()
        for key in keys:
            members[key] += [slow.using(fifo=key).enqueue(0.05).id for _ in range(3)]
        stage.until(
            lambda: all(
                job.state is JobState.COMPLETED for ids in members.values() for job in stage.jobs(ids)
            ),
            60,
            "all members",
        )
        for ids in members.values():
            assert _most_at_once(stage, set(ids)) == 1
            last = {line.job: line.mono for line in stage.runs() if line.job in ids}
            assert sorted(ids, key=last.__getitem__) == ids
        stage.measured(f"{len(keys)} keys of 8 members, none overlapped or overtook")


@pytest.mark.slow
def test_a_job_on_its_way_home_survives_a_failover_of_either_end() -> None:
    """The mover dies after `depart`, or after `arrive`; then the shard's or home's primary dies."""
    with RedisCluster() as cluster:
        for steps, is_home in itertools.product((1, 2), (False, True)):
            driver = RedisClusterDriver.from_url(f"{cluster.url}?replicated=1&schema=winch")
            assert isinstance(driver, RedisClusterDriver)
            job = parts.new_job(is_given_id=True)
            driver.run(driver.enqueue([job]))
            (ref,) = parts.claim_all(driver, parts.start(driver, lease=600))
            parts.interrupted(driver, ref.id, ref.token, steps)
            waiting = parts.new_job(queue="other")
            driver.run(driver.enqueue([waiting]))
            parts.interrupted(driver, waiting.id, ("other",), steps)
            tag = tags("winch")[HOME if is_home else shard_of(job.id)]
            primary = cluster.primary_of(f"{{{tag}}}:meta")
            primary.kill9()
            assert wait_until(lambda: cluster.primary_of(f"{{{tag}}}:meta") is not primary, 30)  # noqa: B023
            primary.start()
            cluster.wait_until_whole()
            other = RedisClusterDriver.from_url(f"{cluster.url}?replicated=1&schema=winch")
            assert isinstance(other, RedisClusterDriver)
            assert other.run(other.finish([parts.completed(ref)])) == [Answer.TOOK], (steps, is_home)
            assert other.run(other.finish([parts.completed(ref)])) == [Answer.ALREADY]
            other.run(other.rescue())
            assert [parts.parts_of(other, one.id) for one in (job, waiting)] == [[HOME], [HOME]]
            assert other.run(other.get([job.id]))[0].state is JobState.COMPLETED  # type: ignore[union-attr]
            driver.close()
            other.close()


@pytest.mark.slow
def test_workers_follow_the_sentinels_to_the_new_primary(postgres_server: Databases) -> None:
    with (
        WatchedRedis() as watched,
        Stage("Sentinel failover", "redis", postgres_server, f"{watched.url}?replicated=1") as stage,
    ):

        def fail_over() -> None:
            watched.primary.kill9()
            stage.recorder.nemesis("outage", note="kill -9 of the primary")
            assert wait_until(lambda: _has_role(watched.replica, "master"), 30)
            # Enqueues are confirmed again only when there is a replica to confirm them.
            watched.primary.start()
            with suppress(ConnectionLost):  # the sentinels may have been faster, and hang up on clients
                watched.primary.ask("REPLICAOF", "127.0.0.1", watched.replica.port)
            assert wait_until(lambda: _has_role(watched.primary, "slave"), 30)

        _under_load(stage, fail_over, times=1, seconds=40)
        _judge_rewound(stage)


# -- the pieces --------------------------------------------------------------------------------------


def _crash(stage: Stage, server: RedisServer) -> None:
    server.kill9()
    stage.recorder.nemesis("outage", note="kill -9 of the server")
    server.start()


def _under_load(
    stage: Stage, fault: Callable[[], None], *, times: int, seconds: float = 20
) -> list[float]:
    """Make the fault while jobs are stored and run; returns how long it took until work went on."""
    workers = [stage.fleet.worker(concurrency=4) for _ in range(2)]
    producer = stage.fleet.helper("-m", "tests.faults.producer", "1")
    for worker in workers:
        stage.ready(worker)
    slow = stage.enqueue("slow", 1.0, times=4)
    stage.until_started(slow)
    recoveries = []
    for _ in range(times):
        enough = _acked(stage) + 100
        stage.until(lambda: _acked(stage) > enough, seconds, "some load")  # noqa: B023
        fault()
        began, before = time.monotonic(), len(stage.ends())
        stage.until(lambda: len(stage.ends()) > before, seconds, "work to go on")  # noqa: B023
        recoveries.append(time.monotonic() - began)
    enough = _acked(stage) + 20
    stage.until(lambda: _acked(stage) > enough, seconds, "more load after the fault")
    os.kill(producer.pid, signal.SIGKILL)
    return recoveries


def _judge_rewound(stage: Stage) -> None:
    """After a failover the store may have been set back: acknowledged jobs are there and end, whatever
    else the history has ends that were taken back."""
    stage.until_final(60)
    replied = [line for line in read(stage.recorder.folder) if isinstance(line, Replied)]
    acked = [job for line in replied if line.outcome == "acked" for job in line.ids]
    found = stage.jobs(acked)
    assert len(found) == len(set(acked)), f"{len(set(acked)) - len(found)} acknowledged jobs are lost"
    assert {job.state for job in found} <= {JobState.COMPLETED, JobState.DEAD, JobState.CANCELLED}
    tokens = [run.token for run in stage.runs()]
    pairs = [(run.job, run.token) for run in stage.runs()]
    assert tokens
    assert len(pairs) == len(set(pairs)), "a claim ran twice"
    ends = Counter((e.job, e.by_token) for e in stage.events() if e.kind == "finished")
    assert max(ends.values()) == 1, "a token was accepted twice"
    stage.end_workers()
    stage.measured(f"{len(found)} acknowledged, 0 lost")


def _has_role(server: RedisServer, role: str) -> bool:
    """Whether it has this role. Sentinels hang up on all clients of a server whose role they change."""
    with suppress(ConnectionLost):
        return server.info("replication")["role"] == role
    return False


def _most_at_once(stage: Stage, jobs: Collection[str]) -> int:
    """How many runs of these jobs went on at one moment, by the records of their workers."""
    moments = [(line.mono, 1) for line in stage.runs() if line.job in jobs]
    moments += [(line.mono, -1) for line in stage.ends() if line.job in jobs]
    return max(itertools.accumulate(step for _, step in sorted(moments)))


def _shard_elsewhere(cluster: RedisCluster) -> str:
    """A shard that another primary has than home's."""
    home = cluster.primary_of("{winch}:meta")
    return next(tag for tag in tags("winch") if cluster.primary_of(f"{{{tag}}}:meta") is not home)


def _acked(stage: Stage) -> int:
    lines = read(stage.recorder.folder)
    return sum(1 for line in lines if isinstance(line, Replied) and line.outcome == "acked")
