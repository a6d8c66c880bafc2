"""SQLite: claims and ends of jobs with gates by the hundred."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.storage.postgres_kit import completed, new_id, new_job, new_session, new_token
from winch.core.gates.draw import Fair
from winch.core.gates.uses import FIFO, LIMIT, GateSpec, GateUse, with_gates
from winch.core.job import Claim
from winch.core.lifecycle import JobState
from winch.core.policy.queue_settings import QueueRule
from winch.drivers.sqlite.driver import SqliteDriver
from winch.drivers.sqlite.verbs.claim import TRIED
from winch.storage.params import Answer, ClaimParams, NewJob

CLOSED = GateUse("limit:closed", LIMIT, "limit:closed", n=0)


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[SqliteDriver]:
    with closing(SqliteDriver(tmp_path / "gates.db")) as driver:
        driver.migrate()
        yield driver


def start(driver: SqliteDriver) -> str:
    session = new_session()
    driver.run(driver.start_session(session))
    return session.id


def claim(
    driver: SqliteDriver, session: str, limit: int, at_once: int | None = None, free: int | None = None
) -> list[Claim]:
    params = ClaimParams(
        session=session,
        token=new_token(),
        queues=("default",),
        limit=limit,
        at_once=at_once,
        free=free,
    )
    return driver.run(driver.claim(params))


def used(driver: SqliteDriver) -> int:
    return sum(info.used for info in driver.run(driver.limits()))


@pytest.mark.parametrize("seed", range(6))
def test_turns_of_tenants_are_those_of_the_plain_rule(driver: SqliteDriver, seed: int) -> None:
    """A claim reads little more than the share of each tenant. Some tenants have few jobs, some are far
    ahead, and all jobs of one wait at a closed gate: the order is what reading all of them gives."""
    rng = random.Random(seed)
    names = [f"t{number:02}" for number in range(12)]
    weights = {name: rng.choice((1, 1, 1, 2, 7)) for name in names}
    driver.run(
        driver.set_limits({f"tenant:{name}": GateSpec(n) for name, n in weights.items()}, by="ada")
    )
    jobs = []
    for name in names:
        gates = (CLOSED,) if name == "t03" else ()
        options = with_gates(None, gates, name)
        jobs += [
            new_job(id=new_id(), tenant=name, options=options) for _ in range(rng.choice((2, 30, 90)))
        ]
    rng.shuffle(jobs)
    driver.run(driver.enqueue(jobs))
    lines: dict[str, list[str]] = {}
    for job in sorted(jobs, key=lambda job: job.id):
        if job.tenant is not None and job.tenant != "t03":
            lines.setdefault(job.tenant, []).append(job.id)
    session, fair = start(driver), Fair(weights=weights)
    for size in (1, 50, 7, 200, 120):
        expected: list[str] = []
        while len(expected) < size and any(lines.values()):
            name = min((one for one in lines if lines[one]), key=lambda one: (fair.start(one), one))
            fair.served(name)
            expected.append(lines[name].pop(0))
        assert [one.id for one in claim(driver, session, size)] == expected
        fair = Fair.of(fair.dump(), weights)


def test_a_session_with_few_slots_claims_more_than_a_limit_allows_to_run(driver: SqliteDriver) -> None:
    gate = GateUse("limit:mail", LIMIT, "limit:mail", n=5)
    driver.run(driver.enqueue([new_job(options=with_gates(None, (gate,))) for _ in range(40)]))
    first, second = start(driver), start(driver)
    held = claim(driver, first, 12, at_once=2)
    assert (len(held), used(driver)) == (12, 2)
    # Three are left: a session that runs four at once has no room for a fourth.
    others = claim(driver, second, 10, at_once=4)
    assert (len(others), used(driver)) == (3, 5)
    # Ten that have ended leave the two that can run.
    answers = driver.run(driver.finish([completed(one) for one in held[:10]]))
    assert answers == [Answer.TOOK] * 10
    assert used(driver) == 5
    assert claim(driver, second, 10, at_once=4) == []
    driver.run(driver.finish([completed(one) for one in held[10:]]))
    assert used(driver) == 3
    assert len(claim(driver, second, 10, at_once=4)) == 2
    assert used(driver) == 4
    # The end of a session gives back all that it had.
    driver.run(driver.end_session(second))
    assert used(driver) == 0


def states(driver: SqliteDriver, ids: list[str]) -> Counter[str]:
    return Counter(job.state.value for job in driver.run(driver.get(ids)) if job is not None)


def keyed(count: int, keys: int) -> list[NewJob]:
    """Jobs of so many keys in turn, of each of which one may run."""
    gates = [GateUse(f"limit:mail={key}", LIMIT, "limit:mail", n=1) for key in range(keys)]
    return [new_job(id=new_id(), options=with_gates(None, (gates[at % keys],))) for at in range(count)]


def test_a_claim_ahead_of_free_slots_blocks_no_job(driver: SqliteDriver) -> None:
    """What is blocked is written twice more. A claim that has filled its slots leaves it ready."""
    jobs = keyed(60, keys=20)
    driver.run(driver.enqueue(jobs))
    ids = [job.id for job in jobs]
    session = start(driver)
    assert [one.id for one in claim(driver, session, 50, free=5)] == ids[:20]
    assert states(driver, ids) == {"running": 20, "ready": 40}
    # Without a free slot one is blocked, so that the end which lets it in wakes the worker.
    assert claim(driver, session, 50, free=0) == []
    assert states(driver, ids) == {"running": 20, "ready": 39, "blocked": 1}


def test_a_claim_that_looks_again_counts_what_it_has(driver: SqliteDriver) -> None:
    """Without a free slot it tries a few jobs first. Where those are open it reads on."""
    jobs = keyed(100, keys=TRIED)
    driver.run(driver.enqueue(jobs))
    ids = [job.id for job in jobs]
    assert [one.id for one in claim(driver, start(driver), 50, free=0)] == ids[:TRIED]
    assert states(driver, ids) == {"running": TRIED, "ready": 100 - TRIED}


def test_a_claim_for_free_slots_blocks_all_that_cannot_run(driver: SqliteDriver) -> None:
    """Otherwise the worker would sleep although a later job could run."""
    jobs = [*keyed(300, keys=2), *keyed(1, keys=1), new_job(id=new_id())]
    other = GateUse("limit:sms", LIMIT, "limit:sms", n=1)
    jobs.append(new_job(id=new_id(), options=with_gates(None, (other,))))
    driver.run(driver.enqueue(jobs))
    ids = [job.id for job in jobs]
    found = claim(driver, start(driver), 50, free=10)
    assert [one.id for one in found] == [*ids[:2], *ids[-2:]]
    assert states(driver, ids) == {"running": 4, "blocked": 299}


def test_ends_of_many_keys_let_in_the_first_jobs_of_each(driver: SqliteDriver) -> None:
    """One statement opens all gates that got the same number of permits back."""
    heavy = GateUse("limit:heavy", LIMIT, "limit:heavy", n=2)
    jobs = [*keyed(12, keys=4), *(new_job(options=with_gates(None, (heavy,))) for _ in range(5))]
    driver.run(driver.enqueue(jobs))
    ids = [job.id for job in jobs]
    session = start(driver)
    claims = claim(driver, session, 50)
    assert [one.id for one in claims] == [*ids[:4], *ids[12:14]]
    driver.run(driver.finish([completed(one) for one in claims]))
    assert states(driver, ids[4:8] + ids[14:16]) == {"ready": 6}
    assert states(driver, ids[8:12] + ids[16:]) == {"blocked": 5}


def test_ends_by_the_hundred_free_limits_and_turns_alike(driver: SqliteDriver) -> None:
    """One call ends jobs with two kinds of gates, plain ones, and one that another call has ended."""
    one = GateUse("limit:a", LIMIT, "limit:a", n=1)
    turn = GateUse("fifo:acct", FIFO)
    jobs = [
        *(new_job(options=with_gates(None, (one,))) for _ in range(2)),
        *(new_job(options=with_gates(None, (turn,)), fifo="acct") for _ in range(2)),
        *(new_job(options=with_gates(None, (one, turn)), fifo="acct") for _ in range(1)),
        new_job(),
        new_job(),
    ]
    driver.run(driver.enqueue(jobs))
    session = start(driver)
    claims = claim(driver, session, 10)
    assert [c.id for c in claims] == [jobs[n].id for n in (0, 2, 5, 6)]
    assert driver.run(driver.finish([completed(claims[2])])) == [Answer.TOOK]
    answers = driver.run(driver.finish([completed(one) for one in claims]))
    assert answers == [Answer.TOOK, Answer.TOOK, Answer.ALREADY, Answer.TOOK]
    found = driver.run(driver.get([job.id for job in jobs]))
    assert [job and job.state for job in found[:5]] == [
        JobState.COMPLETED,
        JobState.READY,
        JobState.COMPLETED,
        JobState.READY,
        JobState.BLOCKED,
    ]
    assert used(driver) == 0


def test_the_end_of_a_tenants_job_gives_back_what_its_queue_counts(driver: SqliteDriver) -> None:
    """A job without a permit ends like a plain job. A concurrency that is set while
    the job runs gives it one."""
    options = with_gates(None, (), "ada")
    jobs = [new_job(tenant="ada", options=options) for _ in range(3)]
    driver.run(driver.enqueue(jobs))
    first, second = claim(driver, start(driver), 2)
    driver.run(driver.finish([completed(first)]))
    driver.run(driver.set_queue("default", QueueRule(concurrency=1)))
    assert used(driver) == 1
    assert driver.run(driver.finish([completed(first), completed(second)])) == [
        Answer.ALREADY,
        Answer.TOOK,
    ]
    assert used(driver) == 0
    assert [one.id for one in claim(driver, start(driver), 2)] == [jobs[2].id]


def test_a_finish_that_claims_opens_its_keys_for_others(driver: SqliteDriver) -> None:
    """The next member of one key waits at the key, those of the others need another gate or are a
    tenant's: the call takes the first alone, and leaves the others ready."""
    limit = GateUse("limit:a", LIMIT, "limit:a", n=9)

    def member(key: str, *others: GateUse, tenant: str | None = None) -> NewJob:
        options = with_gates(None, (GateUse(f"fifo:{key}", FIFO), *others), tenant)
        return new_job(id=new_id(), fifo=key, tenant=tenant, options=options)

    jobs = [member("b"), member("c"), member("d")]
    jobs += [member("b"), member("c", limit), member("d", tenant="ada")]
    driver.run(driver.enqueue(jobs))
    ids = [job.id for job in jobs]
    session = start(driver)
    held = claim(driver, session, 10)
    assert [one.id for one in held] == ids[:3]
    assert states(driver, ids[3:]) == {"blocked": 3}
    then = ClaimParams(session=session, token=new_token(), queues=("default",), limit=3)
    ends = [completed(one) for one in held]
    answers, claims = driver.run(driver.finish_and_claim(ends[:1], then))
    assert (answers, [one.id for one in claims]) == ([Answer.TOOK], [ids[3]])
    then = ClaimParams(session=session, token=new_token(), queues=("default",), limit=3)
    answers, claims = driver.run(driver.finish_and_claim(ends[1:], then))
    assert (answers, claims) == ([Answer.TOOK, Answer.TOOK], [])
    assert states(driver, ids[3:]) == {"running": 1, "ready": 2}
