"""The worker, embedded on the memory store: every outcome, timeouts, cancel, drain, lost sessions."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from winch import App, Cancel, Context, Discard, Job, JobFailed, JobState, Retry, RetryAfter, Snooze

QUICK: dict[str, Any] = {
    "lease": "3s",
    "heartbeat": "200ms",
    "sweep": "200ms",
    "poll": "200ms",
    "grace": "2s",
}


def new_app(**settings: Any) -> App:
    return App("memory://", **{**QUICK, **settings})


def run(app: App, body: Callable[[Any], Awaitable[None]], **options: Any) -> None:
    async def main() -> None:
        async with asyncio.timeout(20):
            async with app.worker(**options) as worker:
                await body(worker)
            await app.aclose()

    asyncio.run(main())


async def until(job: Job[Any], *states: JobState) -> Job[Any]:
    while (await job.arefresh()).state not in states:  # noqa: ASYNC110  # a store has no event to wait on
        await asyncio.sleep(0.005)
    return job


def test_sync_and_async_handlers_return_their_results() -> None:
    app = new_app()

    @app.task
    def in_thread(a: int) -> str:
        return f"{a} {threading.current_thread().name.startswith('winch-')}"

    @app.task
    async def on_loop(a: int) -> dict[str, int]:
        await asyncio.sleep(0)
        return {"a": a}

    async def body(_: Any) -> None:
        assert await (await in_thread.aenqueue(1)) == "1 True"
        assert await (await on_loop.aenqueue(2)) == {"a": 2}

    run(app, body)


def test_a_failing_job_is_retried_until_it_works() -> None:
    app = new_app()

    @app.task(retry=Retry.fixed("10ms", attempts=5))
    async def flaky(*, ctx: Context) -> int:
        if ctx.attempt < 3:
            raise ValueError(f"attempt {ctx.attempt}")
        return ctx.attempt

    async def body(_: Any) -> None:
        job: Job[Any] = await flaky.aenqueue()  # type: ignore[call-arg]  # ctx is injected
        assert await job == 3
        entries = [(e.what, e.attempt, e.error.message if e.error else "") for e in job.record.history]
        assert entries == [("failed", 1, "attempt 1"), ("failed", 2, "attempt 2")]

    run(app, body)


def test_a_job_that_never_works_is_dead_with_its_errors() -> None:
    app = new_app()

    @app.task(retry=Retry.fixed("5ms", attempts=2))
    def broken() -> None:
        secret = "hunter2"
        raise RuntimeError("no such luck" + secret[:0])

    async def body(_: Any) -> None:
        job = await broken.aenqueue()
        with pytest.raises(JobFailed, match="dead: RuntimeError: no such luck"):
            await job
        record = (await job.arefresh()).record
        assert record.reason == "failed 2 times"
        error = record.error
        assert error is not None
        assert error.traceback is not None
        assert "in broken" in error.traceback
        assert "hunter2" not in error.traceback.replace('secret = "hunter2"', "")

    run(app, body)


def test_the_outcomes_a_handler_may_choose() -> None:
    app = new_app()

    @app.task
    async def choose(kind: str, *, ctx: Context) -> Any:
        match kind:
            case "retry" if ctx.attempt == 1:
                raise RetryAfter("10ms", "later")
            case "snooze" if not app.jobs.get(ctx.job_id).record.history:
                return Snooze("10ms")
            case "discard":
                raise Discard("worthless")
            case "cancel":
                return Cancel("not wanted")
        return ctx.attempt

    async def body(_: Any) -> None:
        assert await (await choose.aenqueue("retry")) == 2
        assert await (await choose.aenqueue("snooze")) == 1
        dead = await until(await choose.aenqueue("discard"), JobState.DEAD)
        assert dead.record.reason == "worthless"
        cancelled = await until(await choose.aenqueue("cancel"), JobState.CANCELLED)
        assert cancelled.record.reason == "not wanted"

    run(app, body)


def test_a_policy_per_exception_type() -> None:
    app = new_app()

    @app.task(retry=Retry.fixed("5ms", attempts=3, on={KeyError: None, ValueError: Retry.never()}))
    def pick(kind: str) -> None:
        raise {"key": KeyError, "value": ValueError, "other": OSError}[kind]("x")

    async def body(_: Any) -> None:
        attempts = {}
        for kind in ("key", "value", "other"):
            job = await until(await pick.aenqueue(kind), JobState.DEAD)
            attempts[kind] = job.record.attempt
        assert attempts == {"key": 1, "value": 1, "other": 3}

    run(app, body)


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_a_handler_past_its_timeout_is_ended(kind: str) -> None:
    app = new_app()
    ended = threading.Event()

    async def sleeping() -> None:
        try:
            await asyncio.sleep(30)
        finally:
            ended.set()

    def spinning() -> None:
        try:
            while True:
                time.sleep(0.001)
        finally:
            ended.set()

    options: dict[str, Any] = {"timeout": "100ms", "retry": Retry.never(), "name": "t"}
    task: Any = app.task(**options)(sleeping if kind == "async" else spinning)

    async def body(_: Any) -> None:
        job = await until(await task.aenqueue(), JobState.DEAD)
        assert job.record.error is not None
        assert job.record.error.type.endswith("JobTimeout")
        assert ended.is_set()

    run(app, body)


def test_a_stuck_thread_is_given_up_without_losing_a_neighbour() -> None:
    app = new_app(kill_after="300ms")
    go_on = threading.Event()

    @app.task(timeout="100ms", retry=Retry.never())
    def stuck() -> None:
        go_on.wait(10)  # blocked in C: an exception raised in the thread is not noticed

    @app.task
    async def neighbour() -> str:
        await asyncio.sleep(1.0)
        return "fine"

    async def body(worker: Any) -> None:
        other = await neighbour.aenqueue()
        job = await until(await stuck.aenqueue(), JobState.DEAD)
        assert job.record.error is not None
        assert job.record.error.type.endswith("JobTimeout")
        assert worker.why_retiring == "a thread is left behind"
        assert await other == "fine"
        go_on.set()

    run(app, body)


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_a_running_job_can_be_cancelled(kind: str) -> None:
    app = new_app()
    started = threading.Event()

    async def sleeping() -> None:
        started.set()
        await asyncio.sleep(30)

    def spinning(*, ctx: Context) -> None:
        started.set()
        while not ctx.cancelled:
            time.sleep(0.005)

    task: Any = app.task(name="t")(sleeping if kind == "async" else spinning)

    async def body(_: Any) -> None:
        job = await task.aenqueue()
        await asyncio.to_thread(started.wait, 5)
        await job.acancel("enough")
        await until(job, JobState.CANCELLED)
        assert job.record.reason == "enough"
        assert [entry.what for entry in job.record.history] == ["cancel requested", "cancelled"]

    run(app, body)


def test_a_handlers_own_cancelled_error_is_a_failure_not_the_end_of_its_slot() -> None:
    app = new_app()

    @app.task(retry=Retry.never())
    async def odd() -> None:
        raise asyncio.CancelledError

    @app.task
    async def plain() -> int:
        return 1

    async def body(_: Any) -> None:
        await until(await odd.aenqueue(), JobState.DEAD)
        assert await (await plain.aenqueue()) == 1

    run(app, body, concurrency=1)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, MemoryError, GeneratorExit])
@pytest.mark.parametrize("is_async", [True, False])
def test_no_exception_of_a_handler_ends_its_worker(kind: type[BaseException], is_async: bool) -> None:
    app = new_app()

    async def async_raises() -> None:
        raise kind

    def sync_raises() -> None:
        raise kind

    task: Any = app.task(name="raises", retry=Retry.never())(async_raises if is_async else sync_raises)

    @app.task
    async def plain() -> int:
        return 1

    async def body(_: Any) -> None:
        job = await task.aenqueue()
        await until(job, JobState.DEAD)
        assert job.refresh().record.error.type == kind.__name__, "it is kept as what was raised"
        assert await (await plain.aenqueue()) == 1

    run(app, body, concurrency=1)


def test_each_job_has_context_variables_of_its_own() -> None:
    app = new_app()
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")

    @app.task
    async def on_loop() -> str:
        before = variable.get()
        variable.set("mine")
        await asyncio.sleep(0.01)
        return f"{before} {variable.get()}"

    @app.task
    def in_thread() -> str:
        before = variable.get()
        variable.set("mine")
        return f"{before} {variable.get()}"

    async def body(_: Any) -> None:
        for task in (on_loop, in_thread):
            jobs = [await task.aenqueue() for _ in range(4)]
            assert [await job for job in jobs] == ["unset mine"] * 4

    run(app, body, concurrency=1)


def test_a_delayed_job_starts_on_time() -> None:
    app = new_app(poll="5s")

    @app.task
    async def stamp() -> float:
        return time.time()

    async def body(_: Any) -> None:
        await asyncio.sleep(0.1)  # the promoter sleeps now, for its whole poll
        job = await stamp.using(delay="150ms").aenqueue()
        late = await job - job.refresh().record.run_at.timestamp()
        assert 0 <= late < 0.1

    run(app, body)


def test_an_expired_job_is_cancelled_unrun() -> None:
    app = new_app()
    ran = []

    @app.task
    def task() -> None:
        ran.append(1)

    job = task.using(expires="1ms").enqueue()
    time.sleep(0.01)

    async def body(_: Any) -> None:
        await until(job, JobState.CANCELLED)
        assert "expired" in (job.record.reason or "")

    run(app, body)
    assert ran == []


def test_malformed_rows_die_and_others_flow() -> None:
    from winch.storage.params import NewJob

    app = new_app()

    @app.task(name="t")
    def task(a: int) -> int:
        return a

    bad = ["{", '{"a": "x"}', '{"a": NaN}', "[]", '{"a":' * 500, '{"b": 1}', ""]
    driver = app.ready()
    ids = [app.client.draw_id() for _ in bad]
    jobs = [NewJob(id=i, task="t", args=args) for i, args in zip(ids, bad, strict=True)]
    driver.run(driver.enqueue(jobs))

    async def body(_: Any) -> None:
        assert await (await task.aenqueue(7)) == 7
        for job_id in ids:
            job = await until(app.jobs.get(job_id), JobState.DEAD)
            assert (job.record.reason or "").startswith("malformed: ")

    run(app, body, concurrency=2)


def test_an_unknown_task_waits_and_loses_nothing() -> None:
    app, other = new_app(), new_app()

    @other.task(name="elsewhere")
    def elsewhere() -> None: ...

    @app.task(name="here")
    def here() -> int:
        return 1

    from winch.storage.params import NewJob

    driver = app.ready()
    job_id = app.client.draw_id()
    driver.run(driver.enqueue([NewJob(id=job_id, task="elsewhere", args="{}")]))

    async def body(_: Any) -> None:
        assert await (await here.aenqueue()) == 1
        record = app.jobs.get(job_id).record
        assert (record.state, record.attempt) == (JobState.READY, 0)
        assert "No worker has its task 'elsewhere'" in app.jobs.get(job_id).why()

    run(app, body)


def test_a_result_that_cannot_be_kept_does_not_undo_the_work() -> None:
    app = new_app()

    @app.task
    def odd() -> object:
        return object()

    async def body(_: Any) -> None:
        job = await until(await odd.aenqueue(), JobState.COMPLETED)
        assert "result not kept" in (job.record.reason or "")

    run(app, body)


def test_drain_lets_running_jobs_end_and_gives_the_rest_back_unspent() -> None:
    app = new_app(grace="500ms")
    started = asyncio.Event()

    @app.task
    async def short() -> str:
        started.set()
        await asyncio.sleep(0.2)
        return "done"

    @app.task
    async def long() -> None:
        await asyncio.sleep(30)

    jobs: dict[str, Job[Any]] = {}

    async def body(_: Any) -> None:
        jobs["short"] = await short.aenqueue()
        jobs["long"] = await until(await long.aenqueue(), JobState.RUNNING)
        await started.wait()

    run(app, body)
    assert jobs["short"].refresh().state is JobState.COMPLETED
    record = jobs["long"].refresh().record
    assert (record.state, record.attempt) == (JobState.READY, 0)
    assert [entry.what for entry in record.history] == ["released"]
    assert app.workers.list() == []


def test_a_lost_session_drops_its_jobs_and_starts_again() -> None:
    app = new_app()
    ends: list[str] = []

    @app.task
    async def long() -> None:
        try:
            await asyncio.sleep(0.6)
            ends.append("ran")
        except asyncio.CancelledError:
            ends.append("cancelled")
            raise

    async def body(worker: Any) -> None:
        job = await long.aenqueue()
        await until(job, JobState.RUNNING)
        first, driver = worker.session, app.ready()
        driver.run(driver.rescue(now=job.record.created_at + timedelta(hours=1)))
        await until(job, JobState.COMPLETED)
        assert worker.session != first
        assert ends == ["cancelled", "ran"]
        assert [entry.what for entry in job.record.history] == ["rescued"]

    run(app, body)


def test_a_burst_ends_with_its_last_job_and_not_at_the_next_poll() -> None:
    app = App("memory://", poll="5s")

    @app.task
    async def wait_a_moment() -> None:
        await asyncio.sleep(0.05)

    @app.task
    def sleep_a_moment() -> None:
        time.sleep(0.05)

    jobs = [wait_a_moment.enqueue(), sleep_a_moment.enqueue()]
    began = time.monotonic()
    app.run_worker(burst=True)
    assert time.monotonic() - began < 2
    assert [job.refresh().state for job in jobs] == [JobState.COMPLETED] * 2


def test_burst_ends_when_nothing_is_left() -> None:
    app = new_app()

    @app.task
    def quick(n: int) -> int:
        return n

    jobs = app.enqueue_many(quick.bind(n) for n in range(50))
    app.run_worker(burst=True, concurrency=4)
    assert {job.refresh().state for job in jobs} == {JobState.COMPLETED}


def test_a_claim_that_only_the_store_remembers_is_given_up() -> None:
    from winch.storage.params import ClaimParams

    app = new_app(lease="600ms", heartbeat="200ms")
    ran = []

    @app.task(name="t")
    async def task() -> None:
        ran.append(1)

    async def body(worker: Any) -> None:
        driver = app.ready()
        worker.quiet(True)
        await asyncio.sleep(0.05)
        job = await task.aenqueue()
        # As a store does that was set back to before the finish: claimed here, and forgotten here.
        token = "11111111-1111-4111-8111-111111111111"
        params = ClaimParams(session=worker.session, token=token, queues=("default",), limit=1)
        [claim] = await driver.arun(driver.claim(params))
        assert claim.id == job.id
        worker.quiet(False)
        await until(job, JobState.COMPLETED)
        assert ran == [1]
        assert job.record.rescues == 0

    run(app, body)


def test_a_beat_that_crosses_the_end_begins_no_new_session() -> None:
    app = new_app()

    async def main() -> None:
        async with app.worker() as worker:
            pass
        await worker.session_lost(worker.session)

    asyncio.run(main())
    assert app.workers.list() == []


def test_a_stop_is_recorded_for_an_interrupted_job_and_not_for_an_unstarted_one() -> None:
    app = new_app(grace="100ms")
    begun = asyncio.Event()

    @app.task
    async def endless() -> None:
        begun.set()
        await asyncio.sleep(60)

    jobs = [endless.enqueue() for _ in range(3)]

    async def main() -> None:
        async with asyncio.timeout(20):
            async with app.worker(concurrency=1):
                await begun.wait()

    asyncio.run(main())
    histories = [[entry.what for entry in job.refresh().record.history] for job in jobs]
    assert sorted(histories) == [[], [], ["released"]]
    assert {(job.state, job.record.attempt) for job in jobs} == {(JobState.READY, 0)}


@pytest.mark.parametrize("is_hurried", [False, True])
def test_a_thread_that_sits_in_c_does_not_move_the_deadline_of_a_stop(is_hurried: bool) -> None:
    app = new_app(grace="2s")
    begun = threading.Event()

    @app.task
    def stuck() -> None:
        begun.set()
        time.sleep(30)  # no interrupt reaches it

    job = stuck.enqueue()
    took = 0.0

    async def main() -> None:
        nonlocal took
        async with asyncio.timeout(20):
            async with app.worker() as worker:
                await asyncio.to_thread(begun.wait, 10)
                if is_hurried:  # as a second signal does
                    loop = asyncio.get_running_loop()
                    loop.call_later(0.5, lambda: worker.end_by(time.monotonic()))
                left = time.monotonic()
            took = time.monotonic() - left

    asyncio.run(main())
    assert took < (1.7 if is_hurried else 2.8)
    assert job.refresh().state is JobState.READY
