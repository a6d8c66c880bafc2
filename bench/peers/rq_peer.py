"""RQ: its simple worker, or a fork for each job where isolation is asked for."""

from __future__ import annotations

from typing import Any

import kit
import redis
from rq import Queue, SimpleWorker, Worker

connection = redis.Redis.from_url(kit.URL or "redis://")
queue = Queue("bench", connection=connection)
NAME = "rq_peer.alone" if kit.KIND == "isolated" else "rq_peer.job"


def job(n: int, sent: int, pad: str) -> None:
    kit.ran(n, sent)


def alone(n: int, sent: int, pad: str) -> None:
    kit.ran_alone()


class Rq(kit.Peer):
    def enqueue(self, n: int, sent: int) -> Any:
        return queue.enqueue(NAME, n, sent, kit.PAD)

    def enqueue_many(self, first: int, count: int) -> Any:
        prepared = [Queue.prepare_data(NAME, (n, 0, kit.PAD)) for n in range(first, first + count)]
        return queue.enqueue_many(prepared)

    def pending(self) -> int:
        return len(queue) + len(queue.started_job_registry)

    def work(self) -> None:
        kind = Worker if kit.KIND == "isolated" else SimpleWorker
        kind([queue], connection=connection).work(logging_level="ERROR")


if __name__ == "__main__":
    kit.main(Rq())
