"""Texts that are not valid UTF-8, or hold a NUL, in what a handler returns, raises or reports.

One of them must neither stop its own job nor the neighbours whose outcomes are stored with it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.test_worker import QUICK, run, until
from tests.redis_servers import RedisServer
from winch import App, Cancel, Context, Discard, JobState, Retry, RetryAfter, Snooze

ODD = "cannot read " + os.fsdecode(b"caf\xe9.csv") + "\0"
CLEAN = "cannot read caf?.csv\N{REPLACEMENT CHARACTER}"


@pytest.fixture(
    params=[
        "memory",
        "sqlite",
        pytest.param("postgres", marks=pytest.mark.servers),
        pytest.param("redis", marks=pytest.mark.servers),
    ]
)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "redis":
        server = RedisServer()
        server.start()
        yield server.url
        server.remove()
    elif request.param == "postgres":
        yield request.getfixturevalue("postgres_url")
    else:
        yield "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'winch.db'}"


class Odd(Exception):
    pass


Odd.__qualname__ = "Odd\udce9"


def test_no_text_of_an_outcome_keeps_it_from_being_stored(url: str) -> None:
    app = App(url, **QUICK)
    app.migrate()
    gate = asyncio.Event()
    ends: dict[str, tuple[BaseException, JobState]] = {
        "discard": (Discard(ODD), JobState.DEAD),
        "cancel": (Cancel(ODD), JobState.CANCELLED),
        "snooze": (Snooze("1h", ODD), JobState.SCHEDULED),
        "retry after": (RetryAfter("1h", ODD), JobState.RETRYING),
        "scope": (RetryAfter("1h", ODD, scope="odd\udce9"), JobState.RETRYING),
        "error": (Odd(ODD), JobState.DEAD),
    }

    @app.task(name="odd", retry=Retry.fixed("1h", attempts=9, on={Odd: None}))
    async def odd(how: str, *, ctx: Context) -> None:
        ctx.log.warning("%s", ODD)
        ctx.progress(50, ODD)
        await gate.wait()
        raise ends[how][0]

    @app.task(name="plain")
    async def plain() -> str:
        await gate.wait()
        return "done"

    jobs = {how: odd.enqueue(how) for how in ends}  # type: ignore[call-arg]  # ctx is injected
    neighbours = [plain.enqueue() for _ in range(10)]

    async def body(worker: Any) -> None:
        while len(worker.attempts) < len(jobs) + len(neighbours):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        gate.set()
        for job in neighbours:
            await until(job, JobState.COMPLETED)
        for how, (_, state) in ends.items():
            await until(jobs[how], state)

    run(app, body, concurrency=20)
    records = {how: app.jobs.get(job.id).record for how, job in jobs.items()}
    assert records["discard"].reason == records["cancel"].reason == CLEAN
    for how in ("discard", "retry after", "scope", "error"):
        error = records[how].error
        assert error is not None
        assert error.message == CLEAN
    app.close()


def test_a_result_that_no_store_can_hold_is_left_out_and_its_job_records_why(url: str) -> None:
    app = App(url, **QUICK)
    app.migrate()

    @app.task(name="odd", retry=Retry.never())
    async def odd() -> dict[str, str]:
        return {"file": ODD}

    @app.task(name="plain")
    async def plain() -> str:
        return "done"

    bad, good = odd.enqueue(), [plain.enqueue() for _ in range(5)]

    async def body(_: Any) -> None:
        for job in good:
            await until(job, JobState.COMPLETED)
        await until(bad, JobState.COMPLETED)

    run(app, body)
    assert "the result holds" in (app.jobs.get(bad.id).record.reason or "")
    app.close()
