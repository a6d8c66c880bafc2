"""Answers that are lost, requests that fail and requests that hang, around any driver.

SQLite has no wire to cut, so its lost answers are made here; memory and PostgreSQL are put through
the same.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from lab.history import Recorder, Verdict, check, gather
from tests.faults.apps import HEARTBEAT, LEASE, FaultApp, make
from winch.core.errors import EnqueueUncertain, StorageUnavailable
from winch.core.lifecycle import JobState
from winch.core.values.ids import random_id
from winch.engine.worker.worker import Worker
from winch.testing.flaky import FlakyStorage

pytestmark = pytest.mark.faults
DRIVERS = ("memory", "sqlite", pytest.param("postgres", marks=pytest.mark.servers))


class Play:
    """An app on a flaky store, and what is recorded of it."""

    def __init__(self, url: str, folder: Path, lease: float = LEASE) -> None:
        self.recorder = Recorder(folder)
        self.app: FaultApp = make(url, recorder=self.recorder, is_flaky=True, lease=lease)
        self.app.migrate()

    @property
    def flaky(self) -> FlakyStorage:
        return self.app.flaky

    async def enqueue(self, task: str, *args: object, drawn: str | None = None) -> str:
        drawn = drawn or random_id(os.urandom(16))
        call = self.recorder.sent([drawn])
        try:
            job = await self.app.tasks.get(task).using(id=drawn).aenqueue(*args)
        except EnqueueUncertain:
            self.recorder.replied(call, "unknown", [drawn])
            raise
        self.recorder.replied(call, "acked", [job.id], [job.is_new])
        return job.id

    @asynccontextmanager
    async def worker(self) -> AsyncIterator[Worker]:
        async with self.app.worker(concurrency=2) as worker:
            yield worker

    async def completed(self, *ids: str, seconds: float = 15) -> None:
        driver = self.app.driver

        async def are_completed() -> bool:
            found = await driver.arun(driver.get(list(ids)))
            return all(job is not None and job.state is JobState.COMPLETED for job in found)

        await until(are_completed, seconds)

    def judge(self) -> Verdict:
        self.recorder.nemesis("flake", count=self.flaky.count, note=str(dict(self.flaky.counters)))
        history = gather(self.app.driver, self.recorder.folder, expects_fault=True)
        verdict = check(history)
        assert verdict.is_ok, verdict
        return verdict


async def until(condition: Callable[[], Awaitable[bool]], seconds: float) -> None:
    async with asyncio.timeout(seconds):
        while not await condition():  # noqa: ASYNC110  # the store has no event to wait for
            await asyncio.sleep(0.01)


@pytest.fixture(params=DRIVERS)
def play(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Play]:
    url = "memory://"
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path / 'winch.db'}"
    elif request.param == "postgres":
        url = request.getfixturevalue("postgres_url")
    folder = tmp_path / "history"
    folder.mkdir()
    playing = Play(url, folder)
    yield playing
    playing.app.close()


def run(play: Play, story: Callable[[], Awaitable[None]]) -> None:
    async def whole() -> None:
        try:
            await story()
        finally:
            await play.app.aclose()

    asyncio.run(whole())


def test_an_enqueue_whose_answer_is_lost_stores_one_job(play: Play) -> None:
    async def story() -> None:
        async with play.worker():
            play.flaky.fail_after("enqueue")
            job = await play.enqueue("quick")
            await play.completed(job)

    run(play, story)
    verdict = play.judge()
    assert play.flaky.counters["after enqueue"] == 1
    assert verdict.counters["runs"] == 1


def test_an_enqueue_that_stays_unknown_is_repeated_by_its_id(play: Play) -> None:
    async def story() -> None:
        drawn = random_id(os.urandom(16))
        play.flaky.fail_after("enqueue")
        play.flaky.fail_before("enqueue", times=5)
        with pytest.raises(EnqueueUncertain) as raised:
            await play.enqueue("quick", drawn=drawn)
        assert raised.value.ids == (drawn,)
        async with play.worker():
            assert await play.enqueue("quick", drawn=drawn) == drawn
            await play.completed(drawn)

    run(play, story)
    assert play.judge().counters["runs"] == 1


def test_a_claim_whose_answer_is_lost_is_held_for_a_beat_and_costs_nothing(play: Play) -> None:
    waited: list[float] = []

    async def story() -> None:
        async with play.worker():
            play.flaky.fail_after("claim")
            began = time.monotonic()
            job = await play.enqueue("quick")
            await play.completed(job)
            waited.append(time.monotonic() - began)
            [record] = await play.app.driver.arun(play.app.driver.get([job]))
            assert record is not None
            assert (record.attempt, record.crashes, record.rescues) == (1, 0, 0)

    run(play, story)
    verdict = play.judge()
    assert play.flaky.counters["after claim"] == 1
    assert verdict.counters["runs"] == 1
    assert waited[0] < HEARTBEAT + 2.0  # about a beat, and by no means a lease


def test_a_finish_whose_answer_is_lost_is_repeated_and_answered_already(play: Play) -> None:
    async def story() -> None:
        async with play.worker():
            play.flaky.fail_after("finish", times=2)
            jobs = [await play.enqueue("quick") for _ in range(3)]
            await play.completed(*jobs)

            async def is_answered() -> bool:
                return check(gather(play.app.driver, play.recorder.folder)).counters["already"] > 0

            await until(is_answered, 10)

    run(play, story)
    verdict = play.judge()
    assert play.flaky.counters["after finish"] == 2
    assert verdict.counters["runs"] == 3
    assert verdict.counters["lost"] == 0


def test_a_finish_that_fails_is_sent_again(play: Play) -> None:
    async def story() -> None:
        async with play.worker():
            play.flaky.fail_before("finish", times=3)
            await play.completed(await play.enqueue("quick"))

    run(play, story)
    assert play.judge().counters["runs"] == 1


def test_a_release_whose_answer_is_lost_is_repeated(play: Play) -> None:
    async def story() -> None:
        async with play.app.worker(concurrency=1) as worker:
            job = await play.enqueue("aslow", 60.0)

            async def is_running() -> bool:
                [record] = await play.app.driver.arun(play.app.driver.get([job]))
                return record is not None and record.state is JobState.RUNNING

            await until(is_running, 10)
            play.flaky.fail_after("release")
            assert await worker.drain(0.0) == 0
        [record] = await play.app.driver.arun(play.app.driver.get([job]))
        assert record is not None
        assert (record.state, record.attempt) == (JobState.READY, 0)
        await play.app.jobs.get(job).acancel()

    run(play, story)
    play.judge()
    assert play.flaky.counters["after release"] == 1


def test_a_delayed_rescue_counts_against_no_job(tmp_path: Path) -> None:
    lease = 3 * HEARTBEAT
    play = Play("memory://", tmp_path, lease)

    async def story() -> None:
        async with play.worker():
            driver = play.app.driver

            async def may_sweep() -> bool:
                found = await driver.arun(driver.sessions())
                return bool(found) and found[0].beats > lease / HEARTBEAT + 1

            await until(may_sweep, 10)
            job = await play.enqueue("aslow", lease + 1.5)
            # An outage in which requests wait instead of failing, and the sweep is answered first.
            sweep = play.flaky.hang("rescue")
            beats = play.flaky.hang("beat")
            await asyncio.sleep(lease + 0.5)
            assert play.flaky.counters["hang rescue"] == 1
            sweep.set()
            await asyncio.sleep(0.2)
            beats.set()
            await play.completed(job)

    run(play, story)
    verdict = play.judge()
    assert verdict.counters["rescued"] == 0
    assert verdict.counters["runs"] == 1


# --- the wrapper itself -------------------------------------------------------------------------------


@pytest.fixture
def flaky(tmp_path: Path) -> FlakyStorage:
    return make("memory://", is_flaky=True).flaky


def test_a_failure_before_the_call_changes_nothing_and_is_definite(flaky: FlakyStorage) -> None:
    flaky.fail_before("pause")
    with pytest.raises(StorageUnavailable) as raised:
        flaky.run(flaky.driver.pause("default", by="t"))
    assert raised.value.maybe_applied is False
    assert flaky.run(flaky.driver.queues()) == []
    flaky.run(flaky.driver.pause("default", by="t"))
    assert flaky.counters == {"before pause": 1}


def test_failing_after_takes_effect_and_leaves_it_open(flaky: FlakyStorage) -> None:
    flaky.fail_after("pause")
    with pytest.raises(StorageUnavailable) as raised:
        flaky.run(flaky.driver.pause("default", by="t"))
    assert raised.value.maybe_applied is True
    [queue] = flaky.run(flaky.driver.queues())
    assert queue.paused_at is not None


def test_healing_lets_go_what_hangs(flaky: FlakyStorage) -> None:
    async def story() -> None:
        flaky.hang("queues")
        asking = asyncio.create_task(flaky.arun(flaky.driver.queues()))
        await asyncio.sleep(0.05)
        assert not asking.done()
        flaky.heal()
        assert await asking == []

    asyncio.run(story())


def test_under_a_limit_a_handler_stops_when_the_store_is_away_for_a_lease(tmp_path: Path) -> None:
    """Another job may have its permit by then; a plain job goes on, and its end is sent later."""
    folder = tmp_path / "history"
    folder.mkdir()
    play = Play("memory://", folder, lease=3 * HEARTBEAT)

    async def story() -> None:
        async with play.worker() as worker:
            limited, plain = await play.enqueue("limited", 2.5), await play.enqueue("slow", 2.5)
            async with asyncio.timeout(10):
                while len(worker.attempts) < 2:  # noqa: ASYNC110  # there is no event for it
                    await asyncio.sleep(0.01)
            attempts = {attempt.claim.id: attempt for attempt in worker.attempts}
            play.flaky.down()
            async with asyncio.timeout(10):
                while not attempts[limited].is_stopping:  # noqa: ASYNC110  # as above
                    await asyncio.sleep(0.01)
            assert not attempts[plain].is_stopping
            await asyncio.sleep(0.5)
            play.flaky.up()
            await play.completed(limited, plain)

    run(play, story)
    verdict = play.judge()
    assert verdict.counters["runs"] == 3, "the limited one began again, the plain one did not"
    play.app.close()
