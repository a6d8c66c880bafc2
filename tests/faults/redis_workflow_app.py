"""The workflow of workflow_app.py where the store has no transactions: effects are kept apart, by a key.

    python -m tests.faults.redis_workflow_app URL PLACE FILE

FILE is a SQLite database with what was done. A step that is killed between its effect and its note runs
again, and the key shows that the effect is there: once, by idempotency and not by a commit.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from contextlib import closing
from typing import Any

import winch
from tests.faults import workflow_app as base

IS_RUN = __name__ == "__main__"
app = winch.App(sys.argv[1] if IS_RUN else "memory://")


def mark(name: str) -> str:
    base.here()
    with closing(sqlite3.connect(sys.argv[3])) as book, book:
        book.execute("INSERT INTO tried VALUES (?)", (name,))
        book.execute("INSERT INTO effect VALUES (?) ON CONFLICT DO NOTHING", (name,))
    base.here()
    return name


def unmark(name: str) -> None:
    mark(f"undo {name}")


@app.task(name="pack")
def pack(line: int, *, ctx: winch.Context) -> str:
    ctx.step(mark, f"pack {line}", name="mark")
    return f"box {line}"


@app.task(name="checkout", retry=winch.Retry.fixed("10ms", attempts=2, jitter="none"))
def checkout(order: int, *, ctx: winch.Context) -> list[Any]:
    for name in ("reserve", "charge"):
        ctx.step(mark, name, name=name, undo=unmark)
    approval = ctx.wait_for(f"approval:{order}", timeout="2d")
    ctx.step(mark, "invoice", name="invoice")
    ctx.sleep("50ms")
    boxes = ctx.gather(pack.bind(1), pack.bind(2))  # type: ignore[call-arg]
    for name in ("ship", "tell", "close"):
        ctx.step(mark, name, name=name)
    if order < 0:
        raise ConnectionError("the very end")
    return [approval, boxes]


if IS_RUN:
    base.app, base.PLACE = app, int(sys.argv[2])
    asyncio.run(base.main())
