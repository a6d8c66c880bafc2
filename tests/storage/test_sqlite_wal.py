"""The room that is kept at the end of the WAL's file: it is used, and it is in nobody's way."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.storage.test_sqlite import make_job
from winch.drivers.sqlite.connections import pool, wal_file
from winch.drivers.sqlite.connections.pool import Connections
from winch.drivers.sqlite.driver import SqliteDriver

# Writes ahead after every commit, whether it is needed or not, and says each id once it is told that the
# job is stored.
PRODUCER = """
import itertools, sys
from winch.core.values.ids import job_id
from winch.drivers.sqlite.connections import pool as connections, wal_file
from winch.drivers.sqlite.driver import SqliteDriver
from winch.storage.params import NewJob
connections._ROOM_EVERY = 1
wal_file.AHEAD_BYTES = 1 << 40
wal_file._STEP = 64 * 1024
wal_file.WalFile._has_room = lambda *_: False
driver = SqliteDriver(sys.argv[1], shared=True)
for n in itertools.count(int(sys.argv[2])):
    job = NewJob(id=job_id(n, bytes(8)), task="t", args='"' + "x" * (n * 997 % 9000) + '"')
    driver.run(driver.enqueue([job]))
    driver._connections._wal._end = -1
    sys.stdout.write(job.id + "\\n")
    sys.stdout.flush()
"""


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqliteDriver]:
    monkeypatch.setattr(pool, "_ROOM_EVERY", 1)
    driver = SqliteDriver(tmp_path / "winch.db")
    driver.migrate()
    yield driver
    driver.close()


def wal_of(driver: SqliteDriver) -> Path:
    path = driver._connections.path
    return path.with_name(path.name + "-wal")


def stored(path: Path) -> set[str]:
    """What somebody finds there who knows nothing of Winch."""
    conn = sqlite3.connect(path, isolation_level=None)
    conn.execute("PRAGMA wal_autocheckpoint = 0")
    assert conn.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    found = {row[0] for row in conn.execute("SELECT id FROM winch_job")}
    conn.close()
    return found


def enqueue(driver: SqliteDriver, count: int = 1) -> list[str]:
    jobs = [make_job() for _ in range(count)]
    for job in jobs:
        driver.run(driver.enqueue([job]))
    return [job.id for job in jobs]


def test_commits_find_room_in_the_file(driver: SqliteDriver) -> None:
    sizes = []
    for _ in range(40):
        enqueue(driver)
        sizes.append(wal_of(driver).stat().st_size)
    assert len(set(sizes)) <= 3, sizes
    data = wal_of(driver).read_bytes()
    assert not data[-8192:].strip(b"\0")
    assert len(data.rstrip(b"\0")) > sizes[0] / 3


def test_it_is_looked_for_after_some_commits(tmp_path: Path) -> None:
    driver = SqliteDriver(tmp_path / "winch.db")
    enqueue(driver, pool._ROOM_EVERY)
    assert not wal_of(driver).read_bytes()[-8192:].strip(b"\0")
    driver.close()


def test_room_ends_where_a_checkpoint_begins_anew(
    driver: SqliteDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert wal_file.AHEAD_BYTES <= pool.WAL_FILE_BYTES / 2  # else it would be cut for its room
    monkeypatch.setattr(wal_file, "AHEAD_BYTES", 600_000)
    jobs = enqueue(driver, 150)  # about 1.2 MB
    size = wal_of(driver).stat().st_size
    assert size > 1_000_000
    assert len(wal_of(driver).read_bytes().rstrip(b"\0")) > size - 4096
    assert stored(driver._connections.path) == set(jobs)


def test_a_store_whose_commits_do_not_sync_writes_nothing_ahead(tmp_path: Path) -> None:
    driver = SqliteDriver(tmp_path / "winch.db", sync="normal")
    enqueue(driver, 5)
    assert wal_of(driver).read_bytes()[-4096:].strip(b"\0")
    driver.close()


def test_a_store_whose_commits_do_not_sync_has_the_system_begin_with_what_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a checkpoint finds most of it on the disk; each part once, also after a checkpoint."""
    monkeypatch.setattr(pool, "BEGIN_BYTES", 100_000)
    begun: list[int] = []
    begin = wal_file._begin_writing()
    assert begin is not None or sys.platform != "linux"

    def count(*values: int) -> None:
        begun.append(values[0])
        assert begin is None or begin(*values) == 0

    monkeypatch.setattr(wal_file, "_begin_writing", lambda: count)
    driver = SqliteDriver(tmp_path / "winch.db", sync="normal")
    jobs = enqueue(driver, 50)
    assert 5 <= len(begun) <= 7  # 50 commits of 12 KiB and a row
    lock = driver._connections.acquire()
    driver._connections.checkpoint()
    driver._connections.release(lock)
    begun.clear()
    jobs += enqueue(driver, 50)
    assert 5 <= len(begun) <= 7
    assert stored(driver._connections.path) == set(jobs)
    driver.close()


def test_where_the_system_cannot_be_told_the_checkpoint_does_it_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "BEGIN_BYTES", 0)
    monkeypatch.setattr(wal_file, "_begin_writing", lambda: None)
    driver = SqliteDriver(tmp_path / "winch.db", sync="normal")
    jobs = enqueue(driver, 3)
    assert stored(driver._connections.path) == set(jobs)
    driver.close()


def test_two_processes_do_not_both_write_ahead(driver: SqliteDriver) -> None:
    enqueue(driver)
    size = wal_of(driver).stat().st_size
    other = SqliteDriver(driver._connections.path)
    other._connections.lock()
    jobs = enqueue(other, 3) + enqueue(driver, 3)
    assert wal_of(driver).stat().st_size == size
    other.close()
    assert set(jobs) < stored(driver._connections.path)


def test_a_copy_is_whole_wherever_the_room_ends(driver: SqliteDriver, tmp_path: Path) -> None:
    """As after a crash of the machine: no index of the WAL, and any length behind what was synced."""
    jobs = set(enqueue(driver, 3))
    data = wal_of(driver).read_bytes()
    used = len(data.rstrip(b"\0"))
    for number, length in enumerate((len(data), used + 4096, used + 5000, used + 1)):
        copy = tmp_path / f"copy{number}.db"
        shutil.copy(driver._connections.path, copy)
        copy.with_name(copy.name + "-wal").write_bytes(data[:length])
        if number == 0:  # by one who may not make the index
            conn = sqlite3.connect(f"file:{copy}?mode=ro", uri=True)
            assert {row[0] for row in conn.execute("SELECT id FROM winch_job")} == jobs
            conn.close()
        assert stored(copy) == jobs


def test_after_a_checkpoint_that_cuts_the_file_room_is_made_anew(driver: SqliteDriver) -> None:
    jobs = enqueue(driver, 3)
    driver._connections.writer().execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    assert wal_of(driver).stat().st_size == 0
    jobs += enqueue(driver, 30)
    assert not wal_of(driver).read_bytes()[-8192:].strip(b"\0")
    assert stored(driver._connections.path) == set(jobs)


def test_others_see_nothing_of_it(driver: SqliteDriver, tmp_path: Path) -> None:
    jobs = set(enqueue(driver, 3))
    conn = sqlite3.connect(driver._connections.path, isolation_level=None)
    conn.execute("PRAGMA wal_autocheckpoint = 0")
    conn.execute("PRAGMA journal_size_limit = 100000")
    with sqlite3.connect(tmp_path / "backup.db") as target:
        conn.backup(target)
    target.close()
    assert stored(tmp_path / "backup.db") == jobs
    conn.execute("VACUUM")
    jobs |= set(enqueue(driver, 3))
    conn.close()
    driver.close()
    assert not wal_of(driver).exists()
    assert stored(driver._connections.path) == jobs


def test_while_somebody_else_writes_nothing_is_written_ahead(
    driver: SqliteDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that is not ours begins between our commit and our look."""
    conn = sqlite3.connect(driver._connections.path, isolation_level=None)
    conn.execute("PRAGMA wal_autocheckpoint = 0")
    conn.execute("PRAGMA cache_size = 5")  # its changes go to the file before it commits
    conn.execute("CREATE TABLE theirs (x)")
    real = Connections.is_checkpoint_due

    def late(self: Connections, changes: int) -> bool:
        conn.execute("BEGIN IMMEDIATE")
        conn.execute("INSERT INTO theirs VALUES (randomblob(200000))")
        size = wal_of(driver).stat().st_size
        try:
            return real(self, changes)
        finally:
            assert wal_of(driver).stat().st_size == size
            conn.execute("COMMIT")

    with monkeypatch.context() as patch:
        patch.setattr(Connections, "is_checkpoint_due", late)
        jobs = enqueue(driver, 3)
    jobs += enqueue(driver, 3)
    assert conn.execute("SELECT count(*), min(length(x)) FROM theirs").fetchone() == (3, 200_000)
    conn.close()
    assert stored(driver._connections.path) == set(jobs)


def test_a_full_disk_gets_its_room_back(driver: SqliteDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, data: bytes, offset: int) -> int:
        os.ftruncate(fd, offset + 4096)  # some of it was written
        raise OSError(errno.ENOSPC, "no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(wal_file.os, "pwrite", full)  # type: ignore[attr-defined]  # the module's os
        jobs = enqueue(driver, 3)
        assert wal_of(driver).read_bytes()[-4096:].strip(b"\0")
    monkeypatch.setattr(wal_file, "SPARED_BYTES", 1 << 60)
    jobs += enqueue(driver, 3)
    assert wal_of(driver).read_bytes()[-4096:].strip(b"\0")
    assert stored(driver._connections.path) == set(jobs)


def test_nothing_acknowledged_is_lost_when_its_process_is_killed(driver: SqliteDriver) -> None:
    """Killed again and again while it commits and writes ahead, beside one that writes on its own."""
    path = driver._connections.path
    told: set[str] = set()
    stop = threading.Event()
    theirs = 0

    def write() -> None:
        nonlocal theirs
        conn = sqlite3.connect(path, isolation_level=None, timeout=20)
        conn.execute("PRAGMA wal_autocheckpoint = 0")
        conn.execute("CREATE TABLE theirs (x)")
        while not stop.wait(0.001):
            conn.execute("INSERT INTO theirs VALUES (randomblob(5000))")
            theirs += 1
        conn.close()

    beside = threading.Thread(target=write)
    beside.start()
    try:
        for turn in range(3):
            argv = [sys.executable, "-c", PRODUCER, str(path), str((turn + 1) * 100_000)]
            with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as producer:
                assert producer.stdout is not None
                for _ in range(25 + 13 * turn):
                    told.add(producer.stdout.readline().strip())
                producer.send_signal(signal.SIGKILL)
                told |= {line.strip() for line in producer.stdout if line.endswith("\n")}
            found = stored(path)
            assert "" not in told
            assert told <= found
            assert len(found) <= len(told) + turn + 1  # stored, and killed before it could say so
    finally:
        stop.set()
        beside.join()
    conn = driver._connections.writer()
    assert conn.execute("SELECT count(*), min(length(x)) FROM theirs").fetchone() == (theirs, 5000)
