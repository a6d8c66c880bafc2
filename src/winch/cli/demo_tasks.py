"""The tasks of `winch demo`. Importable, because a real worker process imports them."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta

from winch.app import App
from winch.core.outcome import Discard, Snooze
from winch.core.retry import Retry
from winch.engine.context import Context

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
def doomed(order: int) -> None:
    raise ValueError(f"order {order} has no customer")


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
def haul(seconds: float) -> str:
    """Long work whose process is killed under it."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(0.05)
    return "hauled up"


@app.task(name="demo.receipt")
def receipt(order: int) -> str:
    return f"receipt for order {order}"
