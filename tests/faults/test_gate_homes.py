"""Gates of a cluster go home while a primary dies, or while their slots move to other nodes.

The windows of rates are an hour: what a shard has given once counts for the whole test.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from threading import Event
from typing import TypeVar

import pytest

from tests.redis_servers import RedisCluster
from tests.servers import wait_until
from tests.storage.test_redis_cluster import claim_all, completed, new_id, parts_of, start
from tests.storage.test_redis_gate_homes import fifo, gated, limit
from winch.core.errors import StorageUnavailable
from winch.core.gates.places import families_of
from winch.core.gates.uses import RATE, GateUse
from winch.core.lifecycle import JobState
from winch.drivers.redis.cluster import handover
from winch.drivers.redis.cluster.driver import RedisClusterDriver
from winch.drivers.redis.cluster.shards import HOME, shard_of, slot_of, tags
from winch.storage.params import Answer, ClaimParams, ClaimRef
from winch.storage.verbs import Verb

T = TypeVar("T")

pytestmark = [pytest.mark.servers, pytest.mark.faults, pytest.mark.slow]

HOUR = 3_600_000_000
MOST, MORE = 3, 6
PATIENCE = 30.0


@contextmanager
def opened(cluster: RedisCluster) -> Iterator[RedisClusterDriver]:
    found = RedisClusterDriver.from_url(f"{cluster.url}?replicated=1&schema=winch")
    assert isinstance(found, RedisClusterDriver)
    yield found
    found.close()


def rate(key: str) -> GateUse:
    return GateUse(f"rate:mail={key}", RATE, "rate:mail", n=MOST, per=HOUR)


def number_of_steps(driver: RedisClusterDriver) -> int:
    """How many calls it takes to bring a family like those of the test home."""
    jobs = [gated(rate("first")) for _ in range(MORE)]
    driver.run(driver.enqueue(jobs))
    body, steps = driver._homes.gather(families_of(jobs[0].options)[0]), 0
    try:
        what = next(body)
        while True:
            what = body.send(driver._pool.run(driver._base.sendable(what)))
            steps += 1
    except StopIteration:
        return steps


@pytest.mark.parametrize("is_home", [False, True])
def test_a_rate_that_goes_home_counts_through_a_failover(is_home: bool) -> None:
    """The driver dies after each of its calls, and then the primary of either end."""
    with RedisCluster() as cluster, opened(cluster) as driver:
        driver.migrate()
        session = start(driver, lease=3600)
        for steps in range(1, number_of_steps(driver)):
            use = rate(f"key {steps}")
            jobs = [gated(use) for _ in range(MORE)]
            (family,) = families_of(jobs[0].options)
            driver.run(driver.enqueue(jobs))
            mine = {job.id for job in jobs}
            taken = [ref for ref in claim_all(driver, session) if ref.id in mine]
            assert len(taken) == MOST
            # An enqueue waits for a replica, which then has the claims of before as well.
            driver.run(driver.enqueue([gated(use)]))
            body = driver._homes.gather(family)
            what = next(body)
            for _ in range(steps):
                what = body.send(driver._pool.run(driver._base.sendable(what)))
            body.close()
            tag = tags("winch")[HOME if is_home else shard_of(jobs[0].id)]
            primary = cluster.primary_of(f"{{{tag}}}:meta")
            primary.kill9()
            assert wait_until(lambda: cluster.primary_of(f"{{{tag}}}:meta") is not primary, 30)  # noqa: B023
            primary.start()
            cluster.wait_until_whole()
            with opened(cluster) as other:
                assert claim_all(other, session) == [], f"after {steps} calls"
                other.run(other.rescue())
                other.run(other.admit(is_sweep=True))
                assert claim_all(other, session) == [], f"after {steps} calls and a rescue"
                live = mine - {ref.id for ref in taken}
                assert {tuple(parts_of(other, one)) for one in live} == {(HOME,)}, steps
                assert other.run(other.finish(list(map(completed, taken)))) == [Answer.TOOK] * MOST


def surely(driver: RedisClusterDriver, make: Callable[[], Verb[T]]) -> T:
    """The answer of this verb, which may be repeated."""
    until = time.monotonic() + PATIENCE
    while True:
        try:
            return driver.run(make())
        except StorageUnavailable:
            if time.monotonic() > until:
                raise


def agree(cluster: RedisCluster, slot: int, port: int) -> bool:
    """Whether every node knows that this one has the slot."""
    return all(
        any(
            first <= slot <= last and owner[1] == port
            for first, last, owner, *_ in node.ask("CLUSTER", "SLOTS")
        )
        for node in cluster.nodes
    )


class Worker:
    """Claims and ends jobs, and looks at what runs at one time."""

    def __init__(self, driver: RedisClusterDriver, session: str, kinds: dict[str, str]) -> None:
        """`kinds`: job -> the kind of its gate."""
        self.driver = driver
        self.session = session
        self.kinds = kinds
        self.held: list[ClaimRef] = []
        self.ended: list[str] = []
        self.given_up: list[str] = []

    def claim(self) -> int:
        params = ClaimParams(session=self.session, token=new_id(), queues=("default",), limit=20)
        try:
            claims = self.driver.run(self.driver.claim(params))
        except StorageUnavailable:
            self.given_up.append(params.token)
            return 0
        self.held += [ClaimRef(claim.id, claim.token) for claim in claims]
        running = Counter(self.kinds[ref.id] for ref in self.held)
        assert running["limit"] <= 2
        assert running["fifo"] <= 1
        return len(claims)

    def end_one(self) -> None:
        ref = self.held.pop(0)
        (answer,) = surely(self.driver, lambda: self.driver.finish([completed(ref)]))
        assert answer in (Answer.TOOK, Answer.ALREADY)
        self.ended.append(ref.id)

    def work_until(self, is_over: Callable[[], bool]) -> None:
        """Work until this is so and nothing is left to claim."""
        while True:
            is_last = is_over()
            surely(self.driver, lambda: self.driver.admit(is_sweep=True))
            # As a worker does with each beat: a job of a lost claim may have been on its way home.
            surely(self.driver, lambda: self.driver.give_up(self.session, self.given_up))
            count = self.claim()
            if self.held:
                self.end_one()
            elif is_last and not count:
                return


@pytest.mark.parametrize("which", ["shard", "home", "both"])
def test_gates_go_home_while_their_slots_move(which: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs go home one by one while the slot of their shard, or that of home, goes from node to node and
    a worker claims. Never more run than the limit allows, members of a key start in their order, and
    every job ends once."""
    monkeypatch.setattr(handover, "AT_ONCE", 1)
    # A busy machine is no failure: a replica that took over meanwhile would move slots of its own.
    with RedisCluster(timeout_ms=15_000) as cluster, opened(cluster) as driver:
        driver.migrate()
        session = start(driver, lease=3600)
        kinds = {"limit": limit("k"), "rate": rate("k"), "fifo": fifo("k")}
        jobs = {kind: [gated(use) for _ in range(40)] for kind, use in kinds.items()}
        for some in jobs.values():
            driver.run(driver.enqueue(some))
        shard = shard_of(jobs["limit"][0].id)
        moved = {"shard": [shard], "home": [HOME], "both": [shard, HOME]}[which]
        is_over = Event()

        def move_slots() -> int:
            count = 0
            while not is_over.is_set() or count < 4:
                for number in moved:
                    tag = tags("winch")[number]
                    source = cluster.primary_of(f"{{{tag}}}:meta")
                    target = next(node for node in cluster.primaries() if node is not source)
                    cluster.move_slot(slot_of(tag), source, target)
                    assert wait_until(lambda: agree(cluster, slot_of(tag), target.port), 30)  # noqa: B023
                    count += 1
            return count

        def go_home() -> None:
            families = {families_of(some[0].options)[0] for some in jobs.values()}
            with opened(cluster) as mover:
                while families - done and not is_over.is_set():
                    for family in sorted(families - done):
                        with suppress(StorageUnavailable):
                            mover._run(mover._homes.gather(family))
                            done.add(family)

        done: set[str] = set()
        names = {job.id: kind for kind, some in jobs.items() for job in some}
        with opened(cluster) as own, ThreadPoolExecutor(2) as threads:
            moving, going = threads.submit(move_slots), threads.submit(go_home)
            worker = Worker(own, session, names)
            try:
                worker.work_until(lambda: going.done() or moving.done())
            except StorageUnavailable:
                is_over.set()
                moving.result()  # a slot that has stopped half way is the reason, where one has
                raise
            finally:
                is_over.set()
            going.result()
            assert moving.result() >= 4
            cluster.wait_until_whole()
            own.run(own.rescue())
            worker.work_until(lambda: True)
            found = {one.id: one.state for one in own.run(own.get(list(names))) if one is not None}
        counts = Counter((names[one], state) for one, state in found.items())
        assert counts["limit", JobState.COMPLETED] == counts["fifo", JobState.COMPLETED] == 40
        assert counts["rate", JobState.COMPLETED] == MOST
        assert max(Counter(worker.ended).values()) == 1
        members = [job.id for job in jobs["fifo"]]
        assert [one for one in worker.ended if one in set(members)] == members
