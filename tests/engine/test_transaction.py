"""Business writes, completion and child jobs in one commit, on every store that has transactions."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.engine.test_worker import QUICK, run, until
from winch import App, Context, JobState, Retry

QUERY = "SELECT n FROM effect ORDER BY n"


@pytest.fixture(params=["sqlite", "postgres"])
def app(request: pytest.FixtureRequest, sqlite_path: Path) -> Iterator[App]:
    if request.param == "sqlite":
        app = App(f"sqlite:///{sqlite_path}", **QUICK)
        app.ready()
        with app.transaction() as conn:
            conn.execute("CREATE TABLE effect (n INTEGER)")
    else:
        url = request.getfixturevalue("postgres_url")
        app = App(url, **QUICK)
        app.migrate()
        with psycopg.connect(url) as conn:
            conn.execute("CREATE TABLE effect (n INTEGER)")
    yield app
    app.close()


def effects(app: App) -> list[int]:
    with app.ready().transaction() as conn:  # type: ignore[attr-defined]  # both drivers here have it
        return [row[0] for row in conn.execute(QUERY).fetchall()]


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_writes_completion_and_children_commit_together(app: App, kind: str) -> None:
    @app.task(name="child")
    async def child() -> str:
        return "born"

    def plain(n: int, *, ctx: Context) -> None:
        with ctx.transaction() as tx:
            tx.execute(f"INSERT INTO effect VALUES ({n})")
            child.using(conn=tx, id="0192c8f0-0000-7000-8000-000000000001").enqueue()
            tx.result = n * 2

    async def awaited(n: int, *, ctx: Context) -> None:
        async with ctx.transaction() as tx:
            done = tx.execute(f"INSERT INTO effect VALUES ({n})")
            if asyncio.iscoroutine(done):
                await done
            await child.using(conn=tx, id="0192c8f0-0000-7000-8000-000000000001").aenqueue()
            tx.result = n * 2

    task: Any = app.task(name="parent")(plain if kind == "sync" else awaited)

    async def body(_: Any) -> None:
        assert await (await task.aenqueue(21)) == 42
        assert await app.jobs.get("0192c8f0-0000-7000-8000-000000000001") == "born"

    run(app, body)
    assert effects(app) == [21]


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_failure_inside_the_block_leaves_nothing(app: App, kind: str) -> None:
    @app.task(name="child")
    async def child() -> None: ...

    def plain(*, ctx: Context) -> None:
        with ctx.transaction() as tx:
            tx.execute("INSERT INTO effect VALUES (1)")
            child.using(conn=tx).enqueue()
            raise ValueError("no")

    async def awaited(*, ctx: Context) -> None:
        async with ctx.transaction() as tx:
            done = tx.execute("INSERT INTO effect VALUES (1)")
            if asyncio.iscoroutine(done):
                await done
            await child.using(conn=tx).aenqueue()
            raise ValueError("no")

    task: Any = app.task(name="parent", retry=Retry.never())(plain if kind == "sync" else awaited)

    async def body(_: Any) -> None:
        await until(await task.aenqueue(), JobState.DEAD)

    run(app, body)
    assert effects(app) == []
    assert app.jobs.list(task="child") == []


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_lost_claim_rolls_everything_back(app: App, kind: str) -> None:
    calls: list[int] = []

    def lose(ctx: Context) -> None:
        calls.append(ctx.attempt)
        if len(calls) == 1:
            driver, record = app.ready(), app.jobs.get(ctx.job_id).record
            driver.run(driver.give_up(record.session or "", [record.token or ""]))

    def plain(*, ctx: Context) -> None:
        lose(ctx)
        with ctx.transaction() as tx:
            tx.execute(f"INSERT INTO effect VALUES ({len(calls)})")

    async def awaited(*, ctx: Context) -> None:
        await asyncio.to_thread(lose, ctx)
        async with ctx.transaction() as tx:
            done = tx.execute(f"INSERT INTO effect VALUES ({len(calls)})")
            if asyncio.iscoroutine(done):
                await done

    task: Any = app.task(name="parent")(plain if kind == "sync" else awaited)

    async def body(_: Any) -> None:
        await until(await task.aenqueue(), JobState.COMPLETED)

    run(app, body)
    assert effects(app) == [2]


def test_async_handlers_may_wait_inside_their_blocks(app: App) -> None:
    @app.task(name="parent", retry=Retry.never())
    async def parent(n: int, *, ctx: Context) -> None:
        async with ctx.transaction() as tx:
            done = tx.execute(f"INSERT INTO effect VALUES ({n})")
            if asyncio.iscoroutine(done):
                await done
            await asyncio.sleep(0.02)

    task: Any = parent

    async def body(_: Any) -> None:
        jobs = [await task.aenqueue(n) for n in range(5)]
        for job in jobs:
            await job

    run(app, body, concurrency=5)
    assert effects(app) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("does", ["sleeps", "writes on"])
def test_a_transaction_that_stops_the_file_is_ended(sqlite_path: Path, kind: str, does: str) -> None:
    app = App(f"sqlite:///{sqlite_path}", **{**QUICK, "lease": "3s"})
    app.ready()
    with app.transaction() as conn:
        conn.execute("CREATE TABLE effect (n INTEGER)")
    waited: list[float] = []

    def write_meanwhile() -> None:
        began = time.monotonic()
        driver = App(f"sqlite:///{sqlite_path}").ready()
        driver.run(driver.pause("some queue", by="a test"))
        waited.append(time.monotonic() - began)

    def plain(*, ctx: Context) -> None:
        with ctx.transaction() as tx:
            other = threading.Thread(target=write_meanwhile)
            other.start()
            tx.execute("INSERT INTO effect VALUES (1)")
            other.join(20)
            if does == "writes on":
                tx.execute("INSERT INTO effect VALUES (2)")

    async def awaited(*, ctx: Context) -> None:
        async with ctx.transaction() as tx:
            tx.execute("INSERT INTO effect VALUES (1)")
            await asyncio.to_thread(write_meanwhile)
            if does == "writes on":
                tx.execute("INSERT INTO effect VALUES (2)")

    task: Any = app.task(name="slow", retry=Retry.never())(plain if kind == "sync" else awaited)

    async def body(_: Any) -> None:
        job = await until(await task.aenqueue(), JobState.DEAD)
        assert job.record.error is not None
        assert "held the database for more than 1 seconds" in job.record.error.message

    run(app, body)
    assert waited
    assert effects(app) == []
    app.close()
