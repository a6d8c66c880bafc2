"""`conn=`: a job enqueued on the application's own connection exists if its transaction commits."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy
from sqlalchemy.orm import Session

from tests.engine import lines
from tests.engine.test_worker import QUICK
from tests.servers import Databases, emptied
from winch import App, ConfigError, JobState, StorageError
from winch.drivers.sqlite import driver as sqlite_driver

GIVEN = "0192c8f0-0000-7000-8000-000000000001"


@pytest.fixture(scope="module")
def shared_url(postgres_server: Databases) -> Iterator[str]:
    """A database with a schema, made once: each test finds its tables empty."""
    url = postgres_server.new_store()
    with psycopg.connect(url) as conn:
        conn.execute("CREATE TABLE effect (n integer)")
    yield url
    postgres_server.drop_database(url)


@pytest.fixture
def app(shared_url: str) -> Iterator[App]:
    app = App(emptied(shared_url), **QUICK)

    @app.task(name="add")
    def add(a: int, b: int) -> int:
        return a + b

    yield app
    app.close()


def count(url: str) -> tuple[int, int]:
    """How many effects and how many jobs others can see."""
    with psycopg.connect(url) as conn:
        found = conn.execute(
            "SELECT (SELECT count(*) FROM effect), (SELECT count(*) FROM winch.job)"
        ).fetchone()
        assert found is not None
        return found[0], found[1]


@pytest.mark.parametrize("kind", list(lines.SYNC))
@pytest.mark.parametrize("is_first", [True, False], ids=["enqueue first", "write first"])
def test_commit_makes_the_job(app: App, shared_url: str, kind: str, *, is_first: bool) -> None:
    add = app.tasks.get("add")
    with lines.SYNC[kind](shared_url) as line:
        if is_first:
            add.using(conn=line.conn).enqueue(1, b=2)
        line.execute("INSERT INTO effect VALUES (1)")
        if not is_first:
            add.using(conn=line.conn).enqueue(1, b=2)
        add.using(conn=line.conn, id=GIVEN).enqueue(3, b=4)
        assert not add.using(conn=line.conn, id=GIVEN).enqueue(3, b=4).is_new
        assert count(shared_url) == (0, 0)
        line.commit()
        assert count(shared_url) == (1, 2)
    app.run_worker(burst=True)
    assert app.jobs.get(GIVEN).result() == 7
    assert [job.state for job in app.jobs.list()] == [JobState.COMPLETED] * 2


@pytest.mark.parametrize("kind", list(lines.SYNC))
def test_rollback_leaves_no_job(app: App, shared_url: str, kind: str) -> None:
    add = app.tasks.get("add")
    with lines.SYNC[kind](shared_url) as line:
        add.using(conn=line.conn).enqueue(1, b=2)
        add.using(conn=line.conn, id=GIVEN).enqueue(1, b=2)
        line.execute("INSERT INTO effect VALUES (1)")
        line.rollback()
    assert count(shared_url) == (0, 0)
    assert add.using(id=GIVEN).enqueue(1, b=2).is_new


@pytest.mark.parametrize("kind", [kind for kind in lines.SYNC if kind != "django"])
def test_leaving_without_commit_leaves_no_job(app: App, shared_url: str, kind: str) -> None:
    with lines.SYNC[kind](shared_url) as line:
        app.tasks.get("add").using(conn=line.conn).enqueue(1, b=2)
        line.conn.close()
    assert count(shared_url) == (0, 0)


@pytest.mark.parametrize("kind", list(lines.ASYNC))
@pytest.mark.parametrize("is_first", [True, False], ids=["enqueue first", "write first"])
def test_commit_makes_the_job_async(app: App, shared_url: str, kind: str, *, is_first: bool) -> None:
    add = app.tasks.get("add")

    async def main() -> None:
        async with lines.ASYNC[kind](shared_url) as line:
            if is_first:
                await add.using(conn=line.conn).aenqueue(1, b=2)
            await line.execute("INSERT INTO effect VALUES (1)")
            if not is_first:
                await add.using(conn=line.conn).aenqueue(1, b=2)
            await add.using(conn=line.conn, id=GIVEN).aenqueue(3, b=4)
            assert not (await add.using(conn=line.conn, id=GIVEN).aenqueue(3, b=4)).is_new
            await app.aenqueue_many([add.bind(n, b=0) for n in range(5)], conn=line.conn)
            assert count(shared_url) == (0, 0)
            await line.commit()
            assert count(shared_url) == (1, 7)

    asyncio.run(main())
    app.run_worker(burst=True)
    assert app.jobs.get(GIVEN).result() == 7


@pytest.mark.parametrize("kind", list(lines.ASYNC))
def test_rollback_leaves_no_job_async(app: App, shared_url: str, kind: str) -> None:
    add = app.tasks.get("add")

    async def main() -> None:
        async with lines.ASYNC[kind](shared_url) as line:
            await add.using(conn=line.conn).aenqueue(1, b=2)
            await add.using(conn=line.conn, id=GIVEN).aenqueue(1, b=2)
            await line.execute("INSERT INTO effect VALUES (1)")
            await line.rollback()

    asyncio.run(main())
    assert count(shared_url) == (0, 0)
    assert add.using(id=GIVEN).enqueue(1, b=2).is_new


def test_a_delay_and_full_events_travel_through_asyncpg(postgres_url: str) -> None:
    """Times, lists and JSON are the parameters that asyncpg is particular about."""
    full = App(postgres_url, events="full", **QUICK)
    full.migrate()
    add = full.task(name="add")(lambda a: a)

    async def main() -> None:
        conn = await asyncpg.connect(postgres_url)
        for name in ("json", "jsonb"):  # what many applications do with their connections
            await conn.set_type_codec(
                name, encoder=lambda _: "null", decoder=lambda _: 0, schema="pg_catalog"
            )
        await conn.set_type_codec(
            "uuid", encoder=lambda _: "nothing", decoder=lambda _: 0, schema="pg_catalog", format="text"
        )
        async with conn.transaction():
            job = await add.using(conn=conn, delay="1h", tags=["x", "y"], id=GIVEN).aenqueue(a="ä%s$1")
        await conn.close()
        record = (await job.arefresh()).record
        assert (record.state, record.tags) == (JobState.SCHEDULED, ("x", "y"))
        await full.aclose()

    asyncio.run(main())
    full.close()


def test_without_a_transaction_an_enqueue_is_one_of_its_own(app: App, shared_url: str) -> None:
    add = app.tasks.get("add")
    with psycopg.connect(shared_url, autocommit=True) as conn:
        add.using(conn=conn, id=GIVEN).enqueue(1, b=2)
        assert count(shared_url) == (0, 1)
    with lines.django_postgres(shared_url) as connection:
        add.using(conn=connection).enqueue(1, b=2)
        assert count(shared_url) == (0, 2)
    engine = sqlalchemy.create_engine(
        lines.sqlalchemy_url(shared_url, "psycopg2"), isolation_level="AUTOCOMMIT"
    )
    with engine.connect() as connected:
        add.using(conn=connected).enqueue(1, b=2)
        assert count(shared_url) == (0, 3)
    engine.dispose()

    async def main() -> None:
        conn = await asyncpg.connect(shared_url)
        await add.using(conn=conn).aenqueue(1, b=2)
        assert count(shared_url) == (0, 4)
        await conn.close()

    asyncio.run(main())


def test_a_savepoint_takes_its_jobs_along(app: App, shared_url: str) -> None:
    add = app.tasks.get("add")
    engine = sqlalchemy.create_engine(lines.sqlalchemy_url(shared_url, "psycopg"))
    with Session(engine) as session:
        add.using(conn=session).enqueue(1, b=2)
        nested = session.begin_nested()
        add.using(conn=session).enqueue(3, b=4)
        nested.rollback()
        session.commit()
    engine.dispose()
    assert count(shared_url) == (0, 1)


def test_an_error_of_the_store_is_winchs_own_and_the_session_goes_on(postgres_url: str) -> None:
    app = App(postgres_url, schema="elsewhere", **QUICK)
    app._is_checked = True  # as if the schema had been dropped since
    task = app.task(name="add")(lambda: None)
    for opened in lines.SYNC.values():
        with opened(postgres_url) as line:
            with pytest.raises(StorageError, match="winch migrate"):
                task.using(conn=line.conn).enqueue()
            line.rollback()
            line.execute("SELECT 1")

    async def main() -> None:
        for opened in lines.ASYNC.values():
            async with opened(postgres_url) as line:
                with pytest.raises(StorageError, match="winch migrate"):
                    await task.using(conn=line.conn).aenqueue()
                await line.rollback()
                await line.execute("SELECT 1")

    asyncio.run(main())
    app.close()


# -- what is refused -----------------------------------------------------------------------------------


def test_an_invalid_connection_is_refused_with_the_valid_kinds(app: App, shared_url: str) -> None:
    add = app.tasks.get("add")
    engine = sqlalchemy.create_engine(lines.sqlalchemy_url(shared_url, "psycopg"))
    for wrong in ("text", object(), engine):
        with pytest.raises(ConfigError, match=r"SQLAlchemy's Session.*django\.db\.connection; got "):
            add.using(conn=wrong).enqueue(1, b=2)
    with (
        sqlalchemy.create_engine("sqlite://").connect() as other,
        pytest.raises(ConfigError, match=r"over sqlite3\.Connection, which cannot carry"),
    ):
        add.using(conn=other).enqueue(1, b=2)


@pytest.mark.parametrize("kind", list(lines.ASYNC))
def test_an_async_connection_needs_await(app: App, shared_url: str, kind: str) -> None:
    async def main() -> None:
        async with lines.ASYNC[kind](shared_url) as line:
            with pytest.raises(ConfigError, match="use aenqueue"):
                app.tasks.get("add").using(conn=line.conn).enqueue(1, b=2)

    asyncio.run(main())


def test_a_session_inside_run_sync_raises_an_error_with_the_remedy(app: App, shared_url: str) -> None:
    add = app.tasks.get("add")

    async def main() -> None:
        async with lines.ASYNC["sqlalchemy session on asyncpg"](shared_url) as line:
            with pytest.raises(ConfigError, match="hand over the AsyncSession"):
                await line.conn.run_sync(lambda session: add.using(conn=session).enqueue(1, b=2))

    asyncio.run(main())


def test_no_library_is_imported_for_its_own_sake(app: App, shared_url: str) -> None:
    code = (
        "import sys, psycopg, winch\n"
        f"app = winch.App({shared_url!r})\n"
        "add = app.task(name='add')(lambda: None)\n"
        f"with psycopg.connect({shared_url!r}) as conn: add.using(conn=conn).enqueue()\n"
        "print([m for m in ('sqlalchemy', 'django', 'asyncpg', 'psycopg2') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# -- SQLite --------------------------------------------------------------------------------------------


@pytest.fixture
def file_app(sqlite_path: Path, request: pytest.FixtureRequest) -> Iterator[App]:
    app = App(f"sqlite:///{sqlite_path}", **QUICK)
    app.task(name="add")(lambda a: a)
    app.ready()
    with app.transaction() as conn:
        conn.execute("CREATE TABLE effect (n INTEGER)")
    yield app
    app.close()


@pytest.fixture
def mended(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a SQLite without the WAL-reset bug, where every connection is as good as Winch's."""
    monkeypatch.setattr(sqlite_driver, "has_wal_reset_bug", lambda _: False)


@pytest.mark.parametrize("is_kept", [True, False], ids=["commit", "rollback"])
def test_a_sqlalchemy_session_on_the_file(
    mended: None, file_app: App, sqlite_path: Path, *, is_kept: bool
) -> None:
    with lines.sqlite_session(sqlite_path) as session:
        file_app.tasks.get("add").using(conn=session).enqueue(1)
        session.execute(sqlalchemy.text("INSERT INTO effect VALUES (1)"))
        assert file_app.jobs.list() == []
        if is_kept:
            session.commit()
        else:
            session.rollback()
    assert len(file_app.jobs.list()) == int(is_kept)


@pytest.mark.parametrize("is_kept", [True, False], ids=["commit", "rollback"])
def test_djangos_connection_on_the_file(
    mended: None, file_app: App, sqlite_path: Path, *, is_kept: bool
) -> None:
    from django.db import transaction

    with lines.django_sqlite(sqlite_path) as connection, transaction.atomic():
        connection.cursor().execute("INSERT INTO effect VALUES (1)")
        file_app.tasks.get("add").using(conn=connection).enqueue(1)
        assert file_app.jobs.list() == []
        transaction.set_rollback(not is_kept)
    assert len(file_app.jobs.list()) == int(is_kept)


def test_an_affected_sqlite_takes_only_winchs_connections(
    file_app: App, sqlite_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_app.driver, "_has_bug", True)
    add: Any = file_app.tasks.get("add")
    with (
        lines.sqlite_session(sqlite_path) as session,
        pytest.raises(ConfigError, match=r"app\.transaction\(\) gives"),
    ):
        add.using(conn=session).enqueue(1)
    with file_app.transaction() as conn:
        conn.execute("INSERT INTO effect VALUES (1)")
        add.using(conn=conn).enqueue(1)
    assert len(file_app.jobs.list()) == 1


def test_another_file_or_library_is_refused(mended: None, file_app: App, tmp_path: Path) -> None:
    add: Any = file_app.tasks.get("add")
    with (
        lines.sqlite_session(tmp_path / "other.db") as session,
        pytest.raises(ConfigError, match="but the jobs are in"),
    ):
        add.using(conn=session).enqueue(1)
    with pytest.raises(
        ConfigError, match=r"app\.transaction\(\) gives for sqlite.*got builtins\.object"
    ):
        add.using(conn=object()).enqueue(1)
