"""Collecting tasks: one call for many jobs, an outcome for each."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import dataclass
from typing import Any, TypedDict

import msgspec
import pytest

from tests.engine.test_worker import new_app, run, until
from winch import App, Collected, ConfigError, Context, Depends, InvalidPayload, JobState, Retry, Snooze


@dataclass
class Features:
    height: float
    name: str = "unknown"


class Point(msgspec.Struct):
    x: int


class Row(TypedDict):
    key: str


async def settled(jobs: list[Any]) -> list[Any]:
    for job in jobs:
        await until(job, JobState.COMPLETED, JobState.DEAD, JobState.CANCELLED)
    return [job.record for job in jobs]


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_many_jobs_are_taken_in_one_call_by_one_slot(kind: str) -> None:
    app = new_app()
    calls: list[list[float]] = []

    def score(jobs: list[Collected[Features]]) -> None:
        calls.append([job.args.height for job in jobs])
        for job in jobs:
            job.done({"score": job.args.height * 2, "attempt": job.attempt})

    async def ascore(jobs: list[Collected[Features]]) -> None:
        await asyncio.sleep(0)
        score(jobs)

    task = app.task(name="score", collect=40, collect_wait="200ms")(ascore if kind == "async" else score)
    jobs = app.enqueue_many([task.bind(Features(height=float(n))) for n in range(100)])

    async def body(_: Any) -> None:
        records = await settled(jobs)
        assert [job.result(timeout="1s") for job in jobs][7] == {"score": 14.0, "attempt": 1}
        assert {record.state for record in records} == {JobState.COMPLETED}

    run(app, body, concurrency=1)
    assert [len(call) for call in calls] == [40, 40, 20]
    assert sorted(height for call in calls for height in call) == [float(n) for n in range(100)]


def test_each_job_has_its_own_outcome() -> None:
    app = new_app()
    seen: list[str] = []

    @app.task(collect=10, retry=Retry.fixed("10ms", attempts=2))
    def mixed(jobs: list[Collected[dict[str, Any]]]) -> None:
        for job in jobs:
            seen.append(job.args["how"])
            match job.args["how"], job.attempt:
                case "fail", _:
                    job.fail(ValueError("too small"))
                case "retry", 1:
                    job.retry("10ms", "later")
                case "snooze", _ if seen.count("snooze") == 1:
                    job.snooze("10ms")
                case "discard", _:
                    job.discard("worthless")
                case "cancel", _:
                    job.cancel("not wanted")
                case _:
                    pass

    hows = ["plain", "fail", "retry", "snooze", "discard", "cancel"]
    jobs = app.enqueue_many([mixed.bind(how=how) for how in hows])

    async def body(_: Any) -> None:
        plain, failed, retried, snoozed, discarded, cancelled = await settled(jobs)
        assert (plain.state, plain.attempt, plain.result) == (JobState.COMPLETED, 1, None)
        assert (failed.state, failed.attempt) == (JobState.DEAD, 2)
        assert failed.error.message == "too small"
        assert (retried.state, retried.attempt) == (JobState.COMPLETED, 2)
        assert (snoozed.state, snoozed.attempt) == (JobState.COMPLETED, 1)
        assert (discarded.state, discarded.reason) == (JobState.DEAD, "worthless")
        assert (cancelled.state, cancelled.reason) == (JobState.CANCELLED, "not wanted")

    run(app, body)


def test_outcomes_set_before_a_call_raises_still_count() -> None:
    app = new_app()

    @app.task(collect=10, retry=Retry.never())
    async def half(jobs: list[Collected[Point]]) -> None:
        for job in jobs:
            if job.args.x < 3:
                job.done(job.args.x)
        raise OSError("the index is gone")

    jobs = app.enqueue_many([half.bind(x=n) for n in range(5)])

    async def body(_: Any) -> None:
        records = await settled(jobs)
        assert [record.state for record in records] == [JobState.COMPLETED] * 3 + [JobState.DEAD] * 2
        assert records[4].error.message == "the index is gone"

    run(app, body)


def test_a_directive_of_the_call_applies_to_every_job_without_its_own() -> None:
    app = new_app()
    calls: list[int] = []

    @app.task(collect=10)
    def busy(jobs: list[Collected[Point]]) -> Any:
        calls.append(len(jobs))
        return Snooze("20ms") if len(calls) == 1 else None

    jobs = app.enqueue_many([busy.bind(x=n) for n in range(3)])

    async def body(_: Any) -> None:
        records = await settled(jobs)
        assert {(r.state, r.attempt) for r in records} == {(JobState.COMPLETED, 1)}

    run(app, body)
    assert calls[0] == 3


def test_the_timeout_is_the_calls() -> None:
    app = new_app()

    @app.task(collect=10, timeout="200ms", retry=Retry.never())
    async def slow(jobs: list[Collected[Point]]) -> None:
        jobs[0].done("early")
        await asyncio.sleep(30)

    jobs = app.enqueue_many([slow.bind(x=n) for n in range(3)])

    async def body(_: Any) -> None:
        first, *late = await settled(jobs)
        assert first.state is JobState.COMPLETED
        assert {record.error.type.split(".")[-1] for record in late} == {"JobTimeout"}

    run(app, body)


def test_a_stuck_call_is_given_up_once_for_all_its_jobs() -> None:
    app = new_app(kill_after="200ms")
    go_on = threading.Event()

    @app.task(collect=10, timeout="100ms", retry=Retry.never())
    def stuck(jobs: list[Collected[Point]]) -> None:
        go_on.wait(10)

    jobs = app.enqueue_many([stuck.bind(x=n) for n in range(3)])

    async def body(worker: Any) -> None:
        records = await settled(jobs)
        assert {record.error.type.split(".")[-1] for record in records} == {"JobTimeout"}
        assert worker.why_retiring == "a thread is left behind"
        go_on.set()

    run(app, body)


def test_a_cancel_of_one_job_leaves_the_others_alone() -> None:
    app = new_app()
    started = threading.Event()

    @app.task(collect=10)
    def long(jobs: list[Collected[Point]]) -> list[bool]:
        started.set()
        until_then = time.monotonic() + 5
        while not any(job.cancelled for job in jobs) and time.monotonic() < until_then:
            time.sleep(0.01)
        for job in jobs:
            if job.cancelled:
                job.cancel("as asked")
        return []

    jobs = app.enqueue_many([long.bind(x=n) for n in range(3)])

    async def body(_: Any) -> None:
        await asyncio.to_thread(started.wait, 5)
        await jobs[1].acancel()
        records = await settled(jobs)
        done = JobState.COMPLETED
        assert [record.state for record in records] == [done, JobState.CANCELLED, done]

    run(app, body)


def test_a_drain_gives_back_what_was_gathered_and_not_started() -> None:
    app = new_app()
    calls: list[int] = []

    @app.task(collect=100, collect_wait="5s")
    def patient(jobs: list[Collected[Point]]) -> None:
        calls.append(len(jobs))

    jobs = app.enqueue_many([patient.bind(x=n) for n in range(3)])

    async def body(_: Any) -> None:
        await until(jobs[2], JobState.RUNNING)

    run(app, body)
    assert calls == []
    assert {(j.refresh().state, j.record.attempt) for j in jobs} == {(JobState.READY, 0)}


def test_jobs_that_arrive_within_the_wait_join_the_call() -> None:
    app = new_app()
    calls: list[int] = []

    @app.task(collect=3, collect_wait="5s")
    async def wait(jobs: list[Collected[Row]]) -> None:
        calls.append(len(jobs))

    async def body(_: Any) -> None:
        jobs = []
        for key in "abc":
            jobs.append(await wait.aenqueue(key=key))
            await asyncio.sleep(0.1)
        await settled(jobs)

    run(app, body)
    assert calls == [3]


def test_a_malformed_job_dies_alone() -> None:
    from winch.storage.params import NewJob

    app = new_app()

    @app.task(name="t", collect=10)
    def task(jobs: list[Collected[Point]]) -> None: ...

    driver = app.ready()
    bad = app.client.draw_id()
    driver.run(driver.enqueue([NewJob(id=bad, task="t", args='{"x": "one"}')]))
    good = task.enqueue(x=1)

    async def body(_: Any) -> None:
        first, second = await settled([app.jobs.get(bad), good])
        assert (first.reason or "").startswith("malformed: ")
        assert second.state is JobState.COMPLETED

    run(app, body)


def test_resources_are_injected_into_the_call() -> None:
    app = new_app()

    @app.lifespan
    def resources() -> Any:
        yield {"model": 3}

    @app.task(collect=10)
    def score(jobs: list[Collected[Point]], *, model: int = Depends("model")) -> None:
        for job in jobs:
            job.done(job.args.x * model)

    async def body(_: Any) -> None:
        assert await (await score.aenqueue(Point(x=2))) == 6

    run(app, body)


def test_a_collecting_task_runs_as_a_plain_function_too() -> None:
    app = new_app()

    @app.task(collect=10)
    def score(jobs: list[Collected[Point]]) -> int:
        for job in jobs:
            job.done(job.args.x)
        return len(jobs)

    job = Collected(Point(x=4))
    assert score([job]) == 1
    assert job.result == 4


def enqueue_wrongly(app: App, *args: Any, **fields: Any) -> None:
    @app.task(name="t", collect=10)
    def task(jobs: list[Collected[Features]]) -> None: ...

    task.enqueue(*args, **fields)


@pytest.mark.parametrize(
    "args, fields, message",
    [
        ((), {"hieght": 1.0}, r"no argument 'hieght' \(did you mean 'height'\?\)"),
        ((), {}, "missing 1 required positional argument: 'height'"),
        ((), {"height": "tall"}, "argument 'height': expected float, got str"),
        ((Point(x=1),), {}, "takes one Features, got Point"),
        ((Features(1.0), Features(2.0)), {}, "takes one Features, or its fields by name"),
    ],
)
def test_wrong_arguments_are_refused(args: Any, fields: Any, message: str) -> None:
    app = new_app()
    with pytest.raises(InvalidPayload, match=message):
        enqueue_wrongly(app, *args, **fields)
    assert app.jobs.list() == []


def no_list(job: Collected[Point]) -> None: ...
def odd_item(jobs: list[Collected[int]]) -> None: ...
def wants_context(jobs: list[Collected[Point]], *, ctx: Context) -> None: ...


@pytest.mark.parametrize(
    "fn, message",
    [
        (no_list, r"takes one argument, annotated list\[Collected"),
        (odd_item, "it must be a dataclass"),
        (wants_context, "it takes no Context"),
    ],
)
def test_wrong_signatures_are_refused(fn: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        new_app().task(name="t", collect=10)(fn).enqueue(x=1)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"collect": 0}, "collect must be a whole number from 1 to 2000"),
        ({"collect_wait": "1s"}, "collect_wait goes with collect"),
        ({"collect": 5, "isolate": "process"}, "collect or isolate"),
        ({"collect": 5, "heartbeat": "1s"}, "collect or heartbeat"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        new_app().task(**options)
