"""A task: the registered function, its stable name, and the ways to enqueue a call of it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

import msgspec

from winch.core.errors import ConfigError, InvalidPayload
from winch.core.values import codec
from winch.core.values.codec import MAX_ARGS_BYTES
from winch.engine.tasks.arguments import Arguments
from winch.engine.tasks.bound import Bound, Partial, Using, alike
from winch.engine.tasks.collecting import CollectedArguments
from winch.engine.tasks.context import Context
from winch.engine.tasks.options import EnqueueOptions, TaskOptions, enqueue_options
from winch.storage.params import NewJob

if TYPE_CHECKING:
    import uuid
    from collections.abc import Mapping, Sequence
    from datetime import datetime
    from typing import Never

    from winch.core.policy.limits import Fifo
    from winch.core.policy.retention import Retention
    from winch.core.policy.retry import Retry
    from winch.core.policy.unique import Unique
    from winch.core.values.duration import Duration
    from winch.engine.base.operation import Operation
    from winch.engine.client.client import Client
    from winch.engine.client.job import Job
    from winch.storage.params import Enqueued

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

Upgrader = Callable[[dict[str, Any]], dict[str, Any]]

_NO_OPTIONS = EnqueueOptions()
Unset = msgspec.UnsetType


class Task(Generic[P, R]):
    """A function that can be enqueued. Calling it runs it here and now, as if it were not a task."""

    def __init__(self, client: Client, name: str, fn: Callable[P, Any], options: TaskOptions) -> None:
        self.name = name
        self.fn = fn
        self.options = options
        self.is_async: bool = inspect.iscoroutinefunction(fn)
        kind = Arguments if options.collect is None else CollectedArguments
        self.arguments: Arguments = kind(name, fn, max_bytes=MAX_ARGS_BYTES)
        if options.unique is not None:
            self.arguments.check_names(options.unique.fields)
        keys = [one.key for one in options.limit if one.key is not None]
        self.arguments.check_names(keys)
        if options.enqueue_rate is not None and options.enqueue_rate.key is not None:
            self.arguments.check_names([options.enqueue_rate.key])
        self.arguments.check_names(options.search)
        self.has_keyed_gates: bool = bool(keys)
        # Whether something is asked of the store, or written, before the job is.
        self.is_asked_first: bool = options.enqueue_rate is not None or bool(options.search)
        self._upgraders: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}
        self._client = client
        self._like: NewJob | None = None
        self.__doc__ = fn.__doc__
        self.__name__: str = getattr(fn, "__name__", name)
        self.__wrapped__ = fn

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        result: R = self.fn(*args, **kwargs)
        return result

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Store a job that runs this task with these arguments."""
        like = self._like or self._alike()
        return self._client.enqueue(Bound(self, self.arguments.pack(args, kwargs), _NO_OPTIONS, like))

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """`enqueue` without blocking the event loop."""
        return await self._client.aenqueue(self.bind(*args, **kwargs))

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> Bound[R]:
        """This call as a value, for `enqueue_many` and compositions. Checked now, stored later."""
        packed = self.arguments.pack(args, kwargs)
        return Bound(self, packed, _NO_OPTIONS, self._like or self._alike())

    def _alike(self) -> NewJob:
        like = self._like = alike(self, _NO_OPTIONS)
        return like

    def partial(self, *args: Any, **kwargs: Any) -> Partial[R]:
        """This call without its first argument, for compositions: the result before it is the first."""
        packed = self.arguments.pack_partial(args, kwargs)
        return Partial(self, packed, _NO_OPTIONS, self._like or self._alike())

    def using(
        self,
        *,
        queue: str | None = None,
        priority: int | str | None = None,
        delay: Duration | None = None,
        run_at: datetime | None = None,
        expires: Duration | None = None,
        timeout: Duration | Unset | None = msgspec.UNSET,
        retry: Retry | None = None,
        retention: Duration | Retention | None = None,
        tags: Sequence[str] | None = None,
        headers: Mapping[str, str] | None = None,
        id: str | uuid.UUID | None = None,
        unique: str | Unique | None = None,
        fifo: str | Fifo | None = None,
        tenant: str | None = None,
        conn: object = None,
        **unknown: Never,
    ) -> Using[P, R]:
        """The same task with options for the enqueues that follow; the task itself is not changed."""
        given: dict[str, Any] = {
            "queue": queue,
            "priority": priority,
            "delay": delay,
            "run_at": run_at,
            "expires": expires,
            "retry": retry,
            "retention": retention,
            "tags": tags,
            "headers": headers,
            "id": id,
            "unique": unique,
            "fifo": fifo,
            "tenant": tenant,
            "conn": conn,
            **unknown,
        }
        if timeout is not msgspec.UNSET:
            given["timeout"] = timeout
        options = enqueue_options(given, tuple(EnqueueOptions.__struct_fields__))
        if options.unique is not None:
            self.arguments.check_names(options.unique.fields)
        return Using(self, options)

    @property
    def client(self) -> Client:
        return self._client

    def handle(self, job_id: str) -> Job[R]:
        """The handle of a job of this task that was enqueued before."""
        return self._client.handle(job_id)

    def storing(self, jobs: Sequence[NewJob]) -> Operation[list[Enqueued]]:
        """The operation that stores jobs as they are, for whoever carries operations out."""
        return self._client.store(jobs, None)

    def upgrade(self, *, from_version: int) -> Callable[[Upgrader], Upgrader]:
        """Register a function that turns arguments of `from_version` into those of the next version."""
        if not 1 <= from_version < self.options.version:
            raise ConfigError(
                f"task {self.name} has version {self.options.version}; from_version must be from 1 to "
                f"{self.options.version - 1}, got {from_version}"
            )

        def register(function: Upgrader) -> Upgrader:
            self._upgraders[from_version] = function
            return function

        return register

    def current_args(self, text: str, version: int) -> str:
        """Stored arguments of any version as those of this one; raises InvalidPayload."""
        if version == self.options.version:
            return text
        args = codec.loads(text, dict[str, Any], what="arguments")
        for step in range(version, self.options.version):
            upgrader = self._upgraders.get(step)
            if upgrader is None:
                raise InvalidPayload(
                    f"{self.name} has no upgrader from version {step} to {step + 1}; "
                    f"add one with @{self.__name__}.upgrade(from_version={step})"
                )
            args = upgrader(args)
        return codec.dumps(args, what=f"the upgraded arguments of {self.name}")

    def __repr__(self) -> str:
        return f"<Task {self.name}>"


class AsyncTask(Task[P, R]):
    """A task whose function is `async def`; calling it gives its coroutine."""

    def __call__(  # type: ignore[override]  # a coroutine of R, where the plain task gives R
        self, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, R]:
        result: Coroutine[Any, Any, R] = self.fn(*args, **kwargs)
        return result


class CollectingTask(Task[..., Any], Generic[T]):
    """A task that takes many jobs in one call. `enqueue` takes one T, or its fields by name; calling it
    runs its function here and now with the list it is given."""

    def enqueue(self, *item: T, **fields: Any) -> Job[Any]:
        """Store a job with these arguments."""
        return super().enqueue(*item, **fields)

    async def aenqueue(self, *item: T, **fields: Any) -> Job[Any]:
        """`enqueue` without blocking the event loop."""
        return await super().aenqueue(*item, **fields)

    def bind(self, *item: T, **fields: Any) -> Bound[Any]:
        """This job as a value, for `enqueue_many`. Checked now, stored later."""
        return super().bind(*item, **fields)


class ContextTask(Task[P, R]):
    """A task whose function takes its Context first; `enqueue` takes what comes after it."""

    def __call__(  # type: ignore[override]  # the context comes before what the plain task takes
        self, ctx: Context, /, *args: P.args, **kwargs: P.kwargs
    ) -> R:
        result: R = self.fn(ctx, *args, **kwargs)  # type: ignore[arg-type]  # P is what comes after it
        return result


class AsyncContextTask(ContextTask[P, R]):
    """`ContextTask` for an `async def`."""

    def __call__(  # type: ignore[override]  # as above
        self, ctx: Context, /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, R]:
        result: Coroutine[Any, Any, R] = self.fn(ctx, *args, **kwargs)  # type: ignore[arg-type]
        return result


def task_class(fn: Callable[..., Any], *, is_collecting: bool) -> type[Task[Any, Any]]:
    """The kind of task that a function makes. Annotations are read as they are written: they may name
    what the module defines later, and only the plain call depends on it."""
    if is_collecting:
        return CollectingTask
    first = next(iter(inspect.signature(fn).parameters.values()), None)
    takes_context = (
        first is not None
        and first.kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        and (first.annotation is Context or str(first.annotation).rpartition(".")[2] == "Context")
    )
    if inspect.iscoroutinefunction(fn):
        return AsyncContextTask if takes_context else AsyncTask
    return ContextTask if takes_context else Task
