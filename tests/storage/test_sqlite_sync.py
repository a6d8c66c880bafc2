"""What is acknowledged is on the disk, and SQLite alone writes and syncs its files."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.storage.sqlite_jobs import make_job
from tests.tools import program
from winch.drivers.sqlite.driver import SqliteDriver

# Prints each id after its enqueue has returned.
PRODUCER = """
import itertools, sys
from winch.core.values.ids import job_id
from winch.drivers.sqlite.driver import SqliteDriver
from winch.storage.params import NewJob
driver = SqliteDriver(sys.argv[1], shared=True)
first, size = int(sys.argv[2]), int(sys.argv[3])
for n in itertools.count(first) if len(sys.argv) < 5 else range(first, first + int(sys.argv[4])):
    jobs = [
        NewJob(id=job_id(n, m.to_bytes(8, "big")), task="t", args='"' + "x" * (n * 997 % 9000) + '"')
        for m in range(size)
    ]
    driver.run(driver.enqueue(jobs))
    sys.stdout.write(jobs[0].id + "\\n")
    sys.stdout.flush()
"""


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[SqliteDriver]:
    driver = SqliteDriver(tmp_path / "winch.db")
    driver.migrate()
    yield driver
    driver.close()


def stored(path: Path) -> set[str]:
    """The jobs that a connection without Winch's settings finds."""
    conn = sqlite3.connect(path, isolation_level=None)
    conn.execute("PRAGMA wal_autocheckpoint = 0")
    assert conn.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    found = {row[0] for row in conn.execute("SELECT id FROM winch_job")}
    conn.close()
    return found


def argv(path: Path, first: int, *, size: int = 1) -> list[str]:
    return [sys.executable, "-c", PRODUCER, str(path), str(first), str(size)]


@pytest.mark.parametrize("sync", ["full", "normal"])
def test_winch_opens_and_syncs_no_file_of_sqlite(
    tmp_path: Path, sync: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the database nor its WAL: what is durable rests on `PRAGMA synchronous` alone."""
    driver = SqliteDriver(tmp_path / "winch.db", sync=sync)
    driver.migrate()
    files = {driver._connections.path.with_name(f"winch.db{end}") for end in ("", "-wal", "-shm")}
    real = os.open

    def checked_open(path: str, *args: int, **named: int) -> int:
        assert Path(path) not in files
        return real(path, *args, **named)

    def refuse(_: int) -> None:
        pytest.fail("synced by Winch")

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", checked_open)
        patch.setattr(os, "fsync", refuse)
        patch.setattr(os, "fdatasync", refuse)
        for _ in range(20):
            driver.run(driver.enqueue([make_job()]))
        driver.run(driver.enqueue([make_job() for _ in range(300)]))
    assert len(stored(driver._connections.path)) == 320
    driver.close()


@pytest.mark.parametrize("size", [1, 300])
def test_a_sync_ends_before_each_enqueue_returns(
    driver: SqliteDriver, tmp_path: Path, size: int
) -> None:
    """`kill -9` does not show that: the system's cache outlives a process. The system calls do."""
    trace = tmp_path / "trace"
    words = [
        program("strace", install="apt-get install strace"),
        "-f",
        "-q",
        "-y",
        "-s",
        "64",
        "-e",
        "trace=fdatasync,fsync,write",
        "-o",
        str(trace),
    ]
    words += [*argv(driver._connections.path, 1, size=size), "10"]
    ran = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    if ran.returncode:
        pytest.skip(f"strace cannot trace here: {ran.stderr[-200:]}")
    ids = ran.stdout.split()
    assert len(ids) == 10
    is_synced = False
    acknowledged = []
    for line in trace.read_text(errors="replace").splitlines():
        if re.search(r"f(data)?sync\(.*winch\.db-wal>", line):
            is_synced = True
        elif (match := re.search(r'write\(1<[^"]*"([0-9a-f-]{36})', line)) is not None:
            assert is_synced, line
            acknowledged.append(match[1])
            is_synced = False
    assert acknowledged == ids


def test_nothing_acknowledged_is_lost_when_its_process_is_killed(driver: SqliteDriver) -> None:
    """Killed again and again while it commits, beside a connection that Winch does not know."""
    path = driver._connections.path
    acknowledged: set[str] = set()
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
            words = argv(path, (turn + 1) * 100_000)
            with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as producer:
                assert producer.stdout is not None
                for _ in range(25 + 13 * turn):
                    acknowledged.add(producer.stdout.readline().strip())
                producer.send_signal(signal.SIGKILL)
                acknowledged |= {line.strip() for line in producer.stdout if line.endswith("\n")}
            found = stored(path)
            assert "" not in acknowledged
            assert acknowledged <= found
            assert len(found) <= len(acknowledged) + turn + 1  # stored, killed before it printed the id
    finally:
        stop.set()
        beside.join()
    conn = driver._connections.writer()
    assert conn.execute("SELECT count(*), min(length(x)) FROM theirs").fetchone() == (theirs, 5000)
