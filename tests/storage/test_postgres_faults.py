"""When the server dies, hangs, or ends connections: the errors, and the recovery of the driver."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import psutil
import psycopg
import pytest

from tests.servers import PostgresServer
from tests.storage.postgres_kit import (
    TERMINATE,
    Background,
    Store,
    completed,
    connected,
    new_job,
    new_token,
    wait_for_lock,
)
from winch.core.errors import StorageUnavailable
from winch.core.job import Claim
from winch.core.lifecycle import JobState
from winch.drivers.postgres.driver import PostgresDriver
from winch.storage.params import Answer, ClaimParams

pytestmark = [pytest.mark.servers, pytest.mark.faults]


@pytest.fixture
def store(postgres_url: str) -> Iterator[Store]:
    driver = PostgresDriver.from_url(postgres_url)
    driver.migrate()
    yield Store(driver, postgres_url)
    driver.close()


class Door(threading.Thread):
    """A TCP proxy that can swallow what comes back (`is_deaf`) or cut what is open."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        parts = urlsplit(url)
        self._target = (parts.hostname or "", parts.port or 5432)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self.is_deaf = False
        self.swallows_after: bytes | None = None
        port = self._listening.getsockname()[1]
        self.url = f"{parts.scheme}://{parts.username}:{parts.password}@127.0.0.1:{port}{parts.path}"
        self.start()

    def run(self) -> None:
        while True:
            try:
                near, _ = self._listening.accept()
            except OSError:
                return
            self._open.append(near)
            try:
                far = socket.create_connection(self._target)
            except OSError:
                return
            self._open.append(far)
            threading.Thread(target=self._pump, args=(near, far, True), daemon=True).start()
            threading.Thread(target=self._pump, args=(far, near, False), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, is_request: bool) -> None:
        try:
            while data := source.recv(65536):
                if is_request and self.swallows_after and self.swallows_after in data:
                    self.is_deaf = True
                if is_request or not self.is_deaf:
                    sink.sendall(data)
        except OSError:
            pass
        finally:
            hang_up(source, sink)

    def cut(self) -> None:
        hang_up(*self._open)

    def close(self) -> None:
        hang_up(self._listening)
        self._listening.close()
        self.join(5)
        self.cut()
        for end in self._open:
            end.close()


def hang_up(*ends: socket.socket) -> None:
    for end in ends:
        with suppress(OSError):  # it has been hung up already
            end.shutdown(socket.SHUT_RDWR)


@contextmanager
def door_to(store: Store, **options: str) -> Iterator[tuple[Door, Store]]:
    door = Door(store.url)
    query = "&".join(f"{name}={value}" for name, value in options.items())
    driver = PostgresDriver.from_url(f"{door.url}?{query}")
    try:
        yield door, Store(driver, door.url)
    finally:
        door.close()
        driver.close()


def test_a_connection_closed_while_idle_is_replaced_unnoticed(store: Store) -> None:
    store.add()
    with connected(store.url) as killer:
        killer.execute(TERMINATE)
    time.sleep(0.1)
    store.add()

    async def work() -> None:
        await store.driver.arun(store.driver.counts())
        with connected(store.url) as killer:
            killer.execute(TERMINATE)
        await asyncio.sleep(0.1)
        await store.driver.arun(store.driver.counts())
        await store.driver.aclose()

    asyncio.run(work())


def test_a_connection_that_is_busy_when_the_driver_closes_is_closed_after_its_verb(store: Store) -> None:
    jobs = store.add()
    driver = store.driver

    async def work() -> None:
        with connected(store.url) as holder, connected(store.url) as watcher:
            holder.execute("BEGIN; LOCK TABLE winch.job")
            asked = asyncio.create_task(driver.arun(driver.get(jobs)))
            await asyncio.to_thread(wait_for_lock, watcher)
            await driver.aclose()
            holder.execute("ROLLBACK")
            [found] = await asked
            assert found is not None

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        asyncio.run(work())
        gc.collect()
    assert [str(one.message) for one in warned] == []


def test_statements_that_a_connection_has_forgotten_are_prepared_again(store: Store) -> None:
    """Found by a soak (seed 9): a connection had forgotten its prepared statements, and from then on
    each claim and finish was refused on it."""
    first, second = store.add(2)
    session = store.session()

    async def work() -> None:
        driver = store.driver

        async def claim() -> Claim:
            params = ClaimParams(session=session, token=new_token(), queues=("default",), limit=1)
            (claimed,) = await driver.arun(driver.claim(params))
            return claimed

        async def finish(claimed: Claim) -> Answer:
            (answer,) = await driver.arun(driver.finish([completed(claimed)]))
            return answer

        assert await finish(await claim()) is Answer.TOOK
        for link in driver._side().pool._lanes["work"]._idle:
            assert isinstance(link.connection, psycopg.AsyncConnection)
            await link.connection.execute("DEALLOCATE ALL")
        assert await finish(await claim()) is Answer.TOOK
        await driver.aclose()

    asyncio.run(work())
    assert {store.get(job).state for job in (first, second)} == {JobState.COMPLETED}


def test_a_lone_enqueue_is_prepared_again_where_it_was_forgotten(store: Store) -> None:
    store.add()
    for link in store.driver._pool._idle:
        link.connection.execute("DEALLOCATE ALL")
    store.add()
    assert store.driver.run(store.driver.counts())[JobState.READY] == 2


def test_a_backend_terminated_while_it_works_leaves_the_outcome_open(store: Store) -> None:
    new = new_job(is_given_id=True)
    with psycopg.connect(store.url) as first, connected(store.url) as killer:
        store.driver.run_on(first, store.driver.enqueue([new]))
        waiting = Background(lambda: store.driver.run(store.driver.enqueue([new])))
        wait_for_lock(killer)
        killer.execute(TERMINATE + " AND wait_event_type = 'Lock'")
        with pytest.raises(StorageUnavailable) as lost:
            waiting.result()
    assert lost.value.maybe_applied
    assert store.driver.run(store.driver.counts())[JobState.READY] == 1


def test_a_transaction_that_never_sent_its_commit_was_not_applied(store: Store) -> None:
    (job,) = store.add()
    with psycopg.connect(store.url) as holder, connected(store.url) as killer:
        holder.execute("SELECT FROM winch.job FOR UPDATE")
        waiting = Background(lambda: store.driver.run(store.driver.cancel([job], by="ada")))
        wait_for_lock(killer)
        killer.execute(TERMINATE + " AND wait_event_type = 'Lock'")
        with pytest.raises(StorageUnavailable) as lost:
            waiting.result()
        assert not lost.value.maybe_applied
    assert store.get(job).state is JobState.READY


def test_a_commit_with_a_lost_reply_is_reported_as_maybe_applied(store: Store) -> None:
    (job,) = store.add()
    with door_to(store, timeout="1s") as (door, through):
        through.driver.run(through.driver.counts())
        door.swallows_after = b"COMMIT\0"  # not the one in "READ COMMITTED"
        with pytest.raises(StorageUnavailable) as lost:
            through.driver.run(through.driver.cancel([job], by="ada"))
    assert lost.value.maybe_applied
    assert store.get(job).state is JobState.CANCELLED


def test_a_finish_whose_answer_was_lost_may_be_repeated(store: Store) -> None:
    store.add()
    (claim,) = store.claim(store.session())
    with door_to(store, timeout="1s") as (door, through):
        through.driver.run(through.driver.counts())
        door.is_deaf = True
        with pytest.raises(StorageUnavailable) as lost:
            through.complete(claim)
        assert lost.value.maybe_applied
        door.is_deaf = False
        assert through.complete(claim) == [Answer.ALREADY]


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_server_that_does_not_answer_blocks_no_call_for_long(store: Store, mode: str) -> None:
    with door_to(store, timeout="1s") as (door, through):
        driver = through.driver

        async def ask() -> Any:
            await driver.arun(driver.counts())
            door.is_deaf = True
            started = time.monotonic()
            try:
                with pytest.raises(StorageUnavailable) as lost:
                    await driver.arun(driver.counts())
                assert not lost.value.maybe_applied  # a read applies nothing
            finally:
                door.is_deaf = False
            late = time.monotonic() - started
            await driver.arun(driver.counts())
            await driver.aclose()
            return late

        def ask_sync() -> Any:
            driver.run(driver.counts())
            door.is_deaf = True
            started = time.monotonic()
            with pytest.raises(StorageUnavailable):
                driver.run(driver.counts())
            late = time.monotonic() - started
            door.is_deaf = False
            driver.run(driver.counts())
            return late

        assert 0.9 < (ask_sync() if mode == "sync" else asyncio.run(ask())) < 4


def test_a_cancelled_caller_leaves_a_driver_that_works(store: Store) -> None:
    async def work() -> None:
        driver = store.driver
        (job,) = [stored.id for stored in await driver.arun(driver.enqueue([new_job()]))]
        with psycopg.connect(store.url) as holder:
            holder.execute("SELECT FROM winch.job FOR UPDATE")
            waiting = asyncio.create_task(driver.arun(driver.cancel([job], by="ada")))
            await asyncio.sleep(0.2)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert (await driver.arun(driver.counts()))[JobState.READY] == 1
        await driver.aclose()

    asyncio.run(work())


def test_heartbeats_do_not_queue_behind_other_verbs(store: Store) -> None:
    session = store.session()
    jobs = store.add(6)

    async def work() -> float:
        driver = store.driver
        await driver.arun(driver.beat([session]))
        with psycopg.connect(store.url) as holder:
            holder.execute("SELECT FROM winch.job FOR UPDATE")
            stuck = [asyncio.create_task(driver.arun(driver.delete([job], by="ada"))) for job in jobs]
            await asyncio.sleep(0.2)
            started = time.monotonic()
            (pulse,) = await driver.arun(driver.beat([session]))
            late = time.monotonic() - started
            assert pulse.is_live
            holder.rollback()
            await asyncio.gather(*stuck)
        await driver.aclose()
        return late

    assert asyncio.run(work()) < 1


# -- servers of our own, to be killed ----------------------------------------------------------------


def recovers(call: Callable[[], Any], seconds: float = 10) -> float:
    """How long until the call no longer raises StorageUnavailable."""
    started = time.monotonic()
    while True:
        try:
            call()
        except StorageUnavailable:
            if time.monotonic() - started > seconds:
                raise
            time.sleep(0.05)
        else:
            return time.monotonic() - started


@pytest.mark.parametrize(
    "how",
    [
        "kill9",
        pytest.param("fast", marks=pytest.mark.slow),
        pytest.param("immediate", marks=pytest.mark.slow),
    ],
)
def test_a_server_that_is_killed_and_comes_back(how: str) -> None:
    with PostgresServer() as server:
        store = Store(PostgresDriver.from_url(server.new_database()))
        store.driver.migrate()
        acked = store.add(20)
        session = store.session()
        claims = store.claim(session, 10)
        stop = threading.Event()
        failures: list[StorageUnavailable] = []

        def produce() -> None:
            while not stop.is_set():
                try:
                    acked.extend(store.add())
                except StorageUnavailable as error:
                    failures.append(error)
                    time.sleep(0.02)

        producer = Background(produce)
        time.sleep(0.3)
        if how == "kill9":
            server.kill9()
        else:
            server.stop("fast" if how == "fast" else "immediate")
        with pytest.raises(StorageUnavailable) as refused:
            store.driver.run(store.driver.counts())
        assert not refused.value.maybe_applied
        server.start()
        assert recovers(lambda: store.driver.run(store.driver.beat([session]))) < 5
        stop.set()
        producer.result()
        assert failures
        assert sum(error.maybe_applied for error in failures) <= 1, "only what was on its way is unknown"
        assert store.complete(*claims) == [Answer.TOOK] * len(claims)
        found = store.driver.run(store.driver.get(acked))
        assert all(job is not None for job in found), "an acknowledged job was lost"
        store.driver.close()


@pytest.mark.slow
def test_an_async_driver_outlives_its_server() -> None:
    with PostgresServer() as server:
        driver = PostgresDriver.from_url(server.new_database())
        driver.migrate()

        async def work() -> None:
            bell = driver.bell(["default"])
            await bell.arm()
            await driver.arun(driver.enqueue([new_job()]))
            server.kill9()
            for _ in range(3):
                with pytest.raises(StorageUnavailable):
                    await driver.arun(driver.enqueue([new_job()]))
            await bell.wait(0.1)
            server.start()
            for _ in range(200):
                try:
                    await driver.arun(driver.counts())
                    break
                except StorageUnavailable:
                    await asyncio.sleep(0.05)
            for _ in range(200):
                if bell._listener.is_up:
                    break
                await asyncio.sleep(0.05)
            assert bell._listener.is_up
            bell._announced_at = -100.0
            await bell.arm()
            await driver.arun(driver.enqueue([new_job()]))
            assert await bell.wait(5)
            await bell.aclose()
            await driver.aclose()

        asyncio.run(work())


@pytest.mark.slow
def test_a_frozen_server_blocks_no_call_for_long() -> None:
    with PostgresServer() as server:
        store = Store(PostgresDriver.from_url(f"{server.new_database()}?timeout=1s"))
        store.driver.migrate()
        store.add()
        tree = [psutil.Process(server.pid), *psutil.Process(server.pid).children(recursive=True)]
        for process in tree:
            os.kill(process.pid, signal.SIGSTOP)
        try:
            started = time.monotonic()
            with pytest.raises(StorageUnavailable) as lost:
                store.add()
            assert lost.value.maybe_applied
            assert time.monotonic() - started < 4
        finally:
            for process in tree:
                os.kill(process.pid, signal.SIGCONT)
        assert recovers(store.add) < 5
        store.driver.close()


@pytest.mark.slow
def test_a_claim_that_was_finished_before_the_crash_stays_finished() -> None:
    with PostgresServer() as server:
        store = Store(PostgresDriver.from_url(server.new_database()))
        store.driver.migrate()
        store.add(50)
        claims = store.claim(store.session(), 50)
        assert (
            store.driver.run(store.driver.finish([completed(c) for c in claims])) == [Answer.TOOK] * 50
        )
        server.kill9()
        server.start()
        assert recovers(lambda: store.driver.run(store.driver.counts())) < 5
        assert store.driver.run(store.driver.counts())[JobState.COMPLETED] == 50
        assert store.complete(*claims) == [Answer.ALREADY] * 50
        store.driver.close()
