"""`app.drain`: run jobs in this process for a while, for hosts that start code now and then."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Protocol

import msgspec

from winch.areas.launch.import_name import name_of
from winch.areas.launch.run_worker import Runnable
from winch.core.errors import ConfigError
from winch.core.values.duration import Duration, parse_duration
from winch.engine.observe.throughput import Rates, TaskRate
from winch.engine.supervisor.embedded import EmbeddedWorker, process_command
from winch.engine.supervisor.worker_options import WorkerOptions


class Drainable(Runnable, Protocol):
    """What is needed of an app."""

    import_path: str | None


class DrainReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a call of `app.drain` has done. `left`: jobs that are left to their lease. `is_empty`: no job
    was ready at its end."""

    completed: int
    failed: int
    dead: int
    left: int
    is_empty: bool


async def drain(
    app: Drainable,
    *,
    queues: Sequence[str],
    seconds: Duration | None,
    before: datetime | None,
    grace: Duration,
    concurrency: int | None,
) -> DrainReport:
    """Run jobs until none is ready, or the time is over."""
    ending = parse_duration(grace, "grace").total_seconds()
    until = float("inf")
    if seconds is not None:
        limit = parse_duration(seconds, "seconds").total_seconds()
        if limit <= 0:
            raise ConfigError(f"seconds must be more than 0, got {seconds!r}")
        until = time.monotonic() + limit
    if before is not None:
        left = (before - datetime.now(UTC)).total_seconds() - ending
        until = min(until, time.monotonic() + left)
    await asyncio.to_thread(app.ready)
    total = TaskRate()

    def count(rates: Rates) -> None:
        for tasks in rates.values():
            for rate in tasks.values():
                total.add(rate)

    embedded = EmbeddedWorker(
        app,
        WorkerOptions(queues=queues, concurrency=concurrency, burst=True, grace=grace),
        process_command(app.import_path or name_of(app)),
    )
    async with embedded as worker:
        worker.tally.on_rates = count
        is_empty = await _until_empty(app, worker.drained, until)
        given_up = await embedded.stop(ending)
    return DrainReport(
        completed=total.completed,
        failed=total.failed,
        dead=total.deaths,
        left=given_up,
        is_empty=is_empty,
    )


async def _until_empty(app: Drainable, drained: asyncio.Event, until: float) -> bool:
    """Wait until no job is ready, or until this moment of the monotonic clock; whether none is."""
    has_waited = False
    while (left := until - time.monotonic()) > 0:
        try:
            await asyncio.wait_for(drained.wait(), None if left == float("inf") else left)
        except TimeoutError:
            break
        is_waiting = await _is_abandoned(app)
        if not is_waiting and not has_waited:
            return True
        # What it waited for is ready as soon as it is free: the worker claims it before it is over.
        has_waited = is_waiting
        await asyncio.sleep(min(2 * app.settings.poll.total_seconds(), left))
        drained.clear()
    return False


async def _is_abandoned(app: Drainable) -> bool:
    """Whether a session that has ended without a word still has jobs: they can be taken over as soon as
    its lease was over for a while, and no other worker may come for that."""
    now = datetime.now(UTC)
    sessions = await app.driver.arun(app.driver.sessions())
    return any(one.running and one.ended_at is None and one.lease_until < now for one in sessions)
