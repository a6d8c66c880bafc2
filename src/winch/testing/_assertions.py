"""`assert_enqueued` and its opposite: was this job stored? And if not, what was?"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

from winch.app import App
from winch.core.errors import ConfigError, InvalidPayload
from winch.core.job import JobRecord
from winch.core.values import codec
from winch.core.values.duration import Duration, format_duration, parse_duration
from winch.engine.client.job import Job
from winch.engine.tasks.task import Bound, Task
from winch.storage.params import JobFilter

PAGE = 1000
SHOWN = 10
ARGS_SHOWN = 200
# A store's clock and an application's are not the same one where `run_at` was given as a moment.
SLACK = timedelta(milliseconds=5)


def assert_enqueued(
    task: Task[Any, Any] | Bound[Any] | str,
    /,
    *args: Any,
    queue: str | None = None,
    delay: Duration | None = None,
    times: int | None = 1,
    app: App | None = None,
    **kwargs: Any,
) -> list[Job[Any]]:
    """Fail unless the task was enqueued so many times with these arguments; returns the jobs.

        assert_enqueued(send_welcome, user_id=7, queue="mail", delay="1h")

    Arguments that are left out may be anything; `task.bind(…)` asks for exactly one call, and for an
    argument that is named like an option here. `times=None` is at least once. Jobs count in whatever
    state they are by now, those that failed count by the delay of their next attempt. The store is
    that of the task's app; a task given by its name needs `app`.
    """
    wanted = _Wanted(task, args, kwargs, queue, delay, app)
    found, others = wanted.look()
    if found and (times is None or len(found) == times):
        return found
    if times == 0 and not found:
        return found
    expected = "at least once" if times is None else _times(times)
    raise AssertionError(f"expected {wanted} to be enqueued {expected}, {_count(found)}{_list(others)}")


def assert_not_enqueued(
    task: Task[Any, Any] | Bound[Any] | str,
    /,
    *args: Any,
    queue: str | None = None,
    delay: Duration | None = None,
    app: App | None = None,
    **kwargs: Any,
) -> None:
    """Fail if the task was enqueued with these arguments; see `assert_enqueued`."""
    wanted = _Wanted(task, args, kwargs, queue, delay, app)
    found, _ = wanted.look()
    if found:
        jobs = "".join(f"\n  {_describe(job.record)}" for job in found[:SHOWN])
        raise AssertionError(f"expected {wanted} not to be enqueued, {_count(found)}:{jobs}")


class _Wanted:
    """What is looked for, and where."""

    def __init__(
        self,
        task: Task[Any, Any] | Bound[Any] | str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        queue: str | None,
        delay: Duration | None,
        app: App | None,
    ) -> None:
        self._exact: dict[str, Any] | None = None
        if isinstance(task, str):
            if app is None:
                raise ConfigError(f"assert_enqueued({task!r}) needs app=…, or the task itself")
            task = app.tasks.get(task)
        if isinstance(task, Bound):
            if args or kwargs:
                raise ConfigError("give the arguments to bind(…), or to the assertion, not to both")
            options, self._exact = task.options, codec.loads(task.args, what="arguments")
            queue = queue or options.queue
            delay = options.delay if delay is None else delay
            task = task.task
        if not isinstance(task, Task):
            raise ConfigError(f"expected a task, a bound call or a task's name, got {task!r}")
        self._task: Task[Any, Any] = task
        self._client = task._client if app is None else app.client
        self._queue = queue
        self._delay = None if delay is None else parse_duration(delay, "delay")
        self._some = self._by_name(args, kwargs)

    def _by_name(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        signature = inspect.signature(self._task.fn)
        own = [
            p for name, p in signature.parameters.items() if name not in self._task.arguments.injected
        ]
        try:
            bound = signature.replace(parameters=own).bind_partial(*args, **kwargs)
        except TypeError as error:
            raise InvalidPayload(
                f"{self._task.name}: {error}; options of the assertion are queue, delay, times and app"
            ) from None
        self._defaults = {p.name: p.default for p in own if p.default is not inspect.Parameter.empty}
        return {name: _stored(value) for name, value in bound.arguments.items()}

    def look(self) -> tuple[list[Job[Any]], list[JobRecord]]:
        """The jobs that fit, and what else was enqueued, oldest first."""
        found: list[Job[Any]] = []
        others: list[JobRecord] = []
        for record in self._records():
            if self._fits(record):
                found.append(Job(self._client, record.id, record))
            else:
                others.append(record)
        others.sort(key=lambda record: (record.task != self._task.name, record.id))
        return found[::-1], others

    def _records(self) -> Iterator[JobRecord]:
        after: str | None = None
        while True:
            jobs, after = self._client.run(self._client.page(JobFilter(limit=PAGE, after=after)))
            yield from (job.record for job in jobs)
            if after is None:
                return

    def _fits(self, record: JobRecord) -> bool:
        if record.task != self._task.name or (self._queue is not None and record.queue != self._queue):
            return False
        if self._delay is not None and abs(_delay(record) - self._delay) > SLACK:
            return False
        try:
            args = codec.loads(record.args, dict[str, Any], what="arguments")
        except InvalidPayload:
            return False
        if self._exact is not None:
            return bool(args == self._exact)
        return all(self._is(args, name, value) for name, value in self._some.items())

    def _is(self, args: Mapping[str, Any], name: str, value: Any) -> bool:
        if name in args:
            return bool(args[name] == value)
        return name in self._defaults and bool(_stored(self._defaults[name]) == value)

    def __str__(self) -> str:
        args = self._some if self._exact is None else self._exact
        text = f"{self._task.name}({_call(args)})"
        if self._queue is not None:
            text += f" on queue {self._queue!r}"
        if self._delay is not None:
            text += f" with a delay of {format_duration(self._delay)}"
        return text


def _stored(value: Any) -> Any:
    """The value as it comes back from the store."""
    return codec.loads(codec.dumps(value, what="an argument"), what="an argument")


def _delay(record: JobRecord) -> timedelta:
    return record.run_at - record.created_at


def _call(args: Mapping[str, Any]) -> str:
    text = ", ".join(f"{name}={value!r}" for name, value in args.items())
    return text if len(text) <= ARGS_SHOWN else f"{text[:ARGS_SHOWN]}…"


def _times(times: int) -> str:
    return "once" if times == 1 else f"{times} times"


def _count(found: Sequence[Job[Any]]) -> str:
    return "but it was not" if not found else f"but it was {_times(len(found))}"


def _describe(record: JobRecord) -> str:
    try:
        args = _call(codec.loads(record.args, dict[str, Any], what="arguments"))
    except InvalidPayload:
        args = record.args[:ARGS_SHOWN]
    text = f"{record.task}({args}) on queue {record.queue!r}, {record.state}"
    return f"{text}, delay {format_duration(_delay(record))}" if _delay(record) else text


def _list(others: Sequence[JobRecord]) -> str:
    if not others:
        return "; nothing else was enqueued"
    shown = "".join(f"\n  {_describe(record)}" for record in others[:SHOWN])
    rest = len(others) - SHOWN
    return f". What was enqueued besides:{shown}" + (f"\n  and {rest} more" if rest > 0 else "")
