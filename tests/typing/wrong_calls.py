"""Calls that must not type-check: mypy fails when one of these ignores is not needed. Never run."""

from __future__ import annotations

import winch
from tests.typing.right_calls import (
    app,
    depends,
    keyword,
    leading,
    leading_async,
    nothing,
    on_loop,
    plain,
)
from winch import App, Context


def wrong(ctx: Context) -> None:
    plain.enqueue()  # type: ignore[call-arg]
    plain.enqueue("1")  # type: ignore[arg-type]
    plain.enqueue(1, c=2)  # type: ignore[call-arg]
    plain.enqueue(1, delay="5m")  # type: ignore[call-arg]
    plain.using(delay=5).enqueue(1)  # type: ignore[arg-type]
    plain.using(dealy="5m").enqueue(1)  # type: ignore[arg-type]
    plain.using(delay="5m").enqueue("1")  # type: ignore[arg-type]
    plain.bind("1")  # type: ignore[arg-type]
    text: str = plain.enqueue(1).result()  # type: ignore[assignment]
    on_loop.enqueue("x")  # type: ignore[arg-type]
    leading.enqueue(ctx, 1)  # type: ignore[arg-type, call-arg]
    leading.enqueue()  # type: ignore[call-arg]
    leading.enqueue("1")  # type: ignore[arg-type]
    leading(1)  # type: ignore[arg-type, call-arg]
    leading_async.enqueue(ctx)  # type: ignore[arg-type]
    keyword.enqueue()  # type: ignore[call-arg]
    keyword.enqueue("1")  # type: ignore[arg-type]
    depends.enqueue()  # type: ignore[call-arg]
    nothing.enqueue(1)  # type: ignore[call-arg]
    app.enqueue_many([plain])  # type: ignore[list-item]
    app.task(queue=1)  # type: ignore[call-overload]
    app.task(quue="x")  # type: ignore[call-overload]
    App(leese="3s")  # type: ignore[arg-type]
    App(lease=3)  # type: ignore[arg-type]
    App(events="some")  # type: ignore[arg-type]
    app.on("dead", print, 1)  # type: ignore[call-arg]
    winch.Keyring({"k": "text"})  # type: ignore[dict-item]
    winch.Retry.fixed(5)  # type: ignore[arg-type]
    app.jobs.get(7)  # type: ignore[arg-type]
    app.jobs.cancel("id", "reason")  # type: ignore[call-arg]
    app.queues.configure("mail", on_full="drop")  # type: ignore[arg-type]
    print(text)  # noqa: T201


async def wrong_async() -> None:
    (await on_loop.aenqueue(1)).result() + ""  # type: ignore[operator]
    await plain(1)  # type: ignore[misc]
    await app.jobs.aget(7)  # type: ignore[arg-type]
    await app.jobs.acancel("id", "reason")  # type: ignore[call-arg]
    await app.queues.aconfigure("mail", on_full="drop")  # type: ignore[arg-type]
    print(app.jobs.aget("id").id)  # type: ignore[attr-defined]  # noqa: T201
