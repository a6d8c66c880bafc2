"""DBOS: one workflow per job on a queue; polled as often as it allows."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any

import kit
import sqlalchemy
from dbos import DBOS, DBOSClient

# The driver has to be in the URL of SQLAlchemy's engine; DBOS itself takes the plain one.
ENGINE_URL = kit.URL.replace("postgresql://", "postgresql+psycopg://")


PENDING = "SELECT count(*) FROM workflow_status WHERE status IN ('ENQUEUED', 'PENDING')"
if kit.URL.startswith("postgres"):
    PENDING = PENDING.replace("workflow_status", "dbos.workflow_status")


STEPS = 5
# Its queues' flow control, by kind of job. A key is a partition of the queue.
LIMITS: dict[str, dict[str, Any]] = {
    "limit": {"global_concurrency": kit.LIMIT},
    "rate": {"limiter": {"limit": kit.RATE, "period": 1.0}},
    "keyed": {"partition_concurrency": 2},
    "fifo": {"partition_concurrency": 1},
}


@DBOS.step()
def small(n: int) -> int:
    return n


@DBOS.workflow(name="job")
def job(n: int, sent: int, pad: str) -> None:
    kit.ran(n, sent)
    if kit.GATE == "steps":
        for _ in range(STEPS):
            small(n)


def launch() -> None:
    DBOS(
        config={
            "name": "bench",
            "system_database_url": kit.URL,
            "application_version": "1",
            "executor_id": str(os.getpid()),  # its processes count their workflows by it
            "log_level": "ERROR",
        }
    )
    DBOS.launch()
    slots = kit.SLOTS or 100
    if kit.GATE == "limit":
        slots = min(slots, kit.LIMIT)  # it refuses more in one process than in all
    limits = LIMITS.get(kit.GATE, {})
    DBOS.register_queue("bench", worker_concurrency=slots, polling_interval_sec=0.01, **limits)


def _make_tables() -> None:
    launch()
    DBOS.destroy()


class Dbos(kit.Peer):
    async def setup(self) -> None:
        await asyncio.to_thread(_make_tables)

    async def open(self) -> None:
        self.client = DBOSClient(system_database_url=kit.URL)
        self.engine = sqlalchemy.create_engine(ENGINE_URL)

    def enqueue(self, n: int, sent: int) -> Any:
        options: Any = {"workflow_name": "job", "queue_name": "bench", "app_version": "1"}
        if kit.GATE in ("keyed", "fifo"):
            options["queue_partition_key"] = kit.key(n)
        return self.client.enqueue(options, n, sent, kit.PAD)

    def pending(self) -> int:
        with self.engine.connect() as connection:
            found = connection.execute(sqlalchemy.text(PENDING))
            return int(found.scalar_one())

    def work(self) -> None:
        launch()
        threading.Event().wait()


if __name__ == "__main__":
    kit.main(Dbos())
