"""The fair lock between processes, and what becomes of it and of connections when a process forks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.storage.sqlite_jobs import make_job, make_session, make_token
from winch import App
from winch.core.errors import StorageUnavailable
from winch.core.lifecycle import JobState
from winch.drivers.sqlite.connections.file_lock import FileLock
from winch.drivers.sqlite.driver import SqliteDriver
from winch.storage.params import Enqueued
from winch.storage.verbs import Verb

HOLD = """
import sys, time
from pathlib import Path
from winch.drivers.sqlite.connections.file_lock import FileLock
lock = FileLock(Path(sys.argv[1]))
lock.acquire(5)
print("held", flush=True)
time.sleep(60)
"""
TAKE_TURNS = """
import sys, time
from pathlib import Path
from winch.drivers.sqlite.connections.file_lock import FileLock
lock = FileLock(Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
turns, longest, end = 0, 0.0, time.monotonic() + 1.5
while (asked := time.monotonic()) < end:
    lock.acquire(10)
    longest = max(longest, time.monotonic() - asked)
    time.sleep(0.001)
    lock.release()
    turns += 1
print(turns, longest, flush=True)
"""
CLAIM = """
import sys
from pathlib import Path
from winch.drivers.sqlite.driver import SqliteDriver
from winch.storage.params import ClaimParams
driver = SqliteDriver(Path(sys.argv[1]))
driver.migrate()
print("ready", flush=True)
sys.stdin.readline()
for token in sys.argv[3:]:
    params = ClaimParams(session=sys.argv[2], token=token, queues=("default",), limit=7)
    for claim in driver.run(driver.claim(params)):
        print(claim.id)
driver.close()
"""


def start(script: str, *args: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *args],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@contextmanager
def processes(script: str, *argses: tuple[str, ...]) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that have all printed their first line; killed at the end if need be."""
    started = [start(script, *args) for args in argses]
    try:
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline()
        yield started
    finally:
        for process in started:
            process.kill()
            process.communicate()


def test_the_lock_is_held_against_other_processes_and_freed_by_their_death(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with processes(HOLD, (str(path),)) as (holder,):
        lock = FileLock(path)
        with pytest.raises(StorageUnavailable, match="for more than"):
            lock.acquire(0.05)
        holder.kill()
        holder.wait()
        assert lock.acquire(1)
        lock.release()
        lock.close()


def test_a_stopped_process_in_the_waiting_room_does_not_bar_the_others(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    lock = FileLock(path)
    lock.acquire(1)
    with processes(TAKE_TURNS, (str(path),)) as (waiting,):
        assert waiting.stdin is not None
        waiting.stdin.write("go\n")
        waiting.stdin.flush()
        time.sleep(0.2)
        waiting.send_signal(signal.SIGSTOP)
        lock.release()
        assert lock.acquire(5)
        lock.release()
    lock.close()


def test_neither_of_two_processes_starves(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    with processes(TAKE_TURNS, (path,), (path,)) as both:
        answers = []
        for process in both:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        for process in both:
            output, _ = process.communicate(timeout=20)
            turns, longest = output.split()
            answers.append((int(turns), float(longest)))
    assert min(turns for turns, _ in answers) > 0.25 * max(turns for turns, _ in answers), answers
    assert max(longest for _, longest in answers) < 0.5, answers


def test_threads_exclude_each_other_through_locks_of_their_own(tmp_path: Path) -> None:
    locks = [FileLock(tmp_path / "lock") for _ in range(4)]
    inside, most = 0, 0

    def work(lock: FileLock) -> None:
        nonlocal inside, most
        for _ in range(50):
            lock.acquire(10)
            inside += 1
            most = max(most, inside)
            time.sleep(0)
            inside -= 1
            lock.release()

    threads = [threading.Thread(target=work, args=(lock,)) for lock in locks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
    for lock in locks:
        lock.close()


def test_closing_one_lock_keeps_the_file_locked_for_the_other(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    mine, other = FileLock(path), FileLock(path)
    mine.acquire(1)
    other.close()
    with pytest.raises(subprocess.TimeoutExpired):
        start_and_wait(path)
    mine.release()
    mine.close()


def start_and_wait(path: Path) -> None:
    process = start(HOLD, str(path))
    try:
        process.communicate(timeout=0.7)
    finally:
        process.kill()
        output, _ = process.communicate()
    assert output == "", "the other process got the lock"


def in_child(work: object) -> str:
    """What `work` returns or raises in a forked child, as text."""
    assert callable(work)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            answer = str(work())
        except BaseException as error:  # sent to the parent
            answer = f"{type(error).__name__}: {error}"
        os.write(writing, answer.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return answer


def test_a_forked_child_holds_nothing(tmp_path: Path) -> None:
    lock = FileLock(tmp_path / "lock")
    lock.acquire(1)

    def ask() -> str:
        assert not lock.is_mine
        lock.acquire(0.1)
        return "got it"

    assert in_child(ask).startswith("StorageUnavailable")
    lock.release()
    assert in_child(ask) == "got it"
    lock.acquire(1)
    lock.release()
    lock.close()


def test_parent_and_forked_child_both_go_on(sqlite_path: Path) -> None:
    driver = SqliteDriver(sqlite_path)
    driver.run(driver.enqueue([make_job()]))
    driver.run(driver.counts())
    job, other = make_job(), make_job()
    answer = in_child(lambda: driver.run(driver.enqueue([job]))[0].is_new)
    assert answer == "True"
    driver.run(driver.enqueue([other]))
    assert driver.run(driver.counts())[JobState.READY] == 3
    driver.close()


def test_a_child_forked_inside_a_transaction_raises(sqlite_path: Path) -> None:
    driver = SqliteDriver(sqlite_path)
    job = make_job()
    with driver.transaction() as conn:
        driver.run_on(conn, driver.enqueue([job]))
        answer = in_child(lambda: driver.run(driver.counts()))
    assert answer.startswith("StorageError: this process was forked while")
    assert driver.run(driver.get([job.id])) != [None]
    driver.close()


def test_a_child_forked_inside_a_transaction_never_writes_through_its_parents_connection(
    sqlite_path: Path,
) -> None:
    driver = SqliteDriver(sqlite_path)
    driver.run(driver.enqueue([make_job()]))
    verb = driver.enqueue([make_job()])
    with driver.transaction():
        answer = in_child(lambda: driver.run(verb))
    assert answer.startswith("StorageError: this process was forked while")
    assert driver.run(driver.counts())[JobState.READY] == 1
    driver.close()


def test_a_child_uses_every_driver_of_a_file_that_its_parent_has(sqlite_path: Path) -> None:
    drivers = [SqliteDriver(sqlite_path) for _ in range(2)]
    for driver in drivers:
        driver.run(driver.enqueue([make_job()]))
    for driver in drivers:
        verb = driver.enqueue([make_job()])

        def use(driver: SqliteDriver = driver, verb: Verb[list[Enqueued]] = verb) -> bool:
            assert driver._connections.file is None, "the connection is the parent's"
            return driver.run(verb)[0].is_new

        assert in_child(use) == "True"
    for driver in drivers:
        assert driver.run(driver.counts())[JobState.READY] == 4
        driver.close()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_child_opens_the_store_although_a_thread_of_its_parent_was_opening_it(
    sqlite_path: Path,
) -> None:
    driver = SqliteDriver(sqlite_path)
    driver.run(driver.enqueue([make_job()]))
    app = App(f"sqlite:///{sqlite_path}")
    is_held, is_over = threading.Event(), threading.Event()

    def hold() -> None:
        with driver._guard, app._opening:
            is_held.set()
            is_over.wait(20)

    thread = threading.Thread(target=hold)
    thread.start()
    is_held.wait(20)

    def use() -> str:
        signal.alarm(10)
        driver.close()
        return app.driver.name

    answer = in_child(use)
    is_over.set()
    thread.join()
    assert answer == "sqlite"
    app.close()
    driver.close()


def test_two_processes_never_claim_the_same_job(sqlite_path: Path) -> None:
    driver = SqliteDriver(sqlite_path)
    jobs = [make_job() for _ in range(300)]
    driver.run(driver.enqueue(jobs))
    sessions = [make_session(), make_session()]
    for session in sessions:
        driver.run(driver.start_session(session))
    argses = [(str(sqlite_path), session.id, *(make_token() for _ in range(50))) for session in sessions]
    with processes(CLAIM, *argses) as both:
        for process in both:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        claimed = [line for process in both for line in process.communicate(timeout=30)[0].split()]
    assert sorted(claimed) == sorted(job.id for job in jobs)
    driver.close()
