"""The SQLite driver beyond the conformance suite: addresses, files, schema, conn=."""

from __future__ import annotations

import asyncio
import gc
import os
import sqlite3
import stat
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.storage.sqlite_jobs import make_job
from winch.core.errors import ConfigError, SchemaMismatch, StorageError, StorageFull, StorageUnavailable
from winch.core.lifecycle import JobState
from winch.drivers._shared import migrate, sql
from winch.drivers.sqlite import schema
from winch.drivers.sqlite.address import parse_url, refuse_network
from winch.drivers.sqlite.connections.opening import has_wal_reset_bug
from winch.drivers.sqlite.driver import SqliteDriver
from winch.drivers.sqlite.statements import SQL
from winch.storage.protocol import Driver

NOW = datetime(2030, 1, 1, tzinfo=UTC)
GOLDEN = Path(__file__).parents[1] / "golden" / "sqlite.sql"


@pytest.fixture
def driver(sqlite_path: Path) -> Iterator[SqliteDriver]:
    opened = SqliteDriver(sqlite_path)
    yield opened
    opened.close()


def test_it_is_a_driver(sqlite_path: Path) -> None:
    is_one: Driver = SqliteDriver(sqlite_path)
    assert is_one.name == "sqlite"


# -- addresses ----------------------------------------------------------------------------------------


def test_three_slashes_are_relative_and_four_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert parse_url("sqlite:///jobs/queue.db").path == tmp_path / "jobs/queue.db"
    assert parse_url("sqlite:////var/lib/queue.db").path == Path("/var/lib/queue.db")
    assert parse_url("sqlite:///my%20jobs.db").path == tmp_path / "my jobs.db"
    assert parse_url("sqlite:///queue.db?sync=normal").sync == "normal"


@pytest.mark.parametrize(
    "url, says",
    [
        ("sqlite://", "memory://"),
        ("sqlite:///", "memory://"),
        ("sqlite:///:memory:", "memory://"),
        ("sqlite://:memory:", "memory://"),
        ("sqlite://queue.db", "three slashes"),
        ("sqlite:///queue.db?snyc=full", "did you mean 'sync'"),
        ("sqlite:///queue.db?sync=off", "'full' or 'normal'"),
    ],
)
def test_an_address_that_cannot_work_is_refused(url: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        SqliteDriver.from_url(url)


def test_opening_waits_for_the_first_use(sqlite_path: Path) -> None:
    driver = SqliteDriver.from_url(f"sqlite:///{sqlite_path}")
    assert not sqlite_path.exists()
    assert not driver.check_schema().is_ready
    assert "CREATE TABLE winch_job" in driver.migration_sql()
    assert not sqlite_path.exists()
    driver.run(driver.enqueue([make_job()]))
    assert driver.check_schema().is_ready
    assert driver.migration_sql() == ""
    driver.close()


# -- the file -----------------------------------------------------------------------------------------


def test_files_are_for_their_owner_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        driver = SqliteDriver(tmp_path / "made" / "winch.db")
        driver.run(driver.enqueue([make_job()]))
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "made").rglob("*")}
        driver.close()
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "made").stat().st_mode) == 0o700
    assert modes.pop("winch.db-bells") == 0o700
    assert set(modes) >= {"winch.db", "winch.db-wal", "winch.db-lock", "board"}
    assert set(modes.values()) == {0o600}


def test_a_symbolic_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real.db").touch(mode=0o600)
    (tmp_path / "link.db").symlink_to(tmp_path / "real.db")
    with pytest.raises(ConfigError, match="symbolic link"):
        SqliteDriver(tmp_path / "link.db").migrate()


def test_a_file_that_everybody_may_write_is_refused(sqlite_path: Path) -> None:
    sqlite_path.touch()
    sqlite_path.chmod(0o666)
    with pytest.raises(ConfigError, match="chmod o-w"):
        SqliteDriver(sqlite_path).migrate()


def test_a_folder_in_place_of_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a file"):
        SqliteDriver(tmp_path).migrate()


def test_a_file_that_is_no_database_is_refused(sqlite_path: Path) -> None:
    sqlite_path.write_bytes(b"not a database, but long enough to be looked at as one" * 20)
    driver = SqliteDriver(sqlite_path)
    with pytest.raises(StorageError, match="not a SQLite database"):
        driver.migrate()
    driver.close()


def test_a_read_only_folder_raises() -> None:
    # Not tmp_path: other users may not enter that one, and root, which may write everywhere, has to
    # become another user here.
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o555)
        user = os.geteuid()
        if user == 0:
            os.seteuid(65534)
        try:
            with pytest.raises(StorageError, match="write permission"):
                SqliteDriver(folder / "winch.db").migrate()
        finally:
            os.seteuid(user)
            folder.chmod(0o700)


MOUNTS = """\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 22 0:44 / /mnt/share rw - {kind} server:/export rw
31 22 0:45 / /mnt/share/local\\040disk rw - xfs /dev/vdb rw
"""


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs"])
def test_network_file_systems_are_refused(kind: str) -> None:
    with pytest.raises(ConfigError, match=f"network file system \\({kind}\\)"):
        refuse_network(Path("/mnt/share/jobs"), MOUNTS.format(kind=kind))


def test_local_file_systems_are_taken() -> None:
    mounts = MOUNTS.format(kind="nfs4")
    refuse_network(Path("/var/lib"), mounts)
    refuse_network(Path("/mnt/share/local disk/jobs"), mounts)
    refuse_network(Path("/mnt/shared"), mounts)


def test_a_full_disk_raises_and_the_store_recovers(driver: SqliteDriver) -> None:
    driver.run(driver.enqueue([make_job()]))
    conn = driver._connections.writer()
    (pages,) = conn.execute("PRAGMA page_count").fetchone()
    conn.execute(f"PRAGMA max_page_count = {pages + 2}")
    with pytest.raises(StorageFull, match="no room"):
        driver.run(driver.enqueue([make_job(args='"' + "x" * 100_000 + '"')]))
    conn.execute("PRAGMA max_page_count = 1000000")
    driver.run(driver.enqueue([make_job(args='"' + "x" * 100_000 + '"')]))
    assert driver.run(driver.counts())[JobState.READY] == 2


def test_a_file_replaced_while_open_is_noticed_and_reopened(
    driver: SqliteDriver, sqlite_path: Path
) -> None:
    driver.run(driver.enqueue([make_job()]))
    for path in sqlite_path.parent.glob("winch.db*"):
        if path.is_file():
            path.unlink()
    driver._connections.open_file()._next_look = 0
    with pytest.raises(StorageUnavailable, match="removed or replaced"):
        driver.run(driver.enqueue([make_job()]))
    driver.run(driver.enqueue([make_job()]))
    assert driver.run(driver.counts())[JobState.READY] == 1


def test_facts_for_doctor(driver: SqliteDriver) -> None:
    facts = driver.facts()
    assert facts["sqlite version"] == sqlite3.sqlite_version
    assert facts["sync"] == "full"
    assert int(facts["file bytes"]) > 0


# -- builds -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "version, has_it",
    [
        ((3, 6, 23), False),
        ((3, 7, 0), True),
        ((3, 37, 0), True),
        ((3, 40, 1), True),
        ((3, 44, 5), True),
        ((3, 44, 6), False),
        ((3, 44, 9), False),
        ((3, 45, 0), True),
        ((3, 50, 6), True),
        ((3, 50, 7), False),
        ((3, 51, 0), True),
        ((3, 51, 2), True),
        ((3, 51, 3), False),
        ((3, 52, 0), False),
    ],
)
def test_which_builds_have_the_wal_reset_bug(version: tuple[int, int, int], has_it: bool) -> None:
    assert has_wal_reset_bug(version) is has_it


@pytest.mark.parametrize("sync, number", [("full", 2), ("normal", 1)])
def test_every_connection_syncs_as_configured_and_never_checkpoints(
    sqlite_path: Path, sync: str, number: int
) -> None:
    driver = SqliteDriver.from_url(f"sqlite:///{sqlite_path}?sync={sync}")
    driver.migrate()
    connections = driver._connections
    with (
        connections.reader() as reading,
        driver.transaction() as carrying,
        connections.watcher() as watching,
    ):
        assert watching is not None
        for conn in (connections.writer(), carrying, reading, watching):
            assert conn.execute("PRAGMA synchronous").fetchone() == (number,)
            assert conn.execute("PRAGMA wal_autocheckpoint").fetchone() == (0,)
            assert conn.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    driver.close()


# -- schema -------------------------------------------------------------------------------------------


def test_schema_is_the_golden_one(driver: SqliteDriver) -> None:
    events = SqliteDriver(driver._address.path, events=True)
    events.migrate()
    with events._connections.reader() as conn:
        rows = conn.execute(
            "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY type DESC, tbl_name, name"
        ).fetchall()
    events.close()
    text = "\n\n".join(f"{row[0]};" for row in rows) + "\n"
    if os.environ.get("WINCH_UPDATE_GOLDEN") == "1":
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text(), "WINCH_UPDATE_GOLDEN=1 rewrites it"


def test_migrating_twice_takes_the_steps_once(driver: SqliteDriver) -> None:
    assert driver.migrate() == [step.label for step in schema.MIGRATIONS]
    assert driver.migrate() == []
    status = driver.check_schema()
    newest = schema.MIGRATIONS[-1].number
    assert (status.current, status.newest, status.is_ready) == (newest, newest, True)


def test_a_step_that_fails_leaves_what_was_before(
    driver: SqliteDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.migrate()
    broken = migrate.Migration(900, "broken", "CREATE TABLE half (id TEXT);\nCREATE NONSENSE;\n")
    mended = migrate.Migration(900, "mended", "CREATE TABLE half (id TEXT);\n")
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, broken))
    with pytest.raises(StorageError, match="syntax error"):
        driver.migrate()
    assert driver.check_schema().current == schema.MIGRATIONS[-2].number
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS[:-1], mended))
    assert driver.migrate() == ["0900_mended"]


def test_a_store_made_before_the_first_release_is_refused(driver: SqliteDriver) -> None:
    driver.migrate()
    driver._connections.writer().execute("UPDATE winch_migration SET name = 'first' WHERE number = 1")
    older = SqliteDriver(driver._address.path)
    for refused in (older.check_schema, older.migrate, lambda: older.run(older.counts())):
        with pytest.raises(SchemaMismatch, match=r"0001_first.*empty store"):
            refused()
    older.close()


def test_an_additive_schema_of_the_next_release_is_taken(driver: SqliteDriver) -> None:
    driver.migrate()
    driver._connections.writer().execute("ALTER TABLE winch_job ADD COLUMN later TEXT")
    driver._connections.writer().execute("INSERT INTO winch_migration VALUES (900, 'later', 0)")
    late = SqliteDriver(driver._address.path)
    assert late.check_schema().is_ready
    assert late.migrate() == []
    late.close()


def test_a_schema_that_breaks_this_release_is_refused(driver: SqliteDriver) -> None:
    driver.migrate()
    driver._connections.writer().execute("INSERT INTO winch_migration VALUES (900, 'later_breaking', 0)")
    late = SqliteDriver(driver._address.path)
    with pytest.raises(SchemaMismatch, match="upgrade Winch"):
        late.run(late.enqueue([make_job()]))
    assert not late.check_schema().is_ready
    late.close()


def test_a_file_with_tables_of_that_name_is_left_alone(sqlite_path: Path) -> None:
    other = sqlite3.connect(sqlite_path)
    other.execute("CREATE TABLE winch_job (mine TEXT)")
    other.close()
    driver = SqliteDriver(sqlite_path)
    with pytest.raises(ConfigError, match="a separate file for Winch"):
        driver.migrate()
    driver.close()


def test_every_statement_has_a_comment_on_its_purpose() -> None:
    for statement in SQL.values():
        assert statement.header.startswith(f"-- {statement.name}: ")


def test_parameters_are_numbered_and_texts_and_casts_left_alone() -> None:
    text = "-- get: one.\nSELECT ':no', x::text -- why\nFROM t WHERE a = :a AND b = :b OR c = :a;\n"
    (statement,) = sql.parse(text, "get.sql", lambda _, number: f"?{number}").values()
    assert statement.text == "SELECT ':no', x::text\nFROM t WHERE a = ?1 AND b = ?2 OR c = ?1"
    assert statement.bind({"b": 2, "a": 1}) == (1, 2)
    assert sql.parse(text, "get.sql", lambda name, _: f"%({name})s")["get"].text.endswith("c = %(a)s")


# -- transactions of callers --------------------------------------------------------------------------


def test_a_transaction_commits_the_job_with_what_is_beside_it(driver: SqliteDriver) -> None:
    with driver.transaction() as conn:
        conn.execute("CREATE TABLE account (name TEXT)")
    job = make_job()
    with driver.transaction() as conn:
        conn.execute("INSERT INTO account VALUES ('a')")
        driver.run_on(conn, driver.enqueue([job]))
        assert driver.run(driver.get([job.id])) == [None], "not before the commit"
    assert driver.run(driver.get([job.id])) != [None]


def test_a_transaction_that_raises_leaves_nothing(driver: SqliteDriver) -> None:
    job = make_job()

    def fail() -> None:
        with driver.transaction() as conn:
            driver.run_on(conn, driver.enqueue([job]))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert driver.run(driver.get([job.id])) == [None]
    driver.run(driver.enqueue([job]))


def test_writing_beside_ones_own_transaction_is_refused_at_once(driver: SqliteDriver) -> None:
    with driver.transaction(), pytest.raises(ConfigError, match="conn="):
        driver.run(driver.enqueue([make_job()]))


def test_committing_inside_the_block_is_refused(driver: SqliteDriver) -> None:
    with driver.transaction() as conn, pytest.raises(ConfigError, match="end of its block"):
        conn.commit()


def test_a_transactions_connection_is_no_use_after_its_end(driver: SqliteDriver) -> None:
    with driver.transaction() as conn:
        pass
    with pytest.raises(ConfigError, match="inside a transaction"):
        driver.run_on(conn, driver.enqueue([make_job()]))


def test_foreign_connections_are_refused_on_builds_with_the_bug(
    driver: SqliteDriver, sqlite_path: Path
) -> None:
    driver.migrate()
    driver._has_bug = True
    foreign = sqlite3.connect(sqlite_path)
    with pytest.raises(ConfigError, match="WAL-reset bug"):
        driver.run_on(foreign, driver.enqueue([make_job()]))
    foreign.close()


def test_foreign_connections_to_the_file_are_taken_on_other_builds(
    driver: SqliteDriver, sqlite_path: Path, tmp_path: Path
) -> None:
    driver.migrate()
    driver._has_bug = False
    job = make_job()
    foreign = sqlite3.connect(sqlite_path, isolation_level=None)
    foreign.row_factory = lambda _, row: {"row": row}
    foreign.execute("PRAGMA wal_autocheckpoint = 0")
    foreign.execute("BEGIN IMMEDIATE")
    assert driver.run_on(foreign, driver.enqueue([job]))[0].is_new
    assert asyncio.run(driver.arun_on(foreign, driver.get([job.id]))) != [None]
    foreign.execute("COMMIT")
    foreign.close()
    assert driver.run(driver.get([job.id])) != [None]

    implicit = sqlite3.connect(sqlite_path)
    implicit.execute("PRAGMA wal_autocheckpoint = 0")
    driver.run_on(implicit, driver.enqueue([second := make_job()]))
    assert driver.run(driver.get([second.id])) == [None]
    implicit.commit()
    assert driver.run(driver.get([second.id])) != [None]
    implicit.close()

    elsewhere = sqlite3.connect(tmp_path / "other.db")
    with pytest.raises(ConfigError, match=r"other\.db"):
        driver.run_on(elsewhere, driver.enqueue([make_job()]))
    elsewhere.close()
    with pytest.raises(ConfigError, match=r"got builtins\.object"):
        driver.run_on(object(), driver.enqueue([make_job()]))


def test_a_driver_may_be_collected_inside_a_transaction_of_another(tmp_path: Path) -> None:
    kept = SqliteDriver(tmp_path / "winch.db")
    other = SqliteDriver(tmp_path / "winch.db")
    other.run(other.queues())
    with kept.transaction() as conn:
        conn.execute("CREATE TABLE effect (n INTEGER)")
        del other
        gc.collect()  # an exception in here would be printed and, in these tests, be an error
    kept.close()
