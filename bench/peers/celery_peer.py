"""Celery on Redis: solo pool, early acknowledgement, no results, no gossip."""

from __future__ import annotations

from typing import Any

import kit
import redis
from celery import Celery as App

app = App("bench", broker=kit.URL or None)
app.conf.update(task_ignore_result=True, worker_prefetch_multiplier=100, broker_pool_limit=1)


@app.task(name="job", acks_late=False)
def job(n: int, sent: int, pad: str) -> None:
    kit.ran(n, sent)


class Celery(kit.Peer):
    async def open(self) -> None:
        self.redis = redis.Redis.from_url(kit.URL)

    def enqueue(self, n: int, sent: int) -> Any:
        return job.delay(n, sent, kit.PAD)

    def pending(self) -> int:
        return int(self.redis.llen("celery")) + int(self.redis.hlen("unacked"))

    def work(self) -> None:
        flags = ["--pool=solo", "--without-gossip", "--without-mingle", "--without-heartbeat"]
        app.worker_main(["worker", *flags, "--loglevel=ERROR"])


if __name__ == "__main__":
    kit.main(Celery())
