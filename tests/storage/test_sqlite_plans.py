"""How SQLite finds rows: no statement scans all jobs, and a damaged row stops no other."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from tests.storage.sqlite_jobs import make_job, make_session, make_token
from winch.core.lifecycle import JobState
from winch.drivers.sqlite.driver import SqliteDriver
from winch.drivers.sqlite.statements import SQL
from winch.drivers.sqlite.verbs import reads
from winch.storage.params import (
    ClaimParams,
    Finish,
    JobFilter,
)


@pytest.fixture
def driver(sqlite_path: Path) -> Iterator[SqliteDriver]:
    opened = SqliteDriver(sqlite_path)
    yield opened
    opened.close()


@pytest.mark.parametrize(
    "name, index",
    [
        ("claim", "winch_job_ready"),
        ("claim", "winch_job_gated"),
        ("promote", "winch_job_due"),
        ("promote.next", "winch_job_due"),
        ("cancels", "winch_job_cancel"),
        ("give_up", "winch_job_running"),
        ("end_session.running", "winch_job_running"),
        ("rescue.orphans", "winch_job_running"),
        ("finish", "winch_job USING PRIMARY KEY"),
        ("finish.archive", "winch_job USING PRIMARY KEY"),
        ("finish.leave", "winch_job USING PRIMARY KEY"),
        ("claim.take", "winch_job USING PRIMARY KEY"),
        ("get", "winch_job USING PRIMARY KEY"),
        ("get.kept", "sqlite_autoindex_winch_archive_1"),
        ("list_jobs", "winch_job USING PRIMARY KEY"),
        ("list_jobs.running", "winch_job_running"),
        ("list_jobs.due", "COVERING INDEX winch_job_due"),
        ("list_jobs.blocked", "winch_job_blocked"),
        ("list_jobs.kept", "sqlite_autoindex_winch_archive_1"),
        ("list_jobs.unusual", "winch_archive_unusual"),
        ("list_jobs.alike", "winch_archive_alike"),
        ("groups", "COVERING INDEX winch_archive_alike"),
        ("trim", "winch_archive_dead"),
        ("trim.many", "winch_archive_dead"),
        ("trim.over", "winch_archive_dead"),
        ("trim.delete", "sqlite_autoindex_winch_archive_1"),
        ("enqueue.holders", "winch_job_unique"),
        ("prune", "winch_archive_drop"),
        ("explain", "winch_job_ready"),
        ("wait", "winch_job_ready"),
    ],
)
def test_no_statement_scans_all_jobs(driver: SqliteDriver, name: str, index: str) -> None:
    driver.migrate()
    statement = SQL[name]
    with driver._connections.reader() as conn:
        rows = conn.execute(
            f"EXPLAIN QUERY PLAN {statement.text}", dict.fromkeys(statement.names, "[]")
        ).fetchall()
    plan = [row[3] for row in rows]
    assert any(index in line for line in plan), plan
    # A scan of the running jobs' own index is as long as the fleet has slots.
    scans = [line for line in plan if line.startswith(("SCAN job", "SCAN archive", "SCAN other"))]
    assert all("winch_job_running" in line or "winch_job_due" in line for line in scans), plan
    assert not any(line.endswith(("job", "archive")) for line in scans), plan


def test_waiting_jobs_are_found_among_very_many_ready_ones(
    driver: SqliteDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page looks at a bounded number of jobs; the waiting ones have indexes of their own."""
    later = timedelta(hours=1)
    waiting = [make_job(delay=later) for _ in range(4)]
    driver.run(driver.enqueue(waiting))
    driver.run(driver.enqueue([make_job() for _ in range(30)]))
    wanted = JobFilter(states=(JobState.SCHEDULED,), limit=3, most=10)
    page = driver.run(driver.list_jobs(wanted))
    oldest, *rest = sorted(job.id for job in waiting)
    assert [job.id for job in page.jobs] == rest[::-1]
    assert not page.is_cut
    page = driver.run(driver.list_jobs(msgspec.structs.replace(wanted, after=page.next)))
    assert [job.id for job in page.jobs] == [oldest]
    assert page.next is None
    # Where they are very many, the list walks over all jobs, as for other states.
    monkeypatch.setattr(reads, "_MOST_WAITING", 3)
    page = driver.run(driver.list_jobs(wanted))
    assert page.jobs == ()
    assert page.is_cut
    assert page.next is not None


def test_lists_find_what_is_rare_among_much(driver: SqliteDriver) -> None:
    session = make_session()
    driver.run(driver.start_session(session))
    jobs = [make_job() for _ in range(20)]
    driver.run(driver.enqueue(jobs))
    params = ClaimParams(session=session.id, token=make_token(), queues=("default",), limit=3)
    claims = driver.run(driver.claim(params))
    dead = Finish(id=claims[0].id, token=params.token, to=JobState.DEAD, what="failed")
    driver.run(driver.finish([dead]))
    for states, expected in (
        ((JobState.RUNNING,), {claims[1].id, claims[2].id}),
        ((JobState.DEAD,), {claims[0].id}),
        ((JobState.RUNNING, JobState.DEAD), {claim.id for claim in claims}),
    ):
        page = driver.run(driver.list_jobs(JobFilter(states=states)))
        assert {job.id for job in page.jobs} == expected


def test_a_damaged_row_does_not_stop_its_neighbours(driver: SqliteDriver) -> None:
    session = make_session()
    driver.run(driver.start_session(session))
    jobs = [make_job(), make_job()]
    driver.run(driver.enqueue(jobs))
    with driver.transaction() as conn:
        conn.execute(
            "UPDATE winch_job SET headers = '{', tags = 'x', history = '[1]' WHERE id = ?", [jobs[0].id]
        )
    params = ClaimParams(session=session.id, token=make_token(), queues=("default",), limit=9)
    assert len(driver.run(driver.claim(params))) == 2
    found = driver.run(driver.get([job.id for job in jobs]))
    assert None not in found
