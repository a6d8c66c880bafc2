"""The PostgreSQL driver beyond the conformance suite: addresses, connections, errors, conn=, ids."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Generator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest
from psycopg.rows import dict_row
from psycopg.types.datetime import TimestamptzLoader

from tests.storage.postgres_kit import (
    Background,
    Store,
    completed,
    connected,
    new_id,
    new_job,
    new_token,
    recorded,
    wait_for_lock,
)
from winch.core.errors import (
    ConfigError,
    InvalidPayload,
    SchemaMismatch,
    StorageError,
    StorageUnavailable,
)
from winch.core.job import KEEP, Failure
from winch.core.lifecycle import JobState
from winch.drivers._shared import sql
from winch.drivers.connect import connect
from winch.drivers.postgres.address import parse_url
from winch.drivers.postgres.driver import PostgresDriver
from winch.drivers.postgres.statements import STATEMENTS, Statement
from winch.storage.params import Answer, ClaimRef, Enqueued, Finish
from winch.storage.protocol import Driver
from winch.storage.verbs import Verb
from winch.testing.conformance.target import WallClock

pytestmark = pytest.mark.servers
SQL = Path(sql.__file__).parents[1] / "postgres" / "sql"


@pytest.fixture
def store(postgres_url: str) -> Iterator[Store]:
    driver = PostgresDriver.from_url(postgres_url)
    driver.migrate()
    yield Store(driver, postgres_url)
    driver.close()


def test_the_driver_is_one_by_its_type() -> None:
    driver: Driver = PostgresDriver.from_url("postgresql://localhost/x")
    assert driver.name == "postgres"


# -- addresses ---------------------------------------------------------------------------------------


def test_both_schemes_lead_to_the_driver() -> None:
    for scheme in ("postgresql", "postgres"):
        made = connect(f"{scheme}://localhost/x", clock=WallClock(), schema="jobs")
        assert isinstance(made, PostgresDriver)
        assert "schema=jobs" in made.describe()


def test_options_are_separated_from_those_of_libpq() -> None:
    place = parse_url("postgresql://u:p@h:1/d?schema=jobs&timeout=3s&pool=2&prepare=off&sslmode=require")
    assert (place.schema, place.timeout, place.pool, place.prepares) == ("jobs", 3.0, 2, False)
    assert place.params["sslmode"] == "require"
    assert place.params["tcp_user_timeout"] == 3000
    assert "timeout" not in place.params


def test_a_schema_of_the_app_goes_before_the_urls() -> None:
    assert parse_url("postgresql://h/d?schema=a", schema="b").schema == "b"


@pytest.mark.parametrize(
    "schema",
    ['x"; DROP TABLE job; --', "Jobs", "a-b", "1a", "a b", "", "ä", "x" * 64, "{schema}", "a.b"],
)
def test_a_schemas_name_that_would_need_care_is_refused(schema: str) -> None:
    if not schema:
        assert parse_url("postgresql://h/d", schema=schema).schema == "winch"
        return
    with pytest.raises(ConfigError, match="schema must be"):
        parse_url("postgresql://h/d", schema=schema)


@pytest.mark.parametrize("option", ["timeout=soon", "pool=0", "prepare=maybe", "no_such_option=1"])
def test_a_wrong_option_is_named(option: str) -> None:
    with pytest.raises(ConfigError, match=option.partition("=")[0]):
        parse_url(f"postgresql://h/d?{option}")


def test_describe_has_no_password() -> None:
    driver = PostgresDriver.from_url("postgresql://ada:s3cret@localhost:5432/shop?sslpassword=other")
    assert driver.describe() == "postgresql://ada@localhost:5432/shop?schema=winch"


def test_a_remote_address_without_encryption_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        PostgresDriver.from_url("postgresql://localhost/d")
        PostgresDriver.from_url("postgresql://db.example/d?sslmode=verify-full")
        assert not caplog.records
        PostgresDriver.from_url("postgresql://ada:s3cret@db.example/d")
    assert "sslmode=verify-full" in caplog.text
    assert "s3cret" not in caplog.text


def test_a_reserved_word_is_a_schema_like_any_other(postgres_url: str) -> None:
    for schema in ("select", "_", "x" * 63):
        store = Store(PostgresDriver.from_url(postgres_url, schema=schema))
        store.driver.migrate()
        assert store.driver.check_schema().is_ready
        store.add(3)
        session = store.session()
        assert store.complete(*store.claim(session, 3)) == [Answer.TOOK] * 3
        assert store.driver.run(store.driver.prune()) == 0
        store.driver.close()


# -- statements --------------------------------------------------------------------------------------


def test_every_verb_has_a_file_as_in_sqlite() -> None:
    ours = {file.name for file in SQL.glob("*.sql")}
    theirs = {file.name for file in (SQL.parents[1] / "sqlite" / "sql").glob("*.sql")}
    # SQLite changes single records under its one lock; here a statement changes many at once.
    assert theirs - ours <= {"record.sql"}
    # Only here do old snapshots keep the database from cleaning up. What a move takes and reads, SQLite
    # takes with the statements of other verbs, job by job under its one lock.
    moves = {"key_holders.sql", "move_done.sql", "move_out.sql", "enqueue_fenced.sql", "raise_fence.sql"}
    assert ours - theirs == {"oldest_snapshot.sql", *moves}


def test_only_the_schemas_name_is_filled_in() -> None:
    for statement in STATEMENTS.values():
        text = statement.text.replace("{schema}", "")
        assert "{" not in text
        assert "%" not in text.replace("%(", "")


def test_the_keeping_times_are_those_of_the_core(store: Store, postgres_url: str) -> None:
    with connected(postgres_url) as watcher:
        for state, keep in KEEP.items():
            row = watcher.execute(
                "SELECT winch.keep_until(%s, NULL, at) - at AT TIME ZONE 'UTC'"
                " FROM (SELECT now() AS at) AS moment",
                [state.value],
            ).fetchone()
            assert row == (keep,)


# -- conn= -------------------------------------------------------------------------------------------


def test_a_callers_commit_and_rollback_decide(store: Store, postgres_url: str) -> None:
    kept, gone = new_job(), new_job()
    with psycopg.connect(postgres_url) as conn:
        store.driver.run_on(conn, store.driver.enqueue([kept]))
        conn.commit()
        store.driver.run_on(conn, store.driver.enqueue([gone]))
        conn.rollback()
    found = store.driver.run(store.driver.get([kept.id, gone.id]))
    assert [job is not None for job in found] == [True, False]


def test_a_callers_async_commit_and_rollback_decide(store: Store, postgres_url: str) -> None:
    kept, gone = new_job(), new_job()

    async def use() -> None:
        async with await psycopg.AsyncConnection.connect(postgres_url) as conn:
            await store.driver.arun_on(conn, store.driver.enqueue([kept]))
            await conn.commit()
            await store.driver.arun_on(conn, store.driver.enqueue([gone]))
            await conn.rollback()

    asyncio.run(use())
    found = store.driver.run(store.driver.get([kept.id, gone.id]))
    assert [job is not None for job in found] == [True, False]


def test_without_a_transaction_a_verb_is_one_of_its_own(store: Store, postgres_url: str) -> None:
    jobs = store.add(2)
    with connected(postgres_url) as conn:
        assert [a.took for a in store.driver.run_on(conn, store.driver.cancel(jobs, by="ada"))] == [
            True
        ] * 2
        assert conn.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    assert store.get(jobs[0]).state is JobState.CANCELLED


def test_a_transaction_of_an_autocommit_connection_is_joined(store: Store, postgres_url: str) -> None:
    new = new_job()
    with connected(postgres_url) as conn, conn.transaction(force_rollback=True):
        store.driver.run_on(conn, store.driver.enqueue([new]))
    assert store.driver.run(store.driver.get([new.id])) == [None]


def test_adapters_of_the_application_do_not_affect_winch(store: Store, postgres_url: str) -> None:
    class Textual(TimestamptzLoader):
        def load(self, data: object) -> object:  # type: ignore[override]  # as an application might
            return "moment"

    new = new_job(tags=("a", "b"))
    with psycopg.connect(postgres_url, row_factory=dict_row) as conn:
        conn.cursor_factory = psycopg.RawCursor
        conn.adapters.register_loader("timestamptz", Textual)
        conn.execute("SET TIME ZONE 'Europe/London'")
        store.driver.run_on(conn, store.driver.enqueue([new]))
        (job,) = store.driver.run_on(conn, store.driver.get([new.id]))
    assert job == store.get(new.id)


def test_a_connection_that_cannot_carry_verbs_is_refused(store: Store) -> None:
    with pytest.raises(ConfigError, match=r"psycopg\.Connection or AsyncConnection.*got builtins\.str"):
        store.driver.run_on("conn", store.driver.counts())


def test_a_callers_failed_transaction_raises_the_stores_error(store: Store, postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as conn:
        with pytest.raises(psycopg.Error):
            conn.execute("SELECT 1/0")
        with pytest.raises(StorageError, match="aborted"):
            store.driver.run_on(conn, store.driver.enqueue([new_job()]))


# -- ids that callers give ---------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["commit", "rollback"])
def test_the_second_enqueue_of_an_id_waits_for_the_first(
    store: Store, postgres_url: str, ending: str
) -> None:
    new = new_job(is_given_id=True)
    verb = store.driver.enqueue([new])
    with psycopg.connect(postgres_url) as first, connected(postgres_url) as watcher:
        assert store.driver.run_on(first, verb) == [Enqueued(new.id, is_new=True)]
        second = Background(lambda: store.driver.run(verb))
        wait_for_lock(watcher)
        getattr(first, ending)()
        assert second.result() == [Enqueued(new.id, is_new=ending == "rollback")]
    assert store.get(new.id).state is JobState.READY


def test_a_given_id_is_never_free_while_a_finish_moves_its_job(store: Store, postgres_url: str) -> None:
    new = new_job(is_given_id=True)
    store.driver.run(store.driver.enqueue([new]))
    (claim,) = store.claim(store.session())
    with psycopg.connect(postgres_url) as finishing:
        store.driver.run_on(finishing, store.driver.finish([completed(claim)]))
        # After the commit the live row is gone; before it, the archive's is not there.
        assert store.driver.run(store.driver.enqueue([new])) == [Enqueued(new.id, is_new=False)]
    assert store.driver.run(store.driver.enqueue([new])) == [Enqueued(new.id, is_new=False)]
    assert store.get(new.id).state is JobState.COMPLETED


def test_a_repeat_waits_for_its_first_try(store: Store, postgres_url: str) -> None:
    new = new_job()
    with psycopg.connect(postgres_url) as first, connected(postgres_url) as watcher:
        store.driver.run_on(first, store.driver.enqueue([new]))
        second = Background(lambda: store.driver.run(store.driver.enqueue([new], is_repeat=True)))
        wait_for_lock(watcher)
        first.commit()
        assert second.result() == [Enqueued(new.id, is_new=False)]


def test_a_repeat_finds_a_first_try_that_was_stored_and_run_meanwhile(store: Store) -> None:
    """The look comes before the insert; here the job is stored, run and archived in between."""
    new = new_job()
    steps = store.driver.enqueue([new], is_repeat=True).steps()
    assert isinstance(next(steps), Statement)
    (job,) = store.add(id=new.id)
    store.complete(*store.claim(store.session()))
    look = steps.send([(job, 0)])  # as if its snapshot had been older than all this
    assert look.sql.name == "enqueue.final"
    undo = steps.send([(job,)])
    assert undo.sql.name == "enqueue.undo"
    with pytest.raises(StopIteration) as stop:
        steps.send([])
    assert stop.value.value == [Enqueued(new.id, is_new=False)]


def test_an_id_that_winch_drew_may_be_given_back(store: Store) -> None:
    (live, done) = store.add(2)
    (claim,) = store.claim(store.session())
    store.complete(claim)
    again = [new_job(id=live, is_given_id=True), new_job(id=done, is_given_id=True)]
    assert [stored.is_new for stored in store.driver.run(store.driver.enqueue(again))] == [False, False]


# -- claims named twice ------------------------------------------------------------------------------


def test_a_claim_named_twice_is_answered_in_turn(store: Store) -> None:
    store.add(2)
    session = store.session()
    (a,), (b,) = store.claim(session), store.claim(session)
    wrong = Finish(id=a.id, token=b.token, to=JobState.DEAD, what="failed")
    again = Finish(id=b.id, token=b.token, to=JobState.RETRYING, what="failed")
    answers = store.driver.run(
        store.driver.finish([wrong, completed(a), again, completed(a), completed(b)])
    )
    assert answers == [Answer.LOST, Answer.TOOK, Answer.TOOK, Answer.ALREADY, Answer.LOST]
    assert store.driver.run(store.driver.finish([again, again])) == [Answer.ALREADY] * 2
    ref = ClaimRef(b.id, b.token)
    assert store.driver.run(store.driver.release([ref, ref])) == [Answer.LOST] * 2


def test_one_batch_of_a_thousand_claims_of_many_kinds(store: Store) -> None:
    ids = store.add(1000)
    session = store.session()
    claims = [claim for _ in range(10) for claim in store.claim(session, 100)]
    targets = (JobState.COMPLETED, JobState.RETRYING, JobState.DEAD, JobState.CANCELLED)
    outcomes = [
        Finish(id=claim.id, token=claim.token, to=targets[n % 4], what="failed")
        for n, claim in enumerate(claims)
    ]
    assert store.driver.run(store.driver.finish(outcomes)) == [Answer.TOOK] * 1000
    assert store.driver.run(store.driver.finish(outcomes)) == [Answer.ALREADY] * 1000
    counts = store.driver.run(store.driver.counts())
    assert [counts[state] for state in targets] == [250] * 4
    assert len(ids) == 1000


# -- errors ------------------------------------------------------------------------------------------


def test_without_a_schema_every_entry_point_suggests_migrate(empty_postgres_url: str) -> None:
    driver = PostgresDriver.from_url(empty_postgres_url)
    assert driver.check_schema().current is None
    assert not driver.check_schema().is_ready
    verbs: list[Verb[Any]] = [driver.enqueue([new_job()]), driver.counts(), driver.prune()]
    for verb in verbs:
        with pytest.raises(SchemaMismatch, match="winch migrate"):
            driver.run(verb)
    driver.close()


def test_a_server_that_is_not_there_was_sent_nothing() -> None:
    driver = PostgresDriver.from_url("postgresql://127.0.0.1:1/x")
    with pytest.raises(StorageUnavailable) as lost:
        driver.run(driver.enqueue([new_job()]))
    assert not lost.value.maybe_applied
    with pytest.raises(StorageUnavailable):
        asyncio.run(driver.arun(driver.counts()))
    with pytest.raises(StorageUnavailable):
        driver.check_schema()


def test_a_missing_right_is_named(store: Store, postgres_url: str) -> None:
    role = f"winch_producer_{os.getpid()}"
    with connected(postgres_url) as admin:
        admin.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'x'")
        try:
            admin.execute(f"GRANT USAGE ON SCHEMA winch TO {role}")
            admin.execute(f"GRANT SELECT ON winch.queue TO {role}")
            parts = psycopg.conninfo.conninfo_to_dict(postgres_url)
            url = f"postgresql://{role}:x@{parts['host']}:{parts['port']}/{parts['dbname']}"
            producer = PostgresDriver.from_url(url)
            with pytest.raises(StorageError, match=r'GRANT .* ON "winch"\.job TO'):
                producer.run(producer.enqueue([new_job()]))
            admin.execute(f"GRANT INSERT, SELECT ON winch.job TO {role}")
            producer.run(producer.enqueue([new_job()]))
            producer.close()
        finally:
            admin.execute(f"DROP OWNED BY {role}")
            admin.execute(f"DROP ROLE {role}")


def test_a_text_that_postgresql_cannot_hold_fails_clearly(store: Store) -> None:
    with pytest.raises(InvalidPayload):
        store.driver.run(store.driver.pause("a\0b", by="ada"))
    store.add()  # the connection still works


def test_an_odd_character_in_an_error_does_not_fail_its_batch(store: Store) -> None:
    store.add(2)
    a, b = store.claim(store.session(), 2)
    odd = Failure("E", "nul \0 and \ud800", "trace\0")
    failed = Finish(id=a.id, token=a.token, to=JobState.DEAD, what="failed", error=odd, reason="\0")
    assert store.driver.run(store.driver.finish([failed, completed(b)])) == [Answer.TOOK] * 2


def test_a_deadlock_is_started_over(store: Store, postgres_url: str) -> None:
    a, b = sorted(store.add(2))
    with psycopg.connect(postgres_url) as rival, connected(postgres_url) as watcher:
        rival.execute("SELECT FROM winch.job WHERE id = %s FOR UPDATE", [b])
        # The verb locks by id: it has the first and waits for the second.
        cancelled = Background(lambda: store.driver.run(store.driver.cancel([b, a], by="ada")))
        wait_for_lock(watcher)
        rival.execute("SET deadlock_timeout = '10min'")  # so that the verb is the one that gives way
        rival.execute("SELECT FROM winch.job WHERE id = %s FOR UPDATE", [a])
        rival.rollback()
        assert [acted.took for acted in cancelled.result()] == [True, True]


@pytest.mark.parametrize("is_of_the_call", [False, True], ids=["another token", "a token of the call"])
def test_a_job_that_changes_hands_while_its_end_waits_is_left_to_its_new_holder(
    store: Store, postgres_url: str, is_of_the_call: bool
) -> None:
    """The end found the job under its own token and waits for its row; another claim commits first."""
    store.add(2)
    [lost], [kept] = (store.claim(store.session()) for _ in range(2))
    token, rescuer = kept.token if is_of_the_call else new_token(), store.session()
    with psycopg.connect(postgres_url) as rival, connected(postgres_url) as watcher:
        rival.execute(
            "UPDATE winch.job SET token = %s, session = %s, fence = fence + 1 WHERE id = %s",
            [token, rescuer, lost.id],
        )
        ended = Background(lambda: store.complete(lost, kept))
        wait_for_lock(watcher)
        rival.commit()
        assert ended.result() == [Answer.LOST, Answer.TOOK]
    assert store.get(lost.id).state is JobState.RUNNING
    assert store.get(kept.id).state is JobState.COMPLETED
    assert store.complete(msgspec.structs.replace(lost, token=token)) == [Answer.TOOK]


def test_a_verb_that_must_start_over_for_ever_gives_up(store: Store) -> None:
    tries = 0

    def steps() -> Generator[Any, Any, Any]:
        nonlocal tries
        tries += 1
        raise psycopg.errors.DeadlockDetected("deadlock detected")
        yield

    endless: Verb[Any] = Verb("test", steps)
    with pytest.raises(StorageUnavailable) as lost:
        store.driver.run(endless)
    assert tries == 5
    assert not lost.value.maybe_applied


# -- threads -----------------------------------------------------------------------------------------


def test_threads_share_a_few_connections(postgres_url: str) -> None:
    store = Store(PostgresDriver.from_url(f"{postgres_url}?pool=3"))
    store.driver.migrate()
    with connected(postgres_url) as watcher:
        most = 0

        def work() -> None:
            for _ in range(10):
                store.add()

        threads = [threading.Thread(target=work) for _ in range(12)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            row = watcher.execute(
                "SELECT count(*) FROM pg_stat_activity"
                " WHERE datname = current_database() AND application_name = 'winch'"
            ).fetchone()
            most = max(most, row[0] if row else 0)
    assert store.driver.run(store.driver.counts())[JobState.READY] == 120
    assert 1 <= most <= 3
    store.driver.close()


def test_no_job_goes_to_two_threads(store: Store) -> None:
    ids = store.add(600)

    def drain() -> list[str]:
        session, taken = store.session(), []
        while claims := store.claim(session, 7):
            taken += [claim.id for claim in claims]
        return taken

    seen = [job for worker in [Background(drain) for _ in range(6)] for job in worker.result()]
    assert sorted(seen) == sorted(ids)


def test_a_forked_child_opens_its_own_connections(store: Store) -> None:
    store.add()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            store.add()
            store.driver.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    store.add()  # the parent's connection is still the parent's
    assert store.driver.run(store.driver.counts())[JobState.READY] == 3


# -- what is sent ------------------------------------------------------------------------------------


def test_a_beat_is_one_statement_whatever_runs(store: Store) -> None:
    sessions = [store.session() for _ in range(20)]
    store.add(200)
    for session in sessions:
        store.claim(session, 10)
    verb, steps = recorded(store.driver.beat(sessions))
    assert all(pulse.is_live for pulse in store.driver.run(verb))
    (step,) = steps
    assert step.is_alone
    assert ".job" not in step.sql.text


def test_plain_verbs_are_one_statement_each(store: Store) -> None:
    driver, session = store.driver, store.session()
    store.add(3)
    (a, b, c) = store.claim(session, 3)
    failed = Finish(id=b.id, token=b.token, to=JobState.RETRYING, what="failed")
    verbs: list[Verb[Any]] = [
        driver.enqueue([new_job()]),
        driver.enqueue([new_job(is_given_id=True)]),
        driver.finish([completed(a)]),
        driver.finish([failed]),
        driver.release([ClaimRef(c.id, c.token)]),
        driver.give_up(session, [a.token]),
        driver.promote(),
        driver.cancels([session]),
    ]
    for verb in verbs:
        again, steps = recorded(verb)
        driver.run(again)
        assert [step.is_alone for step in steps] == [True], verb.name


def test_facts_hold_what_doctor_checks(store: Store, postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as holder:
        holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        holder.execute("SELECT count(*) FROM winch.job")
        facts = store.driver.facts()
        assert facts.oldest is not None
        assert facts.oldest.pid == holder.info.backend_pid
        assert "idle in transaction" in facts.oldest.state
    assert int(facts.version.partition(".")[0].split()[0]) >= 14
    assert (facts.is_pooled, facts.is_standby) == (False, False)
    assert facts.listener == "not started"
    assert abs(facts.clock_ahead.total_seconds()) < 5


def test_a_database_with_other_habits_reads_the_same(store: Store) -> None:
    (job,) = store.add(keep=KEEP[JobState.DEAD], tags=("a",))
    before = store.get(job)
    name = psycopg.conninfo.conninfo_to_dict(store.url)["dbname"]
    with connected(store.url) as admin:
        for setting in ("DateStyle = 'German'", "TimeZone = 'Asia/Tokyo'", "IntervalStyle = 'iso_8601'"):
            admin.execute(f"ALTER DATABASE {name} SET {setting}")
        admin.execute(f"ALTER DATABASE {name} SET default_transaction_isolation = 'repeatable read'")
    store.driver.close()
    assert store.get(job) == before
    assert store.get(job).created_at.utcoffset() == timedelta(0)
    (claim,) = store.claim(store.session())
    failed = Finish(id=job, token=claim.token, to=JobState.DEAD, what="failed")
    assert store.driver.run(store.driver.finish([failed])) == [Answer.TOOK]
    (entry,) = store.get(job).history
    assert entry.at == store.get(job).finished_at


def test_an_unknown_id_is_no_job(store: Store) -> None:
    assert store.driver.run(store.driver.get([new_id()])) == [None]
    assert store.driver.run(store.driver.explain(new_id())) is None
