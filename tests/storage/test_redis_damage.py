"""Bytes of a job that Redis returns damaged: the job ends, and no other waits for it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from uuid import uuid4

import pytest

from tests.redis_servers import RedisServer
from winch import App
from winch.core.lifecycle import JobState
from winch.core.values.ids import job_id
from winch.drivers.redis.driver import RedisDriver
from winch.drivers.redis.scripts import command
from winch.storage.params import (
    Answer,
    ClaimParams,
    ClaimRef,
    Finish,
    JobFilter,
    NewJob,
    NewSession,
)


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
def driver(server: RedisServer) -> Iterator[RedisDriver]:
    driver = RedisDriver.from_url(server.url)
    driver.erase()
    yield driver
    driver.close()


def new_job(tick: int, **fields: object) -> NewJob:
    job = {"id": job_id(tick, bytes(8)), "task": "mail.send", "args": "{}", **fields}
    return NewJob(**job)  # type: ignore[arg-type]


DAMAGED = (b"", b"garbage", b"\xc1" * 40, b"\xcf" + bytes(8) + b"\x90", b"\xcf" + bytes(8) + b"\x9e\xa1")


def started(driver: RedisDriver) -> str:
    """A live session."""
    session = NewSession(
        id=str(uuid4()),
        worker="w",
        host="h",
        pid=1,
        release="1",
        queues=("default",),
        tasks=("mail.send",),
        slots=1,
        lease=timedelta(seconds=60),
    )
    driver.run(driver.start_session(session))
    return session.id


@pytest.mark.parametrize("damaged", DAMAGED, ids=bytes.hex)
def test_a_claim_of_a_job_with_a_damaged_envelope_can_end(driver: RedisDriver, damaged: bytes) -> None:
    """A worker that finds no task for it ends it as dead. Its neighbours are not concerned."""
    session = started(driver)
    jobs = [new_job(1), new_job(2), new_job(3)]
    driver.run(driver.enqueue(jobs))
    driver._pool.run(command("HSET", "{winch}:env", jobs[0].id, damaged))
    params = ClaimParams(session=session, token=str(uuid4()), queues=("default",), limit=9)
    claims = driver.run(driver.claim(params))
    assert [claim.id for claim in claims] == [job.id for job in jobs]
    assert claims[0].task == ""

    def ended(to: JobState, place: int) -> Finish:
        return Finish(id=claims[place].id, token=params.token, to=to, what="ended")

    ends = [ended(JobState.DEAD, 0), ended(JobState.COMPLETED, 1), ended(JobState.COMPLETED, 2)]
    assert driver.run(driver.finish(ends)) == [Answer.TOOK] * 3
    assert driver.run(driver.finish(ends)) == [Answer.ALREADY] * 3
    (dead,) = driver.run(driver.list_jobs(JobFilter(states=(JobState.DEAD,)))).jobs
    assert (dead.id, dead.task) == (jobs[0].id, "")
    (retried,) = driver.run(driver.retry([dead.id], by="me"))
    assert not retried.took  # its queue and its arguments are not known
    (deleted,) = driver.run(driver.delete([dead.id], by="me"))
    assert deleted.took
    assert driver.run(driver.get([dead.id])) == [None]


@pytest.mark.parametrize("damaged", DAMAGED, ids=bytes.hex)
def test_a_job_with_a_damaged_envelope_goes_back_to_its_queue(
    driver: RedisDriver, damaged: bytes
) -> None:
    session = started(driver)
    job = new_job(1, queue="mails")
    driver.run(driver.enqueue([job]))
    driver._pool.run(command("HSET", "{winch}:env", job.id, damaged))
    for _ in range(2):
        params = ClaimParams(session=session, token=str(uuid4()), queues=("mails",), limit=9)
        (claim,) = driver.run(driver.claim(params))
        ref = ClaimRef(claim.id, claim.token)
        assert driver.run(driver.release([ref])) == [Answer.TOOK]
    driver.run(driver.end_session(session))


@pytest.mark.parametrize("damaged", DAMAGED, ids=bytes.hex)
def test_a_worker_ends_a_job_with_a_damaged_envelope(
    driver: RedisDriver, server: RedisServer, damaged: bytes
) -> None:
    app = App(server.url)

    @app.task
    def add(a: int, b: int) -> int:
        return a + b

    broken, sound = add.enqueue(1, 2), add.enqueue(3, 4)
    driver._pool.run(command("HSET", "{winch}:env", broken.id, damaged))
    app.run_worker(burst=True)
    assert sound.result() == 7
    (found,) = driver.run(driver.get([broken.id]))
    assert found is not None
    assert found.state is JobState.DEAD
    app.close()


@pytest.mark.parametrize("damaged", DAMAGED, ids=bytes.hex)
def test_a_damaged_envelope_keeps_no_other_job_of_its_queue_waiting(
    driver: RedisDriver, damaged: bytes
) -> None:
    """A worker that looks at the task of each job passes over one that it cannot read."""
    session = started(driver)
    jobs = [new_job(1), new_job(2), new_job(3, task="other")]
    driver.run(driver.enqueue(jobs))
    driver._pool.run(command("HSET", "{winch}:env", jobs[0].id, damaged))
    params = ClaimParams(
        session=session, token=str(uuid4()), queues=("default",), limit=9, tasks=("mail.send",)
    )
    assert [claim.id for claim in driver.run(driver.claim(params))] == [jobs[1].id]
