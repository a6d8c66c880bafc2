"""Calls that must type-check. Never run: mypy reads it in `make check`, pyright in `make test-all`."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, assert_type

import winch
from winch import App, Context, Depends, Job, JobState, Keyring, Retry, Schedule
from winch.types import FlowInfo, JobList, Purged, QueueInfo, QueueSettings, Replayed, SessionInfo

app = App("memory://", lease="30s", grace=timedelta(seconds=5), keys=Keyring({"k": b""}), spool="s")


@app.task
def plain(a: int, b: str = "") -> float:
    return float(a)


@app.task(queue="mail", retry=Retry.fixed("1s"), timeout="5s", isolate="process", version=2)
async def on_loop(a: int) -> list[int]:
    return [a]


@app.task
def leading(ctx: Context, order_id: int, *, note: str = "") -> str:
    return f"{ctx.attempt} {order_id} {note}"


@app.task(queue="mail")
async def leading_async(ctx: Context, order_id: int) -> bytes:
    return b""


@app.task
def keyword(order_id: int, *, ctx: Context = winch.INJECTED) -> str:
    return str(ctx.attempt)


@app.task(retry=Retry.never())
async def keyword_async(order_id: int, *, ctx: Context = winch.INJECTED) -> int:
    return ctx.attempt


@app.task
def depends(order_id: int, *, db: dict[str, int] = Depends("db")) -> int:  # noqa: B008  # its form
    return db["x"]


@app.task
def nothing() -> None: ...


@on_loop.upgrade(from_version=1)
def older(args: dict[str, Any]) -> dict[str, Any]:
    return args


def calls(ctx: Context) -> None:
    assert_type(plain(1, "x"), float)
    assert_type(plain.enqueue(1), Job[float])
    assert_type(plain.enqueue(1, b="x"), Job[float])
    assert_type(plain.enqueue(a=1).result("5s"), float)
    assert_type(
        plain.using(delay="5m", priority="high", tags=["x"], timeout=None).enqueue(1), Job[float]
    )
    assert_type(on_loop.enqueue(1), Job[list[int]])
    assert_type(leading.enqueue(1, note="x"), Job[str])
    assert_type(leading.using(queue="q").enqueue(order_id=1), Job[str])
    assert_type(leading(ctx, 1), str)
    assert_type(leading_async.enqueue(1), Job[bytes])
    assert_type(keyword.enqueue(1), Job[str])
    assert_type(keyword(1, ctx=ctx), str)
    assert_type(keyword_async.enqueue(1).result(), int)
    assert_type(depends.enqueue(1), Job[int])
    assert_type(nothing.enqueue(), Job[None])
    assert_type(app.enqueue_many([plain.bind(1), leading.bind(2)]), list[Job[Any]])
    assert_type(app.jobs.get("id"), Job[Any])
    assert_type(app.jobs.list(state="dead", limit=5), JobList)
    assert_type(app.jobs.cancel("id", reason="x"), JobState)
    assert_type(app.queues.list(), list[QueueInfo])
    assert_type(app.queues.pause("mail", until="1h"), None)
    assert_type(app.limits.set("limit:x", 5), None)
    assert_type(app.schedules.add("s", plain, cron="@daily", args={"a": 1}), Schedule)
    assert_type(app.forward_spool(), int)


async def awaited(ctx: Context) -> None:
    assert_type(await plain.aenqueue(1), Job[float])
    assert_type(await (await plain.aenqueue(1)), float)
    assert_type(await on_loop(1), list[int])
    assert_type(await leading_async(ctx, 1), bytes)
    assert_type(await (await leading_async.aenqueue(1)), bytes)
    assert_type(await keyword_async.using(delay=timedelta(1)).aenqueue(1), Job[int])
    assert_type(await app.jobs.aget("id"), Job[Any])
    assert_type(await app.jobs.alist(state=["dead"], limit=5), JobList)
    assert_type(await app.jobs.acancel("id", reason="x"), JobState)
    assert_type(await app.dead.areplay(["id"], rate="5/s"), Replayed)
    assert_type(await app.dead.apurge(older_than="30d"), int)
    assert_type(await app.queues.alist(), list[QueueInfo])
    assert_type(await app.queues.aconfigure("mail", concurrency=5), QueueSettings)
    assert_type(await app.schedules.aadd("s", plain, every="1h", args={"a": 1}), Schedule)
    assert_type(await app.queues.apurge("mail", dry_run=True), Purged)
    assert_type(await app.workers.alist(), list[SessionInfo])
    assert_type(await app.limits.aset("limit:x", "5"), None)
    assert_type(await app.flows.aget("id"), FlowInfo)
    assert_type(await app.outbox.apurge("orders", older_than="1d"), int)
    async with app.idempotency.abegin("k") as once:
        assert_type(once.new, bool)
