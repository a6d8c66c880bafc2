"""Winch itself, at its defaults."""

from __future__ import annotations

import os
import secrets
import sys
import time
from datetime import timedelta
from typing import Any

import kit

import winch
from winch.storage.params import ClaimParams, NewSession

app = winch.App(kit.URL or None)
RETRY = winch.Retry.fixed("100ms", attempts=3)  # only for the scenario in which jobs fail


if kit.GATE:
    from winch_gated import Gated

    gated = Gated(app)

elif kit.KIND == "async":

    @app.task(name="job", retry=RETRY) if kit.FAILS else app.task(name="job")
    async def job(n: int, sent: int, pad: str) -> None:
        await kit.ran_async(n, sent)

elif kit.KIND == "sync":

    @app.task(name="job")
    def job(n: int, sent: int, pad: str) -> None:
        kit.ran(n, sent)

else:

    @app.task(name="job", isolate="process")
    def job(n: int, sent: int, pad: str) -> None:
        kit.ran_alone()


class Winch(kit.Peer):
    def setup(self) -> None:
        app.migrate()

    def enqueue(self, n: int, sent: int) -> Any:
        job.enqueue(n, sent, kit.PAD)  # its handle would be awaited, until the job has ended

    def enqueue_many(self, first: int, count: int) -> Any:
        return app.enqueue_many(job.bind(n, 0, kit.PAD) for n in range(first, first + count))

    def pending(self) -> int:
        return sum(sum(queue.counts.values()) for queue in app.queues.list())

    def claims(self, count: int, limit: int) -> dict[str, Any]:
        """How long each of so many claims of so many jobs took, in milliseconds."""
        driver = app.ready()
        session = NewSession(
            id=secrets.token_hex(16),
            worker="bench",
            host="bench",
            pid=os.getpid(),
            release="bench",
            queues=("default",),
            tasks=("job",),
            slots=limit,
            lease=timedelta(minutes=10),
        )
        driver.run(driver.start_session(session))
        took = []
        for _ in range(count):
            token = secrets.token_hex(16)
            params = ClaimParams(session=session.id, token=token, queues=("default",), limit=limit)
            started = time.perf_counter()
            claimed = driver.run(driver.claim(params))
            took.append((time.perf_counter() - started) * 1000)
            if len(claimed) != limit:
                raise RuntimeError(f"claimed {len(claimed)} of {limit} jobs")
        driver.run(driver.end_session(session.id))
        return {"ms": took}

    def work(self) -> None:
        processes = os.environ.get("BENCH_PROCESSES", "1")
        slots = ["-c", str(kit.SLOTS)] if kit.SLOTS else []
        command = ["worker", "-A", "winch_peer:app", "-p", processes, *slots]
        os.execv(sys.executable, [sys.executable, "-m", "winch", *command])  # noqa: S606  # no shell is wanted


class WinchGated(Winch):
    """Jobs under flow control (winch_gated.py)."""

    def enqueue(self, n: int, sent: int) -> Any:
        gated.enqueue(n, sent)

    def enqueue_many(self, first: int, count: int) -> Any:
        gated.enqueue_many(first, count)


class WinchAsync(Winch):
    """The same through `aenqueue`, for the scenario of concurrent callers."""

    async def enqueue(self, n: int, sent: int) -> Any:
        return await job.aenqueue(n, sent, kit.PAD)


if __name__ == "__main__":
    if kit.GATE:
        kit.main(WinchGated())
    kit.main(WinchAsync() if os.environ.get("BENCH_CALLERS") else Winch())
