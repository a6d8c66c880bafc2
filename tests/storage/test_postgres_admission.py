"""Claims of gated jobs on PostgreSQL: one statement decides in the store what `core.gates` decides."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from msgspec.structs import replace

from tests.storage.postgres_gated import MINUTE, SCOPED, ended, fifo, gated, limit, rate
from tests.storage.postgres_kit import (
    Store,
    connected,
    new_job,
    new_token,
    recorded,
)
from winch.core.gates.rates import rate_use
from winch.core.gates.uses import (
    BUCKET,
    FIXED,
    RATE,
    SCOPE,
    SLIDING,
    GateSpec,
    GateUse,
    Look,
)
from winch.core.job import Claim, to_micros
from winch.core.lifecycle import JobState
from winch.core.policy.queue_settings import NO_RULE, QueueRule
from winch.drivers.postgres.driver import PostgresDriver
from winch.storage.params import Answer, ClaimParams
from winch.storage.verbs import Verb

pytestmark = pytest.mark.servers
START = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture
def store(postgres_url: str) -> Iterator[Store]:
    driver = PostgresDriver.from_url(postgres_url)
    driver.migrate()
    yield Store(driver, postgres_url)
    driver.close()


# -- the same as the reference -----------------------------------------------------------------------

POOL: tuple[tuple[GateUse, ...], ...] = (
    (limit("a", 3),),
    (limit("a", 3, weight=2),),
    (limit("b", 1),),
    (fifo("one"),),
    (fifo("two"),),
    (rate(SLIDING),),
    (rate(FIXED, weight=2),),
    (rate(BUCKET, burst=3),),
    (rate(SLIDING), limit("a", 3)),
    (fifo("two"), limit("b", 1), rate(FIXED, weight=2)),
    (GateUse("budget:t", RATE, "budget:t", n=1, per=MINUTE, how=BUCKET, is_for_retries=True),),
    (SCOPED,),
    (SCOPED, limit("c", 2)),
)


# One gate for each job, and rates that are not slow: about these, sets decide.
QUICK: tuple[tuple[GateUse, ...], ...] = (
    (limit("a", 3),),
    (limit("b", 1),),
    (limit("heavy", 5, weight=2),),
    (fifo("one"),),
    (fifo("two"),),
    *(
        (GateUse(f"rate:quick {how}", RATE, f"rate:quick {how}", n=6, per=5000, how=how, weight=2),)
        for how in (SLIDING, FIXED, BUCKET)
    ),
)


class Seen:
    """What a claim returned and left in the store, in words that two ways of claiming share."""

    def __init__(self, claims: list[Claim], conn: psycopg.Connection[Any], now: datetime) -> None:
        self.claims = [(c.id, c.queue, c.attempt, c.fence, c.claimed_at, c.has_permit) for c in claims]
        self.jobs = conn.execute(
            "SELECT id, state, filed, gate, token, session, attempt, fence FROM winch.job ORDER BY id"
        ).fetchall()
        self.permits = conn.execute(
            "SELECT gate, job, token, weight FROM winch.permit ORDER BY gate, job"
        ).fetchall()
        self.gates = [
            (key, open_at, _meaning(key, state, to_micros(now)))
            for key, state, open_at in conn.execute(
                # A row without these is only a lock: the two ways look at different numbers of jobs.
                "SELECT key, state, open_at FROM winch.gate"
                " WHERE state IS NOT NULL OR open_at IS NOT NULL ORDER BY key"
            ).fetchall()
        ]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Seen) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]

    def differs_from(self, other: Seen) -> str:
        return "\n".join(
            f"{name}:\n  {mine}\n  {vars(other)[name]}"
            for name, mine in vars(self).items()
            if mine != vars(other)[name]
        )


def _meaning(key: str, state: str | None, now: int) -> object:
    """The state of a rate by what it lets through, now and later; any other by its parsed text."""
    if state is None or not key.startswith(("rate:", "budget:")):
        return None if state is None else json.loads(state)
    uses = [use for uses in (*POOL, *QUICK) for use in uses if use.key == key]
    moments = (now, now + 2000, now + 5000, now + MINUTE // 3, now + MINUTE, now + 2 * MINUTE)
    return [
        rate_use(Look(key, state=state), uses[0]).next_at(weight, moment)
        for moment in moments
        for weight in (1, 2, 3)
    ]


def both_ways(store: Store, params: ClaimParams, now: datetime) -> tuple[Seen, Seen, list[str]]:
    """The same claim in one statement and in the reference's way, each rolled back."""
    driver = store.driver
    queues = list(dict.fromkeys(params.queues))
    by_reference = Verb(
        "claim",
        lambda: driver._gated_claims.claim_in_python(
            params, queues, [], params.limit if params.gated is None else params.gated, now
        ),
    )
    in_store, steps = recorded(Verb("claim", lambda: driver._gated_claims.claim(params, now)))
    seen = []
    for verb in (in_store, by_reference):
        with psycopg.connect(store.url) as conn:
            seen.append(Seen(driver.run_on(conn, verb), conn, now))
            conn.rollback()
    return seen[0], seen[1], [step.sql.name for step in steps]


@pytest.mark.parametrize("seed", range(24))
def test_a_claim_decides_what_the_reference_decides(store: Store, seed: int) -> None:
    """Random stores: gates of every kind, alone and together, tenants with weights, rules of queues,
    numbers that are set, retries, plain jobs between. Every claim is made both ways and compared."""
    draw = random.Random(seed)
    driver, session, now = store.driver, store.session(), START
    running: list[Claim] = []
    pool = POOL if seed < 12 else QUICK if seed < 18 else ((),)
    has_tenants = seed >= 18 or (seed < 12 and seed % 3 == 0)
    has_rules = seed < 12 and seed % 4 == 1
    decided = 0
    for _ in range(14):
        now += timedelta(milliseconds=draw.choice((1, 700, 20_000, 61_000)))
        jobs = []
        for _ in range(draw.randrange(12)):
            uses = draw.choice(pool) if draw.random() < 0.8 else ()
            tenant = draw.choice((None, "x", "y", "z")) if has_tenants else None
            fields = gated(*uses, tenant=tenant) if uses or tenant else {}
            queue = draw.choice(("default", "default", "mail"))
            priority = draw.choice((0, 0, 3, -2))
            jobs.append(new_job(queue=queue, priority=priority, **fields))
        if jobs:
            driver.run(driver.enqueue(jobs, now=now))
            with connected(store.url) as conn:
                retried = [job.id for job in jobs if draw.random() < 0.3]
                conn.execute("UPDATE winch.job SET attempt = 1 WHERE id = ANY (%s)", [retried])
        if draw.random() < 0.3:
            specs = {
                "limit:t": GateSpec(draw.randrange(4)),
                "tenant:x": GateSpec(draw.choice((1, 2, 4))),
            }
            driver.run(driver.set_limits(specs, by="test", now=now))
        if has_rules and draw.random() < 0.4:
            rule = draw.choice((NO_RULE, QueueRule(concurrency=3), QueueRule(is_strict=True)))
            driver.run(driver.set_queue("default", rule, now=now))
        params = ClaimParams(
            session=session,
            token=new_token(),
            queues=draw.choice((("default",), ("default", "mail"), ("mail", "default"))),
            limit=draw.choice((1, 3, 8)),
            gated=draw.choice((None, 1, 2)),
        )
        here, there, steps = both_ways(store, params, now)
        assert here == there, here.differs_from(there)
        decided += "admit.take" not in steps
        claims: list[Claim] = driver.run(driver.claim(params, now=now))
        running += claims
        draw.shuffle(running)
        while running and draw.random() < 0.6:
            claim = running.pop()
            (outcome,) = ended(claim)
            if draw.random() < 0.3:
                outcome = replace(outcome, to=JobState.READY, what="failed")
            assert driver.run(driver.finish([outcome], now=now)) == [Answer.TOOK]
    assert decided >= 4, "most claims need no more than the statement"


def test_gates_that_only_the_reference_decides_are_left_to_it(store: Store) -> None:
    """A scope that is held, and options that were damaged by hand. What is before them is claimed."""
    session = store.session()
    store.add(1, queue="first", **gated(limit()))
    store.add(2, queue="second", **gated(SCOPED))
    with connected(store.url) as conn:
        state = json.dumps({"until": to_micros(datetime.now(UTC)) + MINUTE})
        conn.execute("INSERT INTO winch.gate (key, state) VALUES ('scope:bank', %s)", [state])
    assert [c.queue for c in store.claim(session, 5, queues=("first", "second"))] == ["first"]
    with connected(store.url) as conn:
        held = conn.execute("SELECT gate FROM winch.job WHERE queue = 'second'").fetchall()
        assert held == [("scope:bank",)] * 2
        conn.execute(
            "UPDATE winch.job SET options = '{\"gates\":oops', state = 'ready', filed = 'ready'"
            " WHERE queue = 'second'"
        )
    assert len(store.claim(session, 5, queues=("second",))) == 2, (
        "text that no one can read holds nothing"
    )


# -- round trips -------------------------------------------------------------------------------------

KINDS = {
    "limit": lambda n: gated(limit("t", 50)),
    "keyed": lambda n: gated(limit(f"t={n % 20}")),
    "rate": lambda n: gated(rate(SLIDING, 1000)),
    "fifo": lambda n: gated(fifo(f"k{n % 20}")),
    "tenant": lambda n: gated(tenant=f"t{n % 5}"),
    "scope": lambda n: gated(GateUse("scope:quiet", SCOPE)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_claim_and_a_finish_of_gated_jobs_are_one_statement_each(store: Store, kind: str) -> None:
    driver, session = store.driver, store.session()
    driver.run(driver.enqueue([new_job(**KINDS[kind](n)) for n in range(40)]))
    store.claim(session, 1)  # it has met the gates
    params = ClaimParams(session=session, token=new_token(), queues=("default",), limit=15)
    claim, steps = recorded(driver.claim(params))
    claims = driver.run(claim)
    assert len(claims) >= 10
    assert [(step.sql.name, step.is_alone) for step in steps] == [("claim.gated", True)]
    end, steps = recorded(driver.finish(ended(*claims)))
    assert driver.run(end) == [Answer.TOOK] * len(claims)
    assert [(step.sql.name, step.is_alone) for step in steps] == [("finish.gated", True)]
    with connected(store.url) as conn:
        left = conn.execute(
            "SELECT count(*) FROM winch.permit WHERE job = ANY (%s)", [[c.id for c in claims]]
        )
        assert left.fetchone() == (0,)


def test_plain_jobs_between_gated_ones_are_claimed_by_the_same_statement(store: Store) -> None:
    driver, session = store.driver, store.session()
    first, second = store.add(1)[0], store.add(1, **gated(limit()))[0]
    third = store.add(1)[0]
    params = ClaimParams(session=session, token=new_token(), queues=("default",), limit=5)
    claim, steps = recorded(Verb("claim", lambda: driver._gated_claims.claim(params, None)))
    assert [c.id for c in driver.run(claim)] == [first, second, third]
    assert len(steps) == 1
