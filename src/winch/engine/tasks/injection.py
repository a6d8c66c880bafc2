"""What a handler is given beside its arguments: its Context, and dependencies.

A parameter is injected when its annotation is Context, or when its default (or `Annotated` metadata) is
`Depends(…)`. Injected parameters never appear among a job's arguments. A type checker knows that too in
the first two of these forms; in the third, which works as well, it asks `enqueue` for a ctx.

    def charge(ctx: Context, order_id: int): ...
    def charge(order_id: int, *, ctx: Context = INJECTED): ...
    def charge(order_id: int, *, ctx: Context): ...

    def charge(order_id: int, *, http: Client = Depends("http"), db: Db = Depends(open_db)): ...

A name is looked up in the app's resources; a function is called for each job, may itself want Context
and dependencies, and may `yield` to clean up after the handler.
"""

from __future__ import annotations

import contextlib
import inspect
import typing
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from typing import Any, TypeVar

from winch.core.errors import ConfigError, did_you_mean
from winch.engine.tasks.context import Context

T = TypeVar("T")


class Dependency:
    """Where an injected value comes from: a resource's name, or a function."""

    def __init__(self, source: str | Callable[..., Any]) -> None:
        if not isinstance(source, str) and not callable(source):
            raise ConfigError(f"Depends takes the name of a resource or a function, got {source!r}")
        self.source = source

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.source) or inspect.isasyncgenfunction(self.source)


def Depends(source: str | Callable[..., Any]) -> Any:  # noqa: N802  # reads as the declaration it is
    """Inject a parameter: a resource by its name, or the result of a function called for each job.

        @app.task
        def sync(user_id: int, db: Session = winch.Depends("db")) -> None: ...

    Callers of `enqueue` leave the parameter out.
    """
    return Dependency(source)


class _Injected:
    """The default of a Context that a worker fills in: `ctx: Context = INJECTED`."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise RuntimeError(
            f"ctx.{name}: this call has no Context. A worker supplies one; if you call the task's "
            "function directly, pass one yourself"
        )

    def __repr__(self) -> str:
        return "INJECTED"


INJECTED: Any = _Injected()


Wanted = Mapping[str, Dependency | type[Context]]


def wanted(fn: Callable[..., Any], hints: Mapping[str, Any]) -> dict[str, Dependency | type[Context]]:
    """The injected parameters of a function."""
    found: dict[str, Dependency | type[Context]] = {}
    for name, param in inspect.signature(fn).parameters.items():
        hint = hints.get(name)
        marks = [mark for mark in typing.get_args(hint)[1:] if isinstance(mark, Dependency)]
        if hint is Context:
            found[name] = Context
        elif isinstance(param.default, Dependency):
            found[name] = param.default
        elif typing.get_origin(hint) is typing.Annotated and marks:
            found[name] = marks[0]
        elif param.default is INJECTED:
            raise ConfigError(
                f"{fn.__qualname__}: INJECTED is the default of a parameter annotated with Context, "
                f"{name!r} is not; use Depends(…) for anything else"
            )
    return found


def needs_async(wants: Wanted) -> bool:
    """Whether any of these, or what they want in turn, is an async function."""
    return any(
        isinstance(want, Dependency)
        and not isinstance(want.source, str)
        and (want.is_async or needs_async(_wanted_of(want.source)))
        for want in wants.values()
    )


def needs_context(wants: Wanted) -> bool:
    """Whether any of these, or what they want in turn, is the Context."""
    return any(
        not isinstance(want, Dependency)
        or (not isinstance(want.source, str) and needs_context(_wanted_of(want.source)))
        for want in wants.values()
    )


class Injector:
    """The injected values of one attempt; each dependency is made once, however many want it."""

    def __init__(self, ctx: Context | None, resources: Mapping[str, Any]) -> None:
        self._ctx = ctx  # None for a collecting call, whose parameters may not want it
        self._resources = resources
        self._made: dict[Callable[..., Any], Any] = {}

    def make(self, wants: Wanted, stack: contextlib.ExitStack) -> dict[str, Any]:
        """For a synchronous handler, in its thread."""
        return {name: self._make_one(want, stack) for name, want in wants.items()}

    async def amake(self, wants: Wanted, stack: contextlib.AsyncExitStack) -> dict[str, Any]:
        """For an async handler, on its loop."""
        return {name: await self._amake_one(want, stack) for name, want in wants.items()}

    def _make_one(self, want: Dependency | type[Context], stack: contextlib.ExitStack) -> Any:
        if not isinstance(want, Dependency):
            return self._ctx
        if isinstance(want.source, str):
            return self._resource(want.source)
        if want.source not in self._made:
            values = self.make(_wanted_of(want.source), stack)
            made = want.source(**values)
            if isinstance(made, Generator):
                made = stack.enter_context(contextlib.contextmanager(_same(made))())
            self._made[want.source] = made
        return self._made[want.source]

    async def _amake_one(
        self, want: Dependency | type[Context], stack: contextlib.AsyncExitStack
    ) -> Any:
        if not isinstance(want, Dependency):
            return self._ctx
        if isinstance(want.source, str):
            return self._resource(want.source)
        if want.source not in self._made:
            values = await self.amake(_wanted_of(want.source), stack)
            made = want.source(**values)
            if inspect.isawaitable(made):
                made = await made
            elif isinstance(made, AsyncGenerator):
                made = await stack.enter_async_context(contextlib.asynccontextmanager(_same(made))())
            elif isinstance(made, Generator):
                made = stack.enter_context(contextlib.contextmanager(_same(made))())
            self._made[want.source] = made
        return self._made[want.source]

    def _resource(self, name: str) -> Any:
        if name not in self._resources:
            raise ConfigError(
                f"no resource named {name!r}{did_you_mean(name, self._resources)}; "
                "yield it from the function decorated with @app.lifespan"
            )
        return self._resources[name]


def _same(made: T) -> Callable[[], T]:
    """A generator that was made already, in the form contextlib asks for."""
    return lambda: made


def _wanted_of(fn: Callable[..., Any]) -> Wanted:
    wants = wanted(fn, typing.get_type_hints(fn, include_extras=True))
    for name, param in inspect.signature(fn).parameters.items():
        if name not in wants and param.default is inspect.Parameter.empty:
            raise ConfigError(
                f"the dependency {fn.__qualname__} has a parameter {name!r} that Winch cannot supply; "
                "a dependency may take Context and other dependencies"
            )
    return wants
