"""The application that the fault tests run: tasks that record when they start and how they end.

Workers find it as `tests.faults.apps:app` and their store in the environment; a test makes one for
itself with `make(url)`. The lab's own (`lab/app.py`) is this one with more tasks.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Literal, TypeVar

import psutil

from lab.history import Recorder
from lab.history.witness import Witness
from winch import App, Collected, Context, HttpSink, Limit, Retry
from winch.storage.protocol import Driver
from winch.testing.flaky import FlakyStorage

LEASE, HEARTBEAT, SWEEP, POLL = 3.0, 0.5, 0.5, 0.2
SETTINGS = {"lease": LEASE, "heartbeat": HEARTBEAT, "sweep": SWEEP, "poll": POLL}


class FaultApp(App):
    """An app that records the store's answers to its worker, if a recorder is set."""

    recorder: Recorder | None = None
    is_flaky = False
    _flaky: FlakyStorage | None = None

    @property
    def driver(self) -> Driver:
        if self._driver is None:
            driver = super().driver
            if self.is_flaky:
                self._flaky = FlakyStorage(driver)
                driver = self._flaky.driver
            if self.recorder is not None:
                driver = self.witnessed(driver, self.recorder)
            self._driver = driver
        return self._driver

    def witnessed(self, driver: Driver, recorder: Recorder) -> Driver:
        return Witness(driver, recorder).driver

    @property
    def flaky(self) -> FlakyStorage:
        assert self.driver is not None
        assert self._flaky is not None
        return self._flaky


def make(
    url: str | None = None,
    *,
    events: Literal["off", "full"] = "full",
    recorder: Recorder | None = None,
    is_flaky: bool = False,
    lease: float = LEASE,
) -> FaultApp:
    return with_tasks(
        FaultApp(
            url,
            events=events,
            lease=timedelta(seconds=lease),
            heartbeat=timedelta(seconds=HEARTBEAT),
            sweep=timedelta(seconds=SWEEP),
            poll=timedelta(seconds=POLL),
        ),
        recorder,
        is_flaky=is_flaky,
    )


class Seen:
    """Records when a handler starts and how it ends, if a recorder is set."""

    def __init__(self, recorder: Recorder | None) -> None:
        self._recorder = recorder

    @contextmanager
    def __call__(self, ctx: Context) -> Iterator[str]:
        if self._recorder is None:
            yield ""
            return
        with self._recorder.run(ctx) as run:
            yield run

    def not_committed(self, ctx: Context, runs: list[str], error: BaseException) -> None:
        """The body was done, and then its transaction was refused; or it could not even begin."""
        if self._recorder is None:
            return
        if not runs:
            with suppress(BaseException), self._recorder.run(ctx):
                raise error
        for run in runs:
            self._recorder.failed(ctx, run, error)


AnyApp = TypeVar("AnyApp", bound=FaultApp)


def with_tasks(app: AnyApp, recorder: Recorder | None, *, is_flaky: bool = False) -> AnyApp:
    """The app with one task of each kind."""
    app.recorder = recorder
    app.is_flaky = is_flaky
    seen = Seen(recorder)
    kept: list[bytes] = []

    @app.task(name="quick")
    def quick(ctx: Context, number: int = 0) -> int:
        with seen(ctx):
            return number

    @app.task(name="slow")
    def slow(ctx: Context, seconds: float) -> None:
        with seen(ctx):
            busy(seconds)

    @app.task(name="limited", limit=Limit(2))
    def limited(ctx: Context, seconds: float) -> None:
        with seen(ctx):
            busy(seconds)

    @app.task(name="aslow")
    async def aslow(ctx: Context, seconds: float) -> None:
        with seen(ctx):
            await asyncio.sleep(seconds)

    @app.task(name="spin")
    def spin(ctx: Context, seconds: float) -> None:
        # PyDLL, unlike CDLL, keeps the GIL during the call: no other thread of the process runs.
        with seen(ctx):
            ctypes.PyDLL(None).usleep(ctypes.c_uint(int(seconds * 1e6)))

    @app.task(name="fail_then_ok", retry=Retry.fixed("200ms"))
    def fail_then_ok(ctx: Context) -> None:
        with seen(ctx):
            if ctx.attempt == 1:
                raise RuntimeError("the first attempt fails")

    @app.task(name="die_once")
    def die_once(ctx: Context, mark: str) -> None:
        with seen(ctx):
            try:
                os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return
            if recorder is not None:
                # What runs in processes of this one's own ends with it.
                with_it = [child.pid for child in psutil.Process().children(recursive=True)]
                recorder.nemesis("kill", [os.getpid(), *with_it], note="by its own job")
            os.kill(os.getpid(), signal.SIGKILL)

    @app.task(name="once")
    def once(ctx: Context, seconds: float, held: float = 0.005) -> None:
        busy(seconds)
        runs: list[str] = []
        try:
            with ctx.transaction() as tx, seen(ctx) as run:
                runs.append(run)
                tx.execute(effect(ctx))
                time.sleep(held)
        except BaseException as error:
            seen.not_committed(ctx, runs, error)
            raise

    @app.task(name="aonce")
    async def aonce(ctx: Context, seconds: float, held: float = 0.0) -> None:
        await asyncio.sleep(seconds)
        runs: list[str] = []
        try:
            async with ctx.transaction() as tx:
                with seen(ctx) as run:
                    runs.append(run)
                    done = tx.execute(effect(ctx))
                    if asyncio.iscoroutine(done):
                        await done
                    await asyncio.sleep(held)
        except BaseException as error:
            seen.not_committed(ctx, runs, error)
            raise

    @app.task(name="poison")
    def poison(ctx: Context, how: str) -> None:
        with seen(ctx):
            if recorder is not None:
                with_it = [child.pid for child in psutil.Process().children(recursive=True)]
                recorder.nemesis("kill", [os.getpid(), *with_it], note=f"poison: {how}")
            match how:
                case "exit":
                    os._exit(9)
                case "SIGSEGV":
                    ctypes.string_at(0)
                case _:
                    os.kill(os.getpid(), getattr(signal, how))
            time.sleep(10)

    @app.task(name="hog", retry=Retry.fixed("100ms", attempts=2))
    def hog(ctx: Context, megabytes: int) -> int:
        with seen(ctx):
            return len(bytearray(megabytes << 20))

    @app.task(name="stuck", timeout="500ms", retry=Retry.never())
    def stuck(ctx: Context, seconds: float) -> None:
        with seen(ctx):
            time.sleep(seconds)  # in C: an exception raised in the thread is not noticed

    @app.task(name="block", timeout="500ms", retry=Retry.never())
    async def block(ctx: Context, seconds: float) -> None:
        with seen(ctx):
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                pass  # the event loop does not turn

    @app.task(name="freeze")
    async def freeze(ctx: Context) -> None:
        with seen(ctx):
            if recorder is not None:
                recorder.nemesis("stop", [os.getpid()], note="by its own job")
            os.kill(os.getpid(), signal.SIGSTOP)

    @app.task(name="swell")
    def swell(ctx: Context, megabytes: int) -> int:
        with seen(ctx):
            kept.append(b"x" * (megabytes << 20))  # as a leak would
            return os.getpid()

    # An embedded worker has no name to import such an app by, and refuses isolated tasks.
    isolate: Literal["process"] | None = None if is_flaky else "process"

    @app.task(name="alone", isolate=isolate)
    def alone(ctx: Context) -> int:
        with seen(ctx):
            return os.getpid()

    @app.task(name="collector", collect=20, collect_wait="300ms")
    def collector(jobs: list[Collected[dict[str, bool]]]) -> None:
        if any(job.args["is_poison"] for job in jobs):
            os.kill(os.getpid(), signal.SIGKILL)

    @app.task(name="aquick")
    async def aquick(ctx: Context) -> None:
        with seen(ctx):
            pass  # without giving way to the event loop once

    @app.task(name="hold_loop")
    async def hold_loop(ctx: Context, seconds: float) -> None:
        with seen(ctx):
            time.sleep(seconds)  # the point

    @app.task(name="alone_slow", isolate=isolate)
    def alone_slow(ctx: Context, seconds: float) -> None:
        with seen(ctx):
            time.sleep(seconds)

    @app.task(name="where")
    def where(ctx: Context) -> int:
        with seen(ctx):
            return os.getpid()

    @app.task(name="member", retry=Retry.fixed("50ms", attempts=3))
    def member(ctx: Context, name: str, how: str) -> str:
        with seen(ctx):
            time.sleep(0.1)
            if how == "dead" or (how == "flaky" and ctx.attempt == 1):
                raise RuntimeError(how)
            if how == "grow":
                ctx.batch.enqueue(*[member.bind(f"{name}.{n}", "flaky") for n in range(2)])
            return name

    @app.task(name="called")
    def called(ctx: Context, kind: str) -> None:
        with seen(ctx):
            pass

    if hook := os.environ.get("WINCH_TEST_HOOK"):
        # A stored schedule of retries is short here: what is tried is the order, not the patience.
        sink = HttpSink(hook, secret=b"s" * 32, allow_private=True)
        app.outbox.sink("orders", http=sink, retry=Retry.fixed("100ms", attempts=100))

    return app


def busy(seconds: float) -> None:
    """In small pieces, so that the handler can be interrupted. A process that is stopped finds on waking
    that its time is up."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(left, 0.02))


def effect(ctx: Context) -> str:
    return f"INSERT INTO effect (job, fence) VALUES ('{ctx.job_id}', {ctx.fence})"


app = make(recorder=Recorder.from_env())
