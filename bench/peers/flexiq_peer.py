"""FlexiQ on PostgreSQL, Redis or SQLite: batches of 100, a poll every millisecond.

Its dispatch on enqueue is left to its own choice (on for Redis only): with it on SQLite, a worker
that finds a full queue takes its first batch and then a few jobs a second.
"""

from __future__ import annotations

import os
from typing import Any

import kit
from flexiq import Queue

# A line in the log for every job would be most of what it does.
os.environ.setdefault("FLEXIQ_LOG_LEVEL", "WARNING")
OPTIONS: Any = {
    "workers": kit.SLOTS or 8,
    "scheduler_batch_size": 100,
    "scheduler_poll_interval_ms": 1,
}
if kit.URL.startswith("sqlite"):
    queue = Queue(db_path=kit.URL.removeprefix("sqlite:///"), **OPTIONS)
elif kit.URL.startswith("redis"):
    queue = Queue(backend="redis", db_url=kit.URL, **OPTIONS)
else:
    queue = Queue(backend="postgres", db_url=kit.URL, **OPTIONS)


@queue.task(name="job")
def job(n: int, sent: int, pad: str) -> None:
    kit.ran(n, sent)


class Flexiq(kit.Peer):
    at_once = 1000

    def enqueue(self, n: int, sent: int) -> Any:
        return job.delay(n, sent, kit.PAD)

    def enqueue_many(self, first: int, count: int) -> Any:
        return queue.enqueue_many("job", [(n, 0, kit.PAD) for n in range(first, first + count)])

    def pending(self) -> int:
        counts = queue.stats()
        return int(counts["pending"] + counts["running"])

    def work(self) -> None:
        queue.run_worker()


if __name__ == "__main__":
    kit.main(Flexiq())
