"""What is particular to gates on Redis: what a plain job pays, how much one call does, what is left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.redis_servers import RedisServer
from tests.storage.postgres_kit import new_job, new_session, new_token
from winch.core.gates import BUCKET, FIFO, LIMIT, RATE, SCOPE, BreakerSpec, GateUse, with_gates
from winch.core.job import Claim
from winch.core.lifecycle import JobState
from winch.drivers.redis.driver import RedisDriver
from winch.drivers.redis.scripts import command
from winch.storage.params import Answer, ClaimParams, Finish

pytestmark = pytest.mark.servers

ONE = GateUse("limit:one", LIMIT, "limit:one", n=1)
TURNS = GateUse("fifo:acct", FIFO)
FLOW = GateUse("rate:flow", RATE, "rate:flow", n=1_000_000, per=1_000_000, how=BUCKET)
BANK = GateUse("scope:bank", SCOPE, breaker=BreakerSpec(failures=0.5, of=10, window=1, hold=1))
# What a store has when all its jobs are done and deleted.
PERMANENT = {"meta", "queues", "tasks", "sess", "alive", "beats", "drop", "seq", "fair", "gate"}


class Store:
    """A driver with one session, and the verbs a test needs most."""

    def __init__(self, driver: RedisDriver) -> None:
        self.driver = driver
        session = new_session()
        driver.run(driver.start_session(session))
        self._session = session.id

    def add(self, count: int, *gates: GateUse, **fields: Any) -> list[str]:
        if gates or "tenant" in fields:
            fields["options"] = with_gates(None, gates)
        jobs = [new_job(**fields) for _ in range(count)]
        return [stored.id for stored in self.driver.run(self.driver.enqueue(jobs))]

    def claim(self, limit: int, gated: int | None = None, queue: str = "default") -> list[Claim]:
        params = ClaimParams(
            session=self._session, token=new_token(), queues=(queue,), limit=limit, gated=gated
        )
        return self.driver.run(self.driver.claim(params))

    def complete(self, claims: list[Claim]) -> None:
        ends = [
            Finish(id=one.id, token=one.token, to=JobState.COMPLETED, what="completed") for one in claims
        ]
        answers = self.driver.run(self.driver.finish(ends))
        assert set(answers) <= {Answer.TOOK}


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
def store(server: RedisServer) -> Iterator[Store]:
    driver = RedisDriver.from_url(server.url)
    driver.erase()
    yield Store(driver)
    driver.close()


def commands(server: RedisServer, store: Store, queue: str) -> Counter[str]:
    """What the server is asked to do for ten plain jobs."""
    server.ask("CONFIG", "RESETSTAT")
    store.add(10, queue=queue)
    store.complete(store.claim(10, gated=0, queue=queue))
    calls: Counter[str] = Counter()
    for line in server.ask("INFO", "commandstats").decode().splitlines():
        name, _, rest = line.partition(":calls=")
        if rest and "config" not in name and "info" not in name:
            calls[name] = int(rest.partition(",")[0])
    return calls


def test_a_plain_job_costs_the_same_beside_jobs_that_wait(server: RedisServer, store: Store) -> None:
    before = commands(server, store, "default")
    before = commands(server, store, "default")  # the scripts are known now
    store.add(30, ONE)
    store.add(30, ONE, TURNS, tenant="a")
    store.claim(5)
    assert commands(server, store, "default") == before


def test_a_plain_job_is_met_behind_more_than_one_call_holds(store: Store) -> None:
    gated = store.add(700, ONE)
    plain = store.add(2)
    assert [claim.id for claim in store.claim(3)] == [gated[0], *plain]
    assert store.claim(3) == []
    counts = store.driver.run(store.driver.counts())
    assert (counts[JobState.BLOCKED], counts[JobState.READY]) == (699, 0)


def test_a_claim_goes_on_where_all_that_one_call_looked_at_were_held(store: Store) -> None:
    """The holder is in another queue, so nothing of this one can be taken before the last."""
    store.add(1, ONE, queue="other")
    assert len(store.claim(1, queue="other")) == 1
    store.add(1100, ONE)
    other = store.add(1, GateUse("limit:two", LIMIT, "limit:two", n=1))
    assert [claim.id for claim in store.claim(1)] == other


def test_many_tenants_are_served_in_turn(store: Store) -> None:
    tenants = [f"t{number:03}" for number in range(150)]
    for tenant in tenants:
        store.add(3, tenant=tenant)
    served: Counter[str] = Counter()
    while claims := store.claim(10):
        jobs = store.driver.run(store.driver.get([claim.id for claim in claims]))
        served.update(job.tenant for job in jobs if job is not None and job.tenant is not None)
        store.complete(claims)
        assert max(served.values()) - min(served[tenant] for tenant in tenants) <= 1
    assert served == Counter(dict.fromkeys(tenants, 3))


def test_options_that_somebody_damaged_hold_nobody(store: Store) -> None:
    damaged = (
        '{"gates":[{"key":7}]}',
        '{"gates":',
        '{"gates":"all"}',
        '{"gates":[{"key":"k","kind":"?"}]}',
    )
    for text in damaged:
        store.add(1, options=text)
        claims = store.claim(1)
        assert len(claims) == 1, text
        store.complete(claims)


def test_nothing_of_a_gate_is_left_when_its_jobs_are_gone(store: Store) -> None:
    driver = store.driver
    ids = store.add(4, ONE, TURNS, FLOW, BANK, tenant="a") + store.add(4, ONE, FLOW)
    while claims := store.claim(5):
        store.complete(claims)
    assert {job.state for job in driver.run(driver.get(ids)) if job} == {JobState.COMPLETED}
    driver.run(driver.delete(ids, by="ada"))
    driver.run(driver.admit(is_sweep=True, now=datetime.now(UTC) + timedelta(days=2)))
    keys = driver._pool.run(command("SCAN", 0, "COUNT", 1000))[1]
    names = {key.decode().partition(":")[2].partition(":")[0] for key in keys}
    assert names <= PERMANENT
