"""What is particular to gates on Redis: what a plain job pays, how much one call does, what is left."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import pytest

from tests.redis_servers import RedisServer
from tests.storage.postgres_kit import new_id, new_job, new_session, new_token
from winch.core.gates.uses import (
    BUCKET,
    FIFO,
    FIXED,
    LIMIT,
    RATE,
    SCOPE,
    SLIDING,
    BreakerSpec,
    GateSpec,
    GateUse,
    with_gates,
)
from winch.core.job import Claim
from winch.core.lifecycle import JobState
from winch.core.policy.queue_settings import QueueRule
from winch.drivers.memory import MemoryDriver
from winch.drivers.redis.driver import RedisDriver
from winch.drivers.redis.scripts import command
from winch.storage.params import Answer, ClaimParams, Finish
from winch.storage.verbs import Verb
from winch.testing.conformance.target import WallClock

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


def usual_commands(server: RedisServer, store: Store) -> Counter[str]:
    """What each of three rounds asks for: jobs that begin a new page of the list add a command."""
    first, second, third = (commands(server, store, "default") for _ in range(3))
    return first & second & third


def test_a_plain_job_costs_the_same_beside_jobs_that_wait(server: RedisServer, store: Store) -> None:
    commands(server, store, "default")  # the scripts are known now
    before = usual_commands(server, store)
    store.add(30, ONE)
    store.add(30, ONE, TURNS, tenant="a")
    store.claim(5)
    assert usual_commands(server, store) == before


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


def test_a_job_with_damaged_options_blocks_no_other(store: Store) -> None:
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


@pytest.mark.parametrize("count", [1, 700])
def test_jobs_that_wait_at_a_gate_take_their_places_in_a_new_order(store: Store, count: int) -> None:
    driver, ages_ago = store.driver, datetime.now(UTC) - timedelta(days=1)
    store.add(1, ONE)
    (running,) = store.claim(1)
    old = [new_job(options=with_gates(None, (ONE,))) for _ in range(count)]
    driver.run(driver.enqueue(old, now=ages_ago))
    (urgent,) = store.add(1, ONE, priority=1)
    assert store.claim(1) == []
    assert {job.state for job in driver.run(driver.get([urgent])) if job} == {JobState.BLOCKED}
    driver.run(driver.set_queue("default", QueueRule(is_strict=True)))
    store.complete([running])
    (running,) = store.claim(1)
    assert running.id == urgent
    (urgent,) = store.add(1, ONE, priority=1)
    assert store.claim(1) == []
    driver.run(driver.set_queue("default", QueueRule()))
    store.complete([running])
    (running,) = store.claim(1)
    assert running.id != urgent


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


def places(driver: RedisDriver) -> dict[str, list[str]]:
    """What the store has by its keys: members in their order, without numbers and moments."""
    reads = {b"hash": ("HKEYS",), b"set": ("SMEMBERS",), b"zset": ("ZRANGE", 0, -1)}
    found = {}
    for key in driver._pool.run(command("SCAN", 0, "COUNT", 1000))[1]:
        kind = driver._pool.run(command("TYPE", key))
        if kind in reads:
            name, *rest = reads[kind]
            members = [member.decode() for member in driver._pool.run(command(name, key, *rest))]
            found[key.decode()] = members if kind == b"zset" else sorted(members)
    return found


@pytest.mark.parametrize("gates", [(ONE,), (FLOW,), (BANK, ONE), (TURNS,), (TURNS, ONE)])
def test_a_lone_job_with_gates_stands_where_one_of_many_does(
    store: Store, gates: tuple[GateUse, ...]
) -> None:
    """A script of its own stores it. With `is_repeat` the verb for jobs of all kinds does."""
    driver = store.driver
    fifo = "acct" if TURNS in gates else None
    jobs = [new_job(id=new_id(), options=with_gates(None, gates), fifo=fifo) for _ in range(3)]
    found = []
    for is_repeat in (False, True):
        driver.erase()
        for job in jobs:
            driver.run(driver.enqueue([job], is_repeat=is_repeat))
        found.append(places(driver))
    assert found[0] == found[1]
    assert {job.id for job in jobs} <= set(found[0]["{winch}:gated:default"])


def test_a_lone_member_comes_after_all_others_of_its_key(store: Store) -> None:
    """The order holds although the clock has gone back since the others were stored."""
    driver = store.driver
    options = with_gates(None, (TURNS,))
    jobs = [new_job(id=new_id(), options=options, fifo="acct") for _ in range(3)]
    driver.run(driver.enqueue(jobs[:2], now=datetime.now(UTC) + timedelta(hours=1)))
    driver.run(driver.enqueue(jobs[2:]))
    assert places(driver)["{winch}:members:fifo:acct"] == [job.id for job in jobs]
    ended = []
    while claims := store.claim(5):
        ended += [one.id for one in claims]
        store.complete(claims)
    assert ended == [job.id for job in jobs]


# -- rates and scopes, decided in Lua as in Python ----------------------------------------------------

T = TypeVar("T")
SECOND = 1_000_000
TRIPS = BreakerSpec(failures=0.5, of=2, window=20 * SECOND, hold=5 * SECOND)
SETS: tuple[tuple[GateUse, ...], ...] = (
    (GateUse("rate:fixed", RATE, "rate:fixed", n=3, per=7 * SECOND, how=FIXED),),
    (GateUse("rate:slide", RATE, "rate:slide", n=4, per=10 * SECOND, how=SLIDING, weight=2),),
    (GateUse("rate:slide", RATE, "rate:slide", n=4, per=10 * SECOND, how=SLIDING),),
    (GateUse("rate:flow=a", RATE, "rate:flow", n=2, per=3 * SECOND, how=BUCKET, burst=3),),
    (GateUse("budget:t", RATE, "budget:t", n=1, per=9 * SECOND, how=BUCKET, is_for_retries=True),),
    (GateUse("scope:bank", SCOPE, breaker=TRIPS), GateUse("limit:bank", LIMIT, "limit:bank", n=2)),
    (GateUse("scope:bank", SCOPE), GateUse("fifo:acct", FIFO, blocks_on_death=True)),
    (GateUse("limit:bank", LIMIT, "limit:bank", n=2),),
    (GateUse("fifo:acct", FIFO),),
    (
        GateUse("limit:bank", LIMIT, "limit:bank", n=2, weight=2),
        GateUse("rate:x", RATE, "rate:x", n=1, per=SECOND),
    ),
)
SPECS = {
    "rate:slide": (None, GateSpec(2, 5 * SECOND), GateSpec(3, 4 * SECOND, BUCKET)),
    "rate:flow": (None, GateSpec(5, SECOND, FIXED)),
    "limit:bank": (None, GateSpec(1), GateSpec(4)),
    "tenant:x": (None, GateSpec(3)),
}


class Pair:
    """The driver and the reference, asked the same and answering the same."""

    def __init__(self, driver: RedisDriver, seed: int) -> None:
        self.drivers = (MemoryDriver(WallClock()), driver)
        self.rng = random.Random(seed)
        self.sets = (SETS[seed % len(SETS)], SETS[seed % len(SETS)], self.rng.choice(SETS))
        self.now = datetime(2026, 3, 1, 12, tzinfo=UTC)
        self.ids: list[str] = []
        self.claims: list[Claim] = []
        self.continued = 0
        self.session = new_session(lease=timedelta(days=9))
        self.ask(lambda one: one.start_session(self.session, now=self.now))

    def ask(self, verb: Callable[[Any], Verb[T]]) -> T:
        reference, found = (one.run(verb(one)) for one in self.drivers)
        assert found == reference
        return found

    def enqueue(self) -> None:
        fields: dict[str, Any] = {"tenant": self.rng.choice([None, None, "x", "y"])}
        gates = self.rng.choice(self.sets)
        jobs = [
            new_job(options=with_gates(None, gates), **fields) for _ in range(self.rng.randint(1, 4))
        ]
        self.ids += [job.id for job in jobs]
        self.ask(lambda one: one.enqueue(jobs, now=self.now))

    def claim(self) -> None:
        params = ClaimParams(
            session=self.session.id,
            token=new_token(),
            queues=("default",),
            limit=self.rng.randint(1, 5),
            gated=self.rng.choice([None, None, 2]),
        )
        self.claims += self.ask(lambda one: one.claim(params, now=self.now))

    def finish(self) -> None:
        ends = []
        for claim in self.claims[: self.rng.randint(1, 3)]:
            self.claims.remove(claim)
            to, what = self.rng.choice(
                [
                    (JobState.COMPLETED, "completed"),
                    (JobState.COMPLETED, "completed"),
                    (JobState.RETRYING, "failed"),
                    (JobState.READY, "failed"),
                    (JobState.DEAD, "failed"),
                ]
            )
            delay = timedelta(seconds=0 if to is JobState.READY else self.rng.randint(1, 9))
            brake = "bank" if to is JobState.RETRYING and self.rng.random() < 0.3 else None
            ends.append(
                Finish(
                    id=claim.id,
                    token=claim.token,
                    to=to,
                    what=what,
                    delay=delay,
                    brake=brake,
                    is_gated=True,
                )
            )
        if self.rng.random() < 0.5:
            self.ask(lambda one: one.finish(ends, now=self.now))
            return
        then = ClaimParams(
            session=self.session.id, token=new_token(), queues=("default",), limit=max(1, len(ends))
        )
        _, claims = self.ask(lambda one: one.finish_and_claim(ends, then, now=self.now))
        self.claims += claims
        self.continued += len(claims)

    def change(self) -> None:
        name = self.rng.choice(list(SPECS))
        specs = {name: self.rng.choice(SPECS[name])}
        self.ask(lambda one: one.set_limits(specs, by="ada", now=self.now))

    def step(self) -> None:
        self.now += timedelta(
            microseconds=self.rng.choice([0, 1, 400_000, 1_000_000, 1_100_000, 3_500_000])
        )
        self.ask(lambda one: one.promote(now=self.now))
        is_sweep = self.rng.random() < 0.2
        self.ask(lambda one: one.admit(is_sweep=is_sweep, now=self.now))
        act = self.rng.choice(
            [self.enqueue, self.claim, self.claim, self.claim, self.finish, self.change]
        )
        act()
        self.claim()
        self.ask(lambda one: one.get(self.ids))
        self.ask(lambda one: one.limits())


def test_rates_scopes_and_settings_agree_with_the_reference(store: Store) -> None:
    continued = 0
    # 145: ends of one call that a breaker counts; 262: tenants of weight 3.
    for seed in (*range(2 * len(SETS)), 145, 262):
        store.driver.erase()
        pair = Pair(store.driver, seed)
        for _ in range(40):
            pair.step()
        continued += pair.continued
    assert continued > 0
