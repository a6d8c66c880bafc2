"""The tasks of `winch demo`. Importable, because a real worker process imports them."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from datetime import UTC, datetime, timedelta
from typing import Any

from winch import App, Collected, Context, Discard, Limit, Retry, Snooze

app: App = App()


@app.task(name="demo.add")
def add(a: int, b: int) -> int:
    return a + b


@app.task(name="demo.greet")
async def greet(name: str) -> str:
    await asyncio.sleep(0.05)
    return f"Hello, {name}"


@app.task(name="demo.count", queue="bulk")
async def count(number: int) -> None:
    """One of a thousand: nothing to do but to be done."""


@app.task(name="demo.step", queue="line")
async def step(number: int) -> int:
    await asyncio.sleep(0.1)
    return number


@app.task(name="demo.flaky", retry=Retry.fixed("500ms", attempts=5))
def flaky(ctx: Context) -> str:
    if ctx.attempt < 3:
        raise ConnectionError(f"the other side did not answer (attempt {ctx.attempt})")
    return "answered"


@app.task(name="demo.doomed", retry=Retry.fixed("500ms", attempts=2))
def doomed(order: int) -> str:
    if order < 100:
        raise ValueError(f"order {order} has no customer")
    return f"order {order} is sent"


@app.task(name="demo.pointless")
def pointless() -> None:
    raise Discard("the account was closed")


@app.task(name="demo.patient")
def patient(ctx: Context) -> str:
    """Waits for something outside without spending attempts."""
    if datetime.now(UTC) - ctx.created_at < timedelta(seconds=1):
        raise Snooze("1s", "the report is not there yet")
    return "the report is there"


@app.task(name="demo.endless", timeout="1s", retry=Retry.fixed("1s", attempts=1))
def endless() -> None:
    while True:
        time.sleep(0.05)


@app.task(name="demo.film")
async def film(minutes: int) -> str:
    """Long work that a person cancels."""
    await asyncio.sleep(60 * minutes)
    return "The End"


@app.task(name="demo.haul")
def haul(ctx: Context, steps: int) -> str:
    """Long work whose process is killed under it. It saves where it is, and continues from there."""
    first = ctx.last_checkpoint or 0
    for step in range(first, steps):
        time.sleep(0.5)
        ctx.checkpoint(step + 1)
        ctx.progress(100 * (step + 1) / steps)
    return f"hauled up; this attempt resumed after step {first} of {steps}"


@app.task(name="demo.receipt")
def receipt(order: int) -> str:
    return f"receipt for order {order}"


@app.task(name="demo.pay", retry=Retry.fixed("500ms", attempts=3))
def pay(ctx: Context, order: int) -> None:
    """Writes, completion and child job are one commit. The first attempt fails in the middle of it."""
    with ctx.transaction() as tx:
        tx.execute("INSERT INTO ledger (paid) VALUES (?)", (order,))
        receipt.using(conn=tx, tags=["of pay"]).enqueue(order)
        if ctx.attempt == 1:
            raise ConnectionError("the power went out after the INSERT")
        tx.result = f"order {order} is in the ledger"


@app.task(name="demo.score", collect=50, collect_wait="200ms")
def score(jobs: list[Collected[dict[str, Any]]]) -> None:
    """One call for many jobs, an outcome for each."""
    for job in jobs:
        if job.args["height"] <= 0:
            job.discard("the size must be positive")
        else:
            job.done(len(jobs))


@app.task(name="demo.unload", limit=Limit(2))
async def unload(number: int) -> tuple[float, float]:
    """One of many that want the same crane."""
    began = time.time()
    await asyncio.sleep(0.3)
    return began, time.time()


@app.task(name="demo.letter")
def letter(number: int) -> int:
    return number


@app.task(name="demo.summary")
def summary(numbers: list[int]) -> str:
    return f"{len(numbers)} letters, the last is {numbers[-1]}"


def pack(place: str) -> str:
    return f"packed for {place}"


def arrive(place: str, wind: str) -> str:
    return f"in {place}, by a {wind} wind"


@app.task(name="demo.voyage")
async def voyage(ctx: Context, place: str) -> list[str]:
    """Long work that is mostly waiting: what is done is stored, and nothing is held meanwhile."""
    packed = await ctx.step(pack, place)
    await ctx.sleep("500ms")
    wind: str = await ctx.wait_for("wind", timeout="1m")
    return [packed, "rested", f"a {wind} wind", await ctx.step(arrive, place, wind)]


@app.task(name="demo.resize", version=2)
def resize(image: str, width: int) -> str:
    return f"{image} is {width} pixels wide"


@resize.upgrade(from_version=1)
def _(args: dict[str, Any]) -> dict[str, Any]:
    return {**args, "width": 640}


@app.task(name="demo.poison")
def poison() -> None:
    """Kills the process it runs in, whichever that is."""
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(name="demo.neighbour")
async def neighbour(number: int) -> int:
    await asyncio.sleep(0.3)
    return number


@app.task(name="demo.deaf", isolate="process", timeout="1s", retry=Retry.fixed("1s", attempts=1))
def deaf() -> None:
    """Does not listen to its timeout, so the process it has for itself is killed."""
    while True:
        try:
            time.sleep(60)
        except BaseException:  # noqa: S112 - that is what it is here for
            continue
