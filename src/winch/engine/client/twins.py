"""One body, two ways to call it.

A method of an area is written once, as an operation. `blocking` makes it the method that synchronous
callers use; `twin` adds the one for event loops, under a name of its own:

    @blocking
    def get(self, job_id: str) -> Operation[Job[Any]]: ...

    @twin(get)
    def aget(self) -> None:
        \"""`get` without blocking the event loop.\"""

Type checkers see the parameters and the result of the body in both.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar, cast

from winch.engine.base.operation import Operation

if TYPE_CHECKING:
    from winch.engine.client.client import Client


class HasClient(Protocol):
    """Anything that has a client to run operations with."""

    @property
    def _client(self) -> Client: ...


A = TypeVar("A", bound=HasClient)
P = ParamSpec("P")
T = TypeVar("T")


def blocking(body: Callable[Concatenate[A, P], Operation[T]]) -> Callable[Concatenate[A, P], T]:
    """The method that runs the body's operation and returns its result."""

    @functools.wraps(body)
    def call(self: A, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._client.run(body(self, *args, **kwargs))

    return call


def twin(
    method: Callable[Concatenate[A, P], T],
) -> Callable[[Callable[[A], None]], Callable[Concatenate[A, P], Coroutine[Any, Any, T]]]:
    """The awaitable form of a `blocking` method; what it decorates gives the name and the docstring."""
    body = cast("Callable[Concatenate[A, P], Operation[T]]", method.__wrapped__)  # type: ignore[attr-defined]

    def decorate(named: Callable[[A], None]) -> Callable[Concatenate[A, P], Coroutine[Any, Any, T]]:
        @functools.wraps(body)
        async def call(self: A, /, *args: P.args, **kwargs: P.kwargs) -> T:
            return await self._client.arun(body(self, *args, **kwargs))

        call.__name__, call.__qualname__, call.__doc__ = (
            named.__name__,
            named.__qualname__,
            named.__doc__,
        )
        return call

    return decorate
