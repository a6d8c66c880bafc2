"""A task: the registered function and its stable name; and a call of it, checked and not yet stored.

Task      enqueues calls of its function
Using     the same with options for the enqueues that follow
Bound     one call with its arguments and options: it makes the job to store
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Generic, ParamSpec, TypeVar

import msgspec

from winch.core.errors import ConfigError, InvalidPayload
from winch.core.gates.places import lone_place
from winch.core.gates.uses import FIFO, GateUse, with_gates, with_one_more
from winch.core.policy.unique import Duplicate, Until, key_of
from winch.core.values import codec
from winch.core.values.codec import MAX_ARGS_BYTES
from winch.core.values.ids import with_place
from winch.core.values.search import terms_of
from winch.engine.tasks.arguments import Arguments
from winch.engine.tasks.collecting import CollectedArguments
from winch.engine.tasks.context import Context
from winch.engine.tasks.gates import job_gates
from winch.engine.tasks.options import (
    EnqueueOptions,
    TaskOptions,
    enqueue_options,
    stored_options,
    with_policies,
)
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
_replace = msgspec.structs.replace
Unset = msgspec.UnsetType


class Task(Generic[P, R]):
    """A function that can be enqueued.

        job = add.enqueue(1, b=2)
        add.using(delay="5m", priority=10).enqueue(1, b=2)
        assert add(1, b=2) == 3

    A direct call runs the function here and now.
    """

    has_code: ClassVar[bool] = True
    """False for a task that is declared without code (`app.declare`): no worker of this app runs it."""

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
        """Store a job that runs this task with these arguments, and return its handle."""
        like = self._like or self._alike()
        return self._client.enqueue(Bound(self, self.arguments.pack(args, kwargs), _NO_OPTIONS, like))

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """`enqueue` without blocking the event loop."""
        return await self._client.aenqueue(self.bind(*args, **kwargs))

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> Bound[R]:
        """This call as a value, for `enqueue_many` and compositions. The arguments are checked now."""
        packed = self.arguments.pack(args, kwargs)
        return Bound(self, packed, _NO_OPTIONS, self._like or self._alike())

    def _alike(self) -> NewJob:
        like = self._like = alike(self, _NO_OPTIONS)
        return like

    def partial(self, *args: Any, **kwargs: Any) -> Partial[R]:
        """This call without its first argument, for compositions: the previous result becomes that
        argument.
        """
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
        """The same task with options for the next enqueues: `send.using(delay="5m").enqueue(7)`.

        The options are queue, priority, delay, run_at, expires, timeout, retry, retention, tags,
        headers, id, unique, fifo, tenant and conn. The task itself does not change.
        """
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
        """The client that stores the jobs of this task."""
        return self._client

    def handle(self, job_id: str) -> Job[R]:
        """The handle of a job of this task, by its id. Does not ask the store."""
        return self._client.handle(job_id)

    def storing(self, jobs: Sequence[NewJob]) -> Operation[list[Enqueued]]:
        """The operation that stores these jobs; the client runs it."""
        return self._client.store(jobs, None)

    def upgrade(self, *, from_version: int) -> Callable[[Upgrader], Upgrader]:
        """Register a function that converts arguments of `from_version` to the next version.

            @send.upgrade(from_version=1)
            def to_2(args: dict[str, object]) -> dict[str, object]:
                return {"to": args["email"]}

        The worker runs it on jobs that older code has enqueued.
        """
        if not 1 <= from_version < self.options.version:
            raise ConfigError(
                f"task {self.name} has version {self.options.version}; from_version must be from 1 to "
                f"{self.options.version - 1}, got {from_version}"
            )

        def register(function: Upgrader) -> Upgrader:
            self._upgraders[from_version] = function
            return function

        return register

    def take_plain_arguments(self, own: inspect.Signature) -> None:
        """Store calls as `{"args": […], "kwargs": {…}}`, as plain data; `own` is the signature that the
        task's options name arguments of. For frameworks that bring tasks of their own."""
        from winch.engine.tasks.plain_arguments import PlainArguments

        self.arguments = PlainArguments(self.name, self.fn, MAX_ARGS_BYTES, own)
        options = self.options
        self.arguments.check_names(() if options.unique is None else options.unique.fields)
        gates = [*options.limit, *([] if options.enqueue_rate is None else [options.enqueue_rate])]
        self.arguments.check_names([one.key for one in gates if one.key is not None])
        self.arguments.check_names(options.search)

    def current_args(self, text: str, version: int) -> str:
        """Convert stored arguments of any version to the current one. Raises InvalidPayload."""
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


# -- calls -------------------------------------------------------------------------------------------


class Using(Generic[P, R]):
    """A task with options for its next enqueues."""

    def __init__(self, task: Task[P, R], options: EnqueueOptions) -> None:
        self._task = task
        self._options = options
        self._like = alike(task, options)

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Store a job that runs the task with these arguments and options."""
        return self._task._client.enqueue(self.bind(*args, **kwargs))

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """`enqueue` without blocking the event loop."""
        return await self._task._client.aenqueue(self.bind(*args, **kwargs))

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> Bound[R]:
        """This call with its options as a value."""
        packed = self._task.arguments.pack(args, kwargs)
        return Bound(self._task, packed, self._options, self._like)

    def partial(self, *args: Any, **kwargs: Any) -> Partial[R]:
        """This call with its options and without its first argument, which the previous result
        becomes.
        """
        packed = self._task.arguments.pack_partial(args, kwargs)
        return Partial(self._task, packed, self._options, self._like)


# The garbage collector, which took a tenth of a large `enqueue_many`, need not follow calls and
# handles: they refer to nothing that refers to them.
class Bound(msgspec.Struct, Generic[R], eq=False, gc=False):
    """A checked call of a task that is not stored yet: `add.bind(1, b=2)`."""

    task: Task[Any, R]
    args: str
    options: EnqueueOptions
    like: NewJob

    def new_job(self, drawn_id: str) -> NewJob:
        """The job to store, with `drawn_id` unless the caller gave an id."""
        like = self.like
        if self.task.has_keyed_gates:
            gates = job_gates(self.task, self.options, self.args) or ()
            like = _replace(like, options=with_gates(like.options, gates, self.options.tenant))
        if self.task.options.search:
            like = _replace(like, terms=terms_of(self.args, self.task.options.search))
        unique = self.options.unique or self.task.options.unique
        if unique is None and not like.is_given_id:
            return _replace(like, id=drawn_id, args=self.args)
        key = None if unique is None else unique_key(self.task, unique, self.args)
        if unique is not None and unique.is_last_kept:
            # One at a time, and the one that waits is replaced: the last one runs when the first ends.
            turn = GateUse(f"fifo:unique:{key}", FIFO)
            like = _replace(like, fifo=f"unique:{key}", options=with_one_more(like.options, turn))
        return _replace(
            like,
            id=like.id if like.is_given_id else drawn_id,
            args=self.args,
            unique_key=key,
        )

    def lone_job(self, drawn_id: str) -> NewJob:
        """As `new_job`, for a job that no other job of its call refers to: a store that spreads jobs
        over places finds one with a single keyed gate beside the gate, by its id."""
        job = self.new_job(drawn_id)
        if job.is_given_id or (place := lone_place(job.options)) is None:
            return job
        return _replace(job, id=with_place(drawn_id, place))

    def __repr__(self) -> str:  # not its arguments, which may be secret
        return f"<{type(self).__name__} {self.task.name}>"


class Partial(Bound[R], eq=False, gc=False):
    """A call without its first argument, which the previous result becomes: `parse.partial()`."""


def check_call(call: object, client: Client | None, taker: str) -> None:
    """Raise ConfigError unless `call` is a bound call of a task whose jobs this client stores."""
    if not isinstance(call, Bound):
        raise ConfigError(f"{taker} takes calls made with task.bind(…), got {_described(call)}")
    if client is not None and call.task._client is not client:
        raise ConfigError(
            f"{taker}: task {call.task.name} belongs to another app, whose jobs live in another store; "
            "enqueue it through its own app"
        )


def check_whole(call: Bound[Any], taker: str) -> None:
    """Raise InvalidPayload for a `partial` call where no result comes before it."""
    if isinstance(call, Partial):
        raise InvalidPayload(
            f"{taker}: {call.task.name}.partial(…) has no result before it here; use bind(…) with all "
            "arguments"
        )


def _described(call: object) -> str:
    """What was given in place of a call, and how to make a call of it."""
    if isinstance(call, Task | Using):
        name = (call if isinstance(call, Task) else call._task).name
        return f"the task {name} itself; add its arguments with .bind(…)"
    if inspect.isroutine(call):
        return f"the function {call.__qualname__}; decorate it with @app.task and use .bind(…)"
    if inspect.iscoroutine(call):
        call.close()  # it is never awaited
        return f"the coroutine of {call.__qualname__}(…); use .bind(…) instead of calling the task"
    # Not its value: a tuple of arguments may hold a secret.
    return f"a {type(call).__name__}"


def alike(task: Task[Any, Any], given: EnqueueOptions) -> NewJob:
    """What all jobs of these enqueues have alike: the task's defaults under what `using` given."""
    own = task.options
    if not task.has_code:
        given = with_policies(given, own)
    retry = given.retry or own.retry
    unique = given.unique or own.unique
    if unique is not None and unique.is_last_kept and given.fifo is not None:
        raise ConfigError('a job with Unique(mode="keep_last") has its own order; leave fifo= out')
    options = stored_options(given, own.retention)
    if not task.has_keyed_gates and (gates := job_gates(task, given, "")) is not None:
        options = with_gates(options, gates, given.tenant)
    return NewJob(
        id=given.id or "",
        is_given_id=given.id is not None,
        task=task.name,
        version=own.version,
        args="",
        queue=given.queue or own.queue,
        priority=own.priority if given.priority is None else given.priority,
        delay=given.delay if given.delay or given.run_at or unique is None else unique.wait,
        run_at=given.run_at,
        expires=given.expires or own.expires,
        tags=own.tags + tuple(tag for tag in given.tags if tag not in own.tags),
        headers=given.headers,
        options=options,
        fifo=None if given.fifo is None else given.fifo.key,
        tenant=given.tenant,
        max_attempts=retry.attempts,
        keep=kept_for(given.retention, own.retention),
        on_duplicate=Duplicate.RETURN if unique is None else unique.mode,
        unique_until=Until.FINAL if unique is None else unique.until,
        unique_within=None if unique is None else unique.within,
        max_wait=None if unique is None else unique.max_wait,
    )


def unique_key(task: Task[Any, Any], unique: Unique, args: str) -> str:
    """The key of a job with these packed arguments."""
    if unique.key is not None:
        return unique.key
    return key_of(task.name, task.arguments.values(args, unique.fields))


def kept_for(*given: Retention | None) -> timedelta | None:
    """How long the job is kept: the first age that is given."""
    return next((one.age for one in given if one is not None and one.age is not None), None)


# -- kinds of tasks ----------------------------------------------------------------------------------


class AsyncTask(Task[P, R]):
    """A task with an `async def` function. A direct call returns its coroutine."""

    def __call__(  # type: ignore[override]  # a coroutine of R, where the plain task gives R
        self, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, R]:
        result: Coroutine[Any, Any, R] = self.fn(*args, **kwargs)
        return result


class CollectingTask(Task[..., Any], Generic[T]):
    """A task that receives many jobs in one call. `enqueue` takes one item, or its fields by name."""

    def enqueue(self, *item: T, **fields: Any) -> Job[Any]:
        """Store a job with these arguments, and return its handle."""
        return super().enqueue(*item, **fields)

    async def aenqueue(self, *item: T, **fields: Any) -> Job[Any]:
        """`enqueue` without blocking the event loop."""
        return await super().aenqueue(*item, **fields)

    def bind(self, *item: T, **fields: Any) -> Bound[Any]:
        """This job as a value, for `enqueue_many`. The arguments are checked now."""
        return super().bind(*item, **fields)


class ContextTask(Task[P, R]):
    """A task with a Context as its first parameter. `enqueue` takes the parameters after it."""

    def __call__(  # type: ignore[override]  # the context comes before what the plain task takes
        self, ctx: Context, /, *args: P.args, **kwargs: P.kwargs
    ) -> R:
        result: R = self.fn(ctx, *args, **kwargs)  # type: ignore[arg-type]  # P is what comes after it
        return result


class AsyncContextTask(ContextTask[P, R]):
    """A `ContextTask` with an `async def` function. A direct call returns its coroutine."""

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
