"""Gates in a cluster: one home for each, the shard of its key or home, for all jobs that use it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from tests.storage.test_redis_cluster import claim_all, completed, new_id, new_job, parts_of, start
from winch.app import App
from winch.core.gates.places import families_of, lone_place, place_of
from winch.core.gates.uses import FIFO, LIMIT, RATE, GateSpec, GateUse, with_gates
from winch.core.lifecycle import JobState
from winch.core.policy.limits import Limit
from winch.core.policy.queue_settings import QueueRule
from winch.core.values.ids import with_place
from winch.drivers.redis.cluster import handover
from winch.drivers.redis.cluster.driver import RedisClusterDriver
from winch.drivers.redis.cluster.shards import HOME, shard_of, tags
from winch.drivers.redis.scripts import ScriptCall, command, script
from winch.drivers.redis.verbs.base import Body
from winch.storage.decide.waits import signal_key
from winch.storage.params import Answer, ClaimParams, ClaimRef, Finish, NewJob, Wait
from winch.testing.conformance import Target

pytestmark = [pytest.mark.servers]


@pytest.fixture(scope="module")
def url(target_of: Callable[[str], Target]) -> str:
    return target_of("redis+cluster")._url  # type: ignore[attr-defined,no-any-return]


@pytest.fixture
def driver(url: str) -> Iterator[RedisClusterDriver]:
    with opened(url) as found:
        found.erase()
        found.migrate()
        yield found
        found.erase()


@contextmanager
def opened(url: str) -> Iterator[RedisClusterDriver]:
    """A driver that knows nothing of what others did."""
    found = RedisClusterDriver.from_url(f"{url}?schema=homes", events=True)
    assert isinstance(found, RedisClusterDriver)
    yield found
    found.close()


def fifo(key: str) -> GateUse:
    return GateUse(f"fifo:{key}", FIFO)


def limit(key: str, n: int = 2) -> GateUse:
    return GateUse(f"limit:mail={key}", LIMIT, "limit:mail", n=n)


def gated(*gates: GateUse, **fields: Any) -> NewJob:
    """A job under these gates, with an id as the client draws it."""
    key = next((use.key[5:] for use in gates if use.kind == FIFO), None)
    job = new_job(options=with_gates(None, gates), fifo=key, **fields)
    place = lone_place(job.options)
    return job if place is None else msgspec.structs.replace(job, id=with_place(job.id, place))


def running(driver: RedisClusterDriver, session: str) -> list[ClaimRef]:
    return driver.run(driver.held(session))


def test_lua_and_python_agree_on_the_place_of_a_key(driver: RedisClusterDriver) -> None:
    text = script("depart").text.decode()
    assert "redis.sha1hex(value), 1, 2), 16) % 64" in text
    assert {place_of(f"customer-{number}") for number in range(1000)} == set(range(64))
    # The script that shuts names a family as Python does: a job of a shut family is not stored there.
    for number in range(30):
        job = gated(limit(f"k{number}"))
        (family,) = families_of(job.options)
        driver._run(driver._homes.gather(family))
        driver._homes.forget()
        driver.run(driver.enqueue([job]))
        assert parts_of(driver, job.id) == [HOME]


def test_a_job_of_one_keyed_gate_lives_in_the_shard_of_the_key(driver: RedisClusterDriver) -> None:
    jobs = [gated(fifo(f"c{n}")) for n in range(100)] + [gated(limit(f"c{n}")) for n in range(100)]
    driver.run(driver.enqueue(jobs))
    assert all(parts_of(driver, job.id) == [shard_of(job.id)] for job in jobs[::7])
    assert len(Counter(shard_of(job.id) for job in jobs)) > 40
    # Keys of one customer are together, whatever gate they are of.
    assert [shard_of(job.id) for job in jobs[:100]] == [shard_of(job.id) for job in jobs[100:]]


@pytest.mark.parametrize(
    "other",
    [
        {"unique_key": "u"},
        {"tenant": "t"},
        {"is_given_id": True},
        {"headers": {"winch-awaited": "1"}},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_a_gate_goes_home_with_all_its_jobs(driver: RedisClusterDriver, other: dict[str, Any]) -> None:
    ready, later, blocked = gated(limit("k", 1)), gated(limit("k", 1), delay=timedelta(hours=1)), None
    first = gated(limit("k", 1))
    driver.run(driver.enqueue([first]))
    session = start(driver)
    (ref,) = claim_all(driver, session)
    blocked = gated(limit("k", 1))
    driver.run(driver.enqueue([blocked]))
    assert claim_all(driver, session) == []  # it is blocked at the gate now
    driver.run(driver.enqueue([ready, later]))
    assert parts_of(driver, first.id) == [shard_of(first.id)]
    both = gated(limit("k", 1), **other)
    driver.run(driver.enqueue([both]))
    jobs = [first, blocked, ready, later, both]
    assert [parts_of(driver, job.id) for job in jobs] == [[HOME]] * 5
    assert claim_all(driver, session) == []
    assert driver.run(driver.finish([completed(ref)])) == [Answer.TOOK]
    order = []
    for _ in range(3):
        (ref,) = claim_all(driver, session)
        assert claim_all(driver, session) == []
        assert driver.run(driver.finish([completed(ref)])) == [Answer.TOOK]
        driver.run(driver.admit(is_sweep=True))
        order.append(ref.id)
    assert sorted(order) == sorted([blocked.id, ready.id, both.id])


def test_a_fifo_key_goes_home_in_its_order(driver: RedisClusterDriver, url: str) -> None:
    first, second, third = (gated(fifo("k")) for _ in range(3))
    driver.run(driver.enqueue([first, second]))
    session = start(driver)
    (ref,) = claim_all(driver, session)
    with opened(url) as other:
        other.run(other.enqueue([gated(fifo("k"), limit("x"), id=third.id)]))
    fourth = gated(fifo("k"))
    driver.run(driver.enqueue([fourth]))  # by a driver that thinks that the key is in its shard
    assert claim_all(driver, session) == []
    order = [ref.id]
    while len(order) < 4:
        assert driver.run(driver.finish([completed(ref)])) == [Answer.TOOK]
        (ref,) = claim_all(driver, session)
        assert claim_all(driver, session) == []
        order.append(ref.id)
    assert order == [first.id, second.id, third.id, fourth.id]
    assert [parts_of(driver, one) for one in order] == [[HOME]] * 4


@pytest.mark.parametrize("goes_on", ["rescue", "gather"])
@pytest.mark.parametrize("steps", range(1, 25))
def test_a_way_home_that_is_interrupted_keeps_the_limit_and_is_ended(
    driver: RedisClusterDriver, url: str, steps: int, goes_on: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver that gathers dies after so many calls. No step lets a third job run beside two."""
    monkeypatch.setattr(handover, "AT_ONCE", 1)  # jobs go one by one: so more can go wrong
    jobs = [gated(limit("k")) for _ in range(6)]
    driver.run(driver.enqueue(jobs))
    session = start(driver)
    held = claim_all(driver, session)
    assert len(held) == 2
    (family,) = families_of(jobs[0].options)
    body = driver._homes.gather(family)
    what = next(body)
    try:
        for _ in range(steps):
            what = body.send(driver._pool.run(driver._base.sendable(what)))
    except StopIteration:
        assert steps > 20
    body.close()
    with opened(url) as other:
        assert claim_all(other, session) == []
        other.run(other.admit(is_sweep=True))
        assert claim_all(other, session) == []
        if goes_on == "gather":
            other._run(other._homes.gather(family))
            assert claim_all(other, session) == []
        assert other.run(other.finish([completed(held[0])])) == [Answer.TOOK]
        claimed = claim_all(other, session)
        assert len(claimed) <= 1
        other.run(other.rescue())
        claimed += claim_all(other, session)
        other.run(other.admit(is_sweep=True))
        claimed += claim_all(other, session)
        assert len(claimed) == 1
        live = [job.id for job in jobs if job.id != held[0].id]
        assert {tuple(parts_of(other, one)) for one in live} == {(HOME,)}
        done = [*claimed, held[1]]
        while done:
            ref = done.pop()
            assert other.run(other.finish([completed(ref)])) == [Answer.TOOK]
            other.run(other.admit(is_sweep=True))
            done += claim_all(other, session)
            assert len(running(other, session)) <= 2
        records = other.run(other.get([job.id for job in jobs]))
        assert [one and one.state for one in records] == [JobState.COMPLETED] * 6


def test_a_turn_goes_home_with_the_member_that_has_it(driver: RedisClusterDriver) -> None:
    first, second = gated(fifo("k")), gated(fifo("k"))
    driver.run(driver.enqueue([first, second]))
    session = start(driver)
    (ref,) = claim_all(driver, session)
    driver.run(driver.finish([completed(ref)]))
    (ref,) = claim_all(driver, session)
    assert ref.id == second.id
    driver.run(driver.retry([first.id], by="me"))  # the first again, it waits
    driver.run(driver.enqueue([gated(fifo("k"), limit("x"))]))
    assert claim_all(driver, session) == []
    assert driver.run(driver.finish([completed(ref)])) == [Answer.TOOK]
    assert [one.id for one in claim_all(driver, session)] == [first.id]


def test_a_rate_remembers_at_home_what_it_gave_in_its_shard(driver: RedisClusterDriver) -> None:
    rate = GateUse("rate:mail=k", RATE, "rate:mail", n=2, per=3_600_000_000)
    jobs = [gated(rate) for _ in range(4)]
    driver.run(driver.enqueue(jobs))
    session = start(driver)
    assert len(claim_all(driver, session)) == 2
    both = gated(rate, limit("x"))
    driver.run(driver.enqueue([both]))
    assert parts_of(driver, jobs[3].id) == [HOME]
    assert claim_all(driver, session) == []


def test_a_running_job_that_waits_takes_its_gate_home(driver: RedisClusterDriver) -> None:
    first, second = gated(fifo("k")), gated(fifo("k"))
    driver.run(driver.enqueue([first, second]))
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
    assert [parts_of(driver, one.id) for one in (first, second)] == [[HOME], [HOME]]
    assert claim_all(driver, session) == []  # the first has its turn until it is final
    driver.run(driver.signal("go", "{}", id="1"))
    driver.run(driver.unblock())
    (ref,) = claim_all(driver, session)
    assert ref.id == first.id
    assert driver.run(driver.finish([completed(ref)])) == [Answer.TOOK]
    assert [one.id for one in claim_all(driver, session)] == [second.id]


def test_a_queue_with_a_concurrency_counts_jobs_of_gates(driver: RedisClusterDriver) -> None:
    jobs = [gated(limit(f"k{number}")) for number in range(6)]
    driver.run(driver.enqueue(jobs))
    session = start(driver)
    first = claim_all(driver, session, limit=2)
    driver.run(driver.set_queue("default", QueueRule(concurrency=3)))
    assert len(claim_all(driver, session)) == 1
    assert claim_all(driver, session) == []
    assert driver.run(driver.finish([completed(ref) for ref in first])) == [Answer.TOOK] * 2
    assert len(claim_all(driver, session)) == 2


def test_a_final_job_whose_gate_has_gone_home_is_retried_there(driver: RedisClusterDriver) -> None:
    job = gated(fifo("k"))
    driver.run(driver.enqueue([job]))
    session = start(driver)
    (ref,) = claim_all(driver, session)
    driver.run(driver.finish([completed(ref)]))
    driver.run(driver.enqueue([gated(fifo("k"), limit("x"), queue="other")]))
    assert parts_of(driver, job.id) == [shard_of(job.id)]
    (acted,) = driver.run(driver.retry([job.id], by="me"))
    assert acted.took
    assert parts_of(driver, job.id) == [HOME]


def test_a_repeat_finds_a_job_that_ended_before_its_gate_went_home(driver: RedisClusterDriver) -> None:
    job = gated(fifo("k"))
    driver.run(driver.enqueue([job]))
    (ref,) = claim_all(driver, start(driver))
    driver.run(driver.finish([completed(ref)]))
    driver.run(driver.enqueue([gated(fifo("k"), limit("x"))]))
    (again,) = driver.run(driver.enqueue([job], is_repeat=True))
    assert not again.is_new
    assert parts_of(driver, job.id) == [shard_of(job.id)]


def test_the_end_of_a_member_claims_the_next_in_its_shard(driver: RedisClusterDriver) -> None:
    first, second = gated(fifo("k")), gated(fifo("k"))
    driver.run(driver.enqueue([first, second]))
    session = start(driver)
    (ref,) = claim_all(driver, session)
    then = ClaimParams(session=session, token=new_id(), queues=("default",), limit=1)
    answers, claims = driver.run(driver.finish_and_claim([completed(ref)], then))
    assert answers == [Answer.TOOK]
    assert [one.id for one in claims] == [second.id]
    assert parts_of(driver, second.id) == [shard_of(second.id)] != [HOME]


def test_limits_are_published_and_counted_in_every_part(driver: RedisClusterDriver) -> None:
    jobs = [gated(limit(f"k{number}", 1)) for number in range(40) for _ in range(2)]
    driver.run(driver.enqueue(jobs))
    session = start(driver)
    assert len(claim_all(driver, session)) == 40
    (info,) = [one for one in driver.run(driver.limits()) if one.name == "limit:mail"]
    assert (info.used, info.waiting) == (40, 40)
    driver.run(driver.set_limits({"limit:mail": GateSpec(2)}, by="me"))
    assert len(claim_all(driver, session)) == 40


def test_the_client_draws_the_id_for_the_shard_of_the_key(driver: RedisClusterDriver, url: str) -> None:
    app = App(f"{url}?schema=homes")

    @app.task(limit=Limit(2, key="customer"))
    def bill(customer: str) -> None: ...

    @app.task
    def sync(customer: str) -> None: ...

    jobs = [bill.enqueue(f"c{number}") for number in range(20)]
    jobs += [sync.using(fifo=f"c{number}").enqueue("x") for number in range(20)]
    jobs += app.enqueue_many(bill.bind(f"c{number}") for number in range(20))
    shards = [shard_of(job.id) for job in jobs]
    assert shards == [1 + place_of(f"c{number}") for number in range(20)] * 3
    assert all(parts_of(driver, job.id) == [shard_of(job.id)] for job in jobs)
    app.close()


def test_a_shard_that_was_set_back_is_shut_again(driver: RedisClusterDriver, url: str) -> None:
    first, second = gated(fifo("k")), gated(fifo("k"))
    driver.run(driver.enqueue([gated(fifo("k"), limit("x"))]))
    shard = shard_of(first.id)
    tag = tags("homes")[shard]
    driver._run(_run_there(command("DEL", f"{{{tag}}}:shut", where=shard)))  # as a failover may
    with opened(url) as other:
        other.run(other.enqueue([first]))
        assert parts_of(other, first.id) == [shard]
        other.run(other.rescue())
        assert parts_of(other, first.id) == [HOME]
    with opened(url) as another:
        another.run(another.enqueue([second]))
        assert parts_of(another, second.id) == [HOME]


def _run_there(what: ScriptCall) -> Body[Any]:
    return (yield what)


def test_a_store_of_an_earlier_release_keeps_its_gates_at_home(
    driver: RedisClusterDriver, url: str
) -> None:
    driver._run(_run_there(command("HDEL", driver._base.key, "gates")))
    with opened(url) as later:
        job = gated(fifo("k"))
        later.run(later.enqueue([job, gated(fifo("k"), limit("x"))]))
        assert parts_of(later, job.id) == [HOME]


# -- jobs elsewhere of tasks that a worker does not know ----------------------------------------------


@pytest.mark.parametrize("limit", [1, 100])
def test_a_tenants_turn_does_not_pass_to_a_task_that_the_worker_does_not_know(
    driver: RedisClusterDriver, limit: int
) -> None:
    session = start(driver)
    others = [new_job(task="mail.sort") for _ in range(12)]
    driver.run(driver.enqueue(others))
    mine = new_job(tenant="a", options=with_gates(None, (), "a"))
    driver.run(driver.enqueue([mine]))
    params = ClaimParams(
        session=session, token=new_id(), queues=("default",), limit=limit, tasks=("mail.send",)
    )
    assert [claim.id for claim in driver.run(driver.claim(params))] == [mine.id]


def test_a_member_is_not_behind_a_task_that_the_worker_does_not_know(driver: RedisClusterDriver) -> None:
    session = start(driver)
    first, second = (gated(fifo("k")) for _ in range(2))
    driver.run(driver.enqueue([new_job(task="mail.sort")]))
    driver.run(driver.enqueue([first, second]))
    params = ClaimParams(
        session=session, token=new_id(), queues=("default",), limit=1, tasks=("mail.send",)
    )
    (claim,) = driver.run(driver.claim(params))
    then = msgspec.structs.replace(params, token=new_id())
    end = completed(ClaimRef(claim.id, claim.token))
    answers, claims = driver.run(driver.finish_and_claim([end], then))
    assert (answers, [one.id for one in claims]) == ([Answer.TOOK], [second.id])


def test_a_session_that_holds_more_than_it_runs_counts_alike_at_home(driver: RedisClusterDriver) -> None:
    """The jobs go home with their claims, one by one. At home the limit counts what the session runs
    at once, and each end returns its permit."""
    jobs = [gated(limit("k", 3)) for _ in range(12)]
    driver.run(driver.enqueue(jobs))
    first, second = start(driver), start(driver)

    def claim(session: str, most: int, at_once: int | None) -> list[ClaimRef]:
        params = ClaimParams(
            session=session, token=new_id(), queues=("default",), limit=most, at_once=at_once
        )
        return [ClaimRef(one.id, one.token) for one in driver.run(driver.claim(params))]

    def used() -> int:
        return sum(info.used for info in driver.run(driver.limits()))

    held = claim(first, 7, 2)
    assert (len(held), used()) == (7, 2)
    both = gated(limit("k", 3), fifo("x"))
    driver.run(driver.enqueue([both]))
    assert {tuple(parts_of(driver, job.id)) for job in jobs} == {(HOME,)}
    assert used() == 2
    other = claim(second, 5, None)
    assert (len(other), used()) == (1, 3)
    assert claim(second, 5, None) == []
    driver.run(driver.finish([completed(one) for one in held[:5]]))
    assert used() == 3
    driver.run(driver.finish([completed(held[5])]))
    assert used() == 2
    driver.run(driver.finish([completed(one) for one in (held[6], *other)]))
    assert used() == 0
    left = claim(first, 20, None)
    while left:
        assert len(left) <= 3
        driver.run(driver.finish([completed(one) for one in left]))
        left = claim(first, 20, None)
    assert {job.state for job in driver.run(driver.get([job.id for job in jobs])) if job} == {
        JobState.COMPLETED
    }
