"""Many callers to one commit; checkpoints; errors that end a connection."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.storage.sqlite_jobs import make_job
from winch.core.errors import ConfigError, StorageUnavailable
from winch.core.lifecycle import JobState
from winch.drivers.sqlite.connections import writer
from winch.drivers.sqlite.connections.writer import wal_bytes
from winch.drivers.sqlite.driver import SqliteDriver
from winch.storage.params import Enqueued, NewJob
from winch.storage.verbs import Unhurried, Verb


@pytest.fixture
def driver(sqlite_path: Path) -> Iterator[SqliteDriver]:
    opened = SqliteDriver(sqlite_path)
    opened.migrate()
    yield opened
    opened.close()


def verb_of(act: Callable[[], Any]) -> Verb[Any]:
    def body() -> Generator[Any, Any, Any]:
        yield from ()
        return act()

    return Verb("test", body)


def test_waiting_writes_share_one_commit(driver: SqliteDriver) -> None:
    """The first writer is held up inside its verb; all later ones share the next commit."""
    entered, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        entered.set()
        go_on.wait(10)

    first = threading.Thread(target=lambda: driver.run(verb_of(hold)))
    first.start()
    entered.wait(10)
    jobs = [make_job() for _ in range(20)]
    others = [threading.Thread(target=lambda job=job: driver.run(driver.enqueue([job]))) for job in jobs]
    for other in others:
        other.start()
    while len(driver._writer._queue) < len(jobs):
        threading.Event().wait(0.001)
    before = driver._writer.groups
    go_on.set()
    for thread in (first, *others):
        thread.join()
    assert driver._writer.groups == before + 1
    found = driver.run(driver.get([job.id for job in jobs]))
    assert None not in found


def test_a_failing_write_does_not_affect_the_others(driver: SqliteDriver) -> None:
    taken = make_job()
    driver.run(driver.enqueue([taken]))

    async def together() -> list[object]:
        good = [make_job() for _ in range(3)]
        verbs = [driver.enqueue([job]) for job in good]
        verbs.insert(1, driver.enqueue([make_job(), taken]))
        answers = await asyncio.gather(*map(driver.arun, verbs), return_exceptions=True)
        await driver.aclose()
        return list(answers)

    first, failed, *rest = asyncio.run(together())
    assert isinstance(failed, ConfigError)
    assert "drawn twice" in str(failed)
    assert isinstance(first, list)
    assert all(isinstance(answer, list) for answer in rest)
    assert driver.run(driver.counts())[JobState.READY] == 4


def test_sync_and_async_callers_share_the_writer(driver: SqliteDriver) -> None:
    def produce() -> None:
        for _ in range(30):
            driver.run(driver.enqueue([make_job()]))

    async def consume() -> None:
        await asyncio.gather(*(driver.arun(driver.enqueue([make_job()])) for _ in range(200)))

    threads = [threading.Thread(target=produce) for _ in range(4)]
    for thread in threads:
        thread.start()
    asyncio.run(consume())
    for thread in threads:
        thread.join()
    assert driver.run(driver.counts())[JobState.READY] == 320
    assert driver._writer.groups < 320


def test_a_cancelled_caller_does_not_affect_the_others(driver: SqliteDriver) -> None:
    async def main() -> int:
        gone = asyncio.ensure_future(driver.arun(driver.enqueue([make_job()])))
        kept = asyncio.ensure_future(driver.arun(driver.enqueue([make_job()])))
        await asyncio.sleep(0)
        gone.cancel()
        await kept
        found = await driver.arun(driver.counts())
        await driver.aclose()
        return found[JobState.READY]

    assert asyncio.run(main()) in (1, 2)


def test_an_interrupt_of_the_leader_is_its_own(driver: SqliteDriver) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        driver.run(verb_of(interrupt))
    driver.run(driver.enqueue([make_job()]))


def test_threads_end_when_the_driver_closes(driver: SqliteDriver) -> None:
    async def main() -> None:
        await driver.arun(driver.enqueue([make_job()]))
        await driver.arun(driver.counts())
        await driver.aclose()

    asyncio.run(main())
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("winch-sqlite")]
    driver.run(driver.enqueue([make_job()]))  # it opens again when used again


def test_the_wal_is_copied_when_it_has_grown(
    driver: SqliteDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "CHECKPOINT_BYTES", 200_000)
    size = driver._connections.path.stat().st_size
    for _ in range(60):
        driver.run(driver.enqueue([make_job(args='"' + "x" * 4000 + '"')]))
    assert driver._writer._checkpoints.count >= 2
    assert driver._connections.path.stat().st_size > size
    assert wal_bytes(driver._connections.path) < 1_500_000


def test_the_wal_of_synced_commits_stays_short(sqlite_path: Path) -> None:
    """A sync of a file that has become longer takes twice as long as one within it."""
    sizes = {}
    for sync in ("full", "normal"):
        driver = SqliteDriver(sqlite_path.with_name(f"{sync}.db"), sync=sync)
        driver.migrate()
        for _ in range(2 * writer.SYNCED_COMMITS + 1):
            driver.run(driver.enqueue([make_job()]))
        sizes[sync] = wal_bytes(driver._connections.path)
        assert driver._writer._checkpoints.count == (2 if sync == "full" else 0)
        driver.close()
    assert sizes["full"] < 0.7 * sizes["normal"]


def test_a_wal_that_a_reader_kept_from_being_reused_is_cut_later(
    driver: SqliteDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "CHECKPOINT_BYTES", 200_000)
    monkeypatch.setattr(writer, "WAL_FILE_BYTES", 400_000)
    monkeypatch.setattr(writer, "_CHECKPOINT_STEP", 50_000)
    with driver._connections.reader() as conn:
        conn.execute("BEGIN")
        conn.execute("SELECT count(*) FROM winch_job").fetchall()
        for _ in range(60):
            driver.run(driver.enqueue([make_job(args='"' + "x" * 8000 + '"')]))
        assert wal_bytes(driver._connections.path) > 400_000
        conn.execute("COMMIT")
    for _ in range(30):
        driver.run(driver.enqueue([make_job()]))
    assert wal_bytes(driver._connections.path) < 400_000


def test_a_connection_whose_sync_failed_is_not_used_again(driver: SqliteDriver) -> None:
    driver.run(driver.enqueue([make_job()]))
    before = driver._connections.writer()

    def fail() -> None:
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
        raise error

    with pytest.raises(StorageUnavailable, match="disk I/O error"):
        driver.run(verb_of(fail))
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        before.execute("SELECT 1")
    driver.run(driver.enqueue([make_job()]))


def test_a_lone_statement_whose_sync_failed_may_have_been_applied(driver: SqliteDriver) -> None:
    driver.run(driver.enqueue([make_job()]))
    before = driver._connections.writer()

    def fail() -> None:
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
        raise error

    with pytest.raises(StorageUnavailable, match="disk I/O error") as lost:
        driver.run(Verb("test", verb_of(fail).steps, is_alone=True))
    assert lost.value.maybe_applied
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        before.execute("SELECT 1")
    driver.run(driver.enqueue([make_job()]))


def test_a_lone_statement_is_no_lone_one_when_others_have_come(driver: SqliteDriver) -> None:
    """The statement waits for the file; writes that queue up behind it share its commit."""
    jobs = [make_job() for _ in range(3)]
    driver.run(driver.enqueue([make_job()]))
    statements: list[str] = []
    driver._connections.writer().set_trace_callback(statements.append)
    first = driver.enqueue(jobs[:1])
    assert first.is_alone

    with driver.transaction():
        threads = [threading.Thread(target=lambda: driver.run(first))]
        threads[0].start()
        while not driver._writer._is_led:
            threading.Event().wait(0.001)
        threads += [
            threading.Thread(target=lambda job=job: driver.run(driver.enqueue([job])))
            for job in jobs[1:]
        ]
        for other in threads[1:]:
            other.start()
        while len(driver._writer._queue) < 2:
            threading.Event().wait(0.001)
        before = driver._writer.groups
    for thread in threads:
        thread.join()
    assert [statements.count(one) for one in ("BEGIN IMMEDIATE", "SAVEPOINT verb", "COMMIT")] == [
        1,
        3,
        1,
    ]
    assert driver._writer.groups == before + 1
    assert None not in driver.run(driver.get([job.id for job in jobs]))


def test_a_file_held_too_long_is_unavailable(
    driver: SqliteDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "TIMEOUT", 0.05)
    answers: list[BaseException] = []

    def write() -> None:
        try:
            driver.run(driver.enqueue([make_job()]))
        except StorageUnavailable as error:
            answers.append(error)

    with driver.transaction():
        threads = [threading.Thread(target=write) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(answers) == 3
    assert not any(error.maybe_applied for error in answers if isinstance(error, StorageUnavailable))
    driver.run(driver.enqueue([make_job()]))


def test_readers_do_not_wait_for_a_writer(driver: SqliteDriver) -> None:
    driver.run(driver.enqueue([make_job()]))
    found: list[int] = []
    with driver.transaction() as conn:
        driver.run_on(conn, driver.enqueue([make_job()]))
        reader = threading.Thread(
            target=lambda: found.append(driver.run(driver.counts())[JobState.READY])
        )
        reader.start()
        reader.join(5)
    assert found == [1]


def test_an_error_of_the_applications_own_statement_stays_as_it_is(driver: SqliteDriver) -> None:
    with driver.transaction() as conn:
        conn.execute("CREATE TABLE mine (id INTEGER PRIMARY KEY)")
    with pytest.raises(sqlite3.IntegrityError), driver.transaction() as conn:
        conn.executemany("INSERT INTO mine VALUES (?)", [(1,), (1,)])
    with driver.transaction() as conn:
        assert conn.execute("SELECT count(*) FROM mine").fetchall() == [(0,)]


def bulk() -> list[NewJob]:
    return [make_job() for _ in range(200)]


def test_a_bulk_joins_the_commit_of_waiting_writes(driver: SqliteDriver) -> None:
    """The bulk is then one of several verbs in a transaction, and each has its own outcome."""
    entered, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        entered.set()
        go_on.wait(10)

    first = threading.Thread(target=lambda: driver.run(verb_of(hold)))
    first.start()
    entered.wait(10)
    jobs, same = bulk(), bulk()
    answers: dict[int, int] = {}
    errors: dict[int, str] = {}

    def store(number: int, some: list[NewJob]) -> None:
        try:
            answers[number] = len(driver.run(driver.enqueue(some)))
        except ConfigError as error:
            errors[number] = str(error)

    senders = [
        threading.Thread(target=store, args=(number, some))
        for number, some in enumerate((jobs, jobs, same))
    ]
    for number, sender in enumerate(senders):
        sender.start()
        while len(driver._writer._queue) <= number:
            threading.Event().wait(0.001)
    go_on.set()
    for thread in (first, *senders):
        thread.join()
    assert answers == {0: 200, 2: 200}
    assert [*errors] == [1]
    assert "drawn twice" in errors[1]


def test_a_bulk_raises_its_own_error(driver: SqliteDriver) -> None:
    jobs = bulk()
    driver.run(driver.enqueue(jobs[-1:]))
    sending = driver.sending(driver.enqueue(jobs))
    sending.send()
    with pytest.raises(ConfigError, match="drawn twice"):
        sending.answer()
    assert driver.run(driver.get([jobs[0].id])) == [None]
    with driver.transaction():
        inside = driver.sending(driver.enqueue(bulk()))
        inside.send()
        with pytest.raises(ConfigError, match="conn="):
            inside.answer()


# -- sent to the thread (fast/sending.py) ------------------------------------------------------------


def test_a_thread_stores_a_bulk_before_its_answer_is_wanted(driver: SqliteDriver) -> None:
    jobs = bulk()
    sending = driver.sending(driver.enqueue(jobs))
    assert driver.run(driver.get([jobs[0].id])) == [None]
    sending.send()
    deadline = time.monotonic() + 10
    while driver.run(driver.get([jobs[-1].id])) == [None]:
        assert time.monotonic() < deadline, "what was sent is stored without a wait for its answer"
    assert sending.answer() == [Enqueued(job.id, True) for job in jobs]
    assert driver._writer._thread is not None


def test_an_id_that_is_twice_in_a_bulk_is_refused(driver: SqliteDriver) -> None:
    jobs = bulk()
    with pytest.raises(ConfigError, match="drawn twice"):
        driver.run(driver.enqueue([*jobs, jobs[0]]))
    assert driver.run(driver.get([jobs[0].id])) == [None]


def test_a_bulk_of_several_statements_is_stored_by_its_answer(driver: SqliteDriver) -> None:
    """Each of them would wait for the interpreter lock, which the caller has."""
    jobs = [*bulk(), make_job(priority=1)]
    sending = driver.sending(driver.enqueue(jobs))
    sending.send()
    assert driver._writer._thread is None
    assert len(sending.answer()) == len(jobs)


def test_without_fast_paths_a_bulk_waits_for_its_answer(
    sqlite_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WINCH_FAST", "off")
    driver = SqliteDriver(sqlite_path)
    driver.migrate()
    sending = driver.sending(driver.enqueue(bulk()))
    assert isinstance(sending, Unhurried)
    driver.close()


def test_a_caller_goes_on_when_what_it_sent_cannot_begin(
    driver: SqliteDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.run(driver.enqueue([make_job()]))

    def refuse(*_: object) -> bool:
        raise StorageUnavailable("no lock")

    sending = driver.sending(driver.enqueue(bulk()))
    monkeypatch.setattr(driver._connections.file, "acquire", refuse)
    sending.send()
    with pytest.raises(StorageUnavailable, match="no lock"):
        sending.answer()


def test_sent_and_plain_writes_share_the_writer(driver: SqliteDriver) -> None:
    """A sent bulk never makes its caller the leader: the caller is busy elsewhere."""
    entered, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        entered.set()
        go_on.wait(10)

    first = threading.Thread(target=lambda: driver.run(verb_of(hold)))
    first.start()
    entered.wait(10)
    jobs, lone = bulk(), make_job()
    sending = driver.sending(driver.enqueue(jobs))
    sender = threading.Thread(target=sending.send)
    sender.start()
    while not driver._writer._queue:
        threading.Event().wait(0.001)
    other = threading.Thread(target=lambda: driver.run(driver.enqueue([lone])))
    other.start()
    while len(driver._writer._queue) < 2:
        threading.Event().wait(0.001)
    go_on.set()
    for thread in (first, sender, other):
        thread.join(10)
        assert not thread.is_alive()
    assert sending.answer() == [Enqueued(job.id, True) for job in jobs]
    assert None not in driver.run(driver.get([lone.id, jobs[0].id]))


def test_a_forked_child_does_not_wait_for_its_parents_thread(driver: SqliteDriver) -> None:
    jobs = bulk()
    sending = driver.sending(driver.enqueue(jobs))
    sending.send()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            sending.answer()  # on a connection of its own, where the ids are taken
        except ConfigError:
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert sending.answer() == [Enqueued(job.id, True) for job in jobs]


def test_bulks_from_many_threads_are_stored_once_each(driver: SqliteDriver) -> None:
    answers: list[int] = []

    def work() -> None:
        for _ in range(3):
            sending = driver.sending(driver.enqueue(bulk()))
            sending.send()
            driver.run(driver.enqueue([make_job()]))
            answers.append(len(sending.answer()))

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert answers == [len(bulk())] * 18
    counts = {queue.name: queue.counts for queue in driver.run(driver.queues())}
    assert sum(counts["default"].values()) == 18 * (len(bulk()) + 1)
