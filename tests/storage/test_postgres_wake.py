"""Wake-ups: received across processes at once, sent only to waiters, and never required."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.storage.postgres_kit import (
    Store,
    claiming_bell,
    connected,
    new_id,
    new_job,
    new_token,
    recorded,
)
from winch.core.gates.uses import FIFO, RATE, GateUse, with_gates
from winch.core.job import Claim
from winch.drivers.postgres.driver import PostgresDriver
from winch.drivers.postgres.fast.handover import ClaimingPostgresBell
from winch.drivers.postgres.wakeups.listen import RENEW, PostgresBell
from winch.storage.decide.waits import ALL, AWAITED_HEADER, EACH, JOB
from winch.storage.params import ClaimParams
from winch.storage.verbs import Verb

pytestmark = pytest.mark.servers

NOW = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.fixture
def store(postgres_url: str) -> Iterator[Store]:
    driver = PostgresDriver.from_url(postgres_url)
    driver.migrate()
    yield Store(driver, postgres_url)
    driver.close()


@asynccontextmanager
async def belled(store: Store, *queues: str, due: bool = False) -> AsyncIterator[PostgresBell]:
    bell = store.driver.bell(queues, due=due)
    try:
        await bell.arm()
        yield bell
    finally:
        await bell.aclose()
        await store.driver.aclose()


@contextmanager
def ears(url: str, channel: str) -> Iterator[psycopg.Connection[Any]]:
    """A listener of the test's own."""
    with connected(url) as conn:
        conn.execute(f"LISTEN {channel}")
        yield conn


def heard(conn: psycopg.Connection[Any], seconds: float = 0.2) -> list[str]:
    return [notify.payload for notify in conn.notifies(timeout=seconds)]


def test_a_job_of_another_process_wakes_a_waiter_at_once(store: Store) -> None:
    """The other process prints when it committed, by the same monotonic clock."""
    script = textwrap.dedent(
        f"""
        import sys, time
        from tests.storage.postgres_kit import Store
        from winch.drivers.postgres.driver import PostgresDriver
        store = Store(PostgresDriver.from_url({store.url!r}))
        store.driver.run(store.driver.counts())
        sys.stdin.readline()
        for _ in range(10):
            store.add()
            print(time.monotonic(), flush=True)
            sys.stdin.readline()
        store.driver.close()
        """
    )

    async def listen() -> list[float]:
        other = subprocess.Popen(
            [sys.executable, "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path.cwd(),
        )
        assert other.stdin is not None
        assert other.stdout is not None
        late = []
        async with belled(store, "default") as bell:
            for _ in range(10):
                await bell.arm()
                other.stdin.write("\n")
                other.stdin.flush()
                assert await bell.wait(20)
                at = time.monotonic()
                late.append(at - float(await asyncio.to_thread(other.stdout.readline)))
            other.stdin.write("\n")
            other.stdin.flush()
        other.stdin.close()
        other.stdout.close()
        other.wait(20)
        return late

    late = asyncio.run(listen())
    assert sorted(late)[len(late) // 2] < 0.05, late


def test_nothing_is_sent_without_a_waiter(store: Store) -> None:
    with ears(store.url, store.driver._address.channel) as listening:
        store.add(5)
        store.add(delay=timedelta(seconds=1))
        store.driver.run(store.driver.promote())
        assert heard(listening) == []


def test_one_call_sends_one_wake_up_with_its_queues(store: Store) -> None:
    async def work() -> None:
        async with belled(store, "a", "b", "c"):
            jobs = [new_job(queue=queue) for queue in ("a", "b", "b", "other") for _ in range(50)]
            await store.driver.arun(store.driver.enqueue(jobs))

    with ears(store.url, store.driver._address.channel) as listening:
        asyncio.run(work())
        (payload,) = heard(listening)
        assert sorted(payload.strip("[]").replace('"', "").split(", ")) == ["a", "b"]


def test_one_job_rings_whatever_it_has_with_it(store: Store) -> None:
    """Each short statement of an enqueue; and they store the same row for the same job."""

    async def work() -> None:
        async with belled(store, "default"):
            for job in (plain, timed, *two):
                verb, steps = recorded(store.driver.enqueue([job], now=NOW if job is timed else None))
                await store.driver.arun(verb)
                names.append(steps[0].sql.name)
            await store.driver.arun(store.driver.enqueue(many))

    names: list[str] = []
    plain, timed = new_job(max_attempts=7, priority=3), new_job(max_attempts=7, priority=3)
    many = [new_job(max_attempts=7, priority=3) for _ in range(2)]
    two = [new_job(headers={"a": "b"}), new_job(expires=timedelta(hours=1))]
    with ears(store.url, store.driver._address.channel) as listening:
        asyncio.run(work())
        assert heard(listening) == ['["default"]'] * 5
    assert names == ["enqueue.alike"] * 4
    with connected(store.url) as conn:
        rows = conn.execute(
            "SELECT to_jsonb(job) - ARRAY['id', 'created_at', 'run_at', 'sort_key'],"
            " sort_key = winch.sort_key(run_at, 3), run_at = created_at"
            " FROM winch.job WHERE id = ANY (%s::uuid[])",
            ([plain.id, timed.id, *(job.id for job in many)],),
        ).fetchall()
    assert len(rows) == 4
    assert rows.count(rows[0]) == 4
    assert rows[0][1:] == (True, True)


def test_too_many_queues_for_a_payload_ring_for_all(store: Store) -> None:
    queues = [f"queue-{n:03}-{'x' * 200}" for n in range(60)]

    async def work() -> bool:
        async with belled(store, *queues) as bell:
            await store.driver.arun(store.driver.enqueue([new_job(queue=queue) for queue in queues]))
            return await bell.wait(5)

    with ears(store.url, store.driver._address.channel) as listening:
        assert asyncio.run(work())
        assert heard(listening) == ["[]"]


def test_waiters_announce_themselves_rarely(store: Store) -> None:
    async def work() -> None:
        async with belled(store, "default") as one:
            other = store.driver.bell(["default"])
            for _ in range(50):
                await one.arm()
                await other.arm()
            await other.aclose()

    with connected(store.url) as watcher:
        asyncio.run(work())
        row = watcher.execute(
            "SELECT xmin::text, waiting_until > clock_timestamp() + '10 s' FROM winch.queue"
        ).fetchone()
        assert row is not None
        asyncio.run(work())
        again = watcher.execute("SELECT xmin::text, true FROM winch.queue").fetchone()
    assert row == again, "a row that was good for a while was written again"
    assert RENEW < 10


def test_a_queue_with_only_a_waiter_is_not_listed(store: Store) -> None:
    async def work() -> None:
        async with belled(store, "awaited", due=True):
            pass

    asyncio.run(work())
    assert store.driver.run(store.driver.queues()) == []


@pytest.mark.faults
def test_a_listener_that_was_killed_comes_back(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        async with belled(store, "default") as bell:
            listener = bell._listener
            assert listener.is_up
            assert store.driver.facts().listener == "up"
            with connected(store.url) as killer:
                killer.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE query LIKE 'LISTEN%' AND datname = current_database()"
                )
            for _ in range(500):
                await asyncio.sleep(0.01)
                if not listener.is_up:
                    break
            for _ in range(500):
                await asyncio.sleep(0.01)
                if listener.is_up:
                    break
            assert listener.is_up
            await bell.arm()
            await store.driver.arun(store.driver.enqueue([new_job()]))
            assert await bell.wait(5)

    with caplog.at_level(logging.WARNING):
        asyncio.run(work())
    assert "the worker polls meanwhile" in caplog.text


@pytest.mark.faults
def test_waiting_does_not_raise_while_the_server_is_down() -> None:
    store = Store(PostgresDriver.from_url("postgresql://127.0.0.1:1/x"))

    async def work() -> float:
        async with belled(store, "default", due=True) as bell:
            started = time.monotonic()
            assert not await bell.wait(0.2)
            assert not bell._listener.is_up
            assert "down" in bell._listener.state
            return time.monotonic() - started

    assert asyncio.run(work()) < 2


def test_a_direct_address_for_wake_ups_may_be_given(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> bool:
        async with belled(store, "default") as bell:
            await store.driver.arun(store.driver.enqueue([new_job()]))
            return await bell.wait(0.3)

    monkeypatch.setenv("WINCH_LISTEN_URL", "postgresql://127.0.0.1:1/x")
    assert not asyncio.run(work())
    monkeypatch.setenv("WINCH_LISTEN_URL", store.url)
    assert asyncio.run(work())


def claim_of(store: Store, session: str) -> ClaimParams:
    return ClaimParams(session=session, token=new_token(), queues=("default",), limit=10)


def test_a_ring_costs_one_statement(store: Store) -> None:
    """The claim of a worker that waited; it would take jobs with gates, too, and there are none."""

    async def work() -> list[str]:
        bell = claiming_bell(store.driver, ["default"])
        await bell.arm()
        await store.driver.arun(store.driver.claim(claim_of(store, session)))  # the look before the wait
        verb, steps = recorded(store.driver.claim(claim_of(store, session)))
        waiting = asyncio.ensure_future(bell.claim_when_rung(verb, 20))
        await asyncio.sleep(0)
        await store.driver.arun(store.driver.enqueue([new_job()]))
        assert len(await waiting) == 1
        await bell.aclose()
        await store.driver.aclose()
        return [step.sql.name for step in steps]

    session = store.session()
    assert asyncio.run(work()) == ["claim.few"]


def test_a_ring_after_a_job_with_gates_costs_one_statement_too(store: Store) -> None:
    """The worker claims from gates first, and gets a plain job. Then it claims plain jobs again."""

    async def work() -> list[list[str]]:
        bell = claiming_bell(store.driver, ["default"])
        sent: list[list[str]] = []

        async def run(verb: Verb[Any]) -> Any:
            again, steps = recorded(verb)
            try:
                return await store.driver.arun(again)
            finally:
                sent.append([step.sql.name for step in steps])

        bell._run = run
        members = [new_job(options=with_gates(None, [GateUse(f"fifo:{key}", FIFO)])) for key in "abc"]
        for job in (*members, new_job(), new_job()):
            await bell.arm()
            # What a worker does between two jobs: it finds no other one.
            assert await store.driver.arun(store.driver.claim(claim_of(store, session))) == []
            verb = store.driver.claim(claim_of(store, session))
            waiting = asyncio.ensure_future(bell.claim_when_rung(verb, 20))
            await asyncio.sleep(0)
            await store.driver.arun(store.driver.enqueue([job]))
            assert [claim.id for claim in await waiting] == [job.id]
        await bell.aclose()
        await store.driver.aclose()
        return sent

    session = store.session()
    first, *others = asyncio.run(work())
    assert first == ["claim.few", "has_gated", "claim.gated"]
    assert others == [["claim.gated"], ["claim.gated"], ["claim.gated"], ["claim.few"]]


def test_a_claimed_job_starts_before_the_offer_is_withdrawn(store: Store) -> None:
    """The worker gets the job as soon as its claim returns; the withdrawal takes another round trip."""

    async def work() -> None:
        bell = claiming_bell(store.driver, ["default"])
        await bell.arm()
        seen: list[tuple[list[str], int]] = []

        def arrived(claims: list[Claim]) -> None:
            ((standing,),) = looking.execute("SELECT count(*) FROM winch.offer").fetchall()
            seen.append(([claim.id for claim in claims], standing))

        bell.on_claims = arrived
        verb = store.driver.claim(claim_of(store, session))
        waiting = asyncio.ensure_future(bell.claim_when_rung(verb, 20, is_idle=True))
        while not looking.execute("SELECT FROM winch.offer").fetchall():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await store.driver.arun(store.driver.enqueue([job]))
        assert [claim.id for claim in await waiting] == [job.id]
        assert seen == [([job.id], 1)]
        assert looking.execute("SELECT FROM winch.offer").fetchall() == []
        await bell.aclose()
        await store.driver.aclose()

    # A rate: such a job is never handed over.
    job = new_job(options=with_gates(None, [GateUse("rate:t", RATE, "rate:t", n=5, per=1000)]))
    session = store.session()
    with connected(store.url) as looking:
        asyncio.run(work())


def test_a_wait_that_is_ended_from_outside_claims_nothing(store: Store) -> None:
    async def work() -> None:
        bell = claiming_bell(store.driver, ["default"])
        await bell.arm()
        waiting = asyncio.ensure_future(
            bell.claim_when_rung(store.driver.claim(claim_of(store, session)), 20)
        )
        await asyncio.sleep(0)
        store.add(queue="other")
        bell.rouse()
        assert await waiting == []
        # A waiter without a ring polls by itself.
        store.driver.run(store.driver.enqueue([new_job()]))
        bell._has_rung = False
        assert len(await bell.claim_when_rung(store.driver.claim(claim_of(store, session)), 0.01)) == 1
        await bell.aclose()
        await store.driver.aclose()

    session = store.session()
    asyncio.run(work())


@asynccontextmanager
async def waiting_claim(
    store: Store, session: str
) -> AsyncIterator[tuple[ClaimingPostgresBell, asyncio.Task[list[Claim]]]]:
    """A claim that waits for its ring, on connections that know the statement."""
    bell = claiming_bell(store.driver, ["default"])
    await bell.arm()
    await store.driver.arun(store.driver.claim(claim_of(store, session)))
    verb = store.driver.claim(claim_of(store, session))
    waiting = asyncio.ensure_future(bell.claim_when_rung(verb, 20))
    await asyncio.sleep(0)
    try:
        yield bell, waiting
    finally:
        await bell.aclose()
        await store.driver.aclose()


def until_gone(url: str, backend: int) -> None:
    with connected(url) as conn:
        give_up = time.monotonic() + 10
        while conn.execute("SELECT FROM pg_stat_activity WHERE pid = %s", [backend]).fetchall():
            assert time.monotonic() < give_up, "the server keeps the connection"
            time.sleep(0.01)


def test_a_claim_that_was_sent_and_is_not_waited_for_takes_its_connection_with_it(store: Store) -> None:
    async def work() -> None:
        async with waiting_claim(store, session) as (bell, waiting):
            lane = store.driver._side().pool._lanes["work"]
            [link] = lane._idle
            backend = link.connection.info.backend_pid
            bell.ring()
            while lane._idle:  # noqa: ASYNC110  # until the claim has taken its connection
                await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert lane._idle == []
            # The server may still run the abandoned claim, and would give it the job.
            await asyncio.to_thread(until_gone, store.url, backend)
            store.driver.run(store.driver.enqueue([new_job()]))
            claims = await store.driver.arun(store.driver.claim(claim_of(store, session)))
            assert len(claims) == 1
            assert not lane._free.locked(), "its place is free, too"

    session = store.session()
    asyncio.run(work())


@pytest.mark.faults
def test_a_connection_that_broke_while_the_claim_waited_is_not_used(store: Store) -> None:
    async def work() -> None:
        async with waiting_claim(store, session) as (bell, waiting):
            with connected(store.url) as killer:
                killer.execute(
                    "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
                    " WHERE query NOT LIKE 'LISTEN%' AND datname = current_database()"
                    " AND pid <> pg_backend_pid()"
                )
            store.driver.run(store.driver.enqueue([new_job()]))
            bell.ring()
            assert len(await waiting) == 1

    session = store.session()
    asyncio.run(work())


def test_a_claim_that_may_take_jobs_with_gates_misses_none(store: Store) -> None:
    """Plain jobs are taken by one statement only where no ready job has gates."""
    session = store.session()
    store.add()
    assert len(store.driver.run(store.driver.claim(claim_of(store, session)))) == 1
    store.add(fifo="a")
    store.add()
    store.add(queue="other", tenant="t")
    for _ in range(2):  # the second time it is known that there are gates
        store.add()
        claims = store.driver.run(store.driver.claim(claim_of(store, session)))
        assert claims
    assert not store.driver.run(store.driver.claim(claim_of(store, session)))
    verb, steps = recorded(store.driver.claim(claim_of(store, session)))
    store.add()
    assert len(store.driver.run(verb)) == 1
    assert [step.sql.name for step in steps] == ["claim.few"]


def test_a_waiter_for_due_jobs_is_not_woken_by_ready_ones(store: Store) -> None:
    async def work() -> None:
        async with belled(store, due=True), belled(store, "default"):
            await store.driver.arun(store.driver.enqueue([new_job()]))
            await store.driver.arun(store.driver.enqueue([new_job(delay=timedelta(seconds=1))]))

    place = store.driver._address
    with ears(store.url, place.due_channel) as due, ears(store.url, place.channel) as all_of_them:
        asyncio.run(work())
        assert heard(due) == ['[""]']
        assert heard(all_of_them) == ['["default"]', '[""]']


def test_members_that_end_ring_only_when_none_is_left_unclaimed(store: Store) -> None:
    """Every end is recorded; while a member is unclaimed, no worker is woken in vain."""
    prefix = new_id()[:30]
    headers = {AWAITED_HEADER: ALL + prefix}
    members = [new_job(id=prefix + f"{number:06x}", headers=headers) for number in range(4)]
    store.driver.run(store.driver.enqueue(members))
    session = store.session()

    async def wait() -> None:
        async with belled(store, due=True):
            pass

    asyncio.run(wait())  # a waiter has announced itself, and its mark stays for a while
    first, second, third = store.claim(session), store.claim(session), store.claim(session, limit=2)
    with ears(store.url, store.driver._address.due_channel) as due:
        store.complete(*third)
        store.complete(*first)
        assert heard(due) == ['[""]', '[""]']  # all were claimed
        store.driver.run(store.driver.enqueue([new_job(id=prefix + "000009", headers=headers)]))
        store.complete(*second)
        assert heard(due) == []
        store.complete(*store.claim(session))
        assert heard(due) == ['[""]']
    with connected(store.url) as conn:
        assert conn.execute("SELECT key FROM winch.recheck").fetchall() == [(ALL + prefix,)] * 4


def test_one_transaction_writes_one_key_for_all_members_and_one_for_each_other_job(store: Store) -> None:
    prefix, other = new_id()[:30], new_id()
    together, alone = {AWAITED_HEADER: ALL + prefix}, {AWAITED_HEADER: other}
    members = [new_job(id=prefix + f"{number:06x}", headers=together) for number in range(3)]
    odd = new_job(headers={AWAITED_HEADER: ALL + "damaged by hand"})
    children = [new_job(headers=alone) for _ in range(2)]
    both = [new_job(headers={AWAITED_HEADER: f"{ALL}{prefix}{EACH}"}) for _ in range(2)]
    store.driver.run(store.driver.enqueue([*members, odd, *children, *both]))
    store.complete(*store.claim(store.session(), limit=20))
    with connected(store.url) as conn:
        keys = [row[0] for row in conn.execute("SELECT key FROM winch.recheck").fetchall()]
    own = sorted(key for key in keys if key.startswith(JOB))
    assert own == sorted(JOB + job.id for job in (*children, *both))
    assert len(keys) == len(own) + 1 + 1 + len(both)
