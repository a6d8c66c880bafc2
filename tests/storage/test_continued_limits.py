"""The end of a job under a limit takes the next jobs, where a claim would take them first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.storage.postgres_kit import completed, new_job, new_session, new_token
from winch.core.gates.uses import LIMIT, GateSpec, GateUse, with_gates
from winch.core.job import Claim, Failure
from winch.core.lifecycle import JobState
from winch.drivers.connect import connect
from winch.engine.base.system_clock import SystemClock
from winch.storage.params import Answer, ClaimParams, Finish
from winch.storage.protocol import Driver


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.servers)])
def driver(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Driver]:
    url = f"sqlite:///{tmp_path}/limits.db"
    if request.param == "postgres":
        url = request.getfixturevalue("postgres_url")
    with closing(connect(url, clock=SystemClock())) as driver:
        driver.migrate()
        yield driver


def limit(name: str = "mail", n: int = 2, weight: int = 1) -> GateUse:
    return GateUse(f"limit:{name}", LIMIT, f"limit:{name}", n=n, weight=weight)


def add(driver: Driver, *uses: GateUse, count: int = 1, **fields: Any) -> list[str]:
    options = with_gates(None, uses) if uses else None
    jobs = [new_job(options=options, **fields) for _ in range(count)]
    return [stored.id for stored in driver.run(driver.enqueue(jobs))]


def start(driver: Driver) -> str:
    session = new_session()
    driver.run(driver.start_session(session))
    return session.id


def params(session: str, most: int = 5, at_once: int | None = None) -> ClaimParams:
    return ClaimParams(
        session=session, token=new_token(), queues=("default",), limit=most, at_once=at_once
    )


def claim(driver: Driver, session: str, most: int = 5, at_once: int | None = None) -> list[Claim]:
    return driver.run(driver.claim(params(session, most, at_once)))


def end(
    driver: Driver, then: ClaimParams, *claims: Claim
) -> tuple[list[Answer], list[str], list[Claim]]:
    outcomes = [replace(completed(one), is_gated=True) for one in claims]
    answers, found = driver.run(driver.finish_and_claim(outcomes, then))
    return answers, [one.id for one in found], found


def state(driver: Driver, job: str) -> JobState:
    [found] = driver.run(driver.get([job]))
    assert found is not None
    return found.state


def used(driver: Driver) -> int:
    return sum(info.used for info in driver.run(driver.limits()))


def test_each_end_takes_as_many_as_there_is_room_for(driver: Driver) -> None:
    ids = add(driver, limit(), count=7)
    session = start(driver)
    claims = claim(driver, session)
    assert [one.id for one in claims] == ids[:2]
    answers, taken, more = end(driver, params(session), claims[0])
    assert (answers, taken, used(driver)) == ([Answer.TOOK], ids[2:3], 2)
    _, taken, last = end(driver, params(session), claims[1], *more)
    assert (taken, used(driver)) == (ids[3:5], 2)
    # No more than are asked for; what is left is ready for others.
    _, taken, _ = end(driver, params(session, 1), *last)
    assert (taken, used(driver)) == (ids[5:6], 1)
    assert state(driver, ids[6]) is JobState.READY
    assert [one.id for one in claim(driver, start(driver))] == ids[6:]


def test_an_end_that_comes_again_takes_nothing(driver: Driver) -> None:
    add(driver, limit(), count=5)
    session = start(driver)
    first, _ = claim(driver, session)
    driver.run(driver.finish([replace(completed(first), is_gated=True)]))
    answers, taken, _ = end(driver, params(session), first)
    assert (answers, taken, used(driver)) == ([Answer.ALREADY], [], 1)


def test_a_failure_takes_nothing(driver: Driver) -> None:
    add(driver, limit(), count=5)
    session = start(driver)
    first, _ = claim(driver, session)
    failed = Finish(
        id=first.id,
        token=first.token,
        to=JobState.RETRYING,
        what="failed",
        delay=timedelta(seconds=9),
        error=Failure("ValueError", "no"),
        is_gated=True,
    )
    answers, found = driver.run(driver.finish_and_claim([failed], params(session)))
    assert (answers, found, used(driver)) == ([Answer.TOOK], [], 1)


def test_an_earlier_plain_job_comes_first(driver: Driver) -> None:
    plain = add(driver)
    ids = add(driver, limit(), count=4)
    session = start(driver)
    claims = [one for one in claim(driver, session) if one.id != plain[0]]
    (before,) = add(driver, priority=5)
    _, taken, _ = end(driver, params(session), claims[0])
    assert taken == []
    assert {state(driver, before), state(driver, ids[2])} == {JobState.READY}


def test_a_job_with_another_gate_is_left_to_a_claim(driver: Driver) -> None:
    first = add(driver, limit(n=1))
    other = add(driver, limit(n=1), limit("other", 1))
    third = add(driver, limit(n=1))
    session = start(driver)
    claims = claim(driver, session)
    assert [one.id for one in claims] == first
    _, taken, _ = end(driver, params(session), *claims)
    assert taken == []
    assert [one.id for one in claim(driver, session)] == other
    assert state(driver, third[0]) is JobState.BLOCKED


def test_a_lower_limit_holds_for_the_next_jobs(driver: Driver) -> None:
    add(driver, limit(n=3), count=9)
    session = start(driver)
    claims = claim(driver, session)
    assert len(claims) == 3
    driver.run(driver.set_limits({"limit:mail": GateSpec(1)}, by="ada"))
    assert end(driver, params(session), claims[0])[1] == []
    assert end(driver, params(session), claims[1])[1] == []
    assert len(end(driver, params(session), claims[2])[1]) == 1
    assert used(driver) == 1


def test_a_job_of_a_queue_that_is_not_served_is_ready(driver: Driver) -> None:
    add(driver, limit(n=1))
    (away,) = add(driver, limit(n=1), queue="away")
    session = start(driver)
    claims = claim(driver, session)
    elsewhere = replace(params(session), queues=("away",))
    assert driver.run(driver.claim(elsewhere)) == []
    assert state(driver, away) is JobState.BLOCKED
    assert end(driver, params(session), *claims)[1] == []
    assert state(driver, away) is JobState.READY


def test_a_session_uses_no_more_than_it_runs_at_once(driver: Driver) -> None:
    ids = add(driver, limit(n=3), count=30)
    first, second = start(driver), start(driver)
    held = claim(driver, first, 10, at_once=2)
    other = claim(driver, second, 10, at_once=2)
    assert (len(held), len(other), used(driver)) == (10, 1, 3)
    _, taken, _ = end(driver, params(first, 5, 2), *held[:5])
    assert len(taken) == 5
    assert used(driver) == 3
    _, taken, _ = end(driver, params(second, 5, 2), *other)
    assert (len(taken), used(driver)) == (1, 3)
    assert set(taken) <= set(ids)
