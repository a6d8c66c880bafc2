"""The life of a virtual worker, which can end between any two steps as by kill -9.

Every asyncio task that a worker starts, its handlers' own tasks included, is driven through `mortal`.
When the life is over such a task is woken in vain: it waits for something that never comes, so that
not one line of the dead worker runs any more, no `except` and no `finally` either. Its store is cut
off in the same moment (`WorkerStorage`). What lies frozen is thawed when the world ends, only so that
it can be cleaned up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, ContextVar
from typing import Any, Literal, TypeVar, cast, get_args

from winch.core.errors import StorageUnavailable
from winch.engine.tasks.middleware import Middleware
from winch.storage.protocol import Driver
from winch.storage.verbs import Sending, Unhurried, Verb

T = TypeVar("T")

CrashPoint = Literal["claim", "handler", "before finish", "after finish"]
CRASH_POINTS: tuple[str, ...] = get_args(CrashPoint)

# What a worker asks again and again, whether there is something to do or not.
POLLS = frozenset(
    {"beat", "cancels", "claim", "end_session", "give_up", "held", "promote", "prune", "rescue"}
    | {"start_session", "trim", "unblock", "admit", "has_gated", "due_schedules"}
)

_life: ContextVar[Life | None] = ContextVar("winch_life", default=None)


def life_of(context: Context) -> Life | None:
    """Whose tasks are started in this context."""
    return context.get(_life, None)


class Life:
    """One worker's. `takes(point)` returns whether it is to end at this point."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        takes: Callable[[CrashPoint], bool],
        on_end: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._on_end = on_end
        self.takes = takes
        self.tasks: list[asyncio.Task[Any]] = []
        self.is_over = False
        self.is_thawed = False
        self.ends_at_next_await = False
        self.handlers = 0  # that are under way
        self.passes: Callable[[], bool] = lambda: False

    def begin_in(self, context: Context) -> None:
        context.run(_life.set, self)

    def end(self) -> None:
        """Nothing of this worker runs from here on; what called this must await `never`."""
        self.ends_at_next_await = False
        if not self.is_over:
            self.is_over = True
            self._on_end()

    async def never(self) -> None:
        await self._loop.create_future()

    async def mortal(self, coro: Coroutine[Any, Any, T]) -> T:
        return cast(T, await _Mortal(self, coro))

    def frozen(self) -> asyncio.Future[Any]:
        """Something to wait for that never comes, in the form in which a task is given it."""
        future = self._loop.create_future()
        future._asyncio_future_blocking = True  # what Future.__await__ does before it yields itself
        return future


class _Mortal:
    """A coroutine stepped for as long as its life lasts."""

    def __init__(self, life: Life, coro: Coroutine[Any, Any, Any]) -> None:
        self._life = life
        self._coro = coro

    def __await__(self) -> Generator[Any, Any, Any]:
        life, coro = self._life, self._coro
        error: BaseException | None = None
        while True:
            try:
                step = coro.send(None) if error is None else coro.throw(error)
            except StopIteration as stop:
                return stop.value
            if life.ends_at_next_await or (life.handlers and life.passes()):
                life.end()
            while True:
                try:
                    yield step
                    error = None
                except GeneratorExit:
                    coro.close()
                    raise
                except BaseException as raised:  # cancellation included: it is the coroutine's to see
                    error = raised
                if not life.is_over or life.is_thawed:
                    break
                step = life.frozen()


class WorkerStorage:
    """One worker's way to the store: cut when it dies, and a place to die at."""

    def __init__(self, inner: Driver, life: Life) -> None:
        self._inner = inner
        self._life = life

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    @property
    def driver(self) -> Driver:
        return cast(Driver, self)

    def run(self, verb: Verb[T]) -> T:
        self._check()
        self._pass(verb)
        answer = self._inner.run(verb)
        self._pass(verb)
        return answer

    def _pass(self, verb: Verb[Any]) -> None:
        """A plain function cannot be frozen: it is cut off from the store, and hears of it."""
        if verb.name not in POLLS and self._life.passes():
            self._life.end()
            self._check()

    def sending(self, verb: Verb[T]) -> Sending[T]:
        return Unhurried(self.run, verb)

    async def arun(self, verb: Verb[T]) -> T:
        self._check()
        life = self._life
        if verb.name == "finish" and life.takes("before finish"):
            await self._die()
        is_counted = verb.name not in POLLS
        if is_counted and life.passes():
            await self._die()
        answer = await self._inner.arun(verb)
        if (is_counted or (verb.name == "claim" and answer)) and life.passes():
            await self._die()
        if verb.name == "finish" and life.takes("after finish"):
            await self._die()
        if verb.name == "claim" and answer and life.takes("claim"):
            await self._die()
        return answer

    def _check(self) -> None:
        if self._life.is_over:
            raise StorageUnavailable("the worker that asks was killed on purpose", maybe_applied=False)

    async def _die(self) -> None:
        self._life.end()
        await self._life.never()


class CrashInHandler(Middleware):
    """The innermost hook: lets the worker die at the handler's first await, or at its end."""

    def __init__(self, life: Life) -> None:
        self._life = life

    async def run(self, ctx: Any, call_next: Callable[[], Any]) -> Any:
        if not self._life.takes("handler"):
            self._life.handlers += 1
            try:
                return await call_next()
            finally:
                self._life.handlers -= 1
        self._life.ends_at_next_await = True
        try:
            return await call_next()
        finally:
            if not self._life.is_thawed:
                self._life.end()
                await self._life.never()
