"""Offers: the producer of one job hands it over to a waiting worker, once and for a limited time."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from typing import Any

import psycopg
import pytest
from msgspec.structs import replace

from tests.storage.postgres_kit import (
    Background,
    Store,
    claiming_bell,
    completed,
    connected,
    new_job,
    new_token,
    wait_for_lock,
)
from winch.core.errors import StorageUnavailable
from winch.core.gates.uses import FIFO, LIMIT, RATE, SCOPE, GateSpec, GateUse, with_gates
from winch.core.job import Claim
from winch.core.lifecycle import JobState
from winch.core.policy.queue_settings import QueueRule
from winch.drivers.postgres.connections.libpq import Lone
from winch.drivers.postgres.driver import PostgresDriver
from winch.drivers.postgres.fast.handover import ClaimingPostgresBell, Offer
from winch.storage.params import ClaimParams, Finish, NewJob

pytestmark = pytest.mark.servers


def hand_over(store: Store, conn: psycopg.Connection[Any], job: NewJob) -> bool:
    """Store the job as a producer does, in a transaction that stays open; whether it is claimed."""
    lone = store.driver.enqueue([job]).lone
    assert isinstance(lone, Lone)
    conn.execute(lone.statement.sql.text, lone.statement.values)
    row = conn.execute("SELECT state FROM winch.job WHERE id = %s", [job.id]).fetchone()
    return row == ("running",)


@pytest.fixture(scope="module")
def migrated(postgres_server: Any) -> Iterator[str]:
    url = postgres_server.new_store()
    with closing(PostgresDriver.from_url(url)) as driver:
        driver.migrate()
    yield url
    postgres_server.drop_database(url)


@pytest.fixture
def store(migrated: str) -> Iterator[Store]:
    with closing(PostgresDriver.from_url(migrated)) as driver:
        yield Store(driver, migrated)
    with connected(migrated) as conn:
        conn.execute(
            "TRUNCATE winch.job, winch.session, winch.queue, winch.offer, winch.gate, winch.permit,"
            " winch.limit_set CASCADE"
        )


def limit(key: str = "t", n: int = 2, weight: int = 1) -> GateUse:
    return GateUse(f"limit:{key}", LIMIT, "limit:t", n=n, weight=weight)


def gated(*uses: GateUse, tenant: str | None = None, **fields: Any) -> dict[str, Any]:
    fifo = next((use.key.removeprefix("fifo:") for use in uses if use.kind == FIFO), None)
    return {"options": with_gates(None, uses, tenant), "tenant": tenant, "fifo": fifo, **fields}


MEMBER = GateUse("fifo:a", FIFO)


def permits(store: Store) -> list[tuple[Any, ...]]:
    with connected(store.url) as conn:
        return conn.execute(
            "SELECT gate, job::text, token::text, weight FROM winch.permit ORDER BY gate, job"
        ).fetchall()


def claim_of(session: str, queues: tuple[str, ...] = ("default",)) -> ClaimParams:
    return ClaimParams(session=session, token=new_token(), queues=queues, limit=10)


class Waiting:
    """A worker's claim that waits, and what it has offered."""

    def __init__(
        self, bell: ClaimingPostgresBell, task: asyncio.Task[list[Claim]], params: ClaimParams
    ) -> None:
        self.bell = bell
        self.task = task
        self.token = params.token

    async def claims(self) -> list[Claim]:
        return await asyncio.wait_for(self.task, 20)


@asynccontextmanager
async def waiting(
    store: Store,
    session: str,
    queues: tuple[str, ...] = ("default",),
    timeout: float = 20,
    **fields: Any,
) -> AsyncIterator[Waiting]:
    driver = store.driver
    bell = claiming_bell(driver, queues)

    try:
        await bell.arm()
        await driver.arun(driver.claim(claim_of(session, queues)))
        wanted = claim_of(session, queues)
        task = asyncio.ensure_future(bell.claim_when_rung(driver.claim(wanted), timeout, is_idle=True))
        while bell._waiter is None and not task.done():  # noqa: ASYNC110  # there is no event for it
            await asyncio.sleep(0.001)
        yield Waiting(bell, task, wanted)
        if not task.done():
            bell.rouse()
            await asyncio.wait_for(task, 20)
    finally:
        await bell.aclose()
        await driver.aclose()


def standing(
    store: Store, session: str, until: str = "infinity", tasks: list[str] | None = None
) -> None:
    """An offer of a worker that receives no notification."""
    with connected(store.url) as conn:
        conn.execute(
            "INSERT INTO winch.offer VALUES (%s, %s, 'default', %s, 'none', %s)",
            [new_token(), session, tasks, until],
        )
        conn.execute(
            "INSERT INTO winch.queue (name, waiting_until)"
            " VALUES ('default', 'infinity'), ('other', 'infinity')"
            " ON CONFLICT (name) DO UPDATE SET waiting_until = excluded.waiting_until"
        )


def offers(store: Store) -> int:
    with connected(store.url) as conn:
        row = conn.execute("SELECT count(*) FROM winch.offer").fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.parametrize(
    "args", ["{}", '{"text": "' + "é" * 5000 + '"}'], ids=["short", "too long to tell"]
)
def test_a_plain_job_is_handed_over(store: Store, args: str) -> None:
    async def work() -> list[Claim]:
        async with waiting(store, session) as there:
            (job,) = await asyncio.to_thread(lambda: store.add(args=args, priority=2, max_attempts=7))
            record = store.get(job)
            assert (record.state, record.session, record.attempt) == (JobState.RUNNING, session, 1)
            (claim,) = await there.claims()
            assert claim.token == there.token
            return [claim]

    session = store.session()
    (claim,) = asyncio.run(work())
    record = store.get(claim.id)
    assert (claim.args, claim.task, claim.queue, claim.version) == (args, "mail.send", "default", 1)
    assert (claim.attempt, claim.fence) == (record.attempt, record.fence)
    assert (claim.created_at, claim.run_at, claim.claimed_at) == (
        record.created_at,
        record.run_at,
        record.claimed_at,
    )
    assert (record.priority, record.max_attempts) == (2, 7)
    assert store.complete(claim) == ["took"]
    assert store.get(claim.id).state is JobState.COMPLETED
    assert offers(store) == 0


def test_an_async_enqueue_hands_over_too(store: Store) -> None:
    async def work() -> None:
        async with waiting(store, session) as there:
            (stored,) = await store.driver.arun(store.driver.enqueue([new_job()]))
            (claim,) = await there.claims()
            assert (claim.id, claim.token) == (stored.id, there.token)
        (late,) = await store.driver.arun(store.driver.enqueue([new_job()]))
        assert store.get(late.id).state is JobState.READY
        await store.driver.aclose()

    session = store.session()
    asyncio.run(work())


def test_with_events_a_job_is_stored_before_it_is_claimed(postgres_server: Any) -> None:
    async def work(store: Store) -> tuple[str, list[Claim]]:
        async with waiting(store, session) as there:
            (job,) = await asyncio.to_thread(store.add)
            return job, await there.claims()

    url = postgres_server.new_store()
    try:
        with closing(PostgresDriver.from_url(url, events=True)) as driver:
            driver.migrate()
            store = Store(driver, url)
            session = store.session()
            job, (claim,) = asyncio.run(work(store))
            events = driver.run(driver.events())
            (late,) = store.add()  # no worker waits
            more = driver.run(driver.events())[len(events) :]
        assert [(event.v, event.kind, event.state) for event in events] == [
            (1, "enqueued", JobState.READY),
            (2, "claimed", JobState.RUNNING),
        ]
        assert {event.job for event in events} == {job, claim.id}
        assert events[1].token == claim.token
        assert events[1].session == session
        assert [(event.job, event.kind) for event in more] == [(late, "enqueued")]
    finally:
        postgres_server.drop_database(url)


def test_a_job_whose_word_is_lost_is_found_when_the_wait_ends(store: Store) -> None:
    async def work() -> None:
        side = store.driver._side()
        await side.listener.listening()
        side.listener.own_channel = "winch_without_listener"
        async with waiting(store, session, timeout=0.5) as there:
            (job,) = await asyncio.to_thread(store.add)
            assert store.get(job).state is JobState.RUNNING
            assert [(claim.id, claim.token) for claim in await there.claims()] == [(job, there.token)]

    session = store.session()
    asyncio.run(work())


def test_what_a_ring_brings_and_what_was_handed_over_come_together(store: Store) -> None:
    async def work() -> None:
        side = store.driver._side()
        await side.listener.listening()
        side.listener.own_channel = "winch_without_listener"
        async with waiting(store, session) as there:
            (handed,) = await asyncio.to_thread(store.add)
            rung = await asyncio.to_thread(store.add, 2)
            claims = await there.claims()
            assert sorted(claim.id for claim in claims) == sorted([handed, *rung])
            assert {claim.token for claim in claims} == {there.token}

    session = store.session()
    asyncio.run(work())


def test_a_job_that_is_known_is_not_given_up_where_the_offer_cannot_be_withdrawn(store: Store) -> None:
    """The job may already run: a release with its token would make it run a second time."""

    async def fails(offer: Offer) -> None:
        raise StorageUnavailable("gone")

    async def work() -> None:
        async with waiting(store, session, ("default", "b")) as there:
            assert there.bell._offers is not None
            there.bell._offers.ended = fails  # type: ignore[method-assign]
            (job,) = await asyncio.to_thread(store.add)
            assert [claim.id for claim in await there.claims()] == [job]
        async with waiting(store, session) as there:
            assert there.bell._offers is not None
            there.bell._offers.ended = fails  # type: ignore[method-assign]
            there.bell.rouse()
            with pytest.raises(StorageUnavailable) as raised:
                await there.claims()
            assert raised.value.maybe_applied

    session = store.session()
    asyncio.run(work())


def test_a_worker_of_several_queues_offers_for_each(store: Store) -> None:
    async def work() -> None:
        async with waiting(store, session, ("a", "b")) as there:
            assert offers(store) == 2
            (job,) = await asyncio.to_thread(lambda: store.add(queue="b"))
            (claim,) = await there.claims()
            assert (claim.id, claim.queue) == (job, "b")
            assert offers(store) == 0, "the one for the other queue is withdrawn"

    session = store.session()
    asyncio.run(work())


@pytest.mark.parametrize(
    "fields",
    [
        {"task": "mail.other"},
        {"headers": {"a": "b"}},
        {"queue": "other"},
        gated(limit(), headers={"a": "b"}),
        gated(limit(), limit("other")),
        gated(GateUse("rate:t", RATE, "rate:t", n=5, per=1000)),
        gated(GateUse("scope:bank", SCOPE)),
        gated(limit(), tenant="acme"),
        gated(tenant="acme"),
        gated(limit(weight=3)),
        gated(limit(), task="mail.other"),
    ],
    ids=[
        "a task it does not know",
        "more than arguments",
        "another queue",
        "more than a gate",
        "two gates",
        "a rate",
        "a scope",
        "a limit and a tenant",
        "a tenant",
        "too heavy",
        "a limit, and a task it does not know",
    ],
)
def test_a_job_that_fits_no_offer_is_not_handed_over(store: Store, fields: dict[str, Any]) -> None:
    standing(store, store.session(), tasks=["mail.send"])
    (job,) = store.add(**fields)
    assert store.get(job).state is not JobState.RUNNING
    assert offers(store) == 1


@pytest.mark.parametrize("use", [limit(weight=2), MEMBER], ids=["a limit", "a FIFO key"])
def test_a_job_whose_gate_is_open_is_handed_over_with_its_permit(store: Store, use: GateUse) -> None:
    async def work() -> list[Claim]:
        async with waiting(store, session) as there:
            (job,) = await asyncio.to_thread(lambda: store.add(**fields))
            assert store.get(job).state is JobState.RUNNING
            (claim,) = await there.claims()
            assert (claim.id, claim.token, claim.options) == (job, there.token, fields["options"])
            held = (use.key, job, *((claim.token, 2) if use.kind == LIMIT else (None, 0)))
            assert permits(store) == [held]
            return [claim]

    session, fields = store.session(), gated(use)
    (claim,) = asyncio.run(work())
    standing(store, session)
    (second,) = store.add(**fields)
    assert store.get(second).state is JobState.READY, "the gate is taken"
    assert offers(store) == 1
    ended = replace(completed(claim), is_gated=True)
    assert store.driver.run(store.driver.finish([ended])) == ["took"]
    assert permits(store) == []
    (third,) = store.add(**fields)
    state = JobState.RUNNING if use.kind == LIMIT else JobState.READY
    assert store.get(third).state is state, "a member waits for those before it"


def test_a_limit_that_is_set_counts_for_a_hand_over(store: Store) -> None:
    standing(store, store.session())
    store.driver.run(store.driver.set_limits({"limit:t": GateSpec(0)}, by="tests"))
    (job,) = store.add(**gated(limit()))
    assert store.get(job).state is JobState.READY
    store.driver.run(store.driver.set_limits({"limit:t": GateSpec(1)}, by="tests"))
    (job,) = store.add(**gated(limit()))
    assert store.get(job).state is JobState.RUNNING


def test_a_job_is_not_handed_over_past_one_that_waits_at_its_gate(store: Store) -> None:
    session = store.session()
    (heavy,) = store.add(**gated(limit(weight=3)))
    assert store.claim(session) == []
    assert store.get(heavy).state is JobState.BLOCKED
    standing(store, session)
    (job,) = store.add(**gated(limit()))
    assert store.get(job).state is JobState.READY


def test_a_member_whose_key_is_blocked_by_a_death_is_not_handed_over(store: Store) -> None:
    session = store.session()
    use = GateUse("fifo:a", FIFO, blocks_on_death=True)
    store.add(**gated(use))
    (claim,) = store.claim(session)
    died = Finish(
        id=claim.id, token=claim.token, to=JobState.DEAD, what="failed", reason="no", is_gated=True
    )
    assert store.driver.run(store.driver.finish([died])) == ["took"]
    standing(store, session)
    (job,) = store.add(**gated(use))
    assert store.get(job).state is JobState.READY


@pytest.mark.parametrize("is_new", [False, True], ids=["its row is there", "its row is just made"])
def test_a_producer_does_not_wait_for_a_gate_that_another_transaction_has(
    store: Store, is_new: bool
) -> None:
    standing(store, store.session())
    with psycopg.connect(store.url) as other:
        other.execute("INSERT INTO winch.gate (key) VALUES ('limit:t')")
        if not is_new:
            other.commit()
            other.execute("SELECT FROM winch.gate FOR NO KEY UPDATE")
        began = time.monotonic()
        (job,) = store.add(**gated(limit()))
        assert time.monotonic() - began < 5
        assert store.get(job).state is JobState.READY
        assert offers(store) == 1
        other.rollback()
    (job,) = store.add(**gated(limit()))
    assert store.get(job).state is JobState.RUNNING


def test_two_producers_and_a_claim_take_one_permit_once(store: Store) -> None:
    """Each begins while the one before it has not committed."""
    session = store.session()
    standing(store, session)
    standing_too = [new_token(), session, None, "none"]
    with connected(store.url) as conn:
        conn.execute(
            "INSERT INTO winch.offer VALUES (%s, %s, 'default', %s, %s, 'infinity')", standing_too
        )
    jobs = [new_job(**gated(limit(n=1))) for _ in range(2)]
    with (
        psycopg.connect(store.url) as first,
        psycopg.connect(store.url) as second,
        connected(store.url) as watcher,
    ):
        assert hand_over(store, first, jobs[0])
        taken = Background(lambda: hand_over(store, second, jobs[1]))
        assert not taken.result(), "it does not wait for the first"
        second.commit()
        claimed = Background(lambda: store.claim(session))
        wait_for_lock(watcher)
        first.commit()
        assert claimed.result() == []
    assert store.get(jobs[1].id).state is JobState.BLOCKED
    assert [permit[1] for permit in permits(store)] == [jobs[0].id]


def test_the_permit_of_a_job_that_was_handed_over_goes_with_its_session(store: Store) -> None:
    session = store.session()
    standing(store, session)
    (job,) = store.add(**gated(limit(n=1)))
    assert len(permits(store)) == 1
    store.driver.run(store.driver.end_session(session))
    assert (store.get(job).state, permits(store)) == (JobState.READY, [])


def test_a_paused_queue_hands_nothing_over(store: Store) -> None:
    standing(store, store.session())
    store.driver.run(store.driver.pause("default", by="tests"))
    (job,) = store.add()
    assert store.get(job).state is JobState.READY


def test_a_queue_with_a_rule_hands_nothing_over(store: Store) -> None:
    standing(store, store.session())
    store.driver.run(store.driver.set_queue("default", QueueRule(concurrency=5)))
    (job,) = store.add()
    assert store.get(job).state is JobState.READY


def test_a_job_stored_behind_a_setting_is_not_handed_over(store: Store) -> None:
    standing(store, store.session())
    job = new_job()
    with (
        psycopg.connect(store.url) as operator,
        psycopg.connect(store.url) as producer,
        connected(store.url) as watcher,
    ):
        rule = QueueRule(concurrency=5)
        store.driver.run_on(operator, store.driver.set_queue("default", rule))
        stored = Background(lambda: hand_over(store, producer, job))
        wait_for_lock(watcher)
        operator.commit()
        assert not stored.result()
        producer.commit()
    assert store.get(job.id).state is JobState.READY


def test_nothing_is_handed_over_in_a_transaction_that_is_not_ours(store: Store) -> None:
    """The transaction may stay open for hours, and the offer would belong to no worker."""
    standing(store, store.session())
    with psycopg.connect(store.url) as conn:
        (stored,) = store.driver.run_on(conn, store.driver.enqueue([new_job()]))
        assert offers(store) == 1
        conn.commit()
    assert store.get(stored.id).state is JobState.READY
    assert offers(store) == 1


def test_an_ended_session_is_handed_nothing(store: Store) -> None:
    async def work() -> None:
        async with waiting(store, session) as there:
            await store.driver.arun(store.driver.end_session(session))
            (job,) = await asyncio.to_thread(store.add)
            assert store.get(job).state is JobState.READY
            assert (
                await there.claims() == []
            )  # it rang instead; a claim of this session gets nothing either

    session = store.session()
    asyncio.run(work())


def test_an_enqueue_does_not_wait_for_a_session_that_is_ending(store: Store) -> None:
    """A rescue has the session's row: the job is stored at once, for others."""

    async def work() -> None:
        async with waiting(store, session):
            with psycopg.connect(store.url) as rescuer:
                rescuer.execute("SELECT FROM winch.session WHERE id = %s FOR UPDATE", [session])
                (job,) = await asyncio.wait_for(asyncio.to_thread(store.add), 10)
                assert store.get(job).state is JobState.READY
                rescuer.rollback()

    session = store.session()
    asyncio.run(work())


def test_an_offer_is_over_by_its_time(store: Store) -> None:
    standing(store, store.session(), until="now")
    (job,) = store.add()
    assert store.get(job).state is JobState.READY
    assert offers(store) == 1
    with connected(store.url) as conn:
        conn.execute("UPDATE winch.offer SET until = until - interval '2 minutes'")
    store.driver.run(store.driver.prune())
    assert offers(store) == 0, "what a dead worker left is removed"


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_stopping_worker_waits_for_a_hand_over_in_progress(store: Store, is_committed: bool) -> None:
    """The producer, whose transaction is held open here, and the worker want the same offer."""

    async def work() -> None:
        async with waiting(store, session) as there:
            with psycopg.connect(store.url) as producer, connected(store.url) as watcher:
                job = new_job()
                assert hand_over(store, producer, job)
                there.bell.rouse()
                await asyncio.sleep(0)
                await asyncio.to_thread(wait_for_lock, watcher)
                if is_committed:
                    producer.commit()
                else:
                    producer.rollback()
                claims = await there.claims()
                assert [claim.id for claim in claims] == ([job.id] if is_committed else [])
        assert offers(store) == 0

    session = store.session()
    asyncio.run(work())


def test_two_producers_take_one_offer_once(store: Store) -> None:
    async def work() -> None:
        async with waiting(store, session) as there:
            with psycopg.connect(store.url) as first, psycopg.connect(store.url) as second:
                jobs = [new_job(), new_job()]
                assert hand_over(store, first, jobs[0])
                taken = Background(lambda: hand_over(store, second, jobs[1]))
                assert not await asyncio.to_thread(taken.result), "it does not wait for the first"
                first.commit()
                second.rollback()
            (claim,) = await there.claims()
            assert claim.id == jobs[0].id

    session = store.session()
    asyncio.run(work())


def test_a_job_whose_worker_dies_before_it_learns_of_it_is_rescued(store: Store) -> None:
    session = store.session()
    standing(store, session)
    (job,) = store.add()
    assert store.get(job).state is JobState.RUNNING
    store.driver.run(store.driver.end_session(session))
    assert store.get(job).state is JobState.READY
    assert [claim.id for claim in store.claim(store.session())] == [job]


def test_every_job_goes_to_exactly_one_worker(store: Store) -> None:
    """Workers that wait, are rung for, run out of time and are roused, all at once, and producers beside
    them that store single jobs and some at a time."""
    wanted = 300
    had: list[Claim] = []

    async def work(bell: ClaimingPostgresBell, session: str) -> None:
        driver = store.driver
        while not is_over.is_set():
            await bell.arm()
            looked = await driver.arun(driver.claim(claim_of(session)))
            verb = driver.claim(claim_of(session))
            had.extend(looked + await bell.claim_when_rung(verb, 0.02, is_idle=True))

    async def main() -> None:
        bells = [claiming_bell(store.driver, ["default"]) for _ in range(3)]
        workers = [asyncio.ensure_future(work(bell, store.session())) for bell in bells]
        producers = [Background(produce) for _ in range(2)]
        deadline = time.monotonic() + 60
        while len(had) < wanted and time.monotonic() < deadline:
            bells[len(had) % 3].rouse()
            await asyncio.sleep(0.003)
        for producer in producers:
            await asyncio.to_thread(producer.result)
        is_over.set()
        await asyncio.gather(*workers)
        for bell in bells:
            await bell.aclose()
        await store.driver.aclose()

    def produce() -> None:
        for number in range(wanted // 6):
            store.add()
            time.sleep(0.002 * (number % 3))
            store.add(2)

    is_over = threading.Event()
    asyncio.run(main())
    assert len(had) == wanted
    assert len({claim.id for claim in had}) == wanted
    assert set(store.complete(*had)) == {"took"}
    assert offers(store) == 0
