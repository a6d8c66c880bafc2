"""A worker over HTTP in a process of its own, which writes down each job that it starts: a line of its
log is synced before the job goes on, so that a kill -9 takes none away."""

from __future__ import annotations

import os
import sys

from winch.remote import RemoteClient, RemoteContext, RemoteWorker


def main(url: str, log: str) -> None:
    worker = RemoteWorker(RemoteClient(url), queues=["work"], slots=8, lease="2s")
    fd = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    @worker.task("remote.count")
    def count(ctx: RemoteContext, n: int) -> int:
        os.write(fd, f"{n} {ctx.attempt} {ctx.job['fence']}\n".encode())
        return n

    worker.run()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
