"""Chancy with its async executor, 500 jobs at once, eager polling."""

from __future__ import annotations

from typing import Any

import kit
import psycopg
from chancy import Chancy as App
from chancy import Queue, Worker, job


@job(queue="default")
async def work(*, n: int, sent: int, pad: str) -> None:
    await kit.ran_async(n, sent)


QUEUE = Queue(
    "default",
    concurrency=kit.SLOTS or 500,
    executor="chancy.executors.asyncex.AsyncExecutor",
    polling_interval=1,
    eager_polling=True,
)


def _call(n: int, sent: int) -> Any:
    # The adapter runs as __main__; the worker must find the function under the module's name.
    import chancy_peer

    return chancy_peer.work.job.with_kwargs(n=n, sent=sent, pad=kit.PAD)


class Chancy(kit.Peer):
    async def setup(self) -> None:
        async with App(kit.URL) as app:
            await app.migrate()
            await app.declare(QUEUE)

    async def open(self) -> None:
        self.app = App(kit.URL)
        await self.app.__aenter__()

    async def enqueue(self, n: int, sent: int) -> Any:
        return await self.app.push(_call(n, sent))

    async def enqueue_many(self, first: int, count: int) -> None:
        async for _ in self.app.push_many([_call(n, 0) for n in range(first, first + count)]):
            pass

    def pending(self) -> int:
        with psycopg.connect(kit.URL) as connection:
            row = connection.execute(
                "SELECT count(*) FROM chancy_jobs WHERE state NOT IN ('succeeded', 'failed')"
            ).fetchone()
        assert row is not None
        return int(row[0])

    async def work(self) -> None:
        async with App(kit.URL) as app, Worker(app) as worker:
            await worker.wait_for_shutdown()


if __name__ == "__main__":
    kit.main(Chancy())
