"""A worker and a producer with faktory for Python: `with_faktory.py work|push FILE [COUNT]`."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import faktory  # type: ignore[import-not-found]

mode, file = sys.argv[1:3]


def note(*words: object) -> None:
    with Path(file).open("a") as out:
        out.write(" ".join(map(str, words)) + "\n")


def run(name: str, n: int) -> None:
    note("start", name, n)
    if name == "fails":
        raise RuntimeError("as it should")
    time.sleep(0.02)


def main() -> None:
    if mode == "work":
        worker = faktory.Worker(queues=["faktory", "shared"], concurrency=2, use_threads=True)
        worker.register("note", run)
        worker.run()
        return
    with faktory.connection() as client:
        for n in range(int(sys.argv[3])):
            if not client.queue("note", args=("faktory", n), queue="faktory"):
                note("refused")
        client.queue("note", args=("fails", 1), queue="faktory", retry=-1)


if __name__ == "__main__":
    try:
        main()
    except Exception as error:
        note("error", error)
        raise
