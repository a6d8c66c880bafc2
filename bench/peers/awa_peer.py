"""awa: Rust core, Python handlers, COPY for many."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import dataclass
from typing import Any

import kit
import psycopg
from awa import AsyncClient


@dataclass
class Work:
    n: int
    sent: int
    pad: str


class Awa(kit.Peer):
    stored = 0

    async def setup(self) -> None:
        client = AsyncClient(kit.URL)
        await client.migrate()
        await client.install_queue_storage()  # the engine of its own figures; COPY needs it

    async def open(self) -> None:
        self.client = AsyncClient(kit.URL)

    async def enqueue(self, n: int, sent: int) -> Any:
        self.stored += 1
        return await self.client.insert(Work(n, sent, kit.PAD))

    async def enqueue_many(self, first: int, count: int) -> Any:
        jobs = [Work(n, 0, kit.PAD) for n in range(first, first + count)]
        self.stored += count
        return await self.client.enqueue_many_copy(jobs)

    def pending(self) -> int:
        # Its own counts read every partition and take seconds; completions are written in batches.
        with psycopg.connect(kit.URL) as connection:
            row = connection.execute(
                "SELECT coalesce(sum(completed_count), 0) FROM awa.receipt_completion_batches"
            ).fetchone()
        assert row is not None
        return self.stored - int(row[0])

    async def work(self) -> None:
        client = AsyncClient(kit.URL)

        @client.task(Work, queue="default")
        async def work(job: Any) -> None:
            await kit.ran_async(job.args.n, job.args.sent)

        await client.start([("default", kit.SLOTS or 200)], poll_interval_ms=50)
        stopped = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
        await stopped.wait()
        await client.shutdown()


if __name__ == "__main__":
    kit.main(Awa())
