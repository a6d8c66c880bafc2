"""An outcome that the store complains about: maybe the outcome is to blame, maybe the store."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from tests.engine.test_worker import new_app, run, until
from winch import App, Job, JobState
from winch.core.errors import StorageError
from winch.engine.worker import finisher
from winch.storage.protocol import Driver


class Complaining:
    """A store that refuses, so many times, whatever holds the outcome of one job."""

    def __init__(self, inner: Any, times: int) -> None:
        self._inner = inner
        self.error: Exception = StorageError("ERR it does not say what is wrong")
        self.job = ""
        self.left = times
        self.refused = 0
        self._disliked: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def finish(self, finishes: Any, **how: Any) -> Any:
        verb = self._inner.finish(finishes, **how)
        if any(one.id == self.job and one.what != "unstorable" for one in finishes):
            self._disliked.append(verb)
        return verb

    async def arun(self, verb: Any) -> Any:
        if self.left and any(verb is one for one in self._disliked):
            self.left -= 1
            self.refused += 1
            raise self.error
        return await self._inner.arun(verb)


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> App:
    monkeypatch.setattr(finisher, "AGAIN", (0.01, 0.02, 0.03))
    return new_app()


def ends(
    app: App, times: int, error: Exception | None = None
) -> tuple[Complaining, Job[Any], list[Job[Any]]]:
    """One job whose outcome is refused so often, among others that end in the same moment."""
    store = Complaining(app.driver, times)
    store.error = error or store.error
    app._driver = cast(Driver, store)
    gate = asyncio.Event()

    @app.task(name="wait")
    async def wait() -> str:
        await gate.wait()
        return "done"

    jobs: list[Job[Any]] = [wait.enqueue() for _ in range(5)]
    store.job = jobs[2].id

    async def body(worker: Any) -> None:
        while len(worker.attempts) < len(jobs):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        gate.set()
        for job in jobs:
            await until(job, JobState.COMPLETED, JobState.DEAD)

    run(app, body, concurrency=len(jobs))
    return store, jobs.pop(2), jobs


def test_a_job_that_was_done_does_not_die_of_a_complaint_that_passes(app: App) -> None:
    """Found by a soak on Redis (seed 12): one error that was none of those known to pass, and a job
    whose handler had returned was dead."""
    store, job, others = ends(app, times=5)
    assert store.refused == 5
    assert job.state is JobState.COMPLETED
    assert all(other.state is JobState.COMPLETED for other in others)


def test_an_outcome_refused_every_time_kills_its_job_with_a_reason(app: App) -> None:
    store, job, others = ends(app, times=1000)
    assert job.state is JobState.DEAD
    assert all(other.state is JobState.COMPLETED for other in others)
    assert store.refused >= len(finisher.AGAIN)


def test_an_error_that_no_store_should_raise_does_not_end_the_writing(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    """Only the finisher writes outcomes: a worker without it runs jobs and stores no outcome."""
    store, job, others = ends(app, 1, FileNotFoundError(2, "of the event loop"))
    assert store.refused == 1
    assert {one.state for one in [job, *others]} == {JobState.COMPLETED}
    assert "outcomes in one call; sending them one by one: FileNotFoundError" in caplog.text


def test_one_value_that_breaks_the_driver_does_not_keep_its_neighbours(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    broken = UnicodeEncodeError("utf-8", "\udce9", 0, 1, "surrogates not allowed")
    _, job, others = ends(app, 1000, broken)
    assert job.state is JobState.DEAD
    assert {other.state for other in others} == {JobState.COMPLETED}
    assert "UnicodeEncodeError" in caplog.text
    error = job.record.error
    assert error is not None
    assert error.message.startswith("its outcome (completed) could not be stored: UnicodeEncodeError")
