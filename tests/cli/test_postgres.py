"""The same commands on PostgreSQL, where only they can differ: the way to the store, and its schema."""

from __future__ import annotations

import uuid
from datetime import timedelta

import psycopg
import pytest

from tests.cli.command import Command
from tests.servers import free_port

pytestmark = pytest.mark.servers


@pytest.mark.parametrize(
    "args", [["jobs", "list"], ["stats"], ["doctor"], ["migrate"], ["queues", "list"]]
)
def test_unreachable_store_exits_3(winch: Command, args: list[str]) -> None:
    answer = winch(*args, url=f"postgresql://shop:CANARY@127.0.0.1:{free_port()}/shop")
    assert (answer.code, answer.out) == (3, "")
    assert len(answer.err.splitlines()) == 1
    assert answer.err.startswith("winch: ")
    assert "CANARY" not in answer.err


def test_health_of_an_unreachable_store_exits_1(winch: Command) -> None:
    answer = winch("health", "--json", url=f"postgresql://127.0.0.1:{free_port()}/shop")
    assert (answer.code, answer.json["checks"]["store"]["status"]) == (1, "fail")


def test_a_missing_schema_is_reported_and_migrate_creates_it(
    winch: Command, empty_postgres_url: str
) -> None:
    assert winch("jobs", "list", url=empty_postgres_url).code == 4
    assert winch("migrate", "--check", url=empty_postgres_url).code == 4
    assert "CREATE TABLE" in winch("migrate", "--sql", url=empty_postgres_url).out
    made = winch("migrate", url=empty_postgres_url)
    assert made.code == 0, made.err
    assert winch("jobs", "list", "--json", url=empty_postgres_url).json == {"jobs": [], "next": None}
    assert winch("--schema", "other", "jobs", "list", url=empty_postgres_url).code == 4


def test_doctor_names_the_transaction_that_holds_back_vacuum(
    winch: Command, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    winch("migrate", url=postgres_url)
    well = winch("doctor", "--json", url=postgres_url)
    levels = {f["subject"]: f["level"] for f in well.json["findings"]}
    assert {"postgresql", "durability", "transport", "clock", "vacuum"} <= set(levels)
    # The minute that makes a transaction long is too long for a test; the query takes it as given.
    from winch.cli.admin.checks import postgres

    monkeypatch.setattr(postgres, "LONG", timedelta(0))
    with psycopg.connect(postgres_url) as holder, psycopg.connect(postgres_url) as looker:
        holder.execute("CREATE TABLE held ()")
        pid = holder.info.backend_pid
        [finding] = [f for f in postgres._long_transactions(looker) if f"pid {pid} " in f.text]
        assert f"pg_terminate_backend({pid})" in finding.advice
        holder.rollback()


def test_doctor_names_jobs_that_cannot_be(winch: Command, postgres_url: str) -> None:
    winch("migrate", url=postgres_url)
    with psycopg.connect(postgres_url, autocommit=True) as conn:
        conn.execute(
            "INSERT INTO winch.job"
            " (id, created_at, run_at, sort_key, version, priority, queue, task, args, state, token)"
            " VALUES (gen_random_uuid(), now(), now(), 0, 1, 0, 'q', 'a', '[]', 'ready', %s)",
            [uuid.uuid4()],
        )
        (job,) = conn.execute("SELECT id::text FROM winch.job").fetchone() or ("",)
        found = winch("doctor", "--json", url=postgres_url).json["findings"]
        [finding] = [f for f in found if f["subject"] == "jobs" and job in f["text"]]
        assert finding["level"] == "problem"
        conn.execute("DELETE FROM winch.job")
    found = winch("doctor", "--json", url=postgres_url).json["findings"]
    assert not [f for f in found if f["subject"] == "jobs" and f["level"] == "problem"]


def test_doctor_does_not_look_at_live_jobs_for_ever(
    winch: Command, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from winch.cli.admin.checks import postgres

    winch("migrate", url=postgres_url)
    monkeypatch.setattr(postgres, "LOOKING", timedelta(milliseconds=50))
    with (
        psycopg.connect(postgres_url) as holder,
        psycopg.connect(postgres_url, autocommit=True) as looker,
    ):
        holder.execute("LOCK TABLE winch.job")
        [finding] = postgres._impossible_jobs(looker, "winch")
        assert (finding.level, finding.subject) == ("note", "jobs")
        holder.rollback()
        monkeypatch.undo()
        [finding] = postgres._impossible_jobs(looker, "winch")
        assert finding.level == "ok"
