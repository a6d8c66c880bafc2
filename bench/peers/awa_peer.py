"""awa: Rust core, Python handlers, COPY for many."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import dataclass
from typing import Any

import kit
from awa import AsyncClient


@dataclass
class Work:
    n: int
    sent: int
    pad: str


class Awa(kit.Peer):
    async def setup(self) -> None:
        await AsyncClient(kit.URL).migrate()

    async def open(self) -> None:
        self.client = AsyncClient(kit.URL)

    async def enqueue(self, n: int, sent: int) -> Any:
        return await self.client.insert(Work(n, sent, kit.PAD))

    async def enqueue_many(self, first: int, count: int) -> Any:
        jobs = [Work(n, 0, kit.PAD) for n in range(first, first + count)]
        return await self.client.enqueue_many_copy(jobs)

    async def pending(self) -> int:
        found = await self.client.queue_stats()
        return sum(one.available + one.running + one.scheduled + one.retryable for one in found)

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
