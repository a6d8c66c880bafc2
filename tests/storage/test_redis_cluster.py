"""What is particular to a store in a cluster: its shards, what lives at home, and the way there."""

from __future__ import annotations

import itertools
import re
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.redis_servers import ask
from winch.app import App
from winch.cli.admin.checks import Level
from winch.cli.admin.checks.redis import _eviction, _worst
from winch.core.gates.uses import LIMIT, GateUse, with_gates
from winch.core.job import RetryChanges
from winch.core.lifecycle import JobState
from winch.core.policy.queue_settings import QueueRule
from winch.core.values.ids import job_id, random_id
from winch.drivers.redis.address import parse_url
from winch.drivers.redis.cluster.claim_plan import Heads, planned
from winch.drivers.redis.cluster.driver import RedisClusterDriver
from winch.drivers.redis.cluster.fan_out import FanOut
from winch.drivers.redis.cluster.handover import Sought
from winch.drivers.redis.cluster.shards import (
    EVERYWHERE,
    HOME,
    SHARDS,
    SLOTS,
    ClusterRoute,
    shard_of,
    slot_of,
    tags,
)
from winch.drivers.redis.driver import RedisDriver
from winch.drivers.redis.scripts import PartCall, names, script_for_many
from winch.drivers.redis.verbs.base import Body, Step
from winch.drivers.redis.verbs.claim import ClaimVerbs
from winch.storage.crash_report import CrashReport
from winch.storage.decide.waits import AWAITED_HEADER, signal_key
from winch.storage.params import Answer, ClaimParams, ClaimRef, Finish, NewJob, NewSession, Wait
from winch.testing.conformance import Target

_ticks = itertools.count(1)


def new_job(**fields: Any) -> NewJob:
    tick = next(_ticks)
    drawn = bytes([tick % 64]) + tick.to_bytes(7)
    job = {"id": job_id(tick, drawn), "task": "mail.send", "args": "{}", **fields}
    return NewJob(**job)


def new_id() -> str:
    return random_id(next(_ticks).to_bytes(16))


# -- where things are --------------------------------------------------------------------------------


@pytest.mark.parametrize("schema", ["winch", "w", "a_schema_with_a_long_name_2"])
def test_shards_lie_evenly_over_the_slots(schema: str) -> None:
    home, *shards = tags(schema)
    assert home == schema
    width = SLOTS // SHARDS
    assert [slot_of(tag) // width for tag in shards] == list(range(SHARDS))


def test_ids_are_spread_over_the_shards_within_a_fifth_of_the_mean() -> None:
    jobs = 64_000
    client = App("memory://").client
    alone = [client.draw_id() for _ in range(jobs)]
    by_hundreds = [one for count in (250, 1000) * 50 for one in client.ids.draw_many(count)]
    given = [str(uuid.UUID(int=number)) for number in range(jobs)]
    for ids in (alone, by_hundreds, given):
        counts = Counter(map(shard_of, ids))
        assert set(counts) == set(EVERYWHERE) - {HOME}
        assert max(counts.values()) < 1.2 * len(ids) / SHARDS
        assert min(counts.values()) > 0.8 * len(ids) / SHARDS


def test_jobs_enqueued_together_come_to_few_shards() -> None:
    assert len(set(map(shard_of, App("memory://").client.ids.draw_many(1000)))) == 10


def route_of(primaries: int) -> ClusterRoute:
    """A cluster whose primaries have as many slots each."""
    route = ClusterRoute(parse_url("redis+cluster://h"))
    edges = [place * SLOTS // primaries for place in range(primaries + 1)]
    route.learn(
        [
            [first, after - 1, [b"h", 7000 + place, b"", []]]
            for place, (first, after) in enumerate(itertools.pairwise(edges))
        ]
    )
    return route


def test_each_of_three_nodes_has_a_third_of_the_shards() -> None:
    route = route_of(3)
    counts = Counter(route.owners[number] for number in EVERYWHERE if number != HOME)
    assert sorted(counts.values()) == [21, 21, 22]
    assert len(route.bells()) == 3
    assert route.bell_of(HOME) == HOME


@pytest.mark.parametrize(
    "primaries, looked_at, nodes", [(1, 32, 1), (2, 32, 1), (3, 21, 1), (6, 20, 2), (64, 16, 16)]
)
def test_large_claims_look_at_whole_nodes_in_turn(primaries: int, looked_at: int, nodes: int) -> None:
    """Each call of a node has its cost. No shard is left out for long."""
    route = route_of(primaries)
    fan_out = FanOut(route)
    seen: Counter[int] = Counter()
    for _ in range(2 * primaries):
        first, later = fan_out.shards_in_turn(16)
        assert sorted(first + later) == [number for number in EVERYWHERE if number != HOME]
        assert looked_at <= len(first) <= 32
        assert len({route.owners[number] for number in first}) <= nodes
        seen.update(first)
    assert len(seen) == SHARDS


# -- planning a claim --------------------------------------------------------------------------------


def heads_of(parts: dict[int, list[int]], *, read: int, gated: int = 0) -> Heads:
    heads = Heads(["q"])
    for number, keys in parts.items():
        first = [word for key in keys[:read] for word in (b"%d" % key, b"%d" % key)]
        heads.add(number, [[len(keys), first, 0, -1, 0, gated]])
    return heads


def test_a_small_claim_takes_the_first_jobs_of_all_parts() -> None:
    heads = heads_of({1: [10, 40, 50], 2: [20, 21, 22], 3: [30]}, read=4)
    assert planned(heads, 4, ["q"], is_exact=True) == {(1, "q"): 1, (2, "q"): 3}
    assert heads.unread(4) == []


def test_more_is_read_of_a_part_that_may_have_more_of_the_first_jobs() -> None:
    heads = heads_of({1: [10, 11, 12, 13], 2: [20, 21, 22]}, read=2)
    assert heads.unread(4) == [1, 2]
    assert heads.unread(2) == []


def test_a_large_claim_takes_what_some_parts_have_in_turn() -> None:
    heads = heads_of({number: list(range(200)) for number in range(1, 17)}, read=0)
    plan = planned(heads, 500, ["q"], is_exact=False)
    assert plan == {(number, "q"): 125 for number in range(1, 5)}
    plan = planned(heads, 1600, ["q"], is_exact=False)
    assert plan == {(number, "q"): 200 for number in range(1, 9)}
    heads = heads_of({1: list(range(100)), 2: list(range(300)), 3: []}, read=0)
    assert planned(heads, 350, ["q"], is_exact=False) == {(1, "q"): 100, (2, "q"): 250}


def test_a_large_claim_takes_jobs_under_gates_from_all_parts_alike() -> None:
    heads = heads_of({number: list(range(200)) for number in range(1, 17)}, read=0, gated=200)
    assert planned(heads, 320, ["q"], is_exact=False) == {(number, "q"): 20 for number in range(1, 17)}


# -- one script, many parts --------------------------------------------------------------------------


@pytest.mark.parametrize("name", names())
def test_every_collection_of_a_run_starts_empty(name: str) -> None:
    once, _, rest = script_for_many(name).text.decode().partition("local function run()")
    declared = re.search(r"^local (P, .*)$", once, re.MULTILINE)
    assert declared is not None
    for word in declared[1].split(", "):
        assert re.search(rf"^(\w+, )*{word}(, \w+)* = ", rest, re.MULTILINE), f"{word} is not set again"
        assert not re.search(rf"^local ([\w, ]+, )?{word}\b", rest, re.MULTILINE), f"{word} is hidden"
    # All else that is made once is a function, a table of names in capitals, or made when first needed.
    for line in re.findall(r"^local (?!function)(.*)$", once.partition("local P, ")[2], re.MULTILINE):
        assert re.match(r"[A-Z_, ]+ = |call, |made_|gave_back", line), line


# -- on a real cluster -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def url(target_of: Callable[[str], Target]) -> str:
    return target_of("redis+cluster")._url  # type: ignore[attr-defined,no-any-return]


@pytest.fixture
def driver(url: str) -> Iterator[RedisClusterDriver]:
    driver = RedisClusterDriver.from_url(f"{url}?schema=shards", events=True)
    assert isinstance(driver, RedisClusterDriver)
    driver.erase()
    driver.migrate()
    yield driver
    driver.erase()
    driver.close()


def start(driver: RedisDriver, *, lease: float = 30) -> str:
    session = NewSession(
        id=new_id(),
        worker="w",
        host="h",
        pid=1,
        release="1",
        queues=("default",),
        tasks=("mail.send",),
        slots=1,
        lease=timedelta(seconds=lease),
    )
    driver.run(driver.start_session(session))
    return session.id


def claim_all(driver: RedisDriver, session: str, limit: int = 100) -> list[ClaimRef]:
    params = ClaimParams(session=session, token=new_id(), queues=("default",), limit=limit)
    return [ClaimRef(claim.id, claim.token) for claim in driver.run(driver.claim(params))]


def parts_of(driver: RedisClusterDriver, wanted: str) -> list[int]:
    """The parts that have this job."""

    def body() -> Body[list[int]]:
        asked = [(number, driver._base.call("get", ids=[wanted])) for number in EVERYWHERE]
        replies = yield from driver._fan_out.ask(asked)
        return [n for n, reply in zip(EVERYWHERE, replies, strict=True) if reply[0][0] is not None]

    return driver._run(body())


def _nothing() -> None: ...


def completed(ref: ClaimRef) -> Finish:
    return Finish(id=ref.id, token=ref.token, to=JobState.COMPLETED, what="completed")


@pytest.mark.servers
def test_only_jobs_that_stand_alone_leave_home(driver: RedisClusterDriver) -> None:
    plain = [new_job(), new_job(delay=timedelta(hours=1)), new_job(is_given_id=True, priority=3)]
    bound = [new_job(unique_key="k"), new_job(headers={AWAITED_HEADER: "1"})]
    driver.run(driver.enqueue([*plain, *bound]))
    assert [parts_of(driver, job.id) for job in plain] == [[shard_of(job.id)] for job in plain]
    assert [parts_of(driver, job.id) for job in bound] == [[HOME], [HOME]]
    assert [job and job.id for job in driver.run(driver.get([job.id for job in [*plain, *bound]]))] == [
        job.id for job in [*plain, *bound]
    ]


@pytest.mark.servers
def test_a_node_gets_one_request_for_all_its_shards(driver: RedisClusterDriver, url: str) -> None:
    jobs = [new_job() for _ in range(500)]
    ports = [int(address.rpartition(":")[2]) for address in url.split(",")]

    def scripts() -> int:
        lines = [ask(port, "INFO", "commandstats").decode() for port in ports]
        return sum(
            int(line.split("calls=")[1].split(",")[0])
            for text in lines
            for line in text.splitlines()
            if line.startswith(("cmdstat_evalsha:", "cmdstat_eval:"))
        )

    session = start(driver)
    driver.run(driver.beat([session]))
    before = scripts()
    driver.run(driver.beat([session]))
    assert scripts() - before == 3
    driver.run(driver.enqueue([new_job() for _ in range(500)]))
    before = scripts()
    driver.run(driver.enqueue(jobs))
    assert scripts() - before == 3
    before = scripts()
    driver.run(driver.enqueue([new_job()]))
    assert scripts() - before == 1


@pytest.mark.servers
def test_a_given_id_is_one_job_whatever_its_other_fields(driver: RedisClusterDriver) -> None:
    plain = new_job(is_given_id=True)
    assert driver.run(driver.enqueue([plain]))[0].is_new
    again = new_job(id=plain.id, is_given_id=True, unique_key="k")
    assert not driver.run(driver.enqueue([again]))[0].is_new
    assert parts_of(driver, plain.id) == [shard_of(plain.id)]
    bound = new_job(is_given_id=True, unique_key="k")
    assert driver.run(driver.enqueue([bound]))[0].is_new
    again, other = new_job(id=bound.id, is_given_id=True), new_job()
    assert [one.is_new for one in driver.run(driver.enqueue([again, other]))] == [False, True]
    assert parts_of(driver, bound.id) == [HOME]


# -- the way home ------------------------------------------------------------------------------------


def test_a_job_that_waits_for_a_signal_goes_on_at_home(driver: RedisClusterDriver) -> None:
    job = new_job(is_given_id=True)
    driver.run(driver.enqueue([job]))
    session = start(driver)
    (ref,) = claim_all(driver, session)
    waiting = Finish(
        id=ref.id,
        token=ref.token,
        to=JobState.BLOCKED,
        what="waiting",
        waits=(Wait(signal_key("go")),),
        counts=False,
    )
    assert driver.run(driver.finish([waiting])) == [Answer.TOOK]
    assert parts_of(driver, job.id) == [HOME]
    assert not driver.run(driver.enqueue([job]))[0].is_new  # the shard knows that it went
    assert not driver.run(driver.enqueue([job], is_repeat=True))[0].is_new
    driver.run(driver.signal("go", "{}", id="1"))
    driver.run(driver.unblock())
    (ref,) = claim_all(driver, session)
    other = RedisClusterDriver.from_url(driver.describe())  # one that does not know where it was claimed
    assert other.run(other.finish([completed(ref)])) == [Answer.TOOK]
    assert other.run(other.finish([completed(ref)])) == [Answer.ALREADY]
    other.close()
    changes_of_job = [
        (event.kind, event.v) for event in driver.run(driver.events()) if event.job == job.id
    ]
    assert [v for _, v in changes_of_job] == list(range(1, len(changes_of_job) + 1))


def interrupted(driver: RedisClusterDriver, job_id: str, sought: Sought, steps: int) -> None:
    """Begin to move a job, and stop after so many calls were answered."""
    body = driver._handover.move({job_id: sought})
    what = next(body)
    for _ in range(steps):
        what = body.send(driver._pool.run(driver._base.sendable(what)))
    body.close()


@pytest.mark.servers
@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("verb", ["finish", "get", "release", "note", "cancel"])
def test_a_job_that_is_under_way_is_found(driver: RedisClusterDriver, steps: int, verb: str) -> None:
    job = new_job()
    driver.run(driver.enqueue([job]))
    (ref,) = claim_all(driver, start(driver))
    interrupted(driver, ref.id, ref.token, steps)
    assert parts_of(driver, job.id) == ([] if steps == 1 else [HOME])
    other = RedisClusterDriver.from_url(driver.describe())
    assert isinstance(other, RedisClusterDriver)
    match verb:
        case "finish":
            assert other.run(other.finish([completed(ref)])) == [Answer.TOOK]
        case "release":
            assert other.run(other.release([ref])) == [Answer.TOOK]
        case "get":
            (found,) = other.run(other.get([job.id]))
            assert found is not None
            assert (found.state, found.token) == (JobState.RUNNING, ref.token)
        case "note":
            from winch.core.job import Note

            assert other.run(other.note(ref, Note(progress="{}"))) is Answer.TOOK
        case "cancel":
            assert other.run(other.cancel([job.id], by="me"))[0].took
            assert [found.id for found in other.run(other.cancels([_session_of(other, job.id)]))] == [
                job.id
            ]
    other.close()
    assert parts_of(driver, job.id) == [HOME]


def _session_of(driver: RedisDriver, wanted: str) -> str:
    (found,) = driver.run(driver.get([wanted]))
    assert found is not None
    assert found.session is not None
    return found.session


@pytest.mark.servers
@pytest.mark.parametrize("steps", [1, 2])
def test_an_interrupted_move_is_completed_by_the_next_rescue(
    driver: RedisClusterDriver, steps: int
) -> None:
    job = new_job()
    driver.run(driver.enqueue([job]))
    session = start(driver)
    (ref,) = claim_all(driver, session)
    interrupted(driver, ref.id, ref.token, steps)
    driver.run(driver.end_session(session, CrashReport([ref], "killed")))
    driver.run(driver.rescue())
    driver.run(driver.rescue())
    (found,) = driver.run(driver.get([job.id]))
    assert found is not None
    assert found.state is JobState.READY
    assert parts_of(driver, job.id) == [HOME]
    (anew,) = claim_all(driver, start(driver))
    assert driver.run(driver.finish([completed(ref), completed(anew)])) == [Answer.LOST, Answer.TOOK]


@pytest.mark.servers
def test_a_message_that_comes_again_changes_nothing(driver: RedisClusterDriver) -> None:
    job = new_job()
    driver.run(driver.enqueue([job]))
    (ref,) = claim_all(driver, start(driver))
    sent: list[Step] = []

    def moving() -> Body[None]:
        body = driver._handover.move({ref.id: ref.token})
        what = next(body)
        while True:
            sent.append(what)
            reply = yield what
            try:
                what = body.send(reply)
            except StopIteration:
                return

    driver._run(moving())
    (arrive,) = [part for part in sent if isinstance(part, PartCall)]
    assert driver.run(driver.finish([completed(ref)])) == [Answer.TOOK]
    driver._pool.run(driver._base.sendable(arrive))
    assert driver.run(driver.get([job.id]))[0].state is JobState.COMPLETED  # type: ignore[union-attr]
    driver.run(driver.delete([job.id], by="me"))
    driver._pool.run(driver._base.sendable(arrive))
    assert driver.run(driver.get([job.id])) == [None]


@pytest.mark.servers
def test_a_job_that_a_retry_puts_under_a_gate_goes_home(driver: RedisClusterDriver) -> None:
    jobs = [new_job(delay=timedelta(hours=1)), new_job()]
    driver.run(driver.enqueue(jobs))
    options = with_gates(None, [GateUse("limit:t", LIMIT, "limit:t", n=1)])
    acted = driver.run(
        driver.retry([job.id for job in jobs], by="me", changes=RetryChanges(options=options))
    )
    assert [one.took for one in acted] == [True, False]  # the second is ready, and stays as it is
    assert [parts_of(driver, job.id) for job in jobs] == [[HOME], [shard_of(jobs[1].id)]]
    assert {ref.id for ref in claim_all(driver, start(driver))} == {job.id for job in jobs}


@pytest.mark.servers
def test_a_queue_with_a_concurrency_is_claimed_at_home(driver: RedisClusterDriver) -> None:
    jobs = [new_job() for _ in range(60)]
    driver.run(driver.enqueue(jobs))
    running = claim_all(driver, start(driver), limit=3)
    assert [parts_of(driver, ref.id) for ref in running] == [[shard_of(ref.id)] for ref in running]
    driver.run(driver.set_queue("default", QueueRule(concurrency=4)))
    # Those that run in shards count: they have gone home.
    assert [parts_of(driver, ref.id) for ref in running] == [[HOME]] * 3
    (more,) = claim_all(driver, start(driver))
    assert parts_of(driver, more.id) == [HOME]
    elsewhere = [job.id for job in jobs if parts_of(driver, job.id) != [HOME]]
    assert len(elsewhere) == 56, "no more move than run"
    assert driver.run(driver.finish([completed(ref) for ref in running])) == [Answer.TOOK] * 3
    assert len(claim_all(driver, start(driver))) == 3
    driver.run(driver.set_queue("default", QueueRule()))
    assert {ref.id for ref in claim_all(driver, start(driver))} <= set(elsewhere)


@pytest.mark.servers
def test_a_shard_gives_nothing_of_a_queue_with_a_concurrency(driver: RedisClusterDriver) -> None:
    """A claim that has looked before the number was set arrives in the shards after it was."""
    jobs = [new_job() for _ in range(30)]
    driver.run(driver.enqueue(jobs))
    params = ClaimParams(session=start(driver), token=new_id(), queues=("default",), limit=5)
    driver.run(driver.set_queue("default", QueueRule(concurrency=1)))
    for number in {shard_of(job.id) for job in jobs}:
        late = ClaimVerbs(driver._base).claim(params).steps()
        assert driver._run(driver._fan_out.scatter([(number, late)])) == [[]]
    assert len(claim_all(driver, start(driver))) == 1


@pytest.mark.servers
def test_a_queue_that_gets_a_concurrency_has_it_for_all_jobs_in_it(driver: RedisClusterDriver) -> None:
    app = App(driver.describe())
    task = app.task(name="mail.send")(lambda: None)
    app.enqueue_many([task.bind() for _ in range(250)])
    app.queues.configure("default", concurrency=2)
    app.close()
    assert len(claim_all(driver, start(driver))) == 2
    assert driver.run(driver.queues())[0].counts[JobState.RUNNING] == 2


@pytest.mark.servers
@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("verb", ["cancel", "rescue"])
def test_a_waiting_job_that_is_under_way_is_found(
    driver: RedisClusterDriver, steps: int, verb: str
) -> None:
    job = new_job()
    driver.run(driver.enqueue([job]))
    interrupted(driver, job.id, ("default",), steps)
    assert parts_of(driver, job.id) == ([] if steps == 1 else [HOME])
    other = RedisClusterDriver.from_url(driver.describe())
    match verb:
        case "cancel":
            assert other.run(other.cancel([job.id], by="me"))[0].took
        case "rescue":
            other.run(other.rescue())
            assert [ref.id for ref in claim_all(other, start(other))] == [job.id]
    other.close()
    assert parts_of(driver, job.id) == [HOME]


@pytest.mark.servers
def test_doctor_reads_every_node_and_reports_the_weakest(driver: RedisClusterDriver) -> None:
    nodes = driver.facts()
    assert len(nodes) == 3
    *_, last = nodes
    port = int(last.partition(":")[2])
    ask(port, "CONFIG", "SET", "maxmemory", 2**30)
    try:
        found = driver.facts()
    finally:
        ask(port, "CONFIG", "SET", "maxmemory", 0)
    assert [facts.max_memory for facts in found.values()] == [0, 0, 2**30]
    nodes = {"a:1": replace(nodes[last], policy="noeviction"), "b:2": nodes[last]}
    assert _worst(nodes, _eviction).level is Level.OK
    nodes["b:2"] = replace(nodes["b:2"], policy="allkeys-lru")
    worst = _worst(nodes, _eviction)
    assert (worst.level, worst.text.startswith("b:2: maxmemory-policy is")) == (Level.PROBLEM, True)


# -- slots that move ---------------------------------------------------------------------------------


@pytest.mark.servers
def test_a_migrating_slot_does_not_block_the_others(driver: RedisClusterDriver) -> None:
    jobs = [new_job() for _ in range(300)]
    driver.run(driver.enqueue(jobs))
    session = start(driver)
    number = shard_of(jobs[0].id)
    slot = slot_of(tags("shards")[number])
    source = driver._route.owners[number]
    target = next(address for address in driver._route.owners.values() if address != source)
    names = {port: ask(port, "CLUSTER", "MYID").decode() for _, port in (source, target)}
    ask(target[1], "CLUSTER", "SETSLOT", slot, "IMPORTING", names[source[1]])
    ask(source[1], "CLUSTER", "SETSLOT", slot, "MIGRATING", names[target[1]])
    try:
        there = {job.id for job in jobs if shard_of(job.id) == number}
        taken = claim_all(driver, session, 300)
        assert {ref.id for ref in taken} == {job.id for job in jobs} - there
        assert driver.run(driver.finish(list(map(completed, taken)))) == [Answer.TOOK] * len(taken)
    finally:
        ask(target[1], "CLUSTER", "SETSLOT", slot, "STABLE")
        ask(source[1], "CLUSTER", "SETSLOT", slot, "STABLE")
    assert {ref.id for ref in claim_all(driver, session, 300)} == there


class SetQueue:
    """A rule of the queue that is set call by call."""

    def __init__(self, driver: RedisClusterDriver, rule: QueueRule) -> None:
        self._driver = driver
        self._body = driver.set_queue("default", rule).steps()
        self._next = next(self._body)
        self.is_done = False

    def go_on(self, steps: int) -> bool:
        """Make so many calls; whether that was all of them."""
        try:
            for _ in range(steps):
                reply = self._driver._pool.run(self._driver._base.sendable(self._next))
                self._next = self._body.send(reply)
        except StopIteration:
            self.is_done = True
        return self.is_done


@pytest.mark.servers
def test_a_rule_that_was_set_half_way_is_set_by_the_next_rescue(driver: RedisClusterDriver) -> None:
    for steps in range(1, 100):
        driver.erase()
        driver.migrate()
        session = start(driver)
        driver.run(driver.enqueue([new_job() for _ in range(12)]))
        running = claim_all(driver, session, limit=5)
        is_over = SetQueue(driver, QueueRule(concurrency=4)).go_on(steps)
        other = RedisClusterDriver.from_url(driver.describe())
        other.run(other.rescue())
        assert claim_all(other, session) == [], f"5 of 4 run, after {steps} calls"
        assert other.run(other.finish([completed(ref) for ref in running[:2]])) == [Answer.TOOK] * 2
        assert len(claim_all(other, session)) == 1
        is_over = SetQueue(driver, QueueRule()).go_on(steps) and is_over
        other.run(other.rescue())
        assert len(claim_all(other, session)) == 6, f"nothing counts any more, after {steps} calls"
        other.close()
        if is_over:
            break
    assert 3 < steps < 99


@pytest.mark.servers
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_rule_that_is_set_late_does_not_replace_a_later_one(
    driver: RedisClusterDriver, steps: int
) -> None:
    session = start(driver)
    driver.run(driver.enqueue([new_job() for _ in range(9)]))
    late = SetQueue(driver, QueueRule())
    assert not late.go_on(steps)
    other = RedisClusterDriver.from_url(driver.describe())
    other.run(other.set_queue("default", QueueRule(concurrency=3)))
    assert late.go_on(100)
    other.run(other.rescue())
    assert len(claim_all(other, session)) == 3
    other.close()
