"""A worker of all queues finds those that come up after its start."""

from __future__ import annotations

import asyncio

import pytest

from winch import App
from winch.engine.worker.queues.discovery import NewQueues


@pytest.fixture
def app() -> App:
    app = App("memory://")

    @app.task(name="add")
    def add() -> None: ...

    return app


def look(app: App, service_retires: list[str] | None, times: int = 1) -> None:
    async def main() -> None:
        service = NewQueues(
            app.ready(),
            app.runtime,
            lambda known: [queue for queue in known if queue != "slow"],
            ["default"],
            None if service_retires is None else service_retires.append,
        )
        for _ in range(times):
            await service.run_once()

    asyncio.run(main())


def test_a_worker_retires_for_a_new_queue(app: App) -> None:
    reasons: list[str] = []
    look(app, reasons)
    assert reasons == []
    app.tasks.get("add").using(queue="slow").enqueue()
    look(app, reasons)
    assert reasons == [], "an excluded queue is none of its queues"
    app.tasks.get("add").using(queue="mail").enqueue()
    look(app, reasons, times=2)
    assert reasons == ["queue 'mail' is new"]


def test_a_worker_without_a_successor_logs_a_new_queue_once(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    app.tasks.get("add").using(queue="mail").enqueue()
    look(app, None, times=3)
    assert [record.getMessage().startswith("queue 'mail' is new") for record in caplog.records] == [True]


def test_an_embedded_worker_of_all_queues_runs_the_jobs_of_each(app: App) -> None:
    jobs = [app.tasks.get("add").using(queue=queue).enqueue() for queue in ("a", "b", "default")]
    app.run_worker(queues=["*"], burst=True)
    assert [job.refresh().state.value for job in jobs] == ["completed"] * 3
