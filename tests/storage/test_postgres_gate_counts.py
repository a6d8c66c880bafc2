"""What gates count on PostgreSQL: what a session runs at once, and nothing when no job is left."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from tests.storage.postgres_gated import ended, fifo, finish, gated, limit, used
from tests.storage.postgres_kit import (
    Store,
    connected,
    new_job,
    new_token,
)
from winch.core.gates.uses import (
    GateSpec,
)
from winch.core.job import Claim
from winch.drivers.postgres.driver import PostgresDriver
from winch.storage.params import Answer, ClaimParams, ClaimRef

pytestmark = pytest.mark.servers


@pytest.fixture
def store(postgres_url: str) -> Iterator[Store]:
    driver = PostgresDriver.from_url(postgres_url)
    driver.migrate()
    yield Store(driver, postgres_url)
    driver.close()


# -- a session that runs few jobs at once -----------------------------------------------------------


def test_a_limit_counts_no_more_of_a_session_than_it_runs_at_once(store: Store) -> None:
    """The session with two slots claims by the hundred and leaves the rest of the limit to another."""
    driver, few, many = store.driver, store.session(), store.session()
    driver.run(driver.enqueue([new_job(**gated(limit("t", 5))) for _ in range(300)]))

    def claim(session: str, limit: int, at_once: int) -> list[Claim]:
        return driver.run(
            driver.claim(
                ClaimParams(
                    session=session, token=new_token(), queues=("default",), limit=limit, at_once=at_once
                )
            )
        )

    first = claim(few, 100, 2)
    assert len(first) == 100
    assert used(store, "limit:t") == 2
    second = claim(many, 100, 10)
    assert len(second) == 3, "ten at once would be too many: each counts"
    assert used(store, "limit:t") == 5
    assert claim(many, 10, 10) == []
    # What few slots have left still runs two at once. The end of others frees nothing.
    finish(driver, first[:90])
    assert used(store, "limit:t") == 5
    assert claim(many, 10, 10) == []
    driver.run(driver.set_limits({"limit:t": GateSpec(4)}, by="test"))
    assert claim(few, 10, 2) == [], "a lower number holds for a session that has all it runs at once"
    driver.run(driver.set_limits({"limit:t": GateSpec(5)}, by="test"))
    finish(driver, first[90:99])
    assert used(store, "limit:t") == 4
    assert len(claim(many, 10, 10)) == 1
    finish(driver, [first[99]])
    assert used(store, "limit:t") == 4
    driver.run(driver.end_session(few))
    driver.run(driver.end_session(many))
    assert used(store, "limit:t") == 0


@pytest.mark.parametrize("seed", range(4))
def test_running_jobs_never_exceed_the_limit(store: Store, seed: int) -> None:
    """Random claims of sessions with few slots and many, jobs that weigh one or two, ends and changes
    of the number. `most` is what could run: the heaviest jobs of each session, one for each slot."""
    draw = random.Random(seed)
    driver = store.driver
    slots = {store.session(): size for size in (1, 2, 3, 8, None)}
    claimed: dict[str, list[tuple[Claim, int]]] = {session: [] for session in slots}
    weights: dict[str, int] = {}
    number = 6
    rides = 0

    def most() -> int:
        return sum(
            sum(sorted((weight for _, weight in held), reverse=True)[: slots[session]])
            for session, held in claimed.items()
        )

    for _ in range(40):
        jobs = []
        for _ in range(draw.randrange(10)):
            weight = draw.choice((1, 1, 2)) if seed % 2 else 1
            uses = (limit("t", 6, weight), limit("u", 99)) if seed > 1 else (limit("t", 6, weight),)
            job = new_job(**gated(*uses))
            weights[job.id] = weight
            jobs.append(job)
        if jobs:
            driver.run(driver.enqueue(jobs))
        if draw.random() < 0.1:
            number = draw.choice((2, 4, 6, 9))
            driver.run(driver.set_limits({"limit:t": GateSpec(number)}, by="test"))
        session = draw.choice(list(slots))
        before = most()
        params = ClaimParams(
            session=session,
            token=new_token(),
            queues=("default",),
            limit=draw.choice((1, 5, 20)),
            at_once=slots[session],
        )
        found = driver.run(driver.claim(params))
        claimed[session] += [(claim, weights[claim.id]) for claim in found]
        assert most() <= max(number, before)
        if found:
            assert most() <= number, "nothing is claimed beyond a number that was lowered"
        rides += sum(weight for held in claimed.values() for _, weight in held) > number
        for held in claimed.values():
            draw.shuffle(held)
            ends = [held.pop()[0] for _ in range(draw.randrange(len(held) + 1))]
            if ends and draw.random() < 0.7:
                finish(driver, ends)
            elif ends:
                refs = [ClaimRef(claim.id, claim.token) for claim in ends]
                assert driver.run(driver.release(refs)) == [Answer.TOOK] * len(refs)
    assert rides, "no session had more jobs than the limit's number"


# -- what is left ------------------------------------------------------------------------------------


def gates_left(store: Store) -> int:
    with connected(store.url) as conn:
        row = conn.execute("SELECT count(*) FROM winch.gate").fetchone()
    assert row is not None
    return int(row[0])


def test_a_fifo_key_leaves_nothing_when_its_last_member_ends(store: Store) -> None:
    """Many cold keys with one job each: the finish that ends the job removes the gate."""
    driver, session = store.driver, store.session()
    driver.run(driver.enqueue([new_job(**gated(fifo(f"k{n}"))) for n in range(300)]))
    store.add(2, **gated(fifo("hot")))
    claims = store.claim(session, 500)
    assert gates_left(store) == 301
    hot = [claim for claim in claims if '"fifo:hot"' in (claim.options or "")]
    rest = [claim for claim in claims if claim not in hot]
    finish(driver, rest)
    assert gates_left(store) == 1, "the key that has another member"
    then = ClaimParams(session=session, token=new_token(), queues=("default",), limit=1)
    _, (last,) = driver.run(driver.finish_and_claim(ended(*hot), then))
    driver.run(driver.finish_and_claim(ended(last), replace(then, token=new_token())))
    assert gates_left(store) == 0


def test_gates_that_nothing_needs_are_removed_slice_by_slice(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("winch.drivers.postgres.verbs.gates.TIDY_AMONG", 100)
    driver, session = store.driver, store.session()
    driver.run(driver.enqueue([new_job(**gated(limit(f"t=k{n}"))) for n in range(250)]))
    claims = store.claim(session, 500)
    kept = claims[:3]
    finish(driver, claims[3:])
    assert gates_left(store) == 250
    for _ in range(15):  # what a promoter does in fifteen seconds
        driver.run(driver.admit())
    assert gates_left(store) == len(kept)
    driver.run(driver.finish(ended(*kept)))
    driver.run(driver.admit(is_sweep=True))
    assert gates_left(store) == 0
