"""The application under load: that of the fault tests, with what the lab's load needs besides.

Workers find it as `lab.app:app` and their store in the environment; the lab makes one with `make(url)`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from lab.history import Recorder
from lab.history.witness import Witness
from tests.faults.apps import HEARTBEAT, LEASE, POLL, FaultApp, Seen, busy, with_tasks
from winch import Context, Limit, Rate, Retry
from winch.storage.params import Enqueued, NewJob
from winch.storage.protocol import Driver
from winch.storage.verbs import Verb

SWEEP = 1.0
SETTINGS = {"lease": LEASE, "heartbeat": HEARTBEAT, "sweep": SWEEP, "poll": POLL}
# Tasks whose rows and completion are one commit.
TRANSACTIONAL = ("once", "aonce")
# Tasks that do nothing but take their time.
PLAIN = ("slow", "aslow")


class Notary(Witness):
    """A witness that also notes the ids of every job that a producer is about to store."""

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


class LabApp(FaultApp):
    """An app that also knows which jobs it was asked to store."""

    notary: Notary | None = None

    def witnessed(self, driver: Driver, recorder: Recorder) -> Driver:
        self.notary = Notary(driver, recorder)
        return self.notary.driver


def make(url: str | None = None, *, recorder: Recorder | None = None) -> LabApp:
    app = with_tasks(
        LabApp(
            url,
            events="full",
            lease=timedelta(seconds=LEASE),
            heartbeat=timedelta(seconds=HEARTBEAT),
            sweep=timedelta(seconds=SWEEP),
            poll=timedelta(seconds=POLL),
        ),
        recorder,
    )
    seen = Seen(recorder)

    @app.task(name="all_done")
    def all_done(ctx: Context) -> None:
        with seen(ctx):
            pass

    @app.task(name="tick")
    def tick(ctx: Context) -> None:
        with seen(ctx):
            pass

    @app.task(name="remote")
    def remote(ctx: Context, seconds: float) -> None:
        """The task of workers over HTTP; no other worker serves its queue."""
        with seen(ctx):
            busy(seconds)

    # For the load of gates (`lab.load`): many short jobs, so that workers claim them ahead.
    @app.task(name="keyed", limit=Limit(2, key="key"))
    async def keyed(ctx: Context, seconds: float, key: int) -> None:
        with seen(ctx):
            await asyncio.sleep(seconds)

    @app.task(name="wide", limit=Limit(20))
    async def wide(ctx: Context, seconds: float) -> None:
        with seen(ctx):
            await asyncio.sleep(seconds)

    @app.task(name="rated", limit=Rate(15, per="1s"))
    async def rated(ctx: Context, seconds: float) -> None:
        with seen(ctx):
            await asyncio.sleep(seconds)

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


app = make(recorder=Recorder.from_env())
