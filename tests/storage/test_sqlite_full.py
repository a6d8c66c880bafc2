"""A disk that the WAL itself has filled: a checkpoint lets it be written from its start again.

Found by the lab (F13 on SQLite, seed 1): several processes, each counting only its own writes, filled a
small disk with the WAL before any of them thought a checkpoint due; then no write succeeded, so none
ever was.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.storage.sqlite_jobs import make_job
from winch.core.errors import StorageFull
from winch.drivers.sqlite.driver import SqliteDriver
from winch.storage.verbs import Verb

SIZE = 2 << 20
BIG = '{"text": "' + "x" * 30_000 + '"}'


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    argv = ["mount", "-t", "tmpfs", "-o", f"size={SIZE},mode=700", "winch-test", str(folder)]
    if subprocess.run(argv, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a file system")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def opened(folder: Path) -> SqliteDriver:
    """A store that has been in use: its tables are in its file, not in the WAL."""
    driver = SqliteDriver(folder / "winch.db")
    driver.migrate()
    with driver.transaction() as conn:
        conn.execute("CREATE TABLE page (x)")
        conn.execute("INSERT INTO page VALUES (randomblob(30000))")
    driver.run(driver.enqueue([job := make_job(args=BIG)]))
    driver.run(driver.delete([job.id], by="test"))
    driver.close()
    return SqliteDriver(folder / "winch.db")


def test_a_disk_filled_by_the_wal_can_be_written_again(small_disk: Path) -> None:
    driver = opened(small_disk)
    times = 0
    for _ in range(300):  # the same pages again and again: only the WAL grows
        try:
            with driver.transaction() as conn:
                conn.execute("UPDATE page SET x = randomblob(30000)")
        except StorageFull:
            times += 1
    assert 0 < times < 10
    driver.run(driver.enqueue([make_job()]))
    driver.close()


def test_the_same_holds_for_verbs(small_disk: Path) -> None:
    driver = opened(small_disk)
    times = 0

    def again(verb: Verb[Any]) -> None:
        nonlocal times
        for _ in range(3):
            try:
                driver.run(verb)
            except StorageFull:
                times += 1
            else:
                return

    jobs = [make_job(args=BIG) for _ in range(100)]
    for job in jobs:
        again(driver.enqueue([job]))
        again(driver.delete([job.id], by="test"))
    assert 0 < times < 20
    assert driver.run(driver.get([jobs[-1].id])) == [None]
    driver.close()
