"""Each part of a system under its own role: it can do its work, and nothing else."""

from __future__ import annotations

import asyncio
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg import sql

from tests.servers import Databases
from tests.storage.postgres_kit import new_job, new_session, new_token
from winch import App, StorageError
from winch.drivers.postgres.connections.libpq import Lone
from winch.drivers.postgres.schema import ROLES
from winch.storage.params import ClaimParams

pytestmark = pytest.mark.servers

SHOP = """
from winch import App
app = App()

@app.task(name="add")
def add(a: int, b: int) -> int:
    return a + b
"""


class Roles:
    """A database whose schema was made by the roles' own statements, and an account for each role."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.schema = f"s{secrets.token_hex(4)}"
        self._password = secrets.token_hex(8)
        admin = App(url, schema=self.schema)
        script = admin.driver.roles_sql()  # type: ignore[attr-defined]  # PostgreSQL's own
        admin.close()
        with psycopg.connect(url, autocommit=True) as conn:
            conn.execute(script)
            for role in ROLES:
                conn.execute(
                    sql.SQL("CREATE ROLE {} LOGIN PASSWORD {} IN ROLE {}").format(
                        sql.Identifier(f"{self.schema}_my_{role}"),
                        sql.Literal(self._password),
                        sql.Identifier(f"{self.schema}_{role}"),
                    )
                )

    def url_of(self, role: str) -> str:
        parts = urlsplit(self.url)
        host = parts.netloc.rpartition("@")[2]
        query = f"{parts.query}&" if parts.query else ""
        login = f"{self.schema}_my_{role}:{self._password}"
        return f"{parts.scheme}://{login}@{host}{parts.path}?{query}schema={self.schema}"

    def app(self, role: str) -> App:
        app = App(self.url_of(role), poll="100ms", sweep="200ms")

        @app.task(name="add")
        def add(a: int, b: int) -> int:
            return a + b

        return app

    def drop(self) -> None:
        with psycopg.connect(self.url, autocommit=True) as conn:
            for role in ROLES:
                for name in (f"{self.schema}_my_{role}", f"{self.schema}_{role}"):
                    conn.execute(sql.SQL("DROP OWNED BY {} CASCADE").format(sql.Identifier(name)))
            for role in ROLES:
                for name in (f"{self.schema}_my_{role}", f"{self.schema}_{role}"):
                    conn.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))


@pytest.fixture(scope="module")
def roles(postgres_server: Databases) -> Iterator[Roles]:
    made = Roles(postgres_server.new_database())
    yield made
    made.drop()


def test_the_statements_can_be_run_again(roles: Roles) -> None:
    admin = App(roles.url, schema=roles.schema)
    script = admin.driver.roles_sql()  # type: ignore[attr-defined]  # PostgreSQL's own
    admin.close()
    assert "CREATE TABLE" not in script
    with psycopg.connect(roles.url, autocommit=True) as conn:
        conn.execute(script)
        conn.execute(script)


def test_only_the_migrator_may_change_the_schema(roles: Roles) -> None:
    migrator = App(roles.url_of("migrator"))
    assert migrator.migrate() == []
    migrator.close()
    for role in ("producer", "worker", "reader"):
        with psycopg.connect(roles.url_of(role).partition("?")[0], autocommit=True) as conn:
            for statement in (
                f"CREATE TABLE {roles.schema}.mine ()",
                f"ALTER TABLE {roles.schema}.job ADD COLUMN mine text",
                f"DROP TABLE {roles.schema}.job",
                f"TRUNCATE {roles.schema}.job",
                f"CREATE INDEX ON {roles.schema}.job (task)",
                f"DELETE FROM {roles.schema}.winch_migration",
            ):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    conn.execute(statement.encode())


def test_a_producer_stores_jobs_and_sees_nothing_of_them(roles: Roles) -> None:
    app = roles.app("producer")
    add = app.tasks.get("add")
    given = app.client.draw_id()
    add.enqueue(1, b=2)
    assert add.using(id=given).enqueue(1, b=2).is_new
    assert not add.using(id=given).enqueue(1, b=2).is_new
    add.using(delay="1h").enqueue(1, b=2)
    app.enqueue_many([add.bind(n, b=1) for n in range(3)])
    driver = app.driver
    # A repeat, as after a lost answer.
    from winch.storage.params import NewJob

    again = NewJob(id=app.client.draw_id(), task="add", args='{"a":1,"b":1}')
    assert driver.run(driver.enqueue([again], is_repeat=True))[0].is_new
    assert not driver.run(driver.enqueue([again], is_repeat=True))[0].is_new
    for act in (
        lambda: app.jobs.get(given),
        app.jobs.list,
        lambda: app.jobs.cancel(given),
        lambda: app.jobs.delete(given),
        lambda: driver.run(
            driver.claim(
                ClaimParams(session=given, token=app.client.draw_id(), queues=("default",), limit=1)
            )
        ),
        lambda: driver.run(driver.prune(limit=10)),
    ):
        with pytest.raises(StorageError, match="missing: GRANT"):
            act()
    with psycopg.connect(roles.url_of("producer").partition("?")[0]) as conn:
        add.using(conn=conn).enqueue(5, b=5)
        conn.commit()
        for column in ("args", "headers", "history"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                conn.execute(f"SELECT {column} FROM {roles.schema}.job".encode())
            conn.rollback()
    app.close()


def test_a_worker_runs_jobs_under_its_role(roles: Roles, tmp_path: Path) -> None:
    """A real `winch worker` with its supervisor, and everything an operator may do."""
    producer, worker = roles.app("producer"), roles.app("worker")
    job = producer.tasks.get("add").enqueue(20, b=3)
    (tmp_path / "shop.py").write_text(SHOP)
    done = subprocess.run(
        [sys.executable, "-m", "winch", "worker", "-A", "shop:app", "--burst"],
        cwd=tmp_path,
        env={**os.environ, "WINCH_URL": roles.url_of("worker")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "permission denied" not in done.stderr
    found = worker.jobs.get(job.id)
    assert found.result("1s") == 23
    later = worker.tasks.get("add").using(delay="1h").enqueue(1, b=1)
    assert later.cancel().state == "cancelled"
    assert later.retry().state == "ready"
    worker.queues.pause("default", reason="x")
    worker.queues.resume("default")
    later.delete()
    driver = worker.driver
    driver.run(driver.prune(limit=10))
    asyncio.run(_embedded(worker))
    for app in (producer, worker):
        app.close()


def test_a_worker_with_the_grants_of_an_earlier_release_works(
    roles: Roles, caplog: pytest.LogCaptureFixture
) -> None:
    """The worker cannot leave offers, so it claims its jobs, and logs that once."""
    worker = f"{roles.schema}_worker"
    with psycopg.connect(roles.url, autocommit=True) as conn:
        conn.execute(f"REVOKE ALL ON {roles.schema}.offer FROM {worker}".encode())
        try:
            asyncio.run(_idle_and_embedded(roles.app("worker")))
        finally:
            conn.execute(f"GRANT ALL ON {roles.schema}.offer TO {worker}".encode())
    lines = [record.getMessage() for record in caplog.records if "handed over" in record.getMessage()]
    assert len(lines) == 1, lines
    assert f'missing: GRANT SELECT, INSERT, UPDATE, DELETE ON "{roles.schema}".offer' in lines[0]


async def _idle_and_embedded(app: App) -> None:
    async with asyncio.timeout(30), app.worker():
        for _ in range(2):
            await asyncio.sleep(0.3)
            job = await app.tasks.get("add").aenqueue(1, b=1)
            assert await job == 2
    await app.aclose()
    app.close()


async def _embedded(app: App) -> None:
    async with asyncio.timeout(30), app.worker():
        job = await app.tasks.get("add").aenqueue(1, b=1)
        assert await job == 2
    await app.aclose()


def test_a_reader_looks_and_changes_nothing(roles: Roles, tmp_path: Path) -> None:
    producer = roles.app("producer")
    job = producer.tasks.get("add").using(delay="1h").enqueue(4, b=7)
    producer.close()

    def winch(*args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "winch", *args],
            cwd=tmp_path,
            env={**os.environ, "WINCH_URL": roles.url_of("reader")},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    for args in (
        ["jobs", "list"],
        ["jobs", "show", job.id],
        ["why", job.id],
        ["stats"],
        ["queues", "list"],
        ["dead", "list"],
        ["migrate", "--check"],
    ):
        done = winch(*args)
        assert done.returncode == 0, (args, done.stderr)
    for args in (["workers", "list"], ["doctor"]):  # no worker is live, and this server skips fsync
        done = winch(*args)
        assert "permission denied" not in done.stdout + done.stderr, args
    for args in (
        ["jobs", "cancel", job.id],
        ["jobs", "retry", job.id],
        ["jobs", "delete", job.id, "--yes"],
        ["queues", "pause", "default"],
    ):
        done = winch(*args)
        assert done.returncode == 3, (args, done.stdout, done.stderr)
        assert f'missing: GRANT SELECT, INSERT, UPDATE, DELETE ON "{roles.schema}".' in done.stderr
        assert f"TO {roles.schema}_my_reader" in done.stderr
    reader = roles.app("reader")
    with pytest.raises(StorageError, match="missing: GRANT"):
        reader.tasks.get("add").enqueue(1, b=1)
    assert reader.jobs.get(job.id).state == "scheduled"
    reader.close()


def test_a_producer_hands_a_job_over_and_never_sees_the_token(roles: Roles) -> None:
    """With the token of a claim it could end that claim in the worker's place."""
    table, token, session = sql.Identifier(roles.schema, "offer"), new_token(), new_session()
    worker, producer = roles.app("worker"), roles.app("producer")
    worker.driver.run(worker.driver.start_session(session))
    with psycopg.connect(roles.url, autocommit=True) as admin:
        admin.execute(
            sql.SQL("INSERT INTO {} VALUES (%s, %s, 'offered', NULL, 'winch_test', 'infinity')").format(
                table
            ),
            [token, session.id],
        )
        admin.execute(
            sql.SQL("INSERT INTO {} (name, waiting_until) VALUES ('offered', 'infinity')").format(
                sql.Identifier(roles.schema, "queue")
            )
        )
        job = new_job(queue="offered")
        verb = producer.driver.enqueue([job])
        assert isinstance(verb.lone, Lone)
        with psycopg.connect(roles.url_of("producer").partition("?")[0]) as conn:
            answer = conn.execute(verb.lone.statement.sql.text, verb.lone.statement.values)
            [[moment]] = answer.fetchall()
            assert type(moment) is datetime, "it answers with the time and nothing else"
        found = admin.execute(
            sql.SQL("SELECT state, token::text, session::text FROM {} WHERE id = %s").format(
                sql.Identifier(roles.schema, "job")
            ),
            [job.id],
        ).fetchone()
    assert found == ("running", token, session.id)
    with psycopg.connect(roles.url_of("producer").partition("?")[0], autocommit=True) as conn:
        for statement in (
            f"SELECT token FROM {roles.schema}.job",
            f"SELECT token FROM {roles.schema}.offer",
            f"DELETE FROM {roles.schema}.offer",
            f"INSERT INTO {roles.schema}.job DEFAULT VALUES RETURNING token",
            f"SELECT {roles.schema}.hand_over()",
        ):
            with pytest.raises(psycopg.Error) as refused:
                conn.execute(statement)
            assert refused.value.sqlstate in ("42501", "0A000")
    worker.close()
    producer.close()
