"""`why` names the gate, the workers that hold its permits with their jobs, and the place in line."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.engine.prefetch_kit import Pair
from winch import App, Limit

pytestmark = pytest.mark.servers


def while_blocked(
    url: str, count: int, options: Callable[[int], dict[str, Any]], look: Callable[..., Awaitable[None]]
) -> None:
    """Two workers of two slots each, and `count` jobs that end when `look` has. They have Limit(2) or
    these options."""
    apps = [App(url), App(url)]
    release = asyncio.Event()

    def task(app: App) -> Any:
        @app.task(name="job", limit=Limit(2) if not options(0) else [])
        async def job(n: int) -> None:
            await release.wait()

        return job

    job, _ = [task(app) for app in apps]

    async def main() -> None:
        async with apps[0].worker(concurrency=2), apps[1].worker(concurrency=2):
            jobs = await apps[0].aenqueue_many([job.using(**options(n)).bind(n) for n in range(count)])
            for _ in range(500):
                await asyncio.sleep(0.02)
                states = [(await apps[0].jobs.aget(one.id)).record.state.value for one in jobs]
                if states.count("running") + states.count("blocked") == count:
                    break
            await asyncio.sleep(0.2)  # past the moment in which a claimed job may not have started
            records = [(await apps[0].jobs.aget(one.id)).record for one in jobs]
            workers = {one.id: one.worker for one in await apps[0].workers.alist()}
            holders = {
                record.id: workers[record.session] for record in records if record.session is not None
            }
            try:
                await look(apps[0], records, holders)
            finally:
                release.set()
            for one in jobs:
                await one
        for app in apps:
            await app.aclose()

    asyncio.run(main())


def test_a_limit(store_url: str) -> None:
    async def look(app: App, records: list[Any], holders: dict[str, str]) -> None:
        assert len(holders) == 2
        held = ", ".join(f"{job} on worker {holders[job]}" for job in sorted(holders))
        waiting = [one for one in records if one.id not in holders]
        texts = [await (await app.jobs.aget(one.id)).awhy() for one in waiting]
        start = f"It is blocked by the limit 'limit:job': 2 of 2 run, held by {held}."
        assert texts == [start, f"{start} 1 waits before it.", f"{start} 2 wait before it."]
        running = await (await app.jobs.aget(next(iter(holders)))).awhy()
        assert running.startswith("It is running: attempt 1 on worker "), running

    while_blocked(store_url, 5, lambda _: {}, look)


def test_a_fifo_key(store_url: str) -> None:
    async def look(app: App, records: list[Any], holders: dict[str, str]) -> None:
        [(first, worker)] = holders.items()
        assert first == records[0].id
        start = f"It is blocked by its FIFO key 'acct:7': job {first} goes first and is not final"
        texts = [await (await app.jobs.aget(one.id)).awhy() for one in records[1:]]
        start += f"; it runs on worker {worker}."
        assert texts == [start, f"{start} 1 waits before it."]

    while_blocked(store_url, 3, lambda _: {"fifo": "acct:7"}, look)


def test_a_claimed_job_that_has_not_started(store_url: str) -> None:
    """While it waits in its worker behind a slow job. A job that has run for a while has another text.

    The answer holds for 150 ms after the claim. On a busy machine the question may come later: again."""
    pattern = (
        r"It was claimed \S+( \S+)? ago by worker \S+ and may not have started: it starts, or goes "
        "back to its queue, within 150ms of the claim."
    )
    answers = []
    for _ in range(5):
        claimed, later = asyncio.run(_asked_while_prefetched(Pair(store_url, "limit")))
        assert later.startswith("It is running: attempt 1 on worker ")
        answers.append(claimed)
        if re.match(pattern, claimed):
            return
    raise AssertionError(answers)


async def _asked_while_prefetched(pair: Pair) -> tuple[str, str]:
    """The reason of a job that is claimed and has not started, and of the one that runs before it."""
    texts: list[str] = []

    async def ask() -> None:
        texts.append(await (await pair.first.jobs.aget(pair.prefetched[-1])).awhy())

    pair.meanwhile = ask
    async with pair.at_work():
        assert pair.prefetched
        await pair.others_end()
        texts.append(await (await pair.first.jobs.aget(pair.jobs[0].id)).awhy())
    return texts[0], texts[1]
