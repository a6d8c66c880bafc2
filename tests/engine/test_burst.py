"""A burst ends when nothing is left to run, also where another process has jobs in its hands."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import datetime, timedelta

import psycopg
import pytest

from winch import App, Context, JobState, Rate, Retry
from winch.storage.params import Promoted
from winch.storage.verbs import Verb


def test_a_burst_waits_for_a_due_job_that_another_process_makes_ready(postgres_url: str) -> None:
    """A promoter of another process has updated the job and not committed yet: the burst's own promote
    passes over the locked row, and its claim finds nothing."""
    app = App(postgres_url, poll="30s")

    @app.task
    def late() -> None: ...

    @app.task
    def first() -> None: ...

    job = late.using(delay="1h").enqueue()
    first.enqueue()
    other = psycopg.connect(postgres_url)
    past = "run_at = run_at - interval '2 hours', sort_key = sort_key - 7200000000"
    with psycopg.connect(postgres_url) as conn:
        conn.execute(f"UPDATE winch.job SET {past} WHERE id = %s", (job.id,))
    other.execute("UPDATE winch.job SET state = 'ready', filed = 'ready' WHERE id = %s", (job.id,))
    committing = threading.Timer(0.6, other.commit)
    committing.start()
    began = time.monotonic()
    app.run_worker(burst=True)
    committing.join()
    other.close()
    assert time.monotonic() - began < 10
    assert job.refresh().state is JobState.COMPLETED, job.why()
    app.close()


@pytest.mark.parametrize("delay", ["1ms", "300ms"])
def test_a_burst_runs_a_retry_that_comes_due_within_a_second(delay: str) -> None:
    """The store answers in less than the delay, so the burst's last look finds the job not due."""
    app = App("memory://", poll="30s")

    @app.task(retry=Retry.fixed(delay, attempts=2, jitter="none"))
    def fails_once(ctx: Context) -> None:
        if ctx.attempt == 1:
            raise ValueError("once more")

    job = fails_once.enqueue()
    app.run_worker(burst=True)
    assert job.refresh().state is JobState.COMPLETED, job.why()


def test_jobs_of_other_queues_that_come_due_do_not_keep_a_burst_up() -> None:
    app = App("memory://", poll="30s")

    @app.task(queue="other")
    def elsewhere() -> None: ...

    for n in range(40):
        elsewhere.using(delay=timedelta(milliseconds=100 * n)).enqueue()
    began = time.monotonic()
    app.run_worker(burst=True, queues=["default"])
    assert time.monotonic() - began < 2.5


class SilentBell:
    """A bell whose rings are lost, which a store may do."""

    async def arm(self) -> None: ...

    async def wait(self, timeout: float) -> bool:
        await asyncio.sleep(timeout)
        return False

    async def aclose(self) -> None: ...


def test_a_burst_runs_jobs_that_a_promoter_made_ready_after_its_claim() -> None:
    """A promoter opens the gate between the burst's claim, which found nothing, and its look at the
    gates, which finds nothing to open. The jobs are ready, so the burst must claim them."""
    app = App("memory://", poll="30s")

    @app.task(limit=Rate(2, per="300ms"))
    def limited() -> None: ...

    driver = app.ready()
    admit = driver.admit
    opened_before: list[int] = []

    def admit_after_a_promoter(
        *, limit: int = 1000, is_sweep: bool = False, now: datetime | None = None
    ) -> Verb[Promoted]:
        opened_before.append(driver.run(admit(limit=limit, is_sweep=is_sweep, now=now)).count)
        return admit(limit=limit, is_sweep=is_sweep, now=now)

    driver.admit = admit_after_a_promoter  # type: ignore[method-assign]
    driver.bell = lambda queues, *, due=False: SilentBell()  # type: ignore[method-assign]
    jobs = app.enqueue_many(limited.bind() for _ in range(4))
    app.run_worker(burst=True)
    assert any(opened_before)
    assert [job.refresh().state for job in jobs] == [JobState.COMPLETED] * 4
