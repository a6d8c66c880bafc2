"""A producer on a cluster in which a node is gone for good.

Winch draws ids for shards that can be reached and can replicate, so no job is uncertain whose id it has
drawn; only a call that is under way when the node dies can be."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.redis_servers import RedisCluster, RedisServer
from tests.servers import wait_until
from winch.app import App
from winch.core.errors import EnqueueUncertain, StorageUnavailable
from winch.core.lifecycle import JobState
from winch.core.values.ids import random_id
from winch.drivers.redis.cluster.driver import RedisClusterDriver
from winch.drivers.redis.cluster.shards import HOME, shard_of, tags
from winch.drivers.redis.connections.routing import ConnectionLost
from winch.engine.base.encryption import Keyring
from winch.engine.tasks.middleware import Middleware
from winch.storage.params import NewJob

pytestmark = [pytest.mark.servers, pytest.mark.faults]

HOME_KEY = "{winch}:meta"


@pytest.fixture
def cluster() -> Iterator[RedisCluster]:
    with RedisCluster() as found:
        yield found


def app_on(cluster: RedisCluster, options: str = "replicated=1") -> App:
    app = App(f"{cluster.url}?{options}")

    @app.task(name="work")
    def work(number: int) -> None:
        pass

    work.enqueue(-1)  # the store is looked at, and every node has been asked
    return app


def elsewhere(cluster: RedisCluster) -> RedisServer:
    """A primary that does not have the home shard."""
    home = cluster.primary_of(HOME_KEY)
    return next(node for node in cluster.primaries() if node is not home)


def shards_on(cluster: RedisCluster, node: RedisServer) -> set[int]:
    named = enumerate(tags("winch"))
    return {number for number, tag in named if cluster.primary_of(f"{{{tag}}}:meta") is node}


def lose_primary(cluster: RedisCluster) -> set[int]:
    """Kill a primary, and wait for its replica; returns the shards that have but one copy."""
    primary = elsewhere(cluster)
    replica = cluster.replica_of(primary)
    shards = shards_on(cluster, primary)
    primary.kill9()
    assert wait_until(lambda: _leads(replica), 30)
    # The other nodes learn of the new primary a moment later.
    assert wait_until(lambda: shards_on(cluster, replica) == shards, 30)
    return shards


def _leads(node: RedisServer) -> bool:
    with suppress(ConnectionLost):  # a node that changes its role hangs up
        return node.info("replication")["role"] == "master" and (
            b"cluster_state:ok" in node.ask("CLUSTER", "INFO")
        )
    return False


def lose_replica(cluster: RedisCluster) -> set[int]:
    primary = elsewhere(cluster)
    cluster.replica_of(primary).kill9()
    return shards_on(cluster, primary)


@pytest.mark.parametrize("lose", [lose_primary, lose_replica])
def test_drawn_ids_go_to_shards_that_can_replicate(cluster: RedisCluster, lose: object) -> None:
    assert callable(lose)
    app = app_on(cluster)
    work = app.tasks.get("work")
    weak = lose(cluster)
    assert len(weak) >= 20
    began = time.monotonic()
    jobs = [work.enqueue(number) for number in range(200)]
    jobs += app.enqueue_many(work.bind(number) for number in range(2000))
    assert time.monotonic() - began < 20
    assert not {shard_of(job.id) for job in jobs} & weak
    assert len({job.id for job in jobs}) == 2200
    # All of them are stored once, under the ids that the producer has.
    driver = app.driver
    found = [record for some in _hundreds(jobs) for record in driver.run(driver.get(some))]
    assert all(record is not None and record.state is JobState.READY for record in found)
    assert driver.run(driver.counts())[JobState.READY] == 2201


def _hundreds(jobs: list) -> list[list[str]]:  # type: ignore[type-arg]
    return [[job.id for job in jobs[start : start + 100]] for start in range(0, len(jobs), 100)]


def test_drawn_ids_of_an_event_loop_go_to_shards_that_can_replicate(cluster: RedisCluster) -> None:
    app = app_on(cluster)
    work = app.tasks.get("work")
    weak = lose_replica(cluster)

    async def enqueue() -> list[str]:
        alone = [(await work.aenqueue(number)).id for number in range(70)]
        together = await asyncio.gather(*(work.aenqueue(number) for number in range(300)))
        await app.aclose()
        return [*alone, *(job.id for job in together)]

    ids = asyncio.run(enqueue())
    assert len(set(ids)) == 370
    assert not set(map(shard_of, ids)) & weak
    driver = app.driver
    assert driver.run(driver.counts())[JobState.READY] == 371


def test_a_producer_that_never_pauses_has_one_uncertain_call_at_most(cluster: RedisCluster) -> None:
    """The call that is under way when the node dies may have been stored, and raises that."""
    app = app_on(cluster, "replicated=1&timeout=3s")
    work = app.tasks.get("work")
    primary = elsewhere(cluster)
    uncertain, stored = 0, []
    for number in range(400):
        if number == 100:
            primary.kill9()
        try:
            stored.append(work.enqueue(number))
        except EnqueueUncertain:
            uncertain += 1
    assert uncertain <= 1
    assert len(stored) == 400 - uncertain


def test_a_shard_with_no_node_left_keeps_no_drawn_id_waiting(cluster: RedisCluster) -> None:
    for node in cluster.nodes:
        node.ask("CONFIG", "SET", "cluster-require-full-coverage", "no")
    app = app_on(cluster, "timeout=3s")
    work = app.tasks.get("work")
    primary = elsewhere(cluster)
    lost = shards_on(cluster, primary)
    cluster.replica_of(primary).kill9()
    primary.kill9()
    began = time.monotonic()
    jobs = [work.enqueue(number) for number in range(200)]
    assert time.monotonic() - began < 20
    assert not {shard_of(job.id) for job in jobs} & lost


def test_a_given_id_has_one_shard_and_is_uncertain_there(cluster: RedisCluster) -> None:
    app = app_on(cluster, "replicated=1&timeout=2s")
    work = app.tasks.get("work")
    weak = lose_replica(cluster)
    given = next(
        one
        for one in (random_id(number.to_bytes(16)) for number in range(1, 1000))
        if shard_of(one) in weak - {HOME}
    )
    with pytest.raises(EnqueueUncertain) as caught:
        work.using(id=given).enqueue(1)
    assert caught.value.ids == (given,)
    assert app.jobs.get(given).state is JobState.READY


def test_with_no_replica_left_nothing_is_stored_and_nothing_is_uncertain(cluster: RedisCluster) -> None:
    app = app_on(cluster)
    work = app.tasks.get("work")
    for primary in cluster.primaries():
        cluster.replica_of(primary).kill9()
    began = time.monotonic()
    with pytest.raises(StorageUnavailable):
        work.enqueue(1)
    assert time.monotonic() - began < 10
    driver = app.driver
    assert driver.run(driver.counts())[JobState.READY] == 1


class _Hooks(Middleware):
    def __init__(self) -> None:
        self.ids: list[str] = []

    def stored(self, jobs: list[NewJob], error: BaseException | None) -> None:  # type: ignore[override]
        assert error is None
        self.ids += [job.id for job in jobs]


def test_hooks_and_keys_know_the_id_that_the_job_is_stored_under(cluster: RedisCluster) -> None:
    app = App(f"{cluster.url}?replicated=1", keys=Keyring({"k1": b"k" * 32}, current="k1"))
    hooks = _Hooks()
    app.use(hooks)

    @app.task(name="work")
    def work(number: int) -> None:
        pass

    work.enqueue(-1)
    weak = lose_replica(cluster)
    jobs = [work.enqueue(number) for number in range(70)]
    assert hooks.ids[1:] == [job.id for job in jobs]
    assert not {shard_of(job.id) for job in jobs} & weak
    driver = app.driver
    assert isinstance(driver, RedisClusterDriver)
    records = driver.run(driver.get([job.id for job in jobs]))
    opened = [app.client.revealed(record).args for record in records if record is not None]
    assert opened == [opened[0].replace("0", str(number), 1) for number in range(70)]
