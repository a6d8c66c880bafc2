"""TaskIQ on Redis streams, 100 jobs at once."""

from __future__ import annotations

import asyncio
from typing import Any

import kit
from taskiq.api import run_receiver_task
from taskiq_redis import RedisStreamBroker

broker = RedisStreamBroker(kit.URL or "redis://127.0.0.1:6379")


@broker.task(task_name="job")
async def job(n: int, sent: int, pad: str) -> None:
    await kit.ran_async(n, sent)


class Taskiq(kit.Peer):
    async def open(self) -> None:
        import redis.asyncio

        await broker.startup()
        self.redis = redis.asyncio.Redis.from_url(kit.URL)

    async def enqueue(self, n: int, sent: int) -> Any:
        return await job.kiq(n, sent, kit.PAD)

    async def enqueue_many(self, first: int, count: int) -> None:
        await kit.together(self.enqueue, first, count)

    async def pending(self) -> int:
        # Delivered but not acknowledged, and not yet delivered to the group.
        groups = await self.redis.xinfo_groups(broker.queue_name)
        return sum(int(group["pending"]) + int(group["lag"] or 0) for group in groups)

    async def work(self) -> None:
        broker.is_worker_process = True
        await broker.startup()
        await run_receiver_task(broker, max_async_tasks=kit.SLOTS or 100, max_prefetch=100)
        await asyncio.Event().wait()


if __name__ == "__main__":
    kit.main(Taskiq())
