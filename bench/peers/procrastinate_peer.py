"""Procrastinate over psycopg's pool, 100 jobs at once."""

from __future__ import annotations

from typing import Any

import kit
import procrastinate
import psycopg

app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=kit.URL))


@app.task(name="job")
async def job(n: int, sent: int, pad: str) -> None:
    await kit.ran_async(n, sent)


class Procrastinate(kit.Peer):
    async def setup(self) -> None:
        async with app.open_async():
            await app.schema_manager.apply_schema_async()

    async def open(self) -> None:
        await app.open_async()

    async def enqueue(self, n: int, sent: int) -> Any:
        return await job.defer_async(n=n, sent=sent, pad=kit.PAD)

    async def enqueue_many(self, first: int, count: int) -> Any:
        rows = [{"n": n, "sent": 0, "pad": kit.PAD} for n in range(first, first + count)]
        return await job.batch_defer_async(*rows)

    def pending(self) -> int:
        return count(
            kit.URL, "SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing')"
        )

    async def work(self) -> None:
        async with app.open_async():
            await app.run_worker_async(concurrency=kit.SLOTS or 100, delete_jobs="never")


def count(url: str, statement: Any) -> int:
    with psycopg.connect(url) as connection:
        row = connection.execute(statement).fetchone()
    assert row is not None
    return int(row[0])


if __name__ == "__main__":
    kit.main(Procrastinate())
