"""The ways to ask for a Context, at run time; tests/typing has the results of type checkers."""

from __future__ import annotations

from typing import Any

import pytest

import winch
from tests.engine.test_worker import new_app, run
from winch import ConfigError, Context, Depends, InvalidPayload
from winch.engine.tasks.task import AsyncContextTask, ContextTask


def test_every_form_gets_its_context_and_only_its_arguments_are_stored() -> None:
    app = new_app()

    @app.lifespan
    def resources() -> Any:
        yield {"db": "db"}

    @app.task
    def leading(ctx: Context, n: int, *, note: str = "") -> list[object]:
        return [ctx.attempt, n, note]

    @app.task
    async def leading_async(ctx: Context, n: int) -> list[object]:
        return [ctx.attempt, n]

    @app.task
    def by_place(ctx: Context, /, n: int) -> list[object]:
        return [ctx.attempt, n]

    @app.task
    def starred(ctx: Context, *numbers: int, db: str = Depends("db")) -> list[object]:
        return [ctx.attempt, *numbers, db]

    @app.task
    async def starred_async(ctx: Context, first: int, *numbers: int) -> list[object]:
        return [ctx.attempt, first, *numbers]

    @app.task
    def keyword(n: int, *, ctx: Context = winch.INJECTED) -> list[object]:
        return [ctx.attempt, n]

    @app.task
    def bare(n: int, *, ctx: Context) -> list[object]:
        return [ctx.attempt, n]

    async def body(_: Any) -> None:
        assert await (await leading.aenqueue(5, note="x")) == [1, 5, "x"]
        assert await (await leading_async.aenqueue(n=5)) == [1, 5]
        assert await (await by_place.aenqueue(5)) == [1, 5]
        assert await (await starred.aenqueue(5, 6)) == [1, 5, 6, "db"]
        assert await (await starred.aenqueue()) == [1, "db"]
        assert await (await starred_async.aenqueue(5, 6)) == [1, 5, 6]
        assert await (await keyword.aenqueue(5)) == [1, 5]
        asked: Any = bare
        assert await (await asked.aenqueue(5)) == [1, 5]
        assert app.jobs.get((await leading.aenqueue(5)).id).record.args == '{"n":5}'

    run(app, body)
    assert isinstance(leading, ContextTask)
    assert isinstance(leading_async, AsyncContextTask)


def test_a_plain_call_takes_what_the_function_takes() -> None:
    app = new_app()

    @app.task
    def leading(ctx: Context, n: int) -> int:
        return n

    @app.task
    def keyword(n: int, *, ctx: Context = winch.INJECTED) -> int:
        return n or ctx.attempt

    no_context: Any = None
    assert leading(no_context, 5) == 5
    assert keyword(5) == 5
    with pytest.raises(RuntimeError, match=r"ctx\.attempt: this call has no Context"):
        keyword(0)
    with pytest.raises(InvalidPayload, match="has no argument 'ctx'"):
        keyword.enqueue(5, ctx=no_context)


def test_injected_is_for_contexts_only() -> None:
    app = new_app()

    @app.task
    def wrong(n: int = winch.INJECTED) -> None: ...

    with pytest.raises(
        ConfigError, match="INJECTED is the default of a parameter annotated with Context"
    ):
        wrong.enqueue()
