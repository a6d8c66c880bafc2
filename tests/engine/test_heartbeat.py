"""Tasks that must give a sign of life: silence ends them, progress and beats keep them going."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from tests.engine import isolated_app as isolated
from tests.engine.test_worker import new_app, run, until
from winch import ConfigError, Context, Job, JobState, Retry


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_a_silent_handler_is_interrupted_as_timed_out(kind: str) -> None:
    app = new_app()
    ended = threading.Event()

    async def silent_async() -> None:
        try:
            await asyncio.sleep(30)
        finally:
            ended.set()

    def silent_sync() -> None:
        try:
            while True:
                time.sleep(0.001)
        finally:
            ended.set()

    options: dict[str, Any] = {"heartbeat": "200ms", "retry": Retry.never(), "name": "t"}
    task: Any = app.task(**options)(silent_async if kind == "async" else silent_sync)

    async def body(_: Any) -> None:
        job = await until(await task.aenqueue(), JobState.DEAD)
        assert job.record.error is not None
        assert job.record.error.type.endswith("JobTimeout")
        assert "no sign of life for its heartbeat of 200ms" in job.record.error.message
        assert ended.is_set()

    run(app, body)


@pytest.mark.parametrize("sign", ["beat", "progress", "checkpoint"])
def test_signs_of_life_keep_a_handler_going(sign: str) -> None:
    app = new_app()

    @app.task(heartbeat="300ms", retry=Retry.never())
    async def busy(*, ctx: Context) -> str:
        for step in range(8):
            await asyncio.sleep(0.1)
            match sign:
                case "beat":
                    ctx.beat()
                case "progress":
                    ctx.progress(step)
                case _:
                    await ctx.acheckpoint(step)
        return "done"

    async def body(_: Any) -> None:
        job: Job[Any] = await busy.aenqueue()  # type: ignore[call-arg]  # ctx is injected
        assert await job == "done"

    run(app, body)


def test_signs_of_life_come_through_from_a_process_of_its_own() -> None:
    async def main() -> None:
        async with asyncio.timeout(30), isolated.app.worker(concurrency=2):
            busy: Job[Any] = await isolated.reports.aenqueue(12)  # type: ignore[call-arg]
            silent: Job[Any] = await isolated.reports.aenqueue(0)  # type: ignore[call-arg]
            assert await busy == "done"
            record = (await until(silent, JobState.DEAD)).record
            assert record.error is not None
            assert "no sign of life" in record.error.message
            assert (record.attempt, record.crashes) == (1, 0)

    asyncio.run(main())


def test_a_heartbeat_too_short_to_keep_is_refused() -> None:
    with pytest.raises(ConfigError, match="heartbeat must be at least 100ms"):
        new_app().task(heartbeat="1ms")
