"""A worker and a producer with pyfaktory: `with_pyfaktory.py work|push|batch FILE [COUNT]`."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from pyfaktory import Batch, Client, Consumer, Job, Producer, TargetJob  # type: ignore[import-not-found]

mode, file = sys.argv[1:3]


def note(*words: object) -> None:
    with Path(file).open("a") as out:
        out.write(" ".join(map(str, words)) + "\n")


def run(name: str, n: int) -> None:
    note("start", name, n)
    if name == "fails":
        raise RuntimeError("as it should")
    time.sleep(0.02)


def push_batch(producer: Producer, count: int) -> None:
    after = TargetJob(jobtype="note", args=["after", count], queue="py")
    batch = Batch(parent_bid=None, description="notes", success=after, complete=None)
    # The reply as it came: pyfaktory does not read it.
    bid = str(producer.batch_new(batch)).splitlines()[-1]
    for n in range(count):
        producer.push(Job(jobtype="note", args=("member", n), queue="py", custom={"bid": bid}))
    producer.batch_open(bid)
    producer.batch_commit(bid)


def main() -> None:
    url = os.environ["FAKTORY_URL"]
    if mode == "work":
        with Client(faktory_url=url, role="consumer", worker_id="pyfaktory-1") as client:
            consumer = Consumer(client=client, queues=["py", "shared"], concurrency=3, grace_period=2)
            consumer.register("note", run)
            consumer.run()
        return
    with Client(faktory_url=url, role="producer") as client:
        producer = Producer(client=client)
        if mode == "batch":
            push_batch(producer, int(sys.argv[3]))
            return
        jobs = [Job(jobtype="note", args=("pyfaktory", n), queue="py") for n in range(int(sys.argv[3]))]
        producer.push(jobs[0])
        note("refused", len(producer.push_bulk(jobs[1:])))
        producer.push(Job(jobtype="note", args=("fails", 1), queue="py", retry=-1))


if __name__ == "__main__":
    try:
        main()
    except Exception as error:
        note("error", error)
        raise
