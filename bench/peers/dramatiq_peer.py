"""Dramatiq on Redis, 8 threads."""

from __future__ import annotations

import os
import sys
from typing import Any

import dramatiq
import kit
from dramatiq.brokers.redis import RedisBroker

broker = RedisBroker(url=kit.URL or "redis://")
dramatiq.set_broker(broker)


@dramatiq.actor(actor_name="job", max_retries=3 if kit.FAILS else 0)
def job(n: int, sent: int, pad: str) -> None:
    kit.ran(n, sent)


class Dramatiq(kit.Peer):
    def enqueue(self, n: int, sent: int) -> Any:
        return job.send(n, sent, kit.PAD)

    def pending(self) -> int:
        return int(broker.do_qsize("default"))

    def work(self) -> None:
        flags = ["--processes", "1", "--threads", str(kit.SLOTS or 8)]
        command = [sys.executable, "-m", "dramatiq", "dramatiq_peer", *flags]
        os.execv(sys.executable, command)  # noqa: S606  # no shell is wanted


if __name__ == "__main__":
    kit.main(Dramatiq())
