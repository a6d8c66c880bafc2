"""`@task` with Winch's options, and `@schedule` over it.

    @schedule("0 2 * * *", tz="Europe/Berlin")
    @task(queue_name="reports", retry=Retry.exponential("5s", attempts=8), timeout="10m")
    def nightly() -> None: ...

Django 6.1 and django-tasks pass unknown options of their own `@task` on to the backend's task class.
Django 6.0 does not, so this `task` makes the class itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from winch import Breaker, Limit, Rate, Retention, Retry, RetryBudget, Unique
from winch.integrations.django.api import (
    DEFAULT_TASK_BACKEND_ALIAS,
    Task,
    task_backends,
)
from winch.types import Duration

OPTIONS = (
    "retry",
    "timeout",
    "unique",
    "limit",
    "expires",
    "retention",
    "tags",
    "isolate",
    "breaker",
    "retry_budget",
    "enqueue_rate",
    "search",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WinchTask(Task):
    """A task of Django with Winch's options. None leaves an option to the backend's own default."""

    retry: Retry | None = None
    timeout: Duration | None = None
    unique: str | Unique | None = None
    limit: Limit | Rate | Sequence[Limit | Rate] | None = None
    expires: Duration | None = None
    retention: Duration | Retention | None = None
    tags: Sequence[str] | None = None
    isolate: str | None = None
    breaker: Breaker | None = None
    retry_budget: RetryBudget | None = None
    enqueue_rate: Rate | None = None
    search: Sequence[str] | None = None


def task(
    function: Callable[..., Any] | None = None,
    *,
    priority: int = 0,
    queue_name: str = "default",
    backend: str = DEFAULT_TASK_BACKEND_ALIAS,
    takes_context: bool = False,
    **options: Any,
) -> Any:
    """Django's `@task` with Winch's options: retry, timeout, unique, limit and the others of WinchTask.

    Under a backend that is not Winch (the immediate one in a test) the options have no effect."""

    def make(fn: Callable[..., Any]) -> Any:
        kind = task_backends[backend].task_class
        own = options if issubclass(kind, WinchTask) else {}
        for name in options:
            if name not in OPTIONS:
                raise TypeError(f"task() got an unexpected keyword argument {name!r}")
        return kind(
            func=fn,
            priority=priority,
            queue_name=queue_name,
            backend=backend,
            takes_context=takes_context,
            run_after=None,
            **own,
        )

    return make if function is None else make(function)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduled:
    """A schedule in code, until a worker declares it."""

    task: Any
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    timing: Mapping[str, Any]


SCHEDULES: dict[str, list[Scheduled]] = {}
"""The schedules of the project's code, by the module path of their task."""


def schedule(
    cron: str | None = None,
    *,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    **timing: Any,
) -> Callable[[Any], Any]:
    """Enqueue a task by the clock: `@schedule("*/5 * * * *")` over `@task`.

    It takes what `app.schedule` takes (every, tz, dst, misfire, catch_up, overlap, jitter, name), and
    the arguments of the task. The schedule is active while a worker with this code runs."""

    def register(found: Any) -> Any:
        if not isinstance(found, Task):
            raise TypeError(f"@schedule goes above @task and decorates its result, got {found!r}")
        given = {"cron": cron, **timing}
        entry = Scheduled(task=found, args=tuple(args), kwargs=dict(kwargs or {}), timing=given)
        SCHEDULES.setdefault(found.module_path, []).append(entry)
        return found

    return register
