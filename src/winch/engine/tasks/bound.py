"""Calls of a task: bound with their arguments and options, checked, not yet stored."""

from __future__ import annotations

import inspect
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

import msgspec

from winch.core.errors import ConfigError, InvalidPayload
from winch.core.gates.uses import FIFO, GateUse, with_gates, with_one_more
from winch.core.policy.unique import Duplicate, Until, key_of
from winch.core.values.search import terms_of
from winch.engine.tasks.gates import job_gates
from winch.engine.tasks.options import EnqueueOptions, stored_options
from winch.storage.params import NewJob

if TYPE_CHECKING:
    from winch.core.policy.retention import Retention
    from winch.core.policy.unique import Unique
    from winch.engine.client.client import Client
    from winch.engine.client.job import Job
    from winch.engine.tasks.task import Task

P = ParamSpec("P")
R = TypeVar("R")


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
        """This call with its options and without its first argument: the result before it is the
        first."""
        packed = self._task.arguments.pack_partial(args, kwargs)
        return Partial(self._task, packed, self._options, self._like)


# The garbage collector, which took a tenth of a large `enqueue_many`, need not follow calls and
# handles: they refer to nothing that refers to them.
class Bound(msgspec.Struct, Generic[R], eq=False, gc=False):
    """A call of a task, checked and packed, not yet stored. `like` is the job that it makes, but for its
    id and arguments."""

    task: Task[Any, R]
    args: str
    options: EnqueueOptions
    like: NewJob

    def new_job(self, drawn_id: str) -> NewJob:
        """The job to store; `drawn_id` is used unless the caller gave an id."""
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

    def __repr__(self) -> str:  # not its arguments, which may be secret
        return f"<{type(self).__name__} {self.task.name}>"


class Partial(Bound[R], eq=False, gc=False):
    """A call that lacks its first argument, which the result before it will be."""


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
    from winch.engine.tasks.task import Task  # which needs this module

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


_replace = msgspec.structs.replace


def alike(task: Task[Any, Any], given: EnqueueOptions) -> NewJob:
    """What all jobs of these enqueues have alike: the task's defaults under what `using` given."""
    own = task.options
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
