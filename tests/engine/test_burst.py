"""A burst ends when nothing is left to run, also where another process has jobs in its hands."""

from __future__ import annotations

import threading
import time
from datetime import timedelta

import psycopg
import pytest

from winch import App, Context, JobState, Retry


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
