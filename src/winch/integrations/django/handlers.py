"""A task of Django as a task of Winch: how its calls are stored, and how a worker runs them.

The arguments are stored as Django's API has them, `{"args": […], "kwargs": {…}}`, and the function is
called with just those: plain JSON data, positional where they were positional.

Signals are sent in the thread that runs the function: `task_started` before it, `task_finished` after
its last attempt. Where the function cannot send `task_finished`, `Announcer` does: the process of the
function died or was a process of its own, or the job was cancelled.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from asgiref.sync import sync_to_async
from django.db import close_old_connections
from django.utils import timezone

from winch import App, Context, JobEvent, Retry
from winch import Task as WinchJobTask
from winch.errors import JobCancelled, UnknownTask
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
_registering = threading.RLock()


def register(app: App, task: Any, alias: str, options: Mapping[str, Any]) -> WinchJobTask[Any, Any]:
    """The Winch task of this Django task, registered at its first use."""
    with _registering:  # the first requests of a web server use it at the same time
        if task.module_path in app.tasks:
            return app.tasks.get(task.module_path)
        return _registered(app, task, alias, options)


def _registered(app: App, task: Any, alias: str, options: Mapping[str, Any]) -> WinchJobTask[Any, Any]:
    given = {key: options[key] for key in _DEFAULTS if key in options}
    given |= {key: value for key in OPTIONS if (value := getattr(task, key, None)) is not None}
    given.setdefault("retry", DEFAULT_RETRY)
    runner = Runner(app, task, alias)
    run: Any = runner.on_loop() if inspect.iscoroutinefunction(task.func) else runner.in_thread()
    run.__doc__ = task.func.__doc__
    run.runner = runner
    given |= {"name": task.module_path, "queue": task.queue_name, "plain": _own_signature(task)}
    made: WinchJobTask[Any, Any] = app.task(**given)(run)
    return made


def runner_of(task: WinchJobTask[Any, Any]) -> Runner | None:
    """What runs this task; None for a task of Winch's own."""
    found: Runner | None = getattr(task.fn, "runner", None)
    return found


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

    def _announces(self, ctx: Context, error: BaseException) -> bool:
        """Whether the job ends here, and the function's thread sends the signal. A cancelled or stopped
        handler does not know the end: its worker does. The worker of an isolated process announces every
        failed end, because it cannot know whether the process came this far."""
        if isinstance(error, JobCancelled | asyncio.CancelledError):
            return False
        if self._app.runtime.is_isolated or not ctx.gives_up(error):
            return False
        self._announced.add(ctx.job_id)
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
                if self._announces(ctx, error):
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
                if self._announces(ctx, error):
                    await asend(task_finished, _failed(result, error))
                raise
            if not isinstance(value, Directive):
                await asend(task_finished, _succeeded(result, value))
            return value

        return run


def _plain(value: Any) -> Any:
    return value if isinstance(value, Directive) else normalize_json(value)


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
    never returned, an operator cancelled the job.

    A call that cancels a job sends the signal in its own thread. On an event loop, which must not wait,
    and from a worker, a thread for signals sends it."""

    def __init__(self, app: App, alias: str) -> None:
        self._app = app
        self._alias = alias
        self._threads: tuple[int, ThreadPoolExecutor] | None = None
        app.on("dead", self._ended)
        app.on("cancelled", self._ended)
        app.on("lost", self._ended)

    def _ended(self, event: JobEvent) -> None:
        try:
            runner = runner_of(self._app.tasks.get(event.task))
        except UnknownTask:  # of code that this process does not have
            return
        if runner is None or runner.takes_announced(event.job_id) or event.kind == "lost":
            return  # a lost job goes on elsewhere
        if event.kind == "cancelled" and not _is_on_loop():
            self._send_end(runner, event.job_id)
        else:
            self._thread().submit(self._announce, runner, event.job_id)

    def _thread(self) -> ThreadPoolExecutor:
        """The thread for signals of this process: a fork has none of its parent's."""
        if self._threads is None or self._threads[0] != os.getpid():
            self._threads = os.getpid(), ThreadPoolExecutor(1, "winch-signals")
        return self._threads[1]

    def _announce(self, runner: Runner, job_id: str) -> None:
        close_old_connections()
        try:
            for pause in ENDS_WITHIN:  # the event comes just before the store is written
                if self._send_end(runner, job_id):
                    return
                time.sleep(pause)
        except Exception:
            log.exception("the end of job %s was not announced", job_id)
        finally:
            close_old_connections()

    def _send_end(self, runner: Runner, job_id: str) -> bool:
        """Send the signal if the store has the end of the job."""
        record = self._app.client.revealed(self._app.jobs.get(job_id).record)
        if record.state.is_final:
            send(task_finished, result_of(record, runner.task, self._alias))
        return record.state.is_final


def _is_on_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
