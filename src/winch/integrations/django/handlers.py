"""A task of Django as a task of Winch: how its calls are stored, and how a worker runs them.

The arguments are stored as Django's API has them, `{"args": […], "kwargs": {…}}`, and the function is
called with just those: plain JSON data, positional where they were positional.

Signals are sent in the thread that runs the function: `task_started` before it, `task_finished` after
its last attempt. A `task_finished` that no function can send, because its process died or because the
job was cancelled, comes from a thread of the worker's own.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from weakref import WeakKeyDictionary

from asgiref.sync import sync_to_async
from django.db import close_old_connections
from django.utils import timezone

from winch import App, Context, JobEvent, Retry
from winch import Task as WinchJobTask
from winch.errors import JobCancelled
from winch.integrations.django.api import (
    TaskContext,
    TaskResultStatus,
    normalize_json,
    task_finished,
    task_started,
)
from winch.integrations.django.decorators import OPTIONS
from winch.integrations.django.requests import carried
from winch.integrations.django.results import as_task_error, moment, result_of
from winch.types import Directive, Failure, JobRecord, type_name

log: logging.Logger = logging.getLogger("winch")
# Django's own backends run a task once. A task that wants more sets it.
DEFAULT_RETRY = Retry.on_request()
_DEFAULTS = ("retry", "timeout", "retention")
# How long the end of a job may take to reach the store after its event: pauses in seconds.
ENDS_WITHIN = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
RUNNERS: WeakKeyDictionary[WinchJobTask[Any, Any], Runner] = WeakKeyDictionary()


def register(app: App, task: Any, alias: str, options: Mapping[str, Any]) -> WinchJobTask[Any, Any]:
    """The Winch task of this Django task, registered at its first use."""
    name = task.module_path
    if name in app.tasks:
        return app.tasks.get(name)
    given = {key: options[key] for key in _DEFAULTS if key in options}
    given |= {key: value for key in OPTIONS if (value := getattr(task, key, None)) is not None}
    given.setdefault("retry", DEFAULT_RETRY)
    runner = Runner(app, task, alias)
    run = runner.on_loop() if inspect.iscoroutinefunction(task.func) else runner.in_thread()
    made: WinchJobTask[Any, Any] = app.task(name=name, queue=task.queue_name, **given)(run)
    made.__doc__ = task.func.__doc__
    made.take_plain_arguments(_own_signature(task))
    RUNNERS[made] = runner
    return made


def _own_signature(task: Any) -> inspect.Signature:
    signature = inspect.signature(task.func)
    if task.takes_context:
        signature = signature.replace(parameters=list(signature.parameters.values())[1:])
    return signature


class Runner:
    """Runs the attempts of one task."""

    def __init__(self, app: App, task: Any, alias: str) -> None:
        self._app = app
        self.task = task
        self._alias = alias
        self._announced: set[str] = set()

    def takes_announced(self, job_id: str) -> bool:
        """Whether the function itself has announced the end of this job."""
        if job_id not in self._announced:
            return False
        self._announced.discard(job_id)
        return True

    def in_thread(self) -> Callable[..., Any]:
        def run(ctx: Context, /, *args: Any, **kwargs: Any) -> Any:
            record = self._app.client.revealed(self._app.jobs.get(ctx.job_id).record)
            with carried(ctx.job_id, record.headers):
                return attempt(ctx, record, args, kwargs)

        def attempt(ctx: Context, record: JobRecord, args: Any, kwargs: Any) -> Any:
            result = result_of(record, self.task, self._alias)
            send(task_started, result)
            try:
                given = (TaskContext(task_result=result), *args) if self.task.takes_context else args
                value = _plain(self.task.func(*given, **kwargs))
            except BaseException as error:
                if _is_end(ctx, error):
                    self._announced.add(ctx.job_id)
                    send(task_finished, _failed(result, error))
                raise
            if not isinstance(value, Directive):
                send(task_finished, _succeeded(result, value))
            return value

        return run

    def on_loop(self) -> Callable[..., Any]:
        async def run(ctx: Context, /, *args: Any, **kwargs: Any) -> Any:
            record = self._app.client.revealed((await self._app.jobs.aget(ctx.job_id)).record)
            with carried(ctx.job_id, record.headers):
                return await attempt(ctx, record, args, kwargs)

        async def attempt(ctx: Context, record: JobRecord, args: Any, kwargs: Any) -> Any:
            result = result_of(record, self.task, self._alias)
            await asend(task_started, result)
            try:
                given = (TaskContext(task_result=result), *args) if self.task.takes_context else args
                value = _plain(await self.task.func(*given, **kwargs))
            except BaseException as error:
                if _is_end(ctx, error):
                    self._announced.add(ctx.job_id)
                    await asend(task_finished, _failed(result, error))
                raise
            if not isinstance(value, Directive):
                await asend(task_finished, _succeeded(result, value))
            return value

        return run


def _plain(value: Any) -> Any:
    return value if isinstance(value, Directive) else normalize_json(value)


def _is_end(ctx: Context, error: BaseException) -> bool:
    """Whether the job ends here. A cancelled or stopped handler does not know: its worker does."""
    if isinstance(error, JobCancelled | asyncio.CancelledError):
        return False
    return ctx.gives_up(error)


def _failed(result: Any, error: BaseException) -> Any:
    found = Failure(type_name(type(error)), str(error), "".join(traceback.format_exception(error)))
    result.errors.append(as_task_error(found))
    return _ended(result, TaskResultStatus.FAILED)


def _succeeded(result: Any, value: Any) -> Any:
    object.__setattr__(result, "_return_value", value)
    return _ended(result, TaskResultStatus.SUCCESSFUL)


def _ended(result: Any, status: Any) -> Any:
    object.__setattr__(result, "status", status)
    object.__setattr__(result, "finished_at", moment(timezone.now()))
    return result


# -- signals -------------------------------------------------------------------------------------------


def send(signal: Any, result: Any) -> None:
    """Send a signal about a result. A receiver that fails is logged and never hurts the job."""
    for _, answer in signal.send_robust(type(result.task.get_backend()), task_result=result):
        if isinstance(answer, Exception):
            log.error(
                "a receiver of a signal about job %s failed: %s: %s",
                result.id,
                type_name(type(answer)),
                answer,
            )


async def asend(signal: Any, result: Any) -> None:
    """`send` from a coroutine: receivers may use the database, so they run where Django runs queries."""
    await sync_to_async(send)(signal, result)


class Announcer:
    """Sends `task_finished` for jobs whose end no function could announce: a process died, a thread
    never returned, an operator cancelled the job."""

    def __init__(self, app: App, alias: str) -> None:
        self._app = app
        self._alias = alias
        self._threads = ThreadPoolExecutor(1, "winch-signals")
        app.on("dead", self._ended)
        app.on("cancelled", self._ended)

    def _ended(self, event: JobEvent) -> None:
        task = self._app.tasks.get(event.task) if event.task in self._app.tasks else None
        runner = None if task is None else RUNNERS.get(task)
        if runner is not None and not runner.takes_announced(event.job_id):
            self._threads.submit(self._announce, runner, event.job_id)

    def _announce(self, runner: Runner, job_id: str) -> None:
        close_old_connections()
        try:
            for pause in ENDS_WITHIN:  # the event comes just before the store is written
                record = self._app.client.revealed(self._app.jobs.get(job_id).record)
                if record.state.is_final:
                    send(task_finished, result_of(record, runner.task, self._alias))
                    return
                time.sleep(pause)
        except Exception:
            log.exception("the end of job %s was not announced", job_id)
        finally:
            close_old_connections()
