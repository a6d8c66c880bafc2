"""The application under load: one task of each kind, each saying when it starts and how it ends.

Workers find it as `lab.app:app` and their store in the environment; the lab makes one with `make(url)`.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from typing import Any

import psutil

from winch import App, Context, Limit, Retry
from winch.storage.params import Enqueued, NewJob
from winch.storage.protocol import Driver
from winch.storage.verbs import Verb
from winch.testing.history import Recorder
from winch.testing.history.witness import Witness

LEASE, HEARTBEAT, SWEEP, POLL = 3.0, 0.5, 1.0, 0.2
SETTINGS = {"lease": LEASE, "heartbeat": HEARTBEAT, "sweep": SWEEP, "poll": POLL}
# Tasks whose rows and completion are one commit.
TRANSACTIONAL = ("once", "aonce")
LIMIT = 2


class Notary(Witness):
    """A witness that also notes the ids of every job somebody is about to store."""

    def __init__(self, inner: Driver, recorder: Recorder) -> None:
        super().__init__(inner, recorder)
        self.drawn: list[str] = []

    def enqueue(
        self, jobs: Sequence[NewJob], *, is_repeat: bool = False, now: datetime | None = None
    ) -> Verb[list[Enqueued]]:
        self._draw(jobs)
        return self._inner.enqueue(jobs, is_repeat=is_repeat, now=now)

    def enqueue_after(self, jobs: Sequence[NewJob], *args: Any, **how: Any) -> Any:
        self._draw(jobs)
        return self._inner.enqueue_after(jobs, *args, **how)

    def _draw(self, jobs: Sequence[NewJob]) -> None:
        ids = [job.id for job in jobs]
        self.drawn += ids
        self._recorder.sent(ids)


class LabApp(App):
    """An app that writes down what its driver is asked and answers, where somebody records."""

    recorder: Recorder | None = None
    notary: Notary | None = None

    @property
    def driver(self) -> Driver:
        if self._driver is None:
            driver = super().driver
            if self.recorder is not None:
                self.notary = Notary(driver, self.recorder)
                driver = self.notary.driver
            self._driver = driver
        return self._driver


def make(url: str | None = None, *, recorder: Recorder | None = None) -> LabApp:
    app = LabApp(
        url,
        events="full",
        lease=timedelta(seconds=LEASE),
        heartbeat=timedelta(seconds=HEARTBEAT),
        sweep=timedelta(seconds=SWEEP),
        poll=timedelta(seconds=POLL),
    )
    app.recorder = recorder

    @contextmanager
    def seen(ctx: Context) -> Iterator[str]:
        if recorder is None:
            yield ""
            return
        with recorder.run(ctx) as run:
            yield run

    def not_committed(ctx: Context, runs: list[str], error: BaseException) -> None:
        """The body was done, and then its transaction was refused; or it could not even begin."""
        if recorder is None:
            return
        if not runs:
            with suppress(BaseException), recorder.run(ctx):
                raise error
        for run in runs:
            recorder.failed(ctx, run, error)

    @app.task(name="work")
    def work(ctx: Context, seconds: float) -> None:
        with seen(ctx):
            busy(seconds)

    @app.task(name="awork")
    async def awork(ctx: Context, seconds: float) -> None:
        with seen(ctx):
            await asyncio.sleep(seconds)

    @app.task(name="alone", isolate="process")
    def alone(ctx: Context, seconds: float) -> None:
        with seen(ctx):
            busy(seconds)

    @app.task(name="limited", limit=Limit(LIMIT))
    def limited(ctx: Context, seconds: float) -> None:
        with seen(ctx):
            busy(seconds)

    @app.task(name="stumble", retry=Retry.fixed("200ms"))
    def stumble(ctx: Context) -> None:
        with seen(ctx):
            if ctx.attempt == 1:
                raise RuntimeError("the first attempt fails")

    @app.task(name="member")
    def member(ctx: Context, seconds: float) -> None:
        with seen(ctx):
            busy(seconds)

    @app.task(name="all_done")
    def all_done(ctx: Context) -> None:
        with seen(ctx):
            pass

    @app.task(name="tick")
    def tick(ctx: Context) -> None:
        with seen(ctx):
            pass

    @app.task(name="once")
    def once(ctx: Context, seconds: float) -> None:
        busy(seconds)
        runs: list[str] = []
        try:
            with ctx.transaction() as tx, seen(ctx) as run:
                runs.append(run)
                tx.execute(effect(ctx))
                time.sleep(0.005)
        except BaseException as error:
            not_committed(ctx, runs, error)
            raise

    @app.task(name="aonce")
    async def aonce(ctx: Context, seconds: float) -> None:
        await asyncio.sleep(seconds)
        runs: list[str] = []
        try:
            async with ctx.transaction() as tx:
                with seen(ctx) as run:
                    runs.append(run)
                    done = tx.execute(effect(ctx))
                    if asyncio.iscoroutine(done):
                        await done
        except BaseException as error:
            not_committed(ctx, runs, error)
            raise

    @app.task(name="remote")
    def remote(ctx: Context, seconds: float) -> None:
        """What workers over HTTP run; in its queue no worker of ours looks."""
        with seen(ctx):
            busy(seconds)

    @app.task(name="spin")
    def spin(ctx: Context, seconds: float) -> None:
        # PyDLL, unlike CDLL, keeps the GIL during the call: no other thread of the process runs.
        with seen(ctx):
            ctypes.PyDLL(None).usleep(ctypes.c_uint(int(seconds * 1e6)))

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

    if os.environ.get("LAB_NEWCOMER"):

        @app.task(name="newcomer")
        def newcomer(ctx: Context, seconds: float) -> None:
            with seen(ctx):
                busy(seconds)

    @app.task(name="echo", retry=Retry.never())
    def echo(ctx: Context, text: str, times: int = 1) -> str:
        with seen(ctx):
            return text * times

    return app


def busy(seconds: float) -> None:
    """In small pieces, so that the handler can be interrupted."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(left, 0.02))


def effect(ctx: Context) -> str:
    return f"INSERT INTO effect (job, fence) VALUES ('{ctx.job_id}', {ctx.fence})"


app = make(recorder=Recorder.from_env())
