"""An importable app for tests of jobs in processes of their own."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

from winch import App, Context, Discard, Retry

app = App(
    "memory://",
    lease="3s",
    heartbeat="200ms",
    sweep="200ms",
    poll="100ms",
    grace="1s",
    kill_after="300ms",
)


@app.task(isolate="process")
def where() -> int:
    return os.getpid()


@app.task(isolate="process")
async def where_async(text: str) -> str:
    await asyncio.sleep(0)
    return f"{text} {os.getpid()}"


@app.task(isolate="process", retry=Retry.fixed("10ms", attempts=2))
def fails(*, ctx: Context) -> None:
    raise ValueError(f"attempt {ctx.attempt}")


@app.task(isolate="process")
def whose(*, ctx: Context) -> str:
    return ctx.worker


@app.task(isolate="process")
def discards() -> None:
    raise Discard("worthless")


@app.task(isolate="process")
def dies(how: str) -> None:
    if how == "exit":
        os._exit(7)
    os.kill(os.getpid(), getattr(signal, how))
    time.sleep(10)


@app.task(isolate="process", timeout="300ms", retry=Retry.never())
def hangs() -> None:
    time.sleep(0.05)
    signal.pthread_sigmask(signal.SIG_BLOCK, set())
    while True:
        try:
            time.sleep(60)
        except BaseException:  # noqa: S112  # refuses to end, as code in the wild does
            continue


@app.task(isolate="process", heartbeat="1500ms", retry=Retry.never())
def reports(times: int, *, ctx: Context) -> str:
    for step in range(times):
        time.sleep(0.15)
        ctx.progress(step)
    if not times:
        time.sleep(30)
    return "done"


@app.task(isolate="process")
def naps(seconds: float, mark: str) -> None:
    Path(mark).write_text(str(os.getpid()))
    time.sleep(seconds)
