"""Task names: given once, found by exact name, never imported from stored text."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from winch.core.errors import ConfigError, UnknownTask
from winch.core.policy.calendar import Calendar
from winch.storage.decide.schedules import Definition
from winch.storage.params import Declared

if TYPE_CHECKING:
    from winch.engine.tasks.task import Task


Resolver = Callable[[str], "Task[Any, Any] | None"]


class Registry:
    """The tasks of one app."""

    def __init__(self) -> None:
        self._tasks: dict[str, Task[Any, Any]] = {}
        self._resolvers: list[Resolver] = []

    def resolve_with(self, resolver: Resolver) -> None:
        """Ask `resolver` for a task whose name is not registered. It registers the task and returns it,
        or returns None: the name comes from the store, so it must import nothing that the application
        has not allowed."""
        self._resolvers.append(resolver)

    def add(self, task: Task[Any, Any]) -> None:
        other = self._tasks.get(task.name)
        if other is not None:
            raise ConfigError(
                f"two tasks are named {task.name!r} ({_where(other.fn)} and {_where(task.fn)}); "
                "give one of them another name with @app.task(name=…)"
            )
        self._tasks[task.name] = task

    def get(self, name: str) -> Task[Any, Any]:
        try:
            return self._tasks[name]
        except KeyError:
            pass
        for resolver in self._resolvers:
            if (task := resolver(name)) is not None:
                return task
        raise UnknownTask(name, self._tasks)

    def __contains__(self, name: str) -> bool:
        return name in self._tasks

    def __iter__(self) -> Iterator[Task[Any, Any]]:
        return iter(tuple(self._tasks.values()))  # another thread may add one meanwhile

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._tasks))


def refuse_unfit(fn: object) -> None:
    """Raise ConfigError with a reason for what cannot be a task: a worker must be able to call it with
    the job's arguments alone, and to find it by its name."""
    for is_unfit, what, advice in _UNFIT:
        if is_unfit(fn):
            name = getattr(fn, "__qualname__", None) or repr(fn)
            raise ConfigError(f"@app.task takes a function; {name} is {what}. {advice}")
    if not callable(fn):
        raise ConfigError(f"@app.task takes a function, got {fn!r}")
    if not hasattr(fn, "__qualname__"):
        raise ConfigError(f"@app.task takes a function, got {fn!r}. Write a function that calls it")


def _is_generator(fn: object) -> bool:
    return inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn)


def _takes_self(fn: object) -> bool:
    """Whether it is a function in the body of a class that is called on an object."""
    if not inspect.isfunction(fn):
        return False
    scope = fn.__qualname__.rpartition(".")[0]
    first = next(iter(fn.__code__.co_varnames), "")
    return bool(scope) and not scope.endswith("<locals>") and first in ("self", "cls")


_UNFIT: tuple[tuple[Callable[[object], bool], str, str], ...] = (
    (
        lambda fn: isinstance(fn, functools.partial | functools.partialmethod),
        "a functools.partial, whose fixed arguments a worker would not have",
        "Write a function, or fix arguments with task.partial(…)",
    ),
    (inspect.isclass, "a class", "Write a function that makes the object"),
    (
        lambda fn: inspect.ismethod(fn) or _takes_self(fn),
        "a method, whose object a worker would not have",
        "Write a function that gets the object",
    ),
    (
        lambda fn: isinstance(fn, staticmethod | classmethod),
        "a method of a class",
        "Put @staticmethod above @app.task, or write a function",
    ),
    (
        _is_generator,
        "a generator, which runs nothing when it is called",
        "Return a list, enqueue a job for each item, or use ctx.step for parts",
    ),
)


def default_name(fn: Callable[..., Any]) -> str:
    """module.qualname, where a script run as `__main__` counts under its own file's name.

    Otherwise the producer would store `__main__.add` and the worker, which imports the same file as
    a module, would not know it.
    """
    module = fn.__module__
    if module == "__main__":
        main = sys.modules["__main__"]
        spec = getattr(main, "__spec__", None)
        file = getattr(main, "__file__", None)
        if spec is not None and spec.name:
            module = spec.name.removesuffix(".__main__")
        elif file:
            module = Path(file).stem
    qualname = fn.__qualname__
    if "<lambda>" in qualname:
        raise ConfigError("a lambda has no stable name; give one with @app.task(name=…)")
    return f"{module}.{qualname}".replace(".<locals>", "")


def _where(fn: Callable[..., Any]) -> str:
    code = getattr(fn, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else repr(fn)


class DeclaredSchedules:
    """The schedules that an app's code defines, until a worker declares them to the store."""

    def __init__(self) -> None:
        self._by_name: dict[str, Definition] = {}
        self.calendars: dict[str, Calendar] = {}

    def add(self, name: str, definition: Definition) -> None:
        if name in self._by_name:
            raise ConfigError(
                f"two schedules are named {name!r}; give one of them another name with "
                "@app.schedule(…, name=…)"
            )
        self._by_name[name] = definition

    def __len__(self) -> int:
        return len(self._by_name)

    def declared(self) -> tuple[Declared, ...]:
        return tuple(
            Declared(name, definition.text, definition.timing.key)
            for name, definition in sorted(self._by_name.items())
        )
