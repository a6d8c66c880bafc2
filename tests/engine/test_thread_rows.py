"""Synchronous jobs one after the other in a thread: each is a job of its own all the same."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections.abc import Awaitable, Callable

import pytest

from winch import App, JobState, Retry
from winch.engine.worker.running.threads import ThreadCall, ThreadRow, Threads

last_number: contextvars.ContextVar[str] = contextvars.ContextVar("last_number", default="nothing")


def run(app: App, until: Callable[[], bool | Awaitable[bool]], *, concurrency: int = 2) -> None:
    async def main() -> None:
        async with asyncio.timeout(20), app.worker(concurrency=concurrency):
            while True:
                answer = until()
                if answer if isinstance(answer, bool) else await answer:
                    return
                await asyncio.sleep(0.005)

    asyncio.run(main())


def test_a_thread_goes_on_with_the_next_job_and_each_has_its_own_context() -> None:
    app = App("memory://")
    seen: list[tuple[str, str]] = []

    @app.task(name="t")
    def t(n: int) -> int:
        seen.append((threading.current_thread().name, last_number.get()))
        last_number.set(f"{n}")
        return n

    jobs = app.enqueue_many([t.bind(n) for n in range(200)])
    run(app, lambda: len(seen) == 200)
    assert {value for _, value in seen} == {"nothing"}
    assert len({name for name, _ in seen}) <= 2
    assert [job.result() for job in jobs] == list(range(200))


def test_never_more_at_once_than_the_worker_has_slots() -> None:
    app = App("memory://")
    lock = threading.Lock()
    now = most = done = 0

    @app.task(name="sync")
    def sync(n: int) -> None:
        nonlocal now, most, done
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.002)
        with lock:
            now -= 1
            done += 1

    @app.task(name="on_loop")
    async def on_loop(n: int) -> None:
        nonlocal now, most, done
        with lock:
            now += 1
            most = max(most, now)
        await asyncio.sleep(0.002)
        with lock:
            now -= 1
            done += 1

    app.enqueue_many([(sync if n % 3 else on_loop).bind(n) for n in range(120)])
    run(app, lambda: done == 120, concurrency=3)
    assert most == 3


def test_a_failure_in_the_middle_of_a_row_is_that_jobs_alone() -> None:
    app = App("memory://")
    ran: list[int] = []

    @app.task(name="t", retry=Retry.fixed("1h"))
    def t(n: int) -> None:
        ran.append(n)
        if n == 3:
            raise ValueError("three")

    jobs = app.enqueue_many([t.bind(n) for n in range(8)])
    run(app, lambda: len(ran) == 8, concurrency=1)
    states = [job.refresh().state for job in jobs]
    assert states.count(JobState.COMPLETED) == 7
    assert states[3] is JobState.RETRYING


def test_a_job_of_a_row_that_takes_too_long_is_interrupted_and_the_row_goes_on() -> None:
    app = App("memory://")
    ran: list[int] = []

    @app.task(name="t", timeout="300ms", retry=Retry.fixed("1h"))
    def t(n: int) -> None:
        if n == 1:
            while True:
                time.sleep(0.01)
        ran.append(n)

    jobs = app.enqueue_many([t.bind(n) for n in range(4)])

    async def over() -> bool:
        await asyncio.sleep(0)
        return len(ran) == 3 and jobs[1].refresh().state is JobState.RETRYING

    run(app, over, concurrency=1)
    error = jobs[1].refresh().record.error
    assert error is not None
    assert error.type.endswith("JobTimeout")
    assert [job.refresh().state for job in jobs].count(JobState.COMPLETED) == 3


def test_a_stop_releases_the_running_job_and_gives_back_the_rest() -> None:
    app = App("memory://", grace="100ms")
    began = threading.Event()

    @app.task(name="t")
    def t(n: int) -> None:
        began.set()
        while True:
            time.sleep(0.01)

    jobs = app.enqueue_many([t.bind(n) for n in range(5)])

    async def main() -> None:
        async with asyncio.timeout(20), app.worker(concurrency=1):
            while not began.is_set():  # noqa: ASYNC110  # a thread sets it
                await asyncio.sleep(0.005)

    asyncio.run(main())
    assert {job.refresh().state for job in jobs} == {JobState.READY}
    assert {job.record.attempt for job in jobs} == {0}


class Unwanted(Exception):
    pass


def test_a_call_interrupted_before_it_begins_never_runs() -> None:
    ran: list[int] = []
    call = ThreadCall(ran.append, None, (1,), context=contextvars.copy_context())
    call.interrupt(Unwanted)
    call.execute()
    assert isinstance(call.error, Unwanted)
    assert ran == []


def test_a_returned_result_counts_despite_a_concurrent_interrupt() -> None:
    """Found by F28 (seed 63): a worker that was to stop at once gave back a job whose handler had just
    returned. A call into C cannot be interrupted: the interrupt is due at the moment it has returned."""
    lock = threading.Lock()
    lock.acquire()
    call = ThreadCall(lock.acquire, None, context=contextvars.copy_context())
    ended = threading.Event()

    class Ended(ThreadRow):
        def following(self, call: ThreadCall) -> ThreadCall | None:
            ended.set()
            return None

        def ended(self, call: ThreadCall) -> None:
            pass

    loop = asyncio.new_event_loop()
    call.row = Ended(loop.create_future())
    threads = Threads(1, loop)
    threads.start(call)
    while not call.has_run:
        time.sleep(0.001)
    time.sleep(0.05)
    call.interrupt(Unwanted)
    lock.release()
    assert ended.wait(5)
    threads.close()
    loop.close()
    assert (call.value, call.error) == (True, None)


def test_a_handler_that_raises_stop_iteration_has_failed() -> None:
    call = ThreadCall(next, None, (iter(()),), context=contextvars.copy_context())
    call.execute()
    assert isinstance(call.error, RuntimeError)


@pytest.mark.parametrize("waits", [False, True])
def test_a_coroutine_that_cancels_its_own_task_leaves_the_slot_alive(waits: bool) -> None:
    app = App("memory://")
    ran: list[int] = []

    @app.task(name="t", retry=Retry.never())
    async def t(n: int) -> None:
        ran.append(n)
        if n == 0:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            if waits:
                await asyncio.sleep(0)

    app.enqueue_many([t.bind(n) for n in range(3)])
    run(app, lambda: set(ran) == {0, 1, 2}, concurrency=1)
    app.enqueue_many([t.bind(n) for n in range(3, 6)])
    run(app, lambda: set(ran) == set(range(6)), concurrency=1)
