"""`ctx.transaction(session)`: the application's own session carries the job's completion, and Winch
commits it. Whatever happens to the commit, the effect and the completion are both there or neither."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from lab.proxy import Proxy
from tests.engine import lines
from tests.engine.test_worker import QUICK, run, until
from tests.servers import Databases, emptied
from winch import App, Context, JobState, Retry
from winch.drivers.sqlite import driver as sqlite_driver

CHILD = "0192c8f0-0000-7000-8000-000000000001"
# One of each way in which a COMMIT is sent.
SOME = ["psycopg", "psycopg2", "sqlalchemy connection", "sqlalchemy session", "django"]
ASOME = ["psycopg", "asyncpg", "sqlalchemy session", "sqlalchemy session on asyncpg"]


@pytest.fixture(scope="module")
def shared_url(postgres_server: Databases) -> Iterator[str]:
    url = postgres_server.new_store()
    with psycopg.connect(url) as conn:
        conn.execute("CREATE TABLE effect (n integer)")
    yield url
    postgres_server.drop_database(url)


@pytest.fixture
def app(shared_url: str) -> Iterator[App]:
    app = App(emptied(shared_url), **QUICK)

    @app.task(name="child")
    async def child() -> str:
        return "born"

    yield app
    app.close()


def effects(url: str) -> list[int]:
    with psycopg.connect(url) as conn:
        return [row[0] for row in conn.execute("SELECT n FROM effect ORDER BY n").fetchall()]


def make(app: App, kind: str, url: str, *, before: Any = None, within: Any = None) -> Any:
    """A task that writes one effect and one child through the session, and lends it to its job."""
    is_async, _, name = kind.partition(" ")
    child = app.tasks.get("child")

    def plain(*, ctx: Context) -> None:
        if before is not None:
            before(ctx)
        with lines.LENT[name](url) as line, ctx.transaction(line.conn) as tx:
            assert tx.connection is not None
            line.execute(f"INSERT INTO effect VALUES ({ctx.attempt})")
            child.using(conn=tx, id=CHILD).enqueue()
            if within is not None:
                within(ctx, line)
            tx.result = 42

    async def awaited(*, ctx: Context) -> None:
        if before is not None:
            await asyncio.to_thread(before, ctx)
        async with lines.ALENT[name](url) as line, ctx.transaction(line.conn) as tx:
            await line.execute(f"INSERT INTO effect VALUES ({ctx.attempt})")
            await child.using(conn=tx, id=CHILD).aenqueue()
            if within is not None:
                await within(ctx, line)
            tx.result = 42

    handler: Any = awaited if is_async == "async" else plain
    return app.task(name="parent", retry=Retry.fixed("10ms", attempts=3))(handler)


def kinds(plain: list[str], awaited: list[str]) -> list[str]:
    return [f"sync {name}" for name in plain] + [f"async {name}" for name in awaited]


@pytest.mark.parametrize("kind", kinds(list(lines.LENT), list(lines.ALENT)))
def test_writes_completion_and_children_commit_together(app: App, shared_url: str, kind: str) -> None:
    task = make(app, kind, shared_url)

    async def body(_: Any) -> None:
        assert await (await task.aenqueue()) == 42
        assert await app.jobs.get(CHILD) == "born"

    run(app, body)
    assert effects(shared_url) == [1]


@pytest.mark.parametrize("kind", kinds(SOME, ASOME))
def test_a_failure_inside_the_block_leaves_nothing(app: App, shared_url: str, kind: str) -> None:
    def fail(ctx: Context, _: Any) -> Any:
        raise ValueError("no")

    task = make(app, kind, shared_url, within=fail)

    async def body(_: Any) -> None:
        await until(await task.aenqueue(), JobState.DEAD)

    run(app, body)
    assert effects(shared_url) == []
    assert app.jobs.list(task="child") == []


@pytest.mark.parametrize("kind", kinds(SOME, ASOME))
def test_a_lost_claim_rolls_everything_back(app: App, shared_url: str, kind: str) -> None:
    calls: list[int] = []

    def lose(ctx: Context) -> None:
        calls.append(1)
        if len(calls) == 1:
            driver, record = app.ready(), app.jobs.get(ctx.job_id).record
            driver.run(driver.give_up(record.session or "", [record.token or ""]))

    task = make(app, kind, shared_url, before=lose)

    async def body(_: Any) -> None:
        await until(await task.aenqueue(), JobState.COMPLETED)

    run(app, body)
    assert len(calls) == 2
    assert effects(shared_url) == [1]  # the attempt was handed back, so the second is number 1 again


@pytest.mark.parametrize("kind", [*kinds(SOME, ASOME), "sync own", "async own"])
def test_a_commit_whose_answer_is_lost_is_settled(app: App, shared_url: str, kind: str) -> None:
    """F8: the transaction took effect, the connection is gone, and the job is completed, not failed."""
    parts = urlsplit(shared_url)
    with Proxy((parts.hostname or "", parts.port or 5432)) as proxy:
        url = proxy.url(shared_url)
        if kind.endswith("own"):
            app = App(url, **QUICK)
            task = own_task(app, is_async=kind.startswith("async"))
        else:
            task = make(app, kind, url)
        job = task.enqueue()
        cut = proxy.cut_after_request(r"insert into effect")

        async def body(_: Any) -> None:
            await until(job, JobState.COMPLETED)

        run(app, body)
        record = job.refresh().record
        app.close()
        assert cut.count == 1
    assert (record.attempt, record.history) == (1, ())
    assert effects(shared_url) == [1]


def own_task(app: App, *, is_async: bool) -> Any:
    def plain(*, ctx: Context) -> None:
        with ctx.transaction() as tx:
            tx.execute(f"INSERT INTO effect VALUES ({ctx.attempt})")

    async def awaited(*, ctx: Context) -> None:
        async with ctx.transaction() as tx:
            await tx.execute(f"INSERT INTO effect VALUES ({ctx.attempt})")

    handler: Any = awaited if is_async else plain
    return app.task(name="parent", retry=Retry.fixed("10ms", attempts=3))(handler)


@pytest.mark.parametrize("kind", kinds(SOME, ASOME))
def test_a_connection_that_dies_before_the_commit_leaves_nothing(
    app: App, shared_url: str, kind: str
) -> None:
    def kill() -> None:
        with psycopg.connect(shared_url, autocommit=True) as conn:
            conn.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE state = 'idle in transaction' AND pid <> pg_backend_pid()"
                " AND datname = current_database()"
            )

    def within(ctx: Context, _: Any) -> None:
        if ctx.attempt == 1:
            kill()

    async def awithin(ctx: Context, _: Any) -> None:
        if ctx.attempt == 1:
            await asyncio.to_thread(kill)

    task = make(app, kind, shared_url, within=awithin if kind.startswith("async") else within)

    async def body(_: Any) -> None:
        job = await until(await task.aenqueue(), JobState.COMPLETED)
        assert [entry.what for entry in job.record.history] == ["failed"]

    run(app, body)
    assert effects(shared_url) == [2]


def test_a_hook_that_fails_after_the_commit_does_not_undo_it(app: App, shared_url: str) -> None:
    engine = sqlalchemy.create_engine(lines.sqlalchemy_url(shared_url, "psycopg"), poolclass=NullPool)

    @app.task(name="parent")
    def parent(*, ctx: Context) -> None:
        with Session(engine) as session:

            @sqlalchemy.event.listens_for(session, "after_commit")
            def hook(_: Any) -> None:
                raise RuntimeError("a cache is down")

            with ctx.transaction(session) as tx:
                tx.execute(sqlalchemy.text("INSERT INTO effect VALUES (1)"))

    task: Any = parent

    async def body(_: Any) -> None:
        job = await until(await task.aenqueue(), JobState.COMPLETED)
        assert job.record.attempt == 1

    run(app, body)
    assert effects(shared_url) == [1]


def test_earlier_writes_of_the_transaction_commit_too(app: App, shared_url: str) -> None:
    @app.task(name="parent")
    def parent(*, ctx: Context) -> None:
        with lines.LENT["sqlalchemy session"](shared_url) as line:
            line.execute("INSERT INTO effect VALUES (1)")
            with ctx.transaction(line.conn) as tx:
                tx.execute(sqlalchemy.text("INSERT INTO effect VALUES (2)"))

    task: Any = parent

    async def body(_: Any) -> None:
        await (await task.aenqueue())

    run(app, body)
    assert effects(shared_url) == [1, 2]


# -- what is refused -----------------------------------------------------------------------------------


def refused(app: App, handler: Any, expected: str) -> None:
    task = app.task(name="parent", retry=Retry.never())(handler)

    async def body(_: Any) -> None:
        job = await until(await task.aenqueue(), JobState.DEAD)
        error = job.record.error
        assert error is not None
        assert error.type.endswith("ConfigError")
        assert expected in error.message

    run(app, body)


def test_a_savepoint_is_no_transaction_of_the_jobs(app: App, shared_url: str) -> None:
    def handler(*, ctx: Context) -> None:
        with (
            lines.LENT["sqlalchemy session"](shared_url) as line,
            line.conn.begin_nested(),
            ctx.transaction(line.conn),
        ):
            pass

    refused(app, handler, "must be the outermost transaction")


def test_a_session_bound_to_an_open_transaction_is_refused(app: App, shared_url: str) -> None:
    def handler(*, ctx: Context) -> None:
        with (
            lines.LENT["sqlalchemy connection"](shared_url) as line,
            line.conn.begin(),
            Session(line.conn) as session,
            ctx.transaction(session),
        ):
            pass

    refused(app, handler, "inside a transaction of the connection that it is bound to")


def test_djangos_atomic_is_refused(app: App, shared_url: str) -> None:
    def handler(*, ctx: Context) -> None:
        with lines.SYNC["django"](shared_url) as line, ctx.transaction(line.conn):
            pass

    refused(app, handler, "inside transaction.atomic()")


def test_an_open_asyncpg_transaction_is_refused(app: App, shared_url: str) -> None:
    async def handler(*, ctx: Context) -> None:
        async with lines.ASYNC["asyncpg"](shared_url) as line, ctx.transaction(line.conn):
            pass

    refused(app, handler, "inside conn.transaction()")


def test_an_open_psycopg_block_is_refused(app: App, shared_url: str) -> None:
    def handler(*, ctx: Context) -> None:
        with psycopg.connect(shared_url) as conn, conn.transaction(), ctx.transaction(conn):
            pass

    refused(app, handler, "inside conn.transaction()")


def test_autocommit_is_refused(app: App, shared_url: str) -> None:
    def handler(*, ctx: Context) -> None:
        engine = sqlalchemy.create_engine(
            lines.sqlalchemy_url(shared_url, "psycopg"), isolation_level="AUTOCOMMIT", poolclass=NullPool
        )
        with Session(engine) as session, ctx.transaction(session):
            pass

    refused(app, handler, "autocommit mode")


def test_an_async_session_needs_async_with(app: App, shared_url: str) -> None:
    async def handler(*, ctx: Context) -> None:
        async with lines.ALENT["sqlalchemy session"](shared_url) as line:
            with ctx.transaction(line.conn):
                pass

    refused(app, handler, "needs `await`")


def test_a_psycopg_connection_in_autocommit_gets_a_transaction(app: App, shared_url: str) -> None:
    @app.task(name="plain")
    def plain(*, ctx: Context) -> None:
        with psycopg.connect(shared_url, autocommit=True) as conn, ctx.transaction(conn) as tx:
            tx.execute("INSERT INTO effect VALUES (1)")
            assert effects(shared_url) == []

    @app.task(name="awaited")
    async def awaited(*, ctx: Context) -> None:
        conn = await psycopg.AsyncConnection.connect(shared_url, autocommit=True)
        async with conn, ctx.transaction(conn) as tx:
            await tx.execute("INSERT INTO effect VALUES (2)")

    tasks: list[Any] = [plain, awaited]

    async def body(_: Any) -> None:
        for task in tasks:
            await (await task.aenqueue())

    run(app, body)
    assert effects(shared_url) == [1, 2]


# -- elsewhere -----------------------------------------------------------------------------------------


def test_an_isolated_job_has_its_session_too(
    app: App, shared_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WINCH_URL", shared_url)
    from tests.engine import session_app

    task: Any = session_app.insert

    async def body(_: Any) -> None:
        job = await task.aenqueue(7)
        assert await job != os.getpid()
        assert job.record.attempt == 1

    run(session_app.app, body)
    assert effects(shared_url) == [7]


@pytest.mark.parametrize(
    "library, is_async",
    [("sqlalchemy", False), ("sqlalchemy", True), ("django", False)],  # Django refuses to block a loop
)
def test_a_session_on_the_sqlite_file(
    sqlite_path: Path, monkeypatch: pytest.MonkeyPatch, library: str, *, is_async: bool
) -> None:
    """As on a SQLite without the WAL-reset bug, where every connection is as good as Winch's."""
    monkeypatch.setattr(sqlite_driver, "has_wal_reset_bug", lambda _: False)
    app = App(f"sqlite:///{sqlite_path}", **QUICK)
    app.ready()
    with app.transaction() as conn:
        conn.execute("CREATE TABLE effect (n INTEGER)")

    def opened() -> Any:
        return (lines.sqlite_session if library == "sqlalchemy" else lines.django_sqlite)(sqlite_path)

    def write(tx: Any, ctx: Context) -> None:
        text = f"INSERT INTO effect VALUES ({ctx.attempt})"
        tx.execute(sqlalchemy.text(text) if library == "sqlalchemy" else text)
        if ctx.attempt == 1:
            raise ValueError("not yet")

    def plain(*, ctx: Context) -> None:
        with opened() as session, ctx.transaction(session) as tx:
            write(tx, ctx)

    async def awaited(*, ctx: Context) -> None:
        with opened() as session:
            async with ctx.transaction(session) as tx:
                write(tx, ctx)

    handler: Any = awaited if is_async else plain
    task: Any = app.task(name="parent", retry=Retry.fixed("10ms", attempts=2))(handler)

    async def body(_: Any) -> None:
        await until(await task.aenqueue(), JobState.COMPLETED)

    run(app, body)
    with app.transaction() as conn:
        assert conn.execute("SELECT n FROM effect").fetchall() == [(2,)]
    app.close()


def test_an_affected_sqlite_refuses_sessions(sqlite_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_driver, "has_wal_reset_bug", lambda _: True)
    app = App(f"sqlite:///{sqlite_path}", **QUICK)

    def handler(*, ctx: Context) -> None:
        with lines.sqlite_session(sqlite_path) as session, ctx.transaction(session):
            pass

    refused(app, handler, "ctx.transaction() in a handler")
    app.close()
