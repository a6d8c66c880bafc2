"""Bells across processes: datagrams after the commit, and the poll as the floor."""

from __future__ import annotations

import asyncio
import os
import select
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Generator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.storage.sqlite_jobs import make_job, make_session, make_token
from winch.core.errors import StorageUnavailable
from winch.core.job import Claim
from winch.core.lifecycle import JobState
from winch.drivers.sqlite.driver import SqliteDriver
from winch.drivers.sqlite.statements import Ring
from winch.drivers.sqlite.wakeups import bell as wake
from winch.drivers.sqlite.wakeups import folder as bell_folder
from winch.drivers.sqlite.wakeups.bell import BellSlots, ClaimingSqliteBell, SqliteBell
from winch.drivers.sqlite.wakeups.board import SLOTS
from winch.drivers.sqlite.wakeups.folder import folder_for
from winch.storage.params import ClaimParams, JobFilter
from winch.storage.verbs import Verb

PRODUCE = """
import sys, time
from pathlib import Path
from winch.drivers.sqlite.driver import SqliteDriver
from winch.storage.params import NewJob
driver = SqliteDriver(Path(sys.argv[1]))
driver.migrate()
print("ready", flush=True)
for line in sys.stdin:
    id, queue = line.split()
    driver.run(driver.enqueue([NewJob(id=id, task="t", args="{}", queue=queue)]))
    print(time.monotonic(), flush=True)
driver.close()
"""


def play(path: Path, story: Callable[[SqliteDriver], Awaitable[None]]) -> None:
    async def main() -> None:
        driver = SqliteDriver(path)
        driver.migrate()
        try:
            await story(driver)
        finally:
            await driver.aclose()

    asyncio.run(main())


def ready(queue: str) -> Ring:
    return Ring({queue: 1})


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


async def ring_time(bell: SqliteBell, act: Callable[[], object]) -> float | None:
    """Seconds from the end of `act`, in another thread, to the waking; None if it did not ring."""
    await bell.arm()
    waiting = asyncio.ensure_future(bell.wait(2))
    await asyncio.sleep(0.02)
    result = await asyncio.to_thread(act)
    done = result if isinstance(result, float) else time.monotonic()
    return time.monotonic() - done if await waiting else None


def claiming_bell(driver: SqliteDriver) -> ClaimingSqliteBell:
    bell = driver.claiming_bell(["default"])
    assert isinstance(bell, ClaimingSqliteBell)
    return bell


def test_a_job_from_another_process_wakes_at_once(
    sqlite_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wake, "POLL_SECONDS", 5)  # so that only the datagram can do it

    async def story(driver: SqliteDriver) -> None:
        producer = subprocess.Popen(
            [sys.executable, "-c", PRODUCE, str(sqlite_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert producer.stdin is not None
        assert producer.stdout is not None
        assert producer.stdout.readline() == "ready\n"

        def produce(queue: str) -> float:
            assert producer.stdin is not None
            assert producer.stdout is not None
            producer.stdin.write(f"{make_job().id} {queue}\n")
            producer.stdin.flush()
            return float(producer.stdout.readline())

        bell = driver.bell(["mail"])
        times = [await ring_time(bell, lambda: produce("mail")) for _ in range(5)]
        assert None not in times, times  # the poll would come after the time limit here
        quiet = driver.bell(["quiet"])
        assert await ring_time(quiet, lambda: produce("mail")) is None
        await quiet.aclose()
        await bell.aclose()
        producer.communicate()

    play(sqlite_path, story)


def test_the_poll_finds_jobs_without_a_datagram(sqlite_path: Path) -> None:
    async def story(driver: SqliteDriver) -> None:
        def write_by_hand() -> None:
            conn = sqlite3.connect(sqlite_path)
            conn.execute("PRAGMA wal_autocheckpoint = 0")
            conn.execute(
                "INSERT INTO winch_job (id, task, version, args, queue, priority, created_at, run_at, "
                "state, sort_key, changed_at) VALUES ('a', 't', 1, '{}', 'mail', 0, 0, 0, 'ready', 0, 0)"
            )
            conn.commit()
            conn.close()

        bell, other = driver.bell(["mail"]), driver.bell(["other"])
        await other.arm()
        assert (await ring_time(bell, write_by_hand) or 9) < 0.5
        assert not await other.wait(0.25)
        await bell.aclose()
        await other.aclose()

    play(sqlite_path, story)


def test_one_job_wakes_one_of_many_and_a_resume_wakes_all(
    sqlite_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wake, "POLL_SECONDS", 5)

    async def story(driver: SqliteDriver) -> None:
        bells = [driver.bell(["mail"]) for _ in range(4)]

        async def woken(act: Callable[[], object]) -> int:
            for bell in bells:
                await bell.arm()
            before = driver._open_slots().rings
            act()
            return driver._open_slots().rings - before

        assert await woken(lambda: driver.run(driver.enqueue([make_job(queue="mail")]))) == 1
        jobs = [make_job(queue="mail") for _ in range(3)]
        assert await woken(lambda: driver.run(driver.enqueue(jobs))) == 3
        assert await woken(lambda: driver.run(driver.resume("mail", by="me"))) == 4
        for bell in bells:
            await bell.aclose()

    play(sqlite_path, story)


def test_jobs_due_soon_ring_the_promoters(sqlite_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wake, "POLL_SECONDS", 5)

    async def story(driver: SqliteDriver) -> None:
        bell, plain = driver.bell([], due=True), driver.bell(["default"])
        await plain.arm()
        soon, late = timedelta(seconds=1), timedelta(seconds=60)
        assert await ring_time(bell, lambda: driver.run(driver.enqueue([make_job(delay=soon)])))
        await bell.arm()
        driver.run(driver.enqueue([make_job(delay=late)]))
        assert driver._open_slots().rings == 1
        assert not await plain.wait(0.0)
        await bell.aclose()
        await plain.aclose()

    play(sqlite_path, story)


def test_no_bell_rings_without_a_waiter_or_before_the_commit(sqlite_path: Path) -> None:
    async def story(driver: SqliteDriver) -> None:
        driver.run(driver.enqueue([make_job()]))
        bell = driver.bell(["default"])
        await bell.arm()
        board = driver._open_slots()
        with driver.transaction() as conn:
            driver.run_on(conn, driver.enqueue([make_job()]))
            assert board.rings == 0
        assert board.rings == 1
        assert await bell.wait(1)
        driver.run(driver.enqueue([make_job()]))
        assert board.rings == 1, "a bell that has rung is not rung again before it is armed"
        await bell.aclose()

    play(sqlite_path, story)


def test_the_dead_leave_nothing_behind(sqlite_path: Path) -> None:
    async def story(driver: SqliteDriver) -> None:
        bell = driver.bell(["default"])
        await bell.arm()
        board = driver._open_slots()
        dead = board.take(["default"], due=False)
        assert dead is not None
        slot, socket = dead
        board.set_waiting(slot)
        socket.close()
        driver.run(driver.enqueue([make_job(), make_job()]))
        assert await bell.wait(1)
        assert bell._slot is not None
        assert names_in(board.folder) == {"board", "users", bell._slot.nonce.hex()}
        await bell.aclose()
        assert names_in(board.folder) == {"board", "users"}

    play(sqlite_path, story)


def test_a_full_board_reuses_slots_of_dead_processes_and_else_relies_on_the_poll(
    sqlite_path: Path,
) -> None:
    async def story(driver: SqliteDriver) -> None:
        driver.run(driver.enqueue([make_job(queue="before")]))
        board = driver._open_slots()
        taken = [board.take(["x"], due=False) for _ in range(SLOTS)]
        assert None not in taken
        assert board.take(["x"], due=False) is None
        bell = driver.bell(["default"])
        assert await ring_time(bell, lambda: driver.run(driver.enqueue([make_job()])))
        assert taken[7] is not None
        taken[7][1].close()
        again = board.take(["x"], due=False)
        assert again is not None
        assert again[0].number == 7
        for found in (*taken, again):
            assert found is not None
            found[1].close()
        await bell.aclose()

    play(sqlite_path, story)


def test_bells_leave_no_descriptors(sqlite_path: Path) -> None:
    async def story(driver: SqliteDriver) -> None:
        driver.run(driver.enqueue([make_job(queue="other")]))
        warm = driver.bell(["default"])
        await warm.arm()
        await warm.wait(0)
        await warm.aclose()
        before = len(names_in(Path("/dev/fd")))
        for _ in range(20):
            bell = driver.bell(["default"])
            await bell.arm()
            await bell.wait(0)
            await bell.aclose()
        assert len(names_in(Path("/dev/fd"))) == before

    play(sqlite_path, story)


def test_a_long_path_puts_the_bells_in_one_other_folder_for_every_process(tmp_path: Path) -> None:
    long = tmp_path / ("x" * 100) / "winch.db"
    assert folder_for(long) == folder_for(long)
    assert len(os.fsencode(folder_for(long))) < 80
    assert folder_for(Path("/srv/winch.db")) == Path("/srv/winch.db-bells")

    async def story(driver: SqliteDriver) -> None:
        bell = driver.bell(["default"])
        await bell.arm()
        driver.run(driver.enqueue([make_job()]))
        assert await bell.wait(1)
        assert driver._open_slots().rings == 1
        await bell.aclose()

    play(long, story)
    assert not folder_for(long).exists()


# -- removal of the folder ----------------------------------------------------------------------------


def test_the_last_process_to_leave_removes_the_folder(sqlite_path: Path) -> None:
    first, second = BellSlots(sqlite_path), BellSlots(sqlite_path)
    taken = first.take(["default"], due=False)
    assert taken is not None
    taken[1].close()
    second.ring(ready("default"))
    first.close()
    assert names_in(folder_for(sqlite_path)) >= {"board", "users"}
    second.close()
    assert not folder_for(sqlite_path).exists()
    first.ring(ready("default"))
    first.close()
    assert not folder_for(sqlite_path).exists(), "a board that is used again leaves in order again"


def test_boards_that_come_and_go_at_once_never_take_the_folder_from_under_another(
    sqlite_path: Path,
) -> None:
    async def come_and_go() -> int:
        missed = 0
        for _ in range(150):
            board = BellSlots(sqlite_path)
            taken = await asyncio.to_thread(board.take, ["default"], due=False)
            assert taken is not None
            slot, bell = taken
            missed += not board.set_waiting(slot)
            bell.close()
            await asyncio.to_thread(board.close)
        return missed

    async def story() -> list[int]:
        return await asyncio.gather(*(come_and_go() for _ in range(4)))

    assert asyncio.run(story()) == [0, 0, 0, 0]
    assert not folder_for(sqlite_path).exists()


def test_the_first_process_removes_the_bells_of_dead_ones(sqlite_path: Path) -> None:
    folder = folder_for(sqlite_path)
    killed = f"""
import os, signal
from pathlib import Path
from winch.drivers.sqlite.wakeups.bell import BellSlots
board = BellSlots(Path({str(sqlite_path)!r}))
slot, bell = board.take(["default"], due=False)
board.set_waiting(slot)
os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", killed], check=False)
    assert len(names_in(folder)) == 3
    board = BellSlots(sqlite_path)
    board.ring(ready("default"))
    assert board.rings == 0
    assert names_in(folder) == {"board", "users"}
    board.close()
    assert not folder.exists()


def test_a_start_sweeps_unused_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    mine = f"winch-bells-{os.getuid()}"
    live = BellSlots(tmp_path / ("x" * 100) / "live.db")
    live.ring(ready("default"))
    dead, fresh, old, open_to_all = (tmp_path / f"{mine}-{n}" for n in ("dead", "new", "old", "open"))
    for folder in (dead, fresh, old, open_to_all):
        folder.mkdir(mode=0o700)
        (folder / "board").touch()
    for folder in (dead, open_to_all):
        (folder / "users").touch()
    open_to_all.chmod(0o777)
    os.utime(old, (0, 0))
    foreign = old / "not ours"
    other = tmp_path / "winch-bells-99999-dead"
    other.mkdir()
    assert bell_folder.sweep() == 2
    assert not dead.exists()
    assert not old.exists()
    assert fresh.exists(), "another process may just be making it"
    assert open_to_all.exists()
    assert other.exists()
    assert live.folder.exists()
    old.mkdir(mode=0o700)
    foreign.touch()
    os.utime(old, (0, 0))
    assert bell_folder.sweep() == 0
    assert foreign.exists(), "only what is ours is removed"
    live.close()


def test_a_forked_child_neither_leaves_for_its_parent_nor_stays_in_its_place(sqlite_path: Path) -> None:
    board = BellSlots(sqlite_path)
    taken = board.take(["default"], due=False)
    assert taken is not None
    slot, bell = taken
    child = os.fork()
    if child == 0:
        status = 1
        try:
            board.give_back(slot)
            board.ring(ready("other"))
            board.close()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert board.set_waiting(slot)
    bell.close()
    board.close()
    assert not folder_for(sqlite_path).exists()


def test_a_removed_board_is_recreated(sqlite_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wake, "POLL_SECONDS", 5)

    async def story(driver: SqliteDriver) -> None:
        bell = driver.bell(["default"])
        await bell.arm()
        for path in folder_for(sqlite_path).iterdir():
            path.unlink()
        folder_for(sqlite_path).rmdir()
        assert await ring_time(bell, lambda: driver.run(driver.enqueue([make_job()]))) is not None
        await bell.aclose()

    play(sqlite_path, story)


def test_a_folder_of_another_user_is_not_used(sqlite_path: Path) -> None:
    folder_for(sqlite_path).mkdir()
    folder_for(sqlite_path).chmod(0o777)

    async def story(driver: SqliteDriver) -> None:
        bell = driver.bell(["default"])
        assert await ring_time(bell, lambda: driver.run(driver.enqueue([make_job()])))
        assert names_in(folder_for(sqlite_path)) == set()
        await bell.aclose()

    play(sqlite_path, story)


# -- the bell that claims -----------------------------------------------------------------------------


def claims_of(driver: SqliteDriver) -> Callable[[], Verb[list[Claim]]]:
    """New claims of a session that listens to the default queue."""
    session = make_session()
    driver.run(driver.start_session(session))
    return lambda: driver.claim(
        ClaimParams(session=session.id, token=make_token(), queues=("default",), limit=10)
    )


def test_the_thread_that_receives_the_ring_claims(
    sqlite_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wake, "POLL_SECONDS", 60)  # so that only the datagram can do it

    async def story(driver: SqliteDriver) -> None:
        verb = claims_of(driver)
        bell = claiming_bell(driver)
        other = SqliteDriver(sqlite_path)
        given: list[str] = []

        def hand_over(claims: list[Claim]) -> None:
            assert not waiting.done()
            given.extend(claim.id for claim in claims)

        bell.on_claims = hand_over
        for _ in range(3):
            job = make_job()
            await bell.arm()
            waiting = asyncio.ensure_future(bell.claim_when_rung(verb(), 60))
            await asyncio.sleep(0.01)
            await asyncio.to_thread(other.run, other.enqueue([job]))
            assert [claim.id for claim in await waiting] == [job.id]
            assert given.pop() == job.id
        bell.on_claims = None
        # What rings between the arming and the wait is not missed either.
        await bell.arm()
        await asyncio.to_thread(other.run, other.enqueue([make_job()]))
        assert len(await bell.claim_when_rung(verb(), 60)) == 1
        await bell.aclose()
        other.close()

    play(sqlite_path, story)


def test_a_wait_that_is_roused_or_cancelled_claims_nothing(
    sqlite_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wake, "POLL_SECONDS", 60)

    async def story(driver: SqliteDriver) -> None:
        verb = claims_of(driver)
        bell = claiming_bell(driver)
        await bell.arm()
        bell.rouse()  # without a waiter: later waiters ignore it
        waiting = asyncio.ensure_future(bell.claim_when_rung(verb(), 60))
        await asyncio.sleep(0)
        bell.rouse()
        assert await waiting == []
        waiting = asyncio.ensure_future(bell.claim_when_rung(verb(), 60))
        await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await asyncio.to_thread(driver.run, driver.enqueue([make_job()]))
        assert bell._thread is not None
        await bell.aclose()
        assert not [one for one in threading.enumerate() if one.name == "winch-sqlite-bell"]
        page = await driver.arun(driver.list_jobs(JobFilter(states=(JobState.READY,))))
        assert len(page.jobs) == 1

    play(sqlite_path, story)


def test_the_poll_of_a_claiming_bell_finds_jobs_without_a_datagram(sqlite_path: Path) -> None:
    folder_for(sqlite_path).mkdir()
    folder_for(sqlite_path).chmod(0o777)  # of another user: there are no bells here

    async def story(driver: SqliteDriver) -> None:
        verb = claims_of(driver)
        bell = claiming_bell(driver)
        await bell.arm()
        waiting = asyncio.ensure_future(bell.claim_when_rung(verb(), 60))
        await asyncio.sleep(0)
        await asyncio.to_thread(driver.run, driver.enqueue([make_job()]))
        assert len(await waiting) == 1
        # And by the end of its time what the poll would find too late.
        driver.run(driver.enqueue([make_job()]))
        await bell.arm()
        assert len(await bell.claim_when_rung(verb(), 0.01)) == 1
        await bell.aclose()

    play(sqlite_path, story)


def test_a_claim_that_fails_on_a_ring_raises_in_its_waiter(
    sqlite_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wake, "POLL_SECONDS", 60)

    async def story(driver: SqliteDriver) -> None:
        def body() -> Generator[Any, Any, list[Claim]]:
            raise StorageUnavailable("gone", maybe_applied=True)
            yield

        verb = claims_of(driver)
        bell = claiming_bell(driver)
        await bell.arm()
        waiting = asyncio.ensure_future(bell.claim_when_rung(Verb("claim", body), 60))
        await asyncio.sleep(0.01)
        driver.run(driver.enqueue([make_job()]))
        with pytest.raises(StorageUnavailable, match="gone"):
            await waiting
        await bell.arm()
        assert len(await bell.claim_when_rung(verb(), 0.01)) == 1  # the thread is still there
        assert not await bell.wait(0.01)
        await bell.aclose()

    play(sqlite_path, story)


def test_the_thread_of_a_blocked_loop_takes_nothing(
    sqlite_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wake, "POLL_SECONDS", 0.02)

    async def story(driver: SqliteDriver) -> None:
        verb = claims_of(driver)
        bell = claiming_bell(driver)
        await bell.arm()
        waiting = asyncio.ensure_future(bell.claim_when_rung(verb(), 60))
        await asyncio.sleep(0)
        time.sleep(0.2)  # as a handler that blocks
        driver.run(driver.enqueue([make_job()]))
        assert bell._socket is not None
        while select.select([bell._socket], [], [], 0)[0]:
            time.sleep(0.001)  # until the thread has received it
        assert await waiting == []
        claims = await driver.arun(verb())
        assert len(claims) == 1
        await bell.aclose()

    play(sqlite_path, story)
