"""Handlers that fork, and a neighbour that writes down each of its starts."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import time
from pathlib import Path

from winch import App

app = App(os.environ.get("FORK_URL"), grace="200ms", poll="200ms")
forking = multiprocessing.get_context("fork")


@app.task(name="terminate", timeout="60s")
def terminate(times: int) -> int:
    for _ in range(times):
        process = forking.Process(target=time.sleep, args=(60,))
        process.start()
        process.terminate()
        process.join(20)
        if process.exitcode != -15:
            raise RuntimeError(f"the forked process has exit code {process.exitcode}")
    return times


@app.task(name="pool", timeout="60s")
def pool() -> list[int]:
    with forking.Pool(2) as workers:  # its end terminates them
        return workers.map(abs, [-1, 2, -3])


@app.task(name="neighbour")
async def neighbour(path: str, seconds: float) -> None:
    with Path(path).open("a") as file:
        file.write(f"{os.getpid()}\n")
    await asyncio.sleep(seconds)
