"""PgQueuer over asyncpg and uvloop with batches of 1,000."""

from __future__ import annotations

import asyncio
import json
import signal
from datetime import timedelta
from typing import Any

import asyncpg
import kit
import uvloop
from pgqueuer import AsyncpgDriver, PgQueuer, Queries

uvloop.install()


class Pgqueuer(kit.Peer):
    async def setup(self) -> None:
        connection = await asyncpg.connect(kit.URL)
        await Queries(AsyncpgDriver(connection)).install()
        await connection.close()

    async def open(self) -> None:
        self.connection = await asyncpg.connect(kit.URL)
        self.queries = Queries(AsyncpgDriver(self.connection))

    async def enqueue(self, n: int, sent: int) -> Any:
        return await self.queries.enqueue("job", _payload(n, sent))

    async def enqueue_many(self, first: int, count: int) -> Any:
        payloads: list[bytes | None] = [_payload(n, 0) for n in range(first, first + count)]
        return await self.queries.enqueue(["job"] * count, payloads, [0] * count)

    async def pending(self) -> int:
        return int(await self.connection.fetchval("SELECT count(*) FROM pgqueuer"))

    async def work(self) -> None:
        connection = await asyncpg.connect(kit.URL)
        app = PgQueuer(AsyncpgDriver(connection))

        # One FIFO key is one entrypoint that runs in series.
        limit = {"limit": kit.LIMIT, "fifo": 1}.get(kit.GATE, 0)

        @app.entrypoint("job", concurrency_limit=limit)
        async def job(context: Any) -> None:
            args = json.loads(context.payload)
            await kit.ran_async(args["n"], args["sent"])

        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, app.shutdown.set)
        if limit:  # as many ends are written at once as a batch has jobs, and only then the next begin
            app.qm.min_dequeue_poll_interval = timedelta(milliseconds=10)
            await app.run(batch_size=limit)
        elif kit.SLOTS:  # it wants room for two batches
            await app.run(batch_size=max(1, kit.SLOTS // 2), max_concurrent_tasks=kit.SLOTS)
        else:
            await app.run(batch_size=1000)


def _payload(n: int, sent: int) -> bytes:
    return json.dumps({"n": n, "sent": sent, "pad": kit.PAD}).encode()


if __name__ == "__main__":
    kit.main(Pgqueuer())
