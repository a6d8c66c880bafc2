"""SAQ on Redis or PostgreSQL, 100 jobs at once."""

from __future__ import annotations

from typing import Any

import kit
from saq import Queue, Worker

queue = Queue.from_url(kit.URL) if kit.URL else None


async def job(ctx: Any, *, n: int, sent: int, pad: str) -> None:
    await kit.ran_async(n, sent)


class Saq(kit.Peer):
    async def open(self) -> None:
        await queue.connect()

    async def enqueue(self, n: int, sent: int) -> Any:
        return await queue.enqueue("job", n=n, sent=sent, pad=kit.PAD)

    async def enqueue_many(self, first: int, count: int) -> None:
        await kit.together(self.enqueue, first, count)

    async def pending(self) -> int:
        return await queue.count("incomplete")

    async def work(self) -> None:
        await queue.connect()
        await Worker(queue, functions=[("job", job)], concurrency=kit.SLOTS or 100).start()


if __name__ == "__main__":
    kit.main(Saq())
