"""Sessions that enqueue: the job commits with the row, and an enqueue without a session is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from winch import App, ConfigError, StorageError, Task
from winch.integrations.sqlalchemy import (
    JobSession,
    RequireSession,
    SessionJobs,
    begin,
    without_session,
)
from winch.integrations.sqlalchemy_async import AsyncJobSession


class Base(DeclarativeBase):
    pass


class Parcel(Base):
    __tablename__ = "parcel"
    id: Mapped[int] = mapped_column(primary_key=True)


def made(url: str) -> tuple[App, Task[[int], int]]:
    app = App(url)
    app.migrate()

    @app.task(name="ship", queue="mail")
    def ship(parcel: int) -> int:
        return parcel

    return app, ship


@pytest.fixture
def lite(tmp_path: Path) -> Iterator[tuple[App, Task[[int], int]]]:
    app, ship = made(f"sqlite:///{tmp_path / 'one.db'}")
    with begin(app) as session:
        Base.metadata.create_all(session.connection())
    yield app, ship
    app.close()


def parcels(app: App) -> list[int]:
    with begin(app) as session:
        return sorted(row.id for row in session.query(Parcel))


# -- one SQLite file -----------------------------------------------------------------------------------


def test_rows_and_jobs_of_one_file_commit_together(lite: tuple[App, Task[[int], int]]) -> None:
    app, ship = lite
    with begin(app) as session:
        session.add(Parcel(id=1))
        job = session.jobs.enqueue(ship, 1)
        many = session.jobs.enqueue_many([ship.bind(2), ship.bind(3)])
        late = session.jobs.enqueue_using(ship.using(delay="1h"), 4)
        plain = ship.using(conn=session).enqueue(5)
    assert parcels(app) == [1]
    assert [one.refresh().state for one in (job, *many, plain)] == ["ready"] * 4
    assert late.refresh().state == "scheduled"


def test_an_error_leaves_neither_a_row_nor_a_job(lite: tuple[App, Task[[int], int]]) -> None:
    app, ship = lite
    with pytest.raises(KeyError), begin(app) as session:  # noqa: PT012
        session.add(Parcel(id=1))
        session.jobs.enqueue(ship, 1)
        raise KeyError
    assert parcels(app) == []
    assert app.jobs.list() == []


def test_a_savepoint_takes_its_jobs_back(lite: tuple[App, Task[[int], int]]) -> None:
    app, ship = lite
    with begin(app) as session:
        session.add(Parcel(id=1))
        session.jobs.enqueue(ship, 1)
        with pytest.raises(IntegrityError), session.begin_nested():  # noqa: PT012
            session.jobs.enqueue(ship, 2)
            session.execute(text("INSERT INTO parcel VALUES (1)"))
        with session.begin_nested():
            session.jobs.enqueue(ship, 3)
    assert parcels(app) == [1]
    assert sorted(job.record.args for job in app.jobs.list()) == ['{"parcel":1}', '{"parcel":3}']


def test_a_block_that_is_ended_inside_stores_nothing(lite: tuple[App, Task[[int], int]]) -> None:
    app, ship = lite
    with pytest.raises(StorageError, match="rolled back inside"), begin(app) as session:  # noqa: PT012
        session.add(Parcel(id=1))
        session.jobs.enqueue(ship, 1)
        session.rollback()
    with pytest.raises(ConfigError, match="of the block"), begin(app) as session:  # noqa: PT012
        session.add(Parcel(id=2))
        session.commit()
    with pytest.raises(StorageError, match="rolled back inside"), begin(app) as session:  # noqa: PT012
        session.jobs.enqueue(ship, 3)
        session.execute(text("INSERT INTO parcel VALUES (3)"))
        session.add(Parcel(id=3))
        with pytest.raises(IntegrityError):
            session.flush()  # and the application goes on as if nothing had happened
    assert (parcels(app), app.jobs.list()) == ([], [])


def test_begin_is_for_sqlite() -> None:
    with pytest.raises(ConfigError, match="JobSession"), begin(App("postgresql://localhost/none")):
        pass


# -- PostgreSQL ----------------------------------------------------------------------------------------


@pytest.mark.servers
def test_a_session_of_postgres_commits_its_jobs_or_none(postgres_url: str) -> None:
    app, ship = made(postgres_url)
    engine = create_engine(postgres_url.replace("postgresql://", "postgresql+psycopg://"))
    Base.metadata.create_all(engine)
    open_session = sessionmaker(engine, class_=JobSession)
    with open_session() as session, session.begin():
        session.add(Parcel(id=1))
        job = session.jobs.enqueue(ship, 1)
    assert job.refresh().state == "ready"
    with pytest.raises(IntegrityError), open_session() as session, session.begin():  # noqa: PT012
        session.jobs.enqueue_many([ship.bind(2), ship.bind(3)])
        session.add(Parcel(id=1))
    with Session(engine) as own:
        SessionJobs(own).enqueue_using(ship.using(priority=5), 4)
        own.commit()
        SessionJobs(own).enqueue(ship, 5)
    assert sorted(job.record.args for job in app.jobs.list()) == ['{"parcel":1}', '{"parcel":4}']
    engine.dispose()
    app.close()


@pytest.mark.servers
@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
def test_an_async_session_does_the_same(driver: str, postgres_url: str) -> None:
    app, ship = made(postgres_url)
    app.use(RequireSession())

    async def order() -> None:
        engine = create_async_engine(postgres_url.replace("postgresql://", f"postgresql+{driver}://"))
        async with engine.begin() as conn:
            await conn.run_sync(Base.metadata.create_all)
        open_session = async_sessionmaker(engine, class_=AsyncJobSession)
        async with open_session() as session, session.begin():
            session.add(Parcel(id=1))
            await session.jobs.aenqueue(ship, 1)
            await session.jobs.aenqueue_many([ship.bind(2)])
            await session.jobs.aenqueue_using(ship.using(tags=["x"]), 3)
        with pytest.raises(IntegrityError):  # noqa: PT012
            async with open_session() as session, session.begin():
                await session.jobs.aenqueue(ship, 4)
                session.add(Parcel(id=1))
        with pytest.raises(ConfigError, match="outside a session"):
            await ship.aenqueue(5)
        await engine.dispose()
        await app.aclose()

    asyncio.run(order())
    assert sorted(job.record.args for job in app.jobs.list()) == [f'{{"parcel":{n}}}' for n in (1, 2, 3)]
    app.close()


# -- what cannot be forgotten --------------------------------------------------------------------------


def test_an_enqueue_without_a_session_is_refused_but_for_handlers(
    lite: tuple[App, Task[[int], int]],
) -> None:
    app, ship = lite
    app.use(RequireSession())

    @app.task(name="parent")
    def parent() -> None:
        ship.enqueue(1)

    @app.task(name="aparent")
    async def aparent() -> None:
        await ship.aenqueue(2)

    for refused in (lambda: ship.enqueue(1), lambda: app.enqueue_many([ship.bind(1)])):
        with pytest.raises(ConfigError, match=r"session\.jobs\.enqueue"):
            refused()
    with begin(app) as session, pytest.raises(ConfigError, match="outside a session"):
        ship.using(delay="1s").enqueue(1)
    with begin(app) as session:
        session.jobs.enqueue(parent)
        session.jobs.enqueue(aparent)
    with without_session():
        ship.enqueue(3)
    app.run_worker(queues=["default", "mail"], burst=True)
    assert sorted(job.result() for job in app.jobs.list(task="ship")) == [1, 2, 3]
