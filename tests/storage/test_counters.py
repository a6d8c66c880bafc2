"""Counters of a store, set to where their type ends, and the verb that counts on from there.

Types in the order PostgreSQL, SQLite, Redis. Scripts of Redis count in doubles, exact to 2^53; the
memory store counts in Python's numbers. What reaches the limit:

    attempt             integer, 64 bits, double    a job that fails 1000 times a second for 25 days
    crashes, rescues    integer, 64 bits, double    nothing: they count entries of a history of 100
    max_attempts        integer, 64 bits, double    nothing: greater ones are refused
    version             integer, 64 bits, double    the same
    fence               bigint, 64 bits, double     a clock of the year 2255: it is µs since 1970
    number in FIFO key  bigint, 64 bits, double     the same
    v of an event       bigint, 64 bits, double     nothing: the events of one job
    seq of an event     bigint, 64 bits, double     nothing: 285 years of a million a second
    beats               bigint, 64 bits, 64 bits    nothing: 680 years to 2^31
    used of a limit     bigint, 64 bits, 64 bits    nothing: a limit and its weights are 1e9 at most
    trips of a breaker  text, text, double          nothing: the hold stops growing at the tenth
    level of a rate     text, text, double          a burst that fills for thousands of years
    virtual time        text, text, double          tenants with weights above a million, at once
    number of a wait    none, none, double          nothing: 1e14 waits
    v of a schedule     none, none, double          nothing: changes of schedules

Windows of schedules, signals, lines of books and unique keys have moments and texts, and no counters.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from winch.core.gates.uses import BUCKET, GateSpec, with_gates
from winch.core.job import from_micros, to_micros
from winch.core.lifecycle import JobState
from winch.drivers.redis.cluster.shards import EVERYWHERE, HOME, shard_of, tags
from winch.drivers.redis.scripts import command
from winch.storage.decide.waits import signal_key
from winch.storage.params import Answer, Wait
from winch.testing.conformance import Target
from winch.testing.conformance.bench import DAY, HOUR, Bench
from winch.testing.conformance.cases.gates.breakers import BANK, HOLD, fail, held, probe, tripped
from winch.testing.conformance.cases.gates.gates import admit, gated, limit, rate, set_limits
from winch.testing.conformance.cases.jobs.fifo import drained, ids, members
from winch.testing.conformance.cases.jobs.waits import unblock

INT4 = 2**31 - 1
EXACT = 2**53
SERVERS = ("postgres", "redis", "redis+cluster")
STORES = [
    "memory",
    "sqlite",
    *(pytest.param(name, marks=pytest.mark.servers) for name in SERVERS),
]


@pytest.fixture(params=STORES)
def bench(
    request: pytest.FixtureRequest, target_of: Callable[[str], Target], runner: asyncio.Runner
) -> Iterator[Bench]:
    target = target_of(request.param)
    driver = target.fresh(events=True)
    yield Bench(target, driver, "sync", runner, request.node.name)
    target.finished(driver)


def redis(bench: Bench, verb: str, key: str, *words: Any, part: int = HOME) -> Any:
    """A command on a key of one part of the store; in a cluster there are many."""
    driver: Any = bench.driver
    tag = tags(driver._address.schema)[part]
    return driver._pool.run(command(verb, f"{{{tag}}}:{key}", *words, where=part))


def parts(bench: Bench) -> range:
    return EVERYWHERE if bench.target.name == "redis+cluster" else range(1)


def sql(bench: Bench, statement: str, *values: Any) -> None:
    """A statement on an SQL store; ? is a value, and {} what names of tables begin with."""
    with bench.target.connection() as conn:
        execute = conn.execute  # type: ignore[attr-defined]
        if bench.target.name == "postgres":
            statement = statement.replace("?", "%s").format(f"{bench.target.address().schema}.")
            execute(statement, list(values))
        else:
            execute(statement.format("winch_"), list(values))


def put_job(bench: Bench, job_id: str, *, is_home: bool = False, **fields: int) -> None:
    """Write numbers of a ready job (attempt, fence) as the store would have counted them. In a cluster
    jobs with gates are at home."""
    match bench.target.name:
        case "memory":
            live = bench.driver._state.live  # type: ignore[attr-defined]
            live[job_id] = msgspec.structs.replace(live[job_id], **fields)
        case "sqlite" | "postgres":
            changes = ", ".join(f"{name} = ?" for name in fields)
            sql(bench, f"UPDATE {{}}job SET {changes} WHERE id = ?", *fields.values(), job_id)
        case name:
            short = {"attempt": "a", "fence": "n"}
            state = msgspec.msgpack.encode({short[name]: value for name, value in fields.items()})
            part = shard_of(job_id) if name == "redis+cluster" and not is_home else HOME
            redis(bench, "HSET", "st", job_id, state, part=part)


def put_gate(bench: Bench, key: str, state: dict[str, Any]) -> None:
    """Write what a gate remembers."""
    text = msgspec.json.encode(state).decode()
    match bench.target.name:
        case "memory":
            bench.driver._state.gates.states[key] = text  # type: ignore[attr-defined]
        case "sqlite" | "postgres":
            insert = "INSERT INTO {}gate (key, state) VALUES (?, ?)"
            sql(bench, f"{insert} ON CONFLICT (key) DO UPDATE SET state = excluded.state", key, text)
        case _:
            redis(bench, "HSET", "gate", key, msgspec.msgpack.encode(state))


def fails(bench: Bench) -> int:
    """The number of an attempt that begins now and fails."""
    claim = bench.take()
    assert bench.get(claim.id).attempt == claim.attempt
    assert bench.finish(bench.outcome(claim, JobState.READY)) == [Answer.TOOK]
    return claim.attempt


def test_a_job_fails_on_after_very_many_attempts(bench: Bench) -> None:
    job_id = bench.add()
    put_job(bench, job_id, attempt=2**10)
    assert fails(bench) == 2**10 + 1
    put_job(bench, job_id, attempt=INT4 - 1)
    assert fails(bench) == INT4
    # One store counts no further; the job goes on in all of them.
    assert fails(bench) in (INT4, INT4 + 1)
    assert bench.complete(bench.take()) is Answer.TOOK
    assert bench.get(job_id).attempt >= INT4


def test_jobs_with_gates_fail_on_after_very_many_attempts(bench: Bench) -> None:
    job_id = bench.add(**gated(limit(3)))
    put_job(bench, job_id, is_home=True, attempt=INT4)
    claim = bench.take()
    assert claim.attempt in (INT4, INT4 + 1)
    assert bench.complete(claim, is_gated=True) is Answer.TOOK


def test_a_job_with_the_most_attempts_is_rescued(bench: Bench) -> None:
    job_id = bench.add()
    put_job(bench, job_id, attempt=INT4)
    bench.take()
    bench.advance(HOUR)
    assert [one.id for one in bench.rescue()] == [job_id]
    assert bench.get(job_id).attempt in (INT4 - 1, INT4)


def test_the_most_attempts_that_a_policy_may_have_are_stored(bench: Bench) -> None:
    job_id = bench.add(max_attempts=INT4, version=INT4)
    found = bench.get(job_id)
    assert (found.max_attempts, found.version) == (INT4, INT4)


@pytest.mark.parametrize("fence", [EXACT - 2, EXACT - 1, EXACT, EXACT + 2**20])
def test_a_fence_grows_with_every_claim_past_what_a_double_counts_exactly(
    bench: Bench, fence: int
) -> None:
    put_job(bench, bench.add(), fence=fence)
    given = [fence]
    for _ in range(3):
        claim = bench.take()
        assert bench.get(claim.id).fence == claim.fence
        given.append(claim.fence)
        assert bench.release(claim) == [Answer.TOOK]
    assert given == sorted(set(given)), "a fence that does not grow lets an older claim write"
    if fence == EXACT - 2:
        assert given[:3] == [fence, fence + 1, fence + 2]


def test_members_of_a_fifo_key_keep_their_order_past_what_a_double_counts_exactly(bench: Bench) -> None:
    bench.now = from_micros(EXACT - 1)
    if bench.target.name == "postgres":
        sql(bench, "SELECT setval('{}job_seq', ?)", EXACT - 1)
    jobs = members(bench, 5)
    for job in jobs:
        bench.enqueue(job)
    try:
        assert drained(bench) == ids(jobs)
    finally:
        if bench.target.name == "postgres":
            sql(bench, "SELECT setval('{}job_seq', 1)")


@pytest.mark.parametrize("number", [INT4, EXACT - 2])
def test_the_events_of_a_job_are_numbered_on(bench: Bench, number: int) -> None:
    job_id = bench.add()
    match bench.target.name:
        case "memory":
            bench.driver._state.changes[job_id] = number  # type: ignore[attr-defined]
        case "sqlite" | "postgres":
            sql(bench, "UPDATE {}job_event SET v = ? WHERE job = ?", number, job_id)
        case name:
            part = shard_of(job_id) if name == "redis+cluster" else HOME
            redis(bench, "HSET", "changes", job_id, number, part=part)
    assert bench.complete(bench.take()) is Answer.TOOK
    found = [event.v for event in bench.events() if event.job == job_id]
    assert found[-2:] == [number + 1, number + 2]


# Events of the memory store are numbered by their places, those of a cluster by the clock.
@pytest.mark.parametrize("bench", [STORES[1], STORES[2], STORES[3]], indirect=True)
def test_events_are_read_on_after_very_many(bench: Bench) -> None:
    bench.add()
    number = EXACT - 10
    match bench.target.name:
        case "sqlite":
            sql(bench, "UPDATE {}job_event SET seq = ?", number)
        case "postgres":
            sql(bench, "SELECT setval(pg_get_serial_sequence('{}job_event', 'seq'), ?)", number)
        case _:
            redis(bench, "SET", "seq", number)
    assert bench.complete(bench.take()) is Answer.TOOK
    assert [event.seq for event in bench.events(after=number)] == [number + 1, number + 2]


@pytest.mark.parametrize("beats", [2**31, EXACT - 1])
def test_a_session_beats_on(bench: Bench, beats: int) -> None:
    session = bench.session
    match bench.target.name:
        case "memory":
            bench.driver._state.sessions[session].beats = beats  # type: ignore[attr-defined]
        case "sqlite" | "postgres":
            sql(bench, "UPDATE {}session SET beats = ? WHERE id = ?", beats, session)
        case _:
            for part in parts(bench):
                redis(bench, "HSET", "beats", session, beats, part=part)
    bench.beat(session)
    assert bench.session_info(session).beats == beats + 1


def test_a_limit_counts_the_greatest_weights(bench: Bench) -> None:
    most = 1_000_000_000
    bench.add_many(2, **gated(limit(most, weight=most)))
    (first,) = bench.claim()
    assert bench.claim() == []
    assert bench.complete(first, is_gated=True) is Answer.TOOK
    assert len(bench.claim()) == 1


@pytest.mark.parametrize("trips", [2**10, 2**31, EXACT - 1])
def test_a_breaker_that_trips_on_and_on_holds_no_longer_than_it_may(bench: Bench, trips: int) -> None:
    tripped(bench)
    moments = {"until": to_micros(bench.at + HOLD), "tripped_at": to_micros(bench.at)}
    put_gate(bench, BANK.key, {"is_tripped": True, "trips": trips, **moments})
    fail(bench, probe(bench, HOLD))
    assert (held(bench).open_at, held(bench).trips) == (bench.at + 20 * HOLD, trips + 1)


def test_a_bucket_that_needs_ages_to_refill_blocks_no_other_job(bench: Bench) -> None:
    """A weight that the rate gives back in thousands of years is no moment that a store can keep."""
    most = 1_000_000_000
    slow = rate(1, BUCKET, seconds=365 * 86_400, burst=most, weight=most)
    bench.add_many(2, **gated(slow))
    assert len(bench.claim()) == 1
    assert bench.claim() == []
    plain = bench.add()
    assert [claim.id for claim in bench.claim()] == [plain]
    bench.advance(DAY)
    admit(bench, is_sweep=True)
    assert bench.claim() == []


def test_waits_stay_distinct_after_very_many(bench: Bench) -> None:
    if bench.target.name.startswith("redis"):
        redis(bench, "HSET", "meta", "waits", 10**14)
    for name in ("a", "b"):
        bench.add(queue=name)
        outcome = bench.outcome(
            bench.take(name), JobState.BLOCKED, waits=(Wait(signal_key(name)),), timeout=HOUR
        )
        assert bench.finish(outcome) == [Answer.TOOK]
    bench.call(bench.driver.signal("a", "{}", id="1", now=bench.now))
    unblock(bench)
    assert [claim.queue for claim in bench.claim("a", "b")] == ["a"]


def turns(bench: Bench, count: int) -> Counter[str]:
    """Whose jobs claims of one job each take, where every tenant has enough of them."""
    taken: Counter[str] = Counter()
    for _ in range(count):
        claim = bench.take()
        taken[str(bench.get(claim.id).tenant)] += 1
    return taken


def of_tenant(tenant: str) -> dict[str, Any]:
    return {"tenant": tenant, "options": with_gates(None, (), tenant)}


@pytest.mark.parametrize("virtual_time", [0, 10**10, EXACT])
def test_tenants_of_great_weight_share_by_weight(bench: Bench, virtual_time: int) -> None:
    weights: dict[str, Any] = {"tenant:a": GateSpec(500_000_000), "tenant:b": GateSpec(1_000_000_000)}
    set_limits(bench, **weights)
    for tenant in ("a", "b"):
        bench.add_many(24, **of_tenant(tenant))
    if bench.target.name.startswith("redis"):
        redis(bench, "HSET", "gate", "tenants:default", virtual_time)
        redis(bench, "ZADD", "tenants:default", virtual_time, "a", virtual_time, "b")
    else:
        put_gate(bench, "tenants:default", {"at": float(virtual_time)})
    taken = turns(bench, 24)
    assert 6 <= taken["a"] <= 10, taken
