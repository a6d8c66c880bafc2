"""Compositions and batches inside a batch, on every store: the outer callbacks come last, and once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lab.history import Recorder, check, gather
from tests.matrix.conftest import STORES
from winch import App, Context, batch, chain, chord, group


@pytest.mark.parametrize("store", STORES)
def test_inner_batches_end_before_the_callbacks_of_the_outer_one(
    store: str, url_of: Callable[..., str], tmp_path: Path
) -> None:
    app = App(url_of(store, schema="nested"), events="full", poll="100ms")
    app.migrate()
    recorder = Recorder(tmp_path)
    done: list[str] = []

    @app.task(name="work")
    async def work(ctx: Context, before: Any = None, word: str = "") -> None:
        with recorder.run(ctx):
            await asyncio.sleep(0.02)
            done.append(word)

    @app.task(name="grow")
    async def grow(ctx: Context) -> None:
        with recorder.run(ctx):
            await ctx.batch.aenqueue(chain(work.bind(word="grown"), work.partial(word="grown")))

    with batch(
        "outer",
        on_success=work.bind(word="outer success"),
        on_complete=work.bind(word="outer complete"),
        on_death=work.bind(word="outer death"),
    ) as outer:
        outer.enqueue(
            chain(work.bind(word="first"), work.partial(word="second")),
            chord([work.bind(word="member") for _ in range(3)], work.partial(word="callback")),
            group([]),
        )
        with outer.batch("inner", on_success=work.bind(word="inner success")) as inner:
            inner.enqueue(grow.bind(), work.bind(word="inside"))
    app.run_worker(burst=True)
    verdict = check(gather(app.driver, tmp_path))
    app.close()
    assert verdict.is_ok, verdict
    inside = ["first", "second", "member", "member", "member", "callback", "inside", "grown", "grown"]
    assert sorted(done[:-2]) == sorted([*inside, "inner success"])
    assert set(done[-2:]) == {"outer success", "outer complete"}
    assert done.index("inner success") > max(at for at, word in enumerate(done) if word == "grown")
