"""Through PgBouncer in transaction mode with two server connections: nothing needs a session.

Needs the pgbouncer program, a system package: `make test-all` installs it where it may. Without it these
tests fail.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.servers import PgBouncer, PostgresServer
from winch import App, Context
from winch.testing.conformance import Case, PostgresTarget, all_cases, run

pytestmark = [pytest.mark.servers, pytest.mark.slow]

JOBS = 500
COUNTER = """
import os
from winch import App
app = App(poll="200ms")

@app.task(name="count")
def count(n: int) -> int:
    with open(f"{os.getpid()}.ran", "a") as file:
        file.write(f"{n}\\n")
    return n
"""


@pytest.fixture(scope="module")
def bouncer() -> Iterator[tuple[PostgresServer, PgBouncer]]:
    with PostgresServer(fsync=False) as server, PgBouncer(server) as pooler:
        yield server, pooler


@pytest.fixture
def urls(
    bouncer: tuple[PostgresServer, PgBouncer],
) -> Iterator[tuple[str, str]]:
    """(direct, through the pooler) to an empty database."""
    server, pooler = bouncer
    direct = server.new_database()
    yield direct, pooler.url_of(direct)
    assert_nothing_is_left(pooler.url_of(direct))
    server.drop_database(direct)


def assert_nothing_is_left(pooled: str) -> None:
    """No client may find what another has left on the connection they share."""
    for _ in range(4):
        with psycopg.connect(pooled, prepare_threshold=None) as conn:
            [left] = conn.execute(
                """
                SELECT
                    (SELECT count(*) FROM pg_prepared_statements)
                    + (SELECT count(*) FROM pg_listening_channels())
                    + (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory')
                    + (SELECT count(*) FROM pg_settings WHERE name = 'lock_timeout' AND setting <> '0')
                """
            ).fetchone() or [None]
            assert left == 0


@pytest.mark.parametrize("listen", ["direct", "off"])
def test_the_whole_suite_passes(
    urls: tuple[str, str], listen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    direct, pooled = urls
    if listen == "direct":
        monkeypatch.setenv("WINCH_LISTEN_URL", direct)
    else:
        monkeypatch.delenv("WINCH_LISTEN_URL", raising=False)
    cases = [case for case in all_cases() if listen == "direct" or not rings(case)]
    report = run(PostgresTarget(pooled, direct=direct), cases)
    assert not report.failed, "\n".join(
        f"{result.mode} {result.case}\n{result.error}" for result in report.failed
    )


def rings(case: Case) -> bool:
    """Whether the case is about wake-ups: there are none where nothing can LISTEN, and polls do it."""
    return case.family == "wakeups" or case.name.endswith("rings")


def test_two_workers_run_five_hundred_jobs_once_each(urls: tuple[str, str], tmp_path: Path) -> None:
    _, pooled = urls
    (tmp_path / "counter.py").write_text(COUNTER)
    app = App(pooled)
    app.migrate()

    @app.task(name="count")
    def count(n: int) -> int:
        return n

    env = {k: v for k, v in os.environ.items() if k != "WINCH_LISTEN_URL"} | {"WINCH_URL": pooled}
    app.enqueue_many([count.bind(n) for n in range(JOBS)])
    command = [sys.executable, "-m", "winch", "worker", "-A", "counter:app", "--burst"]
    workers = [
        subprocess.Popen(command, cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for worker in workers:
        _, errors = worker.communicate(timeout=120)
        assert worker.returncode == 0, errors
        assert "prepared statement" not in errors
    ran = sorted(int(n) for file in tmp_path.glob("*.ran") for n in file.read_text().split())
    assert ran == list(range(JOBS))
    done = app.jobs.list(state="completed", limit=1000)
    assert len(done) == JOBS
    assert {job.record.attempt for job in done} == {1}
    app.close()


def test_a_job_s_own_transaction_needs_no_session(urls: tuple[str, str]) -> None:
    """Many statements of one text: psycopg would prepare the fifth by name."""
    _, pooled = urls
    app = App(pooled, poll="100ms")
    app.migrate()

    @app.task(name="t")
    def work(ctx: Context) -> str | None:
        with ctx.transaction() as tx:
            tx.execute("CREATE TABLE IF NOT EXISTS mine (n int)")
            for n in range(12):
                tx.execute("INSERT INTO mine VALUES (%s)", [n])
            tx.result = "done"
        return None

    async def main() -> None:
        async with asyncio.timeout(60), app.worker():
            for _ in range(3):
                assert await (await work.aenqueue()) == "done"
        await app.aclose()

    asyncio.run(main())
