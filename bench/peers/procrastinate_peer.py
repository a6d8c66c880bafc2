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


def _with_lock(n: int) -> Any:
    """FIFO keys are its locks: jobs with the same one run in series, in the order of their ids."""
    return job.configure(lock=kit.key(n)) if kit.GATE == "fifo" else job


class Procrastinate(kit.Peer):
    async def setup(self) -> None:
        async with app.open_async():
            await app.schema_manager.apply_schema_async()

    async def open(self) -> None:
        await app.open_async()

    async def enqueue(self, n: int, sent: int) -> Any:
        return await _with_lock(n).defer_async(n=n, sent=sent, pad=kit.PAD)

    async def enqueue_many(self, first: int, count: int) -> Any:
        if kit.GATE == "fifo":
            return await self._defer_by_lock(range(first, first + count))
        rows = [{"n": n, "sent": 0, "pad": kit.PAD} for n in range(first, first + count)]
        return await job.batch_defer_async(*rows)

    async def _defer_by_lock(self, numbers: range) -> None:
        """One call for each lock: a call for many has one lock for all of them."""
        by_lock: dict[str, list[int]] = {}
        for n in numbers:
            by_lock.setdefault(kit.key(n), []).append(n)
        for group in by_lock.values():
            rows = [{"n": n, "sent": 0, "pad": kit.PAD} for n in group]
            await _with_lock(group[0]).batch_defer_async(*rows)

    def pending(self) -> int:
        return count(
            kit.URL, "SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing')"
        )

    async def work(self) -> None:
        async with app.open_async():
            # The end of a job does not wake a worker for the next one with its lock: it polls.
            often = {"fetch_job_polling_interval": 0.01} if kit.GATE == "fifo" else {}
            await app.run_worker_async(concurrency=kit.SLOTS or 100, delete_jobs="never", **often)


def count(url: str, statement: Any) -> int:
    with psycopg.connect(url) as connection:
        row = connection.execute(statement).fetchone()
    assert row is not None
    return int(row[0])


if __name__ == "__main__":
    kit.main(Procrastinate())
