"""Plans: with many jobs stored, no verb on the hot path looks through a whole table, and a plan made
while the tables were empty does no harm once they are full."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from typing import Any

import msgspec
import psycopg
import pytest

from tests.storage.postgres_kit import (
    Store,
    completed,
    connected,
    new_job,
    new_session,
    new_token,
)
from winch.core.job import Note
from winch.core.lifecycle import JobState
from winch.drivers.postgres.driver import PostgresDriver
from winch.drivers.postgres.statements import PREPARED, STATEMENTS, Sql, Statement
from winch.drivers.postgres.verbs import reads
from winch.storage.params import Answer, ClaimParams, ClaimRef, Finish, GroupFilter, JobFilter, Trim
from winch.storage.verbs import Verb

pytestmark = pytest.mark.servers

FILL = """
INSERT INTO winch.job (
    id, created_at, run_at, sort_key, version, priority, state, filed, queue, task, args, fence
)
SELECT
    (lpad(to_hex(n), 12, '0') || '70008000000000000000')::uuid, now(), now() + make_interval(secs => n),
    n, 1, 0, state, state,
    CASE n % 3 WHEN 0 THEN 'other' ELSE 'default' END, 'task.' || n % 50, '{}', 0
FROM generate_series(1, 20000) AS n
CROSS JOIN LATERAL (SELECT CASE n % 2 WHEN 0 THEN 'ready' ELSE 'scheduled' END AS state) AS given
"""
FILL_ARCHIVE = """
INSERT INTO winch.archive (
    id, created_at, run_at, finished_at, fence, version, priority, attempt, crashes, rescues, drop_on,
    is_suspect, is_given_id, state, queue, task, args, fingerprint
)
SELECT
    (lpad(to_hex(n), 12, '0') || '70008000000000000001')::uuid, now(), now(), now(), 0, 1, 0, 1, 0, 0,
    winch.drop_on(state, NULL, now()), false, false, state, 'default', 'task.' || n % 50, '{}',
    CASE state WHEN 'dead' THEN 'f00' || n / 100 % 30 END
FROM generate_series(1, 20000) AS n
CROSS JOIN LATERAL (
    SELECT CASE n % 100 WHEN 0 THEN 'dead' WHEN 1 THEN 'cancelled' ELSE 'completed' END AS state
) AS given
"""
# What a connection keeps prepared, and how often it ran with the plan that it keeps and with a new one.
KEPT = "SELECT name, generic_plans, custom_plans FROM pg_prepared_statements ORDER BY name"


@pytest.fixture(scope="module")
def store(postgres_server: Any) -> Iterator[Store]:
    """A store that was analysed while it was empty, and filled then."""
    url = postgres_server.new_database()
    driver = PostgresDriver.from_url(url)
    driver.migrate()
    with connected(url) as filler:
        filler.execute("ANALYZE")
        filler.execute(FILL)
        filler.execute(FILL_ARCHIVE)
        filler.execute("ANALYZE winch.archive")  # as autovacuum will; job stays as it was
        yield Store(driver, url)
    driver.close()
    postgres_server.drop_database(url)


def plans_of(store: Store, verb: Verb[Any]) -> list[tuple[str, str]]:
    """The plans of the verb's statements by name; run for real and rolled back."""
    plans = []
    with psycopg.connect(store.url) as conn:
        steps = verb.steps()
        try:
            step: Statement = next(steps)
            while True:
                explained = conn.execute(f"EXPLAIN {step.sql.text}", step.values, prepare=False)
                plans.append((step.sql.name, "\n".join(row[0] for row in explained)))
                cursor = conn.execute(step.sql.text, step.values, prepare=False)
                step = steps.send(cursor.fetchall() if cursor.description else [])
        except StopIteration:
            conn.rollback()
    return plans


def seq_scans(plan: str) -> list[str]:
    """The whole tables of jobs that the plan looks through, empty partitions apart."""
    return [
        line.strip()
        for line in plan.splitlines()
        if "Seq Scan on job" in line or "Seq Scan on archive" in line
    ]


def claimed(store: Store, count: int, token: str | None = None) -> tuple[str, list[Any]]:
    session = store.session(queues=("default", "other"))
    fields = {} if token is None else {"token": token}
    return session, store.claim(session, count, queues=("default", "other"), **fields)


def test_claims_and_their_ends_use_the_indexes(store: Store) -> None:
    driver = store.driver
    session, claims = claimed(store, 500)
    params = ClaimParams(session=session, token=new_token(), queues=("other", "default"), limit=500)
    failed = [
        Finish(id=claim.id, token=claim.token, to=JobState.RETRYING, what="failed") for claim in claims
    ]
    refs = [Finish(id=c.id, token=c.token, to=JobState.READY, what="failed") for c in claims]
    verbs: list[Verb[Any]] = [
        driver.claim(params),
        driver.claim(
            ClaimParams(session=session, token=new_token(), queues=("a",), limit=1, tasks=("x",))
        ),
        driver.finish([completed(claim) for claim in claims]),
        driver.finish([completed(claims[0])]),
        driver.finish(failed),
        driver.finish(refs),
        driver.give_up(session, [new_token()]),
        driver.cancels([session]),
        driver.end_session(session),
        driver.beat([session]),
    ]
    for verb in verbs:
        for name, plan in plans_of(store, verb):
            assert seq_scans(plan) == [], f"{name}:\n{plan}"


def test_upkeep_uses_the_indexes(store: Store) -> None:
    for verb in (store.driver.promote(), store.driver.promote(limit=10), store.driver.rescue()):
        for name, plan in plans_of(store, verb):
            assert seq_scans(plan) == [], f"{name}:\n{plan}"


def test_reading_uses_the_indexes(store: Store) -> None:
    driver = store.driver
    with connected(store.url) as watcher:
        watcher.execute("ANALYZE winch.job")  # pages for people may be slow until autovacuum has come
    (claim,) = claimed(store, 1)[1]
    (done,) = claimed(store, 1)[1]
    store.complete(done)
    verbs: list[Verb[Any]] = [
        driver.get([claim.id, done.id]),
        driver.list_jobs(JobFilter()),
        driver.list_jobs(JobFilter(after=claim.id)),
        driver.list_jobs(JobFilter(states=(JobState.COMPLETED,))),
        driver.list_jobs(JobFilter(states=(JobState.DEAD,))),
        driver.list_jobs(JobFilter(states=(JobState.DEAD, JobState.CANCELLED), task="task.0")),
        driver.list_jobs(JobFilter(queue="default")),
        driver.list_jobs(JobFilter(fingerprint="f000")),
        driver.groups(GroupFilter()),
        driver.groups(GroupFilter(task="task.0", queue="default")),
        driver.trim(Trim(count=2)),
        driver.trim(Trim(task="task.0", bytes=1000, older_than=timedelta(days=1))),
        driver.enqueue([new_job(unique_key="k")]),
        driver.list_jobs(JobFilter(states=(JobState.READY,))),
        driver.explain(claim.id),
        driver.enqueue([new_job(is_given_id=True)]),
        driver.enqueue([new_job()], is_repeat=True),
        driver.cancel([claim.id], by="ada"),
        driver.retry([done.id], by="ada"),
        driver.delete([done.id], by="ada"),
    ]
    for verb in verbs:
        for name, plan in plans_of(store, verb):
            # An empty partition may be looked through: there is nothing in it.
            full = [line for line in seq_scans(plan) if not is_empty(store, line)]
            assert full == [], f"{name}:\n{plan}"


def is_empty(store: Store, line: str) -> bool:
    table = line.partition("Seq Scan on ")[2].partition(" ")[0]
    with connected(store.url) as watcher:
        row = watcher.execute(
            f"SELECT count(*) FROM (SELECT FROM winch.{table} LIMIT 1000) AS few"
        ).fetchone()
    return row is not None and row[0] < 1000


def test_a_list_of_dead_jobs_does_not_walk_over_the_completed(store: Store) -> None:
    (_, plan), *_ = plans_of(store, store.driver.list_jobs(JobFilter(states=(JobState.DEAD,))))
    # In order of the id or, while they are few, over the index of the dead alone.
    assert "state_id_idx" in plan or "task_finished_at_id_idx" in plan
    assert "Seq Scan on job" not in plan


def test_waiting_jobs_are_found_by_their_index_among_very_many_ready_ones(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planner takes the waiting jobs for spread evenly; here all are older than the ready ones."""
    with closing(PostgresDriver.from_url(postgres_url)) as driver:
        driver.migrate()
        store = Store(driver, postgres_url)
        driver.run(driver.enqueue([new_job(delay=timedelta(hours=1)) for _ in range(200)]))
        store.add(4000)
        with connected(postgres_url) as watcher:
            watcher.execute("VACUUM ANALYZE winch.job")
        which = JobFilter(states=(JobState.SCHEDULED,), limit=150)
        ((_, plan),) = plans_of(store, driver.list_jobs(which))
        found = plan.partition("CTE found")[2].partition("InitPlan")[0]
        assert "job_due" in found, plan
        first = driver.run(driver.list_jobs(which))
        rest = driver.run(driver.list_jobs(msgspec.structs.replace(which, after=first.next)))
        ids = [job.id for job in (*first.jobs, *rest.jobs)]
        assert len(ids) == 200
        assert ids == sorted(ids, reverse=True)
        assert rest.next is None
        # None of them: one look at the indexes, and no walk over all jobs.
        none = msgspec.structs.replace(which, task="nothing")
        assert [name for name, _ in plans_of(store, driver.list_jobs(none))] == [
            "list_jobs.few_waiting",
            "list_jobs.are_many",
        ]
        # Very many: the walk finds them.
        monkeypatch.setattr(reads, "_MOST_WAITING", 100)
        assert [name for name, _ in plans_of(store, driver.list_jobs(which))] == [
            "list_jobs.few_waiting",
            "list_jobs.are_many",
            "list_jobs.waiting",
        ]
        assert driver.run(driver.list_jobs(which)) == first


def test_the_end_of_a_batch_does_not_walk_over_all_final_jobs(postgres_url: str) -> None:
    """Before the first ANALYZE, too: a batch asks which of its members died, and mostly none did."""
    with closing(PostgresDriver.from_url(postgres_url)) as driver:
        driver.migrate()
        store = Store(driver, postgres_url)
        store.add(2000, tags=("flow:x",))
        session = store.session()
        for _ in range(2):
            store.complete(*store.claim(session, 1000))
        which = JobFilter(states=(JobState.DEAD, JobState.CANCELLED), tag="flow:x", limit=1)
        ((_, plan),) = plans_of(store, driver.list_jobs(which))
    found = plan.partition("CTE found")[2].partition("InitPlan")[0]
    assert "state_id_idx" in found or "Seq Scan" in found, plan
    assert re.search(r"archive_\d+_id_idx", found) is None, plan


def test_groups_look_at_dead_jobs_only(store: Store) -> None:
    for verb in (
        store.driver.groups(GroupFilter()),
        store.driver.list_jobs(JobFilter(states=(JobState.DEAD,), fingerprint="f000")),
    ):
        (_, plan), *_ = plans_of(store, verb)
        # Two indexes serve: by fingerprint, or by state. Which is cheaper changes with the statistics.
        assert "fingerprint_id_task_queue_finished_at_idx" in plan or "state_id_idx" in plan, plan
        assert all(is_empty(store, line) for line in seq_scans(plan)), plan


def test_only_inserts_are_ever_prepared(store: Store) -> None:
    """A cached plan is made for the table as it was; see statements.py."""
    session, (claim,) = claimed(store, 1)
    store.complete(claim)
    for _ in range(8):
        store.add()
        store.driver.run(store.driver.beat([session]))
        store.driver.run(store.driver.get([claim.id]))

    text = "SELECT statement FROM pg_prepared_statements"

    def steps() -> Any:
        return (yield Statement(Sql("test", text, (), text.encode(), b"test"), {}, is_alone=True))

    prepared = [row[0] for row in store.driver.run(Verb("test", steps, is_read=True))]
    assert len(prepared) <= len(PREPARED)
    assert all("INSERT INTO" in text and "FOR UPDATE" not in text for text in prepared)


def test_a_store_that_filled_up_after_its_first_use_stays_fast(postgres_url: str) -> None:
    """The connections have run every statement on empty, analysed tables; then come the jobs."""
    store = Store(PostgresDriver.from_url(postgres_url))
    store.driver.migrate()

    def cycle(count: int) -> float:
        session = new_session()
        store.driver.run(store.driver.start_session(session))
        started = time.perf_counter()
        done = 0
        while done < count and (claims := store.claim(session.id, 200)):
            assert set(store.complete(*claims)) == {Answer.TOOK}
            done += len(claims)
        assert done == count
        return (time.perf_counter() - started) / count

    with connected(postgres_url) as filler:
        filler.execute("ALTER TABLE winch.job SET (autovacuum_enabled = off)")
        filler.execute("ANALYZE winch.job")
        for _ in range(10):
            store.add()
            cycle(1)
        filler.execute("TRUNCATE winch.job")
        filler.execute("ANALYZE winch.job")
        store.add(400)
        few = min(cycle(200) for _ in range(2))
        filler.execute(FILL)
        filler.execute("UPDATE winch.job SET state = 'ready', filed = 'ready', queue = 'default'")
        many = min(cycle(400) for _ in range(3))
    assert many < 8 * few, f"{few * 1e6:.0f} µs per job with few jobs, {many * 1e6:.0f} with many"
    store.driver.close()


def test_a_held_snapshot_is_named_and_claims_still_come(store: Store) -> None:
    with psycopg.connect(store.url) as holder:
        holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        holder.execute("SELECT count(*) FROM winch.job")
        session, claims = claimed(store, 100)
        assert set(store.complete(*claims)) == {Answer.TOOK}
        facts = store.driver.facts()
        assert facts.oldest is not None
        assert facts.oldest.age >= timedelta(0)
        assert store.driver.run(store.driver.end_session(session)) == []


def test_notes_are_planned_once_and_by_the_indexes(postgres_url: str) -> None:
    """PostgreSQL plans their statements on an empty table; the plan must not scan a full one."""
    store = Store(PostgresDriver.from_url(postgres_url))
    store.driver.migrate()
    with connected(postgres_url) as filler:
        filler.execute("ANALYZE winch.job")
    store.add(4)
    claims = store.claim(store.session(), 4)
    refs = [ClaimRef(claim.id, claim.token) for claim in claims]

    async def body() -> tuple[list[Any], list[str]]:
        driver = store.driver
        for some in 12 * (refs, refs[:1]):
            notes = [(ref, Note(checkpoint="{}")) for ref in some]
            answers = await driver.arun(driver.notes(notes))
            assert answers == [Answer.TOOK] * len(some)
        [link] = driver._side().pool._lanes["notes"]._idle
        assert isinstance(link.connection, psycopg.AsyncConnection)
        kept = await (await link.connection.execute(KEPT)).fetchall()
        plans = []
        for name, *_ in kept:
            places = ", ".join(["NULL"] * len(STATEMENTS[name.removeprefix("winch ")].names))
            text = f'EXPLAIN EXECUTE "{name}" ({places})'
            plans.append(
                "\n".join(row[0] for row in await (await link.connection.execute(text)).fetchall())
            )
        await driver.aclose()
        return kept, plans

    kept, plans = asyncio.run(body())
    store.driver.close()
    assert kept == [("winch note", 12, 0), ("winch note.many", 12, 0)]
    assert all("job_pkey" in plan and "Seq Scan" not in plan for plan in plans), plans
