"""A worker whose store is slow while it starts."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Callable
from datetime import timedelta
from typing import Any, cast

from tests.engine.test_worker import new_app, run
from winch import JobState, Limit
from winch.engine.supervisor.child import Child
from winch.engine.supervisor.messages import Drain, Link
from winch.engine.worker.config import WorkerConfig
from winch.engine.worker.queues.order import queues_of
from winch.engine.worker.started_jobs import StartedJobs
from winch.storage.protocol import Driver


class SlowToDeclare:
    """A store that takes its time over the limits that a worker declares between session and claims."""

    def __init__(self, inner: Any, is_enough: Callable[[], bool]) -> None:
        self._inner = inner
        self._is_enough = is_enough

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def arun(self, verb: Any) -> Any:
        while verb.name == "set_limits" and not self._is_enough():  # noqa: ASYNC110  # beats ring no bell
            await asyncio.sleep(0.01)
        return await self._inner.arun(verb)


def test_a_session_is_kept_alive_from_its_start_not_from_the_first_claim() -> None:
    """Found by simulation (seeds 328, 872 and 892): with a slow store the lease ran out before the first
    beat, and what the worker then claimed was taken from it while it ran."""
    app = new_app(heartbeat=timedelta(milliseconds=20))
    app.task(name="limited", limit=Limit(1))(lambda: None)
    inner = app.driver

    def beats() -> int:
        return max((session.beats for session in inner.run(inner.sessions())), default=0)

    app._driver = cast(Driver, SlowToDeclare(inner, lambda: beats() >= 2))

    async def body(_: Any) -> None:
        assert beats() >= 2

    run(app, body)


def test_a_child_stopped_while_it_starts_claims_nothing() -> None:
    """Found by F28 on PostgreSQL (seed 535): it claimed once, and gave the jobs back seconds later."""
    app = new_app(events="full")
    app.task(name="limited", limit=Limit(1))(lambda: None)
    job = app.tasks.get("limited").enqueue()
    inner = app.driver
    config = WorkerConfig(
        order=queues_of(["default"], random.Random(1)),
        concurrency=2,
        lease=app.settings.lease,
        heartbeat=app.settings.heartbeat.total_seconds(),
        poll=app.settings.poll.total_seconds(),
        release="",
    )

    async def main() -> int:
        ours, theirs = socket.socketpair()
        supervisor = await Link.open(ours)
        store = SlowToDeclare(inner, lambda: child._asked.is_set())  # noqa: PLW0108  # not there yet
        child = Child(cast(Driver, store), app.runtime, app.settings, config, StartedJobs.create(2))
        supervisor.send(Drain(5.0))
        async with asyncio.timeout(20):
            code = await child.run(await Link.open(theirs))
        supervisor.close()
        return code

    assert asyncio.run(main()) == 0
    assert [event.kind for event in inner.run(inner.events())] == ["enqueued"]
    assert job.refresh().state is JobState.READY
