"""arq, 100 jobs at once, polled every 10 ms, results not kept."""

from __future__ import annotations

from typing import Any

import kit
from arq import create_pool
from arq.connections import RedisSettings
from arq.constants import default_queue_name
from arq.worker import Worker

settings = RedisSettings.from_dsn(kit.URL or "redis://127.0.0.1:6379")


async def job(ctx: Any, n: int, sent: int, pad: str) -> None:
    await kit.ran_async(n, sent)


class Arq(kit.Peer):
    async def open(self) -> None:
        self.pool = await create_pool(settings)

    async def enqueue(self, n: int, sent: int) -> Any:
        return await self.pool.enqueue_job("job", n, sent, kit.PAD)

    async def enqueue_many(self, first: int, count: int) -> None:
        await kit.together(self.enqueue, first, count)

    async def pending(self) -> int:
        return int(await self.pool.zcard(default_queue_name))

    async def work(self) -> None:
        worker = Worker(
            [job],
            redis_settings=settings,
            max_jobs=kit.SLOTS or 100,
            poll_delay=0.01,
            keep_result=0,
            handle_signals=False,
        )
        await worker.main()


if __name__ == "__main__":
    kit.main(Arq())
