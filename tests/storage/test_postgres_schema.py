"""The schema: migrations, the golden dump, partitions of the archive, and the triggers for events."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.servers import Databases
from tests.storage.postgres_kit import Background, Store, connected, new_job, wait_for_lock
from winch.core.errors import SchemaMismatch, StorageError, StorageUnavailable
from winch.core.lifecycle import JobState
from winch.drivers._shared.migrate import Migration
from winch.drivers.postgres import schema
from winch.drivers.postgres.driver import PostgresDriver
from winch.storage.params import Finish
from winch.testing.conformance import PostgresTarget

pytestmark = pytest.mark.servers
GOLDEN = Path(__file__).parents[1] / "golden" / "postgres.sql"
DAY = timedelta(days=1)


@pytest.fixture
def store(postgres_url: str) -> Iterator[Store]:
    driver = PostgresDriver.from_url(postgres_url)
    driver.migrate()
    yield Store(driver, postgres_url)
    driver.close()


@pytest.fixture
def watcher(postgres_url: str) -> Iterator[psycopg.Connection[Any]]:
    with connected(postgres_url) as connection:
        yield connection


# -- migrations --------------------------------------------------------------------------------------


def test_migrate_reports_what_it_applied_and_applies_it_once(empty_postgres_url: str) -> None:
    driver = PostgresDriver.from_url(empty_postgres_url)
    assert "CREATE TABLE" in driver.migration_sql()
    assert '"winch".job' in driver.migration_sql()
    assert driver.migrate() == [step.label for step in schema.MIGRATIONS]
    assert driver.migrate() == []
    assert driver.migration_sql() == ""
    status = driver.check_schema()
    newest = schema.MIGRATIONS[-1].number
    assert (status.current, status.newest, status.is_ready) == (newest, newest, True)


def test_two_migrators_at_once_do_each_step_once(empty_postgres_url: str) -> None:
    def migrate() -> list[str]:
        return PostgresDriver.from_url(empty_postgres_url, events=True).migrate()

    taken = [
        step for migrator in [Background(migrate) for _ in range(4)] for step in migrator.result(60)
    ]
    assert sorted(taken) == [*(step.label for step in schema.MIGRATIONS), "events"]


def test_a_migrator_that_died_halfway_left_nothing(
    empty_postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = PostgresDriver.from_url(empty_postgres_url)
    first = schema.MIGRATIONS[0]
    broken = Migration(1, first.name, first.sql + "\nSELECT 1/0;")
    with monkeypatch.context() as patched:
        patched.setattr(schema, "MIGRATIONS", (broken,))
        with pytest.raises(StorageError, match="division by zero"):
            driver.migrate()
        assert driver.check_schema().current is None
    assert driver.migrate() == [step.label for step in schema.MIGRATIONS]


def test_a_migrator_goes_on_where_another_stopped(
    empty_postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = PostgresDriver.from_url(empty_postgres_url)
    driver.migrate()
    second = Migration(900, "second", "CREATE TABLE {schema}.second (id integer);")
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, second))
    assert not driver.check_schema().is_ready
    assert "0900_second" in driver.migration_sql()
    assert driver.migrate() == ["0900_second"]
    assert driver.check_schema().is_ready


def test_a_store_made_before_the_first_release_is_refused(
    store: Store, watcher: psycopg.Connection[Any]
) -> None:
    watcher.execute("UPDATE winch.winch_migration SET name = 'first' WHERE number = 1")
    for refused in (store.driver.check_schema, store.driver.migrate, store.driver.migration_sql):
        with pytest.raises(SchemaMismatch, match=r"0001_first.*empty store"):
            refused()


def test_an_additive_schema_of_the_next_release_is_taken(
    store: Store, watcher: psycopg.Connection[Any]
) -> None:
    watcher.execute("ALTER TABLE winch.job ADD COLUMN of_the_future text")
    watcher.execute("INSERT INTO winch.winch_migration (number, name) VALUES (9999, 'of_the_future')")
    assert store.driver.check_schema().is_ready
    assert store.driver.migrate() == []


def test_a_schema_that_breaks_this_release_is_refused(
    store: Store, watcher: psycopg.Connection[Any]
) -> None:
    watcher.execute("INSERT INTO winch.winch_migration (number, name) VALUES (9999, 'future_breaking')")
    assert not store.driver.check_schema().is_ready
    with pytest.raises(SchemaMismatch, match="9999"):
        store.driver.migrate()


def test_a_migration_does_not_make_others_wait_behind_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = Migration(900, "second", "ALTER TABLE {schema}.job ADD COLUMN second integer;")
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, second))
    monkeypatch.setattr(schema, "LOCK_TIMEOUT", "200ms")
    with psycopg.connect(store.url) as reader:
        reader.execute("SELECT FROM winch.job")
        with pytest.raises(StorageUnavailable, match="lock timeout"):
            store.driver.migrate()
    assert store.driver.migrate() == ["0900_second"]


def test_two_schemas_in_one_database_know_nothing_of_each_other(postgres_url: str) -> None:
    one, two = (Store(PostgresDriver.from_url(postgres_url, schema=name)) for name in ("one", "two"))
    one.driver.migrate()
    with pytest.raises(SchemaMismatch):
        two.add()
    two.driver.migrate()
    two.add(3)
    assert one.driver.run(one.driver.counts())[JobState.READY] == 0
    one.driver.close()
    two.driver.close()


# -- the golden dump ---------------------------------------------------------------------------------

DUMP = {
    "table": """
        SELECT relname, concat_ws(' ', CASE relkind WHEN 'p' THEN pg_get_partkeydef(oid) END,
            array_to_string(reloptions, ', '))
        FROM pg_class
        WHERE relnamespace = 'winch'::regnamespace AND relkind IN ('r', 'p')
    """,
    "column": """
        SELECT attrelid::regclass || '.' || lpad(attnum::text, 2, '0') || ' ' || attname, concat_ws(' ',
            format_type(atttypid, atttypmod), CASE WHEN attnotnull THEN 'not null' END,
            'default ' || pg_get_expr(adbin, adrelid), CASE attidentity WHEN 'a' THEN 'identity' END)
        FROM pg_attribute
        JOIN pg_class ON pg_class.oid = attrelid
        LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
        WHERE relnamespace = 'winch'::regnamespace AND relkind IN ('r', 'p') AND attnum > 0
            AND NOT attisdropped
    """,
    "constraint": """
        SELECT conrelid::regclass || '.' || conname, pg_get_constraintdef(oid)
        FROM pg_constraint
        WHERE connamespace = 'winch'::regnamespace AND contype IN ('c', 'p', 'u', 'f')
    """,
    "index": """
        SELECT indexrelid::regclass::text, pg_get_indexdef(indexrelid)
            || coalesce(' -- ' || obj_description(indexrelid, 'pg_class'), '')
        FROM pg_index
        JOIN pg_class ON pg_class.oid = indexrelid
        WHERE relnamespace = 'winch'::regnamespace
    """,
    "function": """
        SELECT oid::regprocedure::text, concat_ws(' ', 'returns', pg_get_function_result(oid),
            CASE provolatile WHEN 'i' THEN 'immutable' WHEN 's' THEN 'stable' END,
            CASE WHEN prosecdef THEN 'security definer' END, array_to_string(proconfig, ', '),
            chr(10) || prosrc)
        FROM pg_proc
        WHERE pronamespace = 'winch'::regnamespace
    """,
    "trigger": """
        SELECT tgrelid::regclass || '.' || tgname, pg_get_triggerdef(oid)
        FROM pg_trigger
        WHERE NOT tgisinternal AND tgparentid = 0
    """,
}


def dump(connection: psycopg.Connection[Any]) -> str:
    """The schema as text, read from the catalogs: the same from every version of the server."""
    connection.execute("SET search_path = pg_catalog")
    lines = []
    for kind, query in DUMP.items():
        for name, text in sorted(connection.execute(query).fetchall()):
            if not any(
                part.isdecimal() and len(part) == 8 for part in name.replace(".", "_").split("_")
            ):
                lines.append(f"{kind} {name}: {text}".rstrip())
    return "\n".join(lines) + "\n"


def test_the_schema_is_the_golden_one(postgres_url: str, watcher: psycopg.Connection[Any]) -> None:
    PostgresDriver.from_url(postgres_url, events=True).migrate()
    found = dump(watcher)
    if os.environ.get("WINCH_UPDATE_GOLDEN"):
        GOLDEN.write_text(found)
    assert found == GOLDEN.read_text(), "the schema changed: WINCH_UPDATE_GOLDEN=1 rewrites the file"


def test_every_partial_index_names_the_statement_it_serves(
    store: Store, watcher: psycopg.Connection[Any]
) -> None:
    rows = watcher.execute(
        """
        SELECT relname
        FROM pg_index
        JOIN pg_class ON pg_class.oid = indexrelid
        WHERE relnamespace = 'winch'::regnamespace AND NOT indisprimary AND NOT relispartition
            AND coalesce(obj_description(indexrelid, 'pg_class'), '') NOT LIKE 'serves %'
        """
    ).fetchall()
    assert rows == []


def test_the_database_itself_refuses_impossible_jobs(
    store: Store, watcher: psycopg.Connection[Any]
) -> None:
    store.add()
    for change in (
        "state = 'running'",
        "state = 'completed'",
        "state = 'available'",
        "token = gen_random_uuid()",
        "attempt = -1",
    ):
        with pytest.raises(psycopg.errors.CheckViolation):
            watcher.execute(f"UPDATE winch.job SET {change}")
    with pytest.raises(psycopg.errors.CheckViolation):
        watcher.execute(STORED_BY_HAND.format(column="state", value="'running'"))


# Other defaults of a job that is stored as one is.
STORED_BY_HAND = """
    INSERT INTO winch.job (
        id, created_at, run_at, sort_key, version, priority, queue, task, args, {column}
    )
    VALUES (gen_random_uuid(), now(), now(), 0, 1, 0, 'default', 'shop.mail', '[]', {value})
"""


def test_the_suite_notices_a_job_that_cannot_be(postgres_server: Databases) -> None:
    target = PostgresTarget(postgres_server.new_store())
    try:
        driver = target.fresh()
        with target.connection() as conn:
            assert isinstance(conn, psycopg.Connection)
            stored = STORED_BY_HAND.format(column="state, token", value="'ready', gen_random_uuid()")
            conn.execute(stored.replace("winch.", f"{target.address().schema}."))
        with pytest.raises(AssertionError, match="cannot be"):
            target.finished(driver)
        assert target.fresh() is driver
        target.finished(driver)
    finally:
        target.close()


# -- partitions --------------------------------------------------------------------------------------


def partitions(watcher: psycopg.Connection[Any]) -> list[str]:
    rows = watcher.execute(
        "SELECT relname FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid"
        " WHERE inhparent = 'winch.archive'::regclass ORDER BY 1"
    )
    return [row[0] for row in rows]


def partition_of(watcher: psycopg.Connection[Any], job: str) -> str:
    row = watcher.execute(
        "SELECT relname FROM winch.archive JOIN pg_class ON pg_class.oid = archive.tableoid"
        " WHERE id = %s",
        [job],
    ).fetchone()
    assert row is not None
    return str(row[0])


def finish(store: Store, to: JobState, now: datetime, **fields: Any) -> str:
    driver = store.driver
    session = store.session()
    (job,) = driver.run(driver.enqueue([new_job(**fields)]))
    (claim,) = store.claim(session)
    driver.run(driver.finish([Finish(id=claim.id, token=claim.token, to=to, what="failed")], now=now))
    return job.id


def test_partitions_are_made_ahead(store: Store, watcher: psycopg.Connection[Any]) -> None:
    now = datetime.now(UTC)
    names = partitions(watcher)
    for days in range(1, 11):
        assert f"archive_{now + days * DAY:%Y%m%d}" in names
    assert "archive_default" in names
    assert len([name for name in names if name.endswith("01")]) >= 25
    store.driver.run(store.driver.prune(now=now + 3 * DAY))
    assert f"archive_{now + 13 * DAY:%Y%m%d}" in partitions(watcher)
    before = partitions(watcher)
    store.driver.run(store.driver.prune(now=now + 3 * DAY))
    assert partitions(watcher) == before


def test_a_job_goes_where_no_drop_can_take_it_early(
    store: Store, watcher: psycopg.Connection[Any]
) -> None:
    now = datetime.now(UTC)
    for to, keep in (
        (JobState.COMPLETED, None),
        (JobState.DEAD, None),
        (JobState.CANCELLED, timedelta(0)),
        (JobState.COMPLETED, timedelta(days=7, hours=23)),
        (JobState.COMPLETED, timedelta(days=8)),
        (JobState.COMPLETED, timedelta(days=40)),
        (JobState.COMPLETED, timedelta(days=700)),
        (JobState.COMPLETED, timedelta(days=5000)),
        (JobState.COMPLETED, timedelta.max),
    ):
        job = finish(store, to, now, keep=keep)
        name = partition_of(watcher, job)
        if keep is not None and keep > timedelta(days=760):
            assert name == "archive_default"
            continue
        assert name != "archive_default", (to, keep)
        drops = datetime.strptime(name.removeprefix("archive_"), "%Y%m%d").replace(tzinfo=UTC)
        kept = keep if keep is not None else timedelta(days=180 if to is JobState.DEAD else 7)
        assert now + kept <= drops, f"{to} kept {keep} would go early, with {name}"


def test_expired_partitions_are_dropped_whole(store: Store, watcher: psycopg.Connection[Any]) -> None:
    now = datetime.now(UTC)
    job = finish(store, JobState.COMPLETED, now)
    stays = finish(store, JobState.COMPLETED, now, keep=timedelta(days=30))
    name = partition_of(watcher, job)
    # A big partition: nothing is deleted row by row while its day has not come.
    watcher.execute(
        f"ALTER TABLE winch.{name} SET (autovacuum_enabled = off);"
        f"INSERT INTO winch.{name} SELECT (archive.*::winch.archive).* FROM winch.archive,"
        " generate_series(1, 120000) WHERE archive.id = " + f"'{job}'"
    )
    day = datetime.strptime(name.removeprefix("archive_"), "%Y%m%d").replace(tzinfo=UTC)
    driver = store.driver
    assert driver.run(driver.prune(now=day - timedelta(seconds=1))) == 0
    assert driver.run(driver.get([job]))[0] is not None
    driver.run(driver.prune(now=day))
    assert name not in partitions(watcher)
    assert driver.run(driver.get([job])) == [None]
    assert driver.run(driver.get([stays]))[0] is not None


def test_a_reader_of_the_archive_delays_only_a_drop(
    store: Store, watcher: psycopg.Connection[Any]
) -> None:
    now = datetime.now(UTC)
    job = finish(store, JobState.COMPLETED, now)
    driver = store.driver
    with psycopg.connect(store.url) as reader:
        reader.execute("SELECT FROM winch.archive")
        assert driver.run(driver.prune(now=now + 9 * DAY)) == 0
        assert finish(store, JobState.COMPLETED, now)
    assert driver.run(driver.prune(now=now + 9 * DAY)) == 2
    assert driver.run(driver.get([job])) == [None]


def test_rows_without_a_partition_land_in_the_default_one_and_are_pruned(
    store: Store, watcher: psycopg.Connection[Any]
) -> None:
    later = datetime.now(UTC) + 60 * DAY  # no pruner has run, so there are no partitions ahead
    job = finish(store, JobState.COMPLETED, later)
    assert partition_of(watcher, job) == "archive_default"
    driver = store.driver
    assert driver.run(driver.prune(now=later + 6 * DAY)) == 0
    assert driver.run(driver.prune(now=later + 7 * DAY)) == 1
    assert driver.run(driver.get([job])) == [None]


def test_one_prunes_at_a_time(store: Store) -> None:
    now = datetime.now(UTC)
    finish(store, JobState.COMPLETED, now, keep=timedelta(0))
    driver = store.driver
    with psycopg.connect(store.url) as first:
        assert driver.run_on(first, driver.prune(now=now)) == 1
        assert driver.run(driver.prune(now=now)) == 0
        first.rollback()
    assert driver.run(driver.prune(now=now)) == 1


def test_a_worker_needs_no_right_to_create_or_drop(
    store: Store, watcher: psycopg.Connection[Any]
) -> None:
    role = f"winch_worker_{os.getpid()}"
    watcher.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'x'")
    try:
        watcher.execute(f"GRANT USAGE ON SCHEMA winch TO {role}")
        watcher.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA winch TO {role}")
        parts = psycopg.conninfo.conninfo_to_dict(store.url)
        url = f"postgresql://{role}:x@{parts['host']}:{parts['port']}/{parts['dbname']}"
        worker = Store(PostgresDriver.from_url(url))
        now = datetime.now(UTC)
        job = finish(worker, JobState.COMPLETED, now, is_given_id=True)
        assert worker.driver.check_schema().is_ready
        assert worker.driver.run(worker.driver.prune(now=now + 10 * DAY)) == 1
        assert worker.driver.run(worker.driver.get([job])) == [None]
        with pytest.raises(psycopg.errors.InsufficientPrivilege), connected(url) as conn:
            conn.execute("CREATE TABLE winch.mine ()")
        worker.driver.close()
    finally:
        watcher.execute(f"DROP OWNED BY {role}")
        watcher.execute(f"DROP ROLE {role}")


def test_a_finish_goes_on_while_partitions_are_made(
    store: Store, watcher: psycopg.Connection[Any]
) -> None:
    now = datetime.now(UTC)
    with psycopg.connect(store.url) as pruning:
        store.driver.run_on(pruning, store.driver.prune(now=now + 2 * DAY))
        finishing = Background(lambda: finish(store, JobState.COMPLETED, now))
        with suppress(AssertionError):
            wait_for_lock(watcher)
        pruning.commit()
        assert finishing.result()


# -- events ------------------------------------------------------------------------------------------


def test_events_are_not_ready_without_their_triggers(store: Store) -> None:
    witness = PostgresDriver.from_url(store.url, events=True)
    assert not witness.check_schema().is_ready
    assert "CREATE TRIGGER" in witness.migration_sql()
    assert witness.migrate() == ["events"]
    assert witness.migrate() == []
    assert witness.check_schema().is_ready


def test_migrating_brings_the_functions_of_events_up_to_date(
    store: Store, watcher: psycopg.Connection[Any]
) -> None:
    witness = PostgresDriver.from_url(store.url, events=True)
    witness.migrate()
    before = dump(watcher)
    watcher.execute(
        "CREATE OR REPLACE FUNCTION winch.witness_archive() RETURNS trigger"
        " LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'"
    )
    assert "witness_archive" in store.driver.migration_sql()
    assert store.driver.migrate() == ["events"]
    assert store.driver.migrate() == []
    assert dump(watcher) == before


def test_a_driver_without_events_writes_none_beside_one_that_does(store: Store) -> None:
    witness = Store(PostgresDriver.from_url(store.url, events=True))
    witness.driver.migrate()
    store.add()
    assert store.driver.run(store.driver.events()) == []
    (job,) = witness.add()
    assert [event.job for event in store.driver.run(store.driver.events())] == [job]
    witness.driver.close()


def test_a_rolled_back_change_is_no_event(store: Store) -> None:
    witness = Store(PostgresDriver.from_url(store.url, events=True))
    witness.driver.migrate()
    with psycopg.connect(store.url) as conn:
        witness.driver.run_on(conn, witness.driver.enqueue([new_job()]))
        conn.rollback()
    assert witness.driver.run(witness.driver.events()) == []
    witness.driver.close()


def test_pruning_is_no_event(store: Store) -> None:
    witness = Store(PostgresDriver.from_url(store.url, events=True))
    witness.driver.migrate()
    now = datetime.now(UTC)
    job = finish(witness, JobState.COMPLETED, now, keep=timedelta(0))
    before = witness.driver.run(witness.driver.events())
    assert witness.driver.run(witness.driver.prune(now=now)) == 1
    assert witness.driver.run(witness.driver.events()) == before
    assert [event.kind for event in before] == ["enqueued", "claimed", "finished"]
    assert witness.driver.run(witness.driver.get([job])) == [None]
    witness.driver.close()
