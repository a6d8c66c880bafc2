"""Oban for Python: its queue with 100 jobs at once."""

from __future__ import annotations

import asyncio
from typing import Any

import kit
import psycopg
from oban import Oban as App
from oban import worker
from oban.schema import install


@worker(queue="default")
class Work:
    async def process(self, job: Any) -> None:
        await kit.ran_async(job.args["n"], job.args["sent"])


def _args(n: int, sent: int) -> dict[str, Any]:
    return {"n": n, "sent": sent, "pad": kit.PAD}


class Oban(kit.Peer):
    async def setup(self) -> None:
        pool = await App.create_pool(dsn=kit.URL)
        await install(pool)
        await pool.close()

    async def open(self) -> None:
        self.pool = await App.create_pool(dsn=kit.URL)
        self.app = App(pool=self.pool)

    async def enqueue(self, n: int, sent: int) -> Any:
        return await self.app.enqueue(Work.new(_args(n, sent)))

    async def enqueue_many(self, first: int, count: int) -> Any:
        return await self.app.enqueue_many(*(Work.new(_args(n, 0)) for n in range(first, first + count)))

    def pending(self) -> int:
        with psycopg.connect(kit.URL) as connection:
            row = connection.execute(
                "SELECT count(*) FROM oban_jobs "
                "WHERE state IN ('available', 'executing', 'scheduled', 'retryable')"
            ).fetchone()
        assert row is not None
        return int(row[0])

    async def work(self) -> None:
        pool = await App.create_pool(dsn=kit.URL)
        async with App(pool=pool, queues={"default": kit.SLOTS or 100}):
            await asyncio.Event().wait()


if __name__ == "__main__":
    kit.main(Oban())
