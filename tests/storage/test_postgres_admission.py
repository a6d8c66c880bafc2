"""Claims of gated jobs on PostgreSQL: one statement decides in the store what `core.gates` decides."""

from __future__ import annotations

import json
import multiprocessing
import random
import re
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from msgspec.structs import replace

from tests.storage.postgres_kit import (
    Background,
    Store,
    completed,
    connected,
    new_job,
    new_token,
    recorded,
    wait_for_lock,
)
from winch.core.gates.rates import rate_use
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
    Look,
    with_gates,
)
from winch.core.job import Claim, to_micros
from winch.core.lifecycle import JobState
from winch.core.policy.queue_settings import NO_RULE, QueueRule
from winch.drivers.postgres.driver import PostgresDriver
from winch.drivers.postgres.verbs.gated_claims import TRIED
from winch.storage.params import Answer, ClaimParams, ClaimRef, Finish
from winch.storage.verbs import Verb

pytestmark = pytest.mark.servers
MINUTE = 60_000_000
START = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture
def store(postgres_url: str) -> Iterator[Store]:
    driver = PostgresDriver.from_url(postgres_url)
    driver.migrate()
    yield Store(driver, postgres_url)
    driver.close()


def ended(*claims: Claim) -> list[Finish]:
    return [replace(completed(claim), is_gated=True) for claim in claims]


def finish(driver: PostgresDriver, claims: Sequence[Claim]) -> None:
    assert driver.run(driver.finish(ended(*claims))) == [Answer.TOOK] * len(claims)


def gated(*uses: GateUse, tenant: str | None = None) -> dict[str, Any]:
    fifo = next((use.key.removeprefix("fifo:") for use in uses if use.kind == FIFO), None)
    return {"options": with_gates(None, uses, tenant), "tenant": tenant, "fifo": fifo}


def limit(key: str = "t", n: int = 2, weight: int = 1) -> GateUse:
    return GateUse(f"limit:{key}", LIMIT, "limit:t", n=n, weight=weight)


def fifo(key: str = "acct", **fields: Any) -> GateUse:
    return GateUse(f"fifo:{key}", FIFO, **fields)


def rate(how: str, n: int = 5, **fields: Any) -> GateUse:
    return GateUse(f"rate:{how}", RATE, f"rate:{how}", n=n, per=MINUTE, how=how, **fields)


SCOPED = GateUse("scope:bank", SCOPE, breaker=BreakerSpec(0.5, of=4, window=10 * MINUTE, hold=MINUTE))


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
                "SELECT key, state, open_at FROM winch.gate ORDER BY key"
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


# -- races -------------------------------------------------------------------------------------------


def test_a_claim_that_waited_for_a_gate_takes_what_is_left_and_pays_for_no_more(store: Store) -> None:
    """Its candidates are gone when it has the lock. It reads again, and the rate counts what it took."""
    driver, session = store.driver, store.session()
    ids = store.add(6, **gated(rate(FIXED, 100)))
    params = ClaimParams(session=session, token=new_token(), queues=("default",), limit=3)
    with psycopg.connect(store.url) as first, connected(store.url) as watcher:
        taken = driver.run_on(first, Verb("claim", lambda: driver._gated_claims.claim(params, None)))
        second = replace(params, token=new_token())
        delayed = Background(lambda: driver.run(driver.claim(second)))
        wait_for_lock(watcher)
        first.commit()
        rest = delayed.result()
        assert sorted(c.id for c in (*taken, *rest)) == sorted(ids)
        (state,) = watcher.execute("SELECT state FROM winch.gate").fetchone() or ("",)
    assert json.loads(state)["used"] == 6


def test_a_claim_counts_the_permits_that_were_taken_while_it_waited(store: Store) -> None:
    driver, session = store.driver, store.session()
    store.add(6, **gated(limit("t", 3)))
    params = ClaimParams(session=session, token=new_token(), queues=("default",), limit=2)
    with psycopg.connect(store.url) as first, connected(store.url) as watcher:
        driver.run_on(first, Verb("claim", lambda: driver._gated_claims.claim(params, None)))
        delayed = Background(
            lambda: driver.run(driver.claim(replace(params, token=new_token(), limit=5)))
        )
        wait_for_lock(watcher)
        first.commit()
        assert len(delayed.result()) == 1
        used = watcher.execute("SELECT sum(weight) FROM winch.permit").fetchone()
    assert used == (3,)


def test_a_finish_beside_a_claim_that_holds_the_gate_frees_its_room(store: Store) -> None:
    driver, session = store.driver, store.session()
    store.add(3, **gated(limit("t", 1)))
    (mine,) = store.claim(session, 1)
    params = ClaimParams(session=session, token=new_token(), queues=("default",), limit=5)
    with psycopg.connect(store.url) as other, connected(store.url) as watcher:
        assert (
            driver.run_on(other, Verb("claim", lambda: driver._gated_claims.claim(params, None))) == []
        )
        delayed = Background(lambda: driver.run(driver.finish(ended(mine))))
        wait_for_lock(watcher)
        other.commit()
        assert delayed.result() == [Answer.TOOK]
    assert len(store.claim(session, 5)) == 1


def test_a_claim_and_an_end_under_one_limit_do_not_wait_for_each_other(store: Store) -> None:
    """The claim counts a permit until the end has returned it for good."""
    driver, session = store.driver, store.session()
    store.add(6, **gated(limit("t", 4)))
    first, second = store.claim(session, 2)
    params = ClaimParams(session=session, token=new_token(), queues=("default",), limit=1)
    with psycopg.connect(store.url) as slow:
        assert driver.run_on(slow, driver.finish(ended(first))) == [Answer.TOOK]
        beside = Background(lambda: driver.run(driver.claim(params)))
        assert len(beside.result(3)) == 1
        assert used(store, "limit:t") == 3
    with psycopg.connect(store.url) as slow:
        again = replace(params, token=new_token())
        taken = driver.run_on(slow, Verb("claim", lambda: driver._gated_claims.claim(again, None)))
        assert len(taken) == 1
        finish(driver, [second])
    assert used(store, "limit:t") == 2


def test_a_claim_waits_for_the_ends_beside_it_before_it_blocks_a_job(store: Store) -> None:
    """The end looks for blocked jobs and finds none: one that is blocked by its permit would stay so."""
    driver, session = store.driver, store.session()
    store.add(2, **gated(limit("t", 1)))
    (mine,) = store.claim(session, 1)
    with psycopg.connect(store.url) as slow, connected(store.url) as watcher:
        assert driver.run_on(slow, driver.finish(ended(mine))) == [Answer.TOOK]
        delayed = Background(lambda: store.claim(session, 1))
        wait_for_lock(watcher)
        slow.commit()
        assert len(delayed.result()) == 1
        assert watcher.execute("SELECT count(*) FROM winch.permit").fetchone() == (1,)


def test_a_permit_that_nothing_removed_does_not_stop_the_next_claim_of_its_job(store: Store) -> None:
    """As a trigger that was off leaves it."""
    session = store.session()
    [first, second] = store.add(2, **gated(limit("t", 2)))
    with connected(store.url) as conn:
        conn.execute(
            "INSERT INTO winch.permit (gate, job, token, weight) VALUES (%s, %s, gen_random_uuid(), 1)",
            ["limit:t", first],
        )
    assert [claim.id for claim in store.claim(session, 1)] == [first]
    assert used(store, "limit:t") == 1
    assert [claim.id for claim in store.claim(session, 1)] == [second]


def test_a_claim_joins_many_gates_to_what_they_hold_by_hash(store: Store) -> None:
    """The planner expects ten gates and compared each with each: with 500, a third of the claim."""
    driver, session = store.driver, store.session()
    driver.run(driver.enqueue([new_job(**gated(limit(f"k{n % 40:02}", 2))) for n in range(80)]))
    held = store.claim(session, 40)
    params = ClaimParams(session=session, token=new_token(), queues=("default",), limit=40)
    plans: list[str] = []
    with connected(store.url) as conn:
        conn.add_notice_handler(lambda notice: plans.append(notice.message_primary or ""))
        conn.execute("LOAD 'auto_explain'")
        conn.execute("SET auto_explain.log_min_duration = 0")
        conn.execute("SET auto_explain.log_nested_statements = on")
        conn.execute("SET auto_explain.log_analyze = on")
        conn.execute("SET client_min_messages = log")
        verb = Verb("claim", lambda: driver._gated_claims.claim(params, None))
        assert len(driver.run_on(conn, verb)) == len(held) == 40
        conn.execute("SET client_min_messages = notice")
    removed = [int(n) for plan in plans for n in re.findall(r"Rows Removed by Join Filter: (\d+)", plan)]
    assert any("held.gate" in plan for plan in plans)
    assert max(removed, default=0) < 2 * 40


def test_a_finish_under_a_lost_claim_frees_nothing(store: Store) -> None:
    """The fence: another claim has the job and its permit."""
    driver, session = store.driver, store.session()
    store.add(2, **gated(limit("t", 1)))
    (zombie,) = store.claim(session, 1)
    driver.run(driver.give_up(session, [zombie.token]))
    (again,) = store.claim(store.session(), 1)
    assert again.id == zombie.id
    assert driver.run(driver.finish(ended(zombie))) == [Answer.LOST]
    assert store.claim(session, 5) == []
    assert driver.run(driver.finish(ended(again))) == [Answer.TOOK]
    assert len(store.claim(session, 5)) == 1


def test_where_transactions_have_one_snapshot_the_reference_decides(store: Store) -> None:
    session = store.session()
    store.add(4, **gated(limit("t", 3)))
    params = ClaimParams(session=session, token=new_token(), queues=("default",), limit=2)
    with connected(store.url) as conn:
        database = conn.info.dbname
        conn.execute(
            f'ALTER DATABASE "{database}" SET default_transaction_isolation = "repeatable read"'
        )
    other = PostgresDriver.from_url(store.url)
    try:
        claim, steps = recorded(other.claim(params))
        claims = other.run(claim)
        assert len(claims) == 2
        assert "admit.take" in [step.sql.name for step in steps]
        finish(other, claims)
    finally:
        other.close()
    with connected(store.url) as conn:
        assert conn.execute("SELECT count(*) FROM winch.permit").fetchone() == (0,)


def test_a_breaker_counts_the_end_of_a_member_that_claims_the_next_one(store: Store) -> None:
    """The statement for members knows no breakers: it leaves such ends to the reference."""
    driver, session = store.driver, store.session()
    store.add(2, **gated(fifo(), SCOPED))
    (claim,) = store.claim(session, 1)
    then = ClaimParams(session=session, token=new_token(), queues=("default",), limit=1)
    answers, _ = driver.run(driver.finish_and_claim(ended(claim), then))
    assert answers == [Answer.TOOK]
    with connected(store.url) as conn:
        (state,) = conn.execute("SELECT state FROM winch.gate WHERE key = 'scope:bank'").fetchone() or (
            "",
        )
    assert [end[1:] for end in json.loads(state)["ends"]] == [[1, 0]]


def work(url: str) -> None:
    """Claim, finish, and claim with a finish until there is nothing left; the end of a real process."""
    driver = PostgresDriver.from_url(url)
    mine = Store(driver, url)
    session = mine.session(lease=timedelta(seconds=2))
    draw = random.Random(1)
    claims: list[Claim] = []
    while True:
        driver.run(driver.beat([session]))
        claims = claims or mine.claim(session, 4)
        time.sleep(0.005)
        if claims and draw.random() < 0.5:
            then = ClaimParams(
                session=session, token=new_token(), queues=("default",), limit=len(claims)
            )
            _, claims = driver.run(driver.finish_and_claim(ended(*claims), then))
        elif claims:
            driver.run(driver.finish(ended(*claims)))
            claims = []


def test_processes_at_one_hot_gate_never_exceed_it_and_a_kill_leaks_nothing(store: Store) -> None:
    """Two processes claim at a limit of three, with FIFO keys beside it. One is killed with permits in
    its hands, and its session is rescued."""
    driver = store.driver
    jobs = [new_job(**gated(limit("t", 3))) for _ in range(150)]
    jobs += [new_job(**gated(fifo(f"k{n % 4}"), limit("u", 2))) for n in range(80)]
    driver.run(driver.enqueue(jobs))
    spawn = multiprocessing.get_context("spawn")
    workers = [spawn.Process(target=work, args=(store.url,), daemon=True) for _ in range(2)]
    for worker in workers:
        worker.start()
    most = {"limit:t": 0, "limit:u": 0}
    is_killed, left = False, 0
    try:
        with connected(store.url) as watcher:
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline:
                rows = watcher.execute(
                    "SELECT permit.gate, sum(weight), count(*) FILTER (WHERE job.state <> 'running')"
                    " FROM winch.permit JOIN winch.job ON job.id = permit.job"
                    " WHERE permit.token IS NOT NULL GROUP BY permit.gate"
                ).fetchall()
                for gate, used, idle in rows:
                    most[gate] = max(most[gate], used)
                    assert idle == 0, "a permit of a job that does not run"
                (left,) = watcher.execute("SELECT count(*) FROM winch.job").fetchone() or (0,)
                if not is_killed and left < 170 and rows:
                    workers[0].kill()
                    is_killed = True
                if is_killed:
                    driver.run(driver.rescue())
                if left == 0:
                    break
            assert left == 0, f"{left} jobs were left"
            assert watcher.execute("SELECT count(*) FROM winch.permit").fetchone() == (0,)
    finally:
        for worker in workers:
            worker.kill()
            worker.join()
    assert is_killed
    assert 0 < most["limit:t"] <= 3
    assert 0 < most["limit:u"] <= 2


def test_a_claim_without_a_free_slot_looks_at_few_jobs_where_gates_are_closed(store: Store) -> None:
    """Its worker's own jobs hold those gates. It blocked the whole queue before, call after call."""
    driver, session = store.driver, store.session()

    def claim(most: int, free: int | None) -> tuple[list[Claim], list[int], int]:
        params = ClaimParams(
            session=session, token=new_token(), queues=("default",), limit=most, free=free
        )
        verb, steps = recorded(driver.claim(params))
        claims = driver.run(verb)
        with connected(store.url) as conn:
            row = conn.execute("SELECT count(*) FROM winch.job WHERE state = 'blocked'").fetchone()
        assert row is not None
        tried = [step.values["limit"] for step in steps if step.sql.name == "claim.gated"]
        return claims, tried, row[0]

    members = [new_job(**gated(fifo())) for _ in range(1500)]
    driver.run(driver.enqueue(members))
    [head], _, blocked = claim(1, 1)
    last = new_job(**gated(fifo("other")))
    driver.run(driver.enqueue([last]))
    assert blocked < 100
    assert claim(200, 0) == ([], [200], blocked), "it blocks nothing"
    assert claim(200, 0) == ([], [TRIED], blocked)
    # With a free slot it goes on until it has a job. What it passed over is taken in its turn.
    [other], _, passed = claim(1, 1)
    assert (other.id, passed) == (last.id, len(members) - 1)
    more = [new_job(**gated(fifo(f"k{n}"))) for n in range(100)]
    driver.run(driver.enqueue(more))
    found, tried, _ = claim(60, 0)
    assert (len(found), tried) == (60, [TRIED, 60 - TRIED]), "what it tried was open: it takes the rest"
    then_params = ClaimParams(session=session, token=new_token(), queues=("default",), limit=1)
    answers, following = driver.run(driver.finish_and_claim(ended(head), then_params))
    assert (answers, [one.id for one in following]) == ([Answer.TOOK], [members[1].id])


# -- a session that runs few jobs at once -----------------------------------------------------------


def used(store: Store, key: str) -> int:
    with connected(store.url) as conn:
        row = conn.execute("SELECT winch.gate_used(%s)", [key]).fetchone()
    assert row is not None
    return int(row[0])


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
