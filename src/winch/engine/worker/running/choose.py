"""How a job runs: its task, time limit and retry policy, and the way in which its handler is called.

This module alone picks the way, when a claimed job is delivered to the slots. Plain jobs of a task share
the plan that is made for the first of them (`Chooser.usual`). There are four plain ways:

- `ON_LOOP`: a coroutine, awaited by its slot;
- `THREAD_POOL`: a function, called in a thread while its slot waits;
- `COLLECTING`: one call for many jobs of a task with `collect`;
- `PROCESS`: a job in a process of its own, `isolate="process"` or a suspect.

Two are faster and must give the same outcomes as a plain one:

- `INLINE` for `ON_LOOP`: coroutines one after the other, without an attempt for each that never waits;
- `THREAD_ROWS` for `THREAD_POOL`: a thread that has run a job takes the next one itself.

A fast way is open to jobs that need nothing but the call and one slot: no injection, no middleware, no
heartbeat, no subscriber to events, and no line in the log for each job. With `WINCH_FAST=off` every job
takes a plain way.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from datetime import timedelta
from enum import StrEnum
from functools import lru_cache
from typing import Any

import msgspec

from winch.core.errors import UnknownTask, WinchError
from winch.core.flow import INPUTS_HEADER
from winch.core.job import Claim
from winch.core.outcome import Cancel, Discard, Settled
from winch.core.policy.queue_settings import QueueSettings
from winch.core.policy.retry import Retry, from_stored
from winch.engine.base.log import log
from winch.engine.tasks.options import StoredOptions, stored_timeout
from winch.engine.tasks.runtime import Runtime
from winch.engine.tasks.task import Task
from winch.engine.worker.running.django_connections import DJANGO, FirstUse, of_coroutines
from winch.engine.worker.settle import Settler
from winch.storage.fast import is_fast


class Way(StrEnum):
    """How a handler is called."""

    INLINE = "inline"
    THREAD_ROWS = "thread rows"
    ON_LOOP = "on the loop"
    THREAD_POOL = "thread pool"
    COLLECTING = "collecting"
    PROCESS = "process"


# The plain way that a fast one must equal.
PLAIN = {Way.INLINE: Way.ON_LOOP, Way.THREAD_ROWS: Way.THREAD_POOL}


class JobPlan(msgspec.Struct, frozen=True):
    """What the worker has to know before it starts a job."""

    task: Task[Any, Any]
    timeout: timedelta | None
    retry: Retry
    way: Way
    seconds: float | None = None
    """`timeout` as the worker counts it."""
    version: int = 1


class Chooser:
    """Makes the plans of one worker's jobs."""

    def __init__(
        self,
        runtime: Runtime,
        settler: Settler,
        *,
        has_processes: bool = False,
        makes_rows: bool = True,
        counts_jobs: bool = False,
    ) -> None:
        """`has_processes`: jobs can run in processes of their own. `makes_rows`: a thread can take the
        next job itself. `counts_jobs`: each start is counted, by the event loop."""
        self._runtime = runtime
        self._settler = settler
        self._has_processes = has_processes
        self._is_fast = is_fast() and not log.isEnabledFor(logging.DEBUG)
        self._makes_rows = makes_rows and not counts_jobs and self._is_fast
        # The plans of jobs without options of their own, by task, where no hook has to learn of each.
        self.usual: dict[str, JobPlan] = {}
        self._first_use = FirstUse(self.usual.clear)
        # What operators have set for queues; the worker refreshes it.
        self.settings: Mapping[str, QueueSettings] = {}

    def _way(self, task: Task[Any, Any], *, is_suspect: bool) -> Way:
        """The way of a task's jobs."""
        options = task.options
        if self._has_processes and (options.isolate == "process" or is_suspect):
            return Way.PROCESS
        if options.collect is not None and not is_suspect:
            return Way.COLLECTING
        is_plain = options.collect is None and options.heartbeat is None and options.slots == 1
        is_plain = is_plain and _takes_only_arguments(task)
        if task.is_async:
            if DJANGO in sys.modules:
                of_coroutines.watch(self._first_use)
            is_inline = is_plain and self._is_fast and not of_coroutines.are_used
            return Way.INLINE if is_inline else Way.ON_LOOP
        return Way.THREAD_ROWS if is_plain and self._makes_rows else Way.THREAD_POOL

    def plan(self, claim: Claim) -> JobPlan | Settled:
        """How to run this job; how it ends where it cannot be run at all."""
        plan = self._plan_of(claim)
        if isinstance(plan, JobPlan) and plan.way in PLAIN and self._needs_plain_way(claim, plan):
            return msgspec.structs.replace(plan, way=PLAIN[plan.way])
        return plan

    def _needs_plain_way(self, claim: Claim, plan: JobPlan) -> bool:
        runtime = self._runtime
        return bool(
            claim.version != plan.version
            or INPUTS_HEADER in claim.headers
            or runtime.middleware
            or runtime.events.is_heard
        )

    def _plan_of(self, claim: Claim) -> JobPlan | Settled:
        """The plan with the way of the task's jobs."""
        for_queue = self.settings.get(claim.queue)
        pushed = self._runtime.pushed.get(claim.queue)
        is_usual = claim.options is None and not claim.is_suspect and for_queue is None
        is_usual = is_usual and pushed is None
        if is_usual and claim.expires_at is None:
            plan = self.usual.get(claim.task)
            if plan is not None:
                return plan
        try:
            task = self._runtime.tasks.get(claim.task) if pushed is None else pushed.task_of(claim)
        except UnknownTask as error:
            return self._settler.unrun(claim, Discard(str(error)))
        timeout, retry = task.options.timeout, task.options.retry
        usual = self.usual.get(task.name) if pushed is None else None
        if pushed is None and usual is None:
            usual = self.usual[task.name] = self._plan(task, timeout, retry, is_suspect=False)
        if for_queue is not None:
            retry = for_queue.policy(retry)
        if claim.options is not None:
            try:
                given = msgspec.json.decode(claim.options, type=StoredOptions)
                if given.timeout is not None:
                    timeout = stored_timeout(given.timeout)
            except (msgspec.DecodeError, UnicodeEncodeError) as error:
                return self._settler.unrun(claim, Discard(f"malformed: options: {error}"))
            if given.retry is not None:
                retry = from_stored(given.retry)
            if given.attempts is not None:
                retry = msgspec.structs.replace(retry, attempts=given.attempts)
        is_begun = claim.checkpoint is not None  # what has begun is worth ending
        if claim.expires_at is not None and claim.claimed_at >= claim.expires_at and not is_begun:
            when = f"{claim.expires_at:%Y-%m-%d %H:%M:%S} UTC"
            return self._settler.unrun(claim, Cancel(f"expired at {when}, before it ran"))
        if is_usual and usual is not None:
            return usual
        # No code of the application runs for a pushed job, so it needs no process of its own.
        return self._plan(task, timeout, retry, is_suspect=claim.is_suspect and pushed is None)

    def _plan(
        self, task: Task[Any, Any], timeout: timedelta | None, retry: Retry, *, is_suspect: bool
    ) -> JobPlan:
        return JobPlan(
            task,
            timeout,
            retry,
            self._way(task, is_suspect=is_suspect),
            seconds=None if timeout is None else timeout.total_seconds(),
            version=task.options.version,
        )


@lru_cache(maxsize=4096)
def is_as_usual(options: str) -> bool:
    """Whether a job with these options runs as its task's jobs do: gates change nothing about that."""
    try:
        given = msgspec.json.decode(options, type=StoredOptions)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return False
    return given.timeout is None and given.retry is None and given.attempts is None


def _takes_only_arguments(task: Task[Any, Any]) -> bool:
    try:
        return not task.arguments.injected
    except WinchError:
        return False  # reported when the job runs, as its outcome
