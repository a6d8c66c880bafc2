"""The types of `@app.task(…)` with options: which kind of task each kind of function becomes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Concatenate, ParamSpec, TypeVar, overload

from winch.engine.tasks.collecting import Collected
from winch.engine.tasks.context import Context
from winch.engine.tasks.task import AsyncContextTask, AsyncTask, CollectingTask, ContextTask, Task

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class TaskDecorator:
    """What `@app.task(…)` with options gives; only its type matters."""

    @overload
    def __call__(
        self, fn: Callable[Concatenate[Context, P], Awaitable[R]], /
    ) -> AsyncContextTask[P, R]: ...
    @overload
    def __call__(self, fn: Callable[Concatenate[Context, P], R], /) -> ContextTask[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, Awaitable[R]], /) -> AsyncTask[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Task[P, R]: ...
    def __call__(self, fn: Callable[..., Any], /) -> Any:
        raise TypeError("app.task returns its own function")  # pragma: no cover


class CollectingDecorator:
    """What `@app.task(collect=…)` gives; only its type matters."""

    def __call__(self, fn: Callable[[list[Collected[T]]], Any], /) -> CollectingTask[T]:
        raise TypeError("app.task returns its own function")  # pragma: no cover
