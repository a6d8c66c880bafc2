"""All of an app that runs jobs: its tasks, hooks, subscribers and resources."""

from __future__ import annotations

import contextlib
import inspect
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from datetime import timedelta
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal, Protocol

from winch.core.errors import ConfigError
from winch.core.job import CRASH_RULE, SuspectRule
from winch.engine.base.encryption import Keyring
from winch.engine.base.log import log
from winch.engine.tasks.events import LOG_EVERY, Events
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
        self._logged_at: dict[tuple[int, str], float] = {}

    def run_hooks(
        self, name: Literal["stored", "claimed", "settled"], of: Sequence[Any], more: Any
    ) -> None:
        """Call a hook that looks at what has happened already. One that fails must not undo that: the
        jobs are stored or claimed, or their ends are recorded."""
        hooks = self.middleware[::-1] if name == "stored" else self.middleware
        for one in hooks:
            try:
                getattr(one, name)(of, more)
            except Exception:
                now = monotonic()
                if now - self._logged_at.get((id(one), name), float("-inf")) >= LOG_EVERY:
                    self._logged_at[id(one), name] = now
                    log.exception("middleware %s: its hook %r failed", type(one).__qualname__, name)

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
