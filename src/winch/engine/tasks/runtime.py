"""All of an app that runs jobs: its tasks, hooks, subscribers and resources."""

from __future__ import annotations

import contextlib
import inspect
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

from winch.core.errors import ConfigError
from winch.core.job import CRASH_RULE, SuspectRule
from winch.engine.base.encryption import Keyring
from winch.engine.tasks.events import Events
from winch.engine.tasks.middleware import Middleware
from winch.engine.tasks.registry import DeclaredSchedules, Registry

if TYPE_CHECKING:
    from winch.core.job import Claim
    from winch.engine.tasks.task import Task

Lifespan = Callable[[], AsyncGenerator[Any, None] | Generator[Any, None, None]]


class Pushes(Protocol):
    """What runs the jobs of a queue in place of their own tasks."""

    def task_of(self, claim: Claim, /) -> Task[Any, Any]:
        """The task that this job runs as."""
        ...


class Runtime:
    """What executors share. `resources` are there between `start` and `stop`."""

    def __init__(self) -> None:
        self.tasks: Registry = Registry()
        self.middleware: list[Middleware] = []
        self.events: Events = Events()
        self.schedules: DeclaredSchedules = DeclaredSchedules()
        # Asked when a job runs, not before: settings are read as late as possible.
        self.keys: Callable[[], Keyring | None] = lambda: None
        self.lease: Callable[[], timedelta] = lambda: timedelta(seconds=30)
        self.crash_rule: Callable[[], SuspectRule] = lambda: CRASH_RULE
        self.lifespans: list[Lifespan] = []
        self.resources: dict[str, Any] = {}
        # Queues whose jobs, of any task, are pushed to a URL.
        self.pushed: dict[str, Pushes] = {}
        # Where stored jobs are counted, by queue and task; the code that shows or writes the numbers
        # sets it.
        self.counted: Counter[tuple[str, str]] | None = None
        self.missed: Mapping[str, int] = {}
        # Whether this is an isolated process, whose worker records how jobs end.
        self.is_isolated: bool = False
        self._stack: contextlib.AsyncExitStack | None = None

    def add_lifespan(self, function: Lifespan) -> None:
        if not (inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function)):
            raise ConfigError(
                f"@app.lifespan takes a function that yields a dict of resources, got {function!r}"
            )
        self.lifespans.append(function)

    async def start(self) -> None:
        """Make the resources: once for each worker process, before it claims."""
        self._stack = contextlib.AsyncExitStack()
        for function in self.lifespans:
            if inspect.isasyncgenfunction(function):
                made = await self._stack.enter_async_context(contextlib.asynccontextmanager(function)())
            else:
                made = self._stack.enter_context(
                    contextlib.contextmanager(function)()  # type: ignore[arg-type]  # looked at above
                )
            if not isinstance(made, Mapping):
                raise ConfigError(f"@app.lifespan must yield a dict of resources, got {made!r}")
            self.resources.update(made)

    async def stop(self) -> None:
        stack, self._stack = self._stack, None
        self.resources.clear()
        if stack is not None:
            await stack.aclose()
