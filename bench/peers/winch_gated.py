"""Jobs under flow control: how each kind is declared and enqueued with Winch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import kit

import winch

LIMITED: dict[str, Callable[[], Any]] = {
    "limit": lambda: winch.Limit(kit.LIMIT),
    "keyed": lambda: winch.Limit(2, key="key"),
    "rate": lambda: winch.Rate(kit.RATE, per="1s"),
}
USED: dict[str, Callable[[int], dict[str, Any]]] = {
    "fifo": lambda n: {"fifo": kit.key(n)},
    "tenants": lambda n: {"tenant": kit.key(n)},
    "unique": lambda n: {"unique": f"k{n}"},
    "priorities": lambda n: {"priority": n % 10},
    "delays": lambda _: {"delay": "1ms"},
}
BATCH, CHORD, STEPS = 100, 10, 5


async def small(n: int) -> int:
    return n


class Gated:
    """The task of one kind, and how its jobs are stored."""

    def __init__(self, app: winch.App) -> None:
        self.app = app
        # Alike calls share their options, as an application does that enqueues for a few keys.
        self._using: dict[str, Any] = {}
        options: dict[str, Any] = {}
        if kit.GATE in LIMITED:
            options["limit"] = LIMITED[kit.GATE]()
        if kit.GATE == "retries":
            options["retry"] = winch.Retry.fixed("10ms", attempts=3)

        if kit.GATE == "keyed":

            @app.task(name="job", **options)
            async def job(n: int, sent: int, pad: str, key: str) -> None:
                await kit.ran_async(n, sent)

        elif kit.GATE == "steps":

            @app.task(name="job")
            async def job(n: int, sent: int, pad: str, *, ctx: winch.Context) -> None:
                await kit.ran_async(n, sent)
                for step in range(STEPS):
                    await ctx.step(small, n, name=f"step {step}")

        else:

            @app.task(name="job", **options)
            async def job(n: int, sent: int, pad: str) -> None:
                await kit.ran_async(n, sent)

        self.job: Any = job

    def enqueue(self, n: int, sent: int) -> None:
        if kit.GATE in USED:
            self.job.using(**USED[kit.GATE](n)).enqueue(n, sent, kit.PAD)
        elif kit.GATE == "keyed":
            self.job.enqueue(n, sent, kit.PAD, kit.key(n))
        else:
            self.job.enqueue(n, sent, kit.PAD)

    def enqueue_many(self, first: int, count: int) -> None:
        calls = [self._call(n) for n in range(first, first + count)]
        if kit.GATE == "batches":
            for at in range(0, count, BATCH):
                *members, last = calls[at : at + BATCH]
                with winch.batch("batch", on_success=last) as batch:
                    batch.enqueue(*members)
        elif kit.GATE == "chords":
            for at in range(0, count, CHORD):
                *members, last = calls[at : at + CHORD]
                winch.chord(members, last).enqueue()
        else:
            self.app.enqueue_many(calls)

    def _call(self, n: int) -> Any:
        if kit.GATE == "keyed":
            return self.job.bind(n, 0, kit.PAD, kit.key(n))
        if kit.GATE not in USED:
            return self.job.bind(n, 0, kit.PAD)
        options = USED[kit.GATE](n)
        [value] = options.values()
        if value not in self._using and len(self._using) < 1000:
            self._using[value] = self.job.using(**options)
        using = self._using.get(value) or self.job.using(**options)
        return using.bind(n, 0, kit.PAD)
