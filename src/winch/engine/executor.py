"""One job: read its arguments, call its handler, and say what came of it. Never touches the store."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import random
import types
from collections.abc import Callable, Coroutine, Generator
from datetime import timedelta
from typing import Any

import msgspec

from winch.core import codec
from winch.core.duration import format_duration
from winch.core.errors import InvalidPayload, MissingKey, PayloadTooLarge, UnknownTask
from winch.core.job import Claim
from winch.core.outcome import Cancel, Directive, Discard, Done, Failed, Outcome, Settled, Snooze, settle
from winch.core.retry import DEFAULT_RETRY, Retry, from_stored
from winch.engine.attempt import Attempt, Interrupt, JobCancelled, JobTimeout
from winch.engine.context import Context
from winch.engine.failure import describe
from winch.engine.injection import Injector
from winch.engine.isolation import Cells, Crash
from winch.engine.keyring import Keyring, seal, unseal
from winch.engine.log import log
from winch.engine.options import StoredOptions
from winch.engine.runtime import Runtime
from winch.engine.task import Task
from winch.engine.threads import ThreadCall, Threads
from winch.storage.protocol import Driver

# A job of a newer version than this worker's waits this long before somebody looks again.
NEWER_PAUSE = timedelta(seconds=5)
# A job whose key this worker does not have: another may have it, or a deploy brings it.
KEY_PAUSE = timedelta(seconds=15)


class Plan(msgspec.Struct, frozen=True):
    """What the worker needs to know before it starts a job: its task, time limit and retry policy."""

    task: Task[Any, Any]
    timeout: timedelta | None
    retry: Retry
    is_alone: bool = False


class Executor:
    """Runs handlers: coroutines on the loop, functions in threads, isolated ones in cells."""

    def __init__(
        self,
        runtime: Runtime,
        threads: Threads,
        monotonic: Callable[[], float],
        rng: random.Random,
        store: Callable[[], Driver],
        cells: Cells | None = None,
    ) -> None:
        self._runtime = runtime
        self._threads = threads
        self._monotonic = monotonic
        self._rng = rng
        self._store = store
        self._cells = cells

    def plan(self, claim: Claim) -> Plan | Settled:
        """How to run this job; how it ends where it cannot be run at all."""
        try:
            task = self._runtime.tasks.get(claim.task)
        except UnknownTask as error:
            return self._unrun(claim, Discard(str(error)))
        timeout, retry = task.options.timeout, task.options.retry
        if claim.options is not None:
            try:
                said = msgspec.json.decode(claim.options, type=StoredOptions)
            except (msgspec.DecodeError, UnicodeEncodeError) as error:
                return self._unrun(claim, Discard(f"malformed: options: {error}"))
            if said.timeout is not None:
                timeout = None if said.timeout == "none" else said.timeout
            if said.retry is not None:
                retry = from_stored(said.retry)
        if claim.expires_at is not None and claim.claimed_at >= claim.expires_at:
            when = f"{claim.expires_at:%Y-%m-%d %H:%M:%S} UTC"
            return self._unrun(claim, Cancel(f"expired at {when}, before it ran"))
        is_alone = self._cells is not None and (task.options.isolate == "process" or claim.is_suspect)
        return Plan(task, timeout, retry, is_alone)

    async def run(self, attempt: Attempt, plan: Plan) -> Settled | Crash | None:
        """How one attempt ends; None when the handler was interrupted and says nothing."""
        if plan.is_alone and self._cells is not None:
            return await self._run_alone(self._cells, attempt, plan)
        return await self.run_here(attempt, plan)

    async def _run_alone(self, cells: Cells, attempt: Attempt, plan: Plan) -> Settled | Crash | None:
        timeout = None if plan.timeout is None else plan.timeout.total_seconds()
        ended = await cells.run(attempt, timeout)
        if ended is not None or attempt.is_finished:
            return ended
        outcome = _interrupted(attempt, plan)
        spent = plan.timeout or timedelta(0)
        return None if outcome is None else self._settle(attempt.claim, outcome, plan.retry, spent)

    async def run_here(self, attempt: Attempt, plan: Plan) -> Settled | None:
        """`run` in this process."""
        began = self._monotonic()
        outcome = await self._outcome(attempt, plan)
        if attempt.is_finished and not isinstance(outcome, Done):
            log.error(
                "job %s committed its own completion and then failed: %r", attempt.claim.id, outcome
            )
        if outcome is None or attempt.is_finished:
            return None
        spent = timedelta(seconds=self._monotonic() - began)
        settled = self._settle(attempt.claim, outcome, plan.retry, spent)
        lines = attempt.reports.take_log()
        return settled if lines is None else msgspec.structs.replace(settled, log=lines)

    def _settle(self, claim: Claim, outcome: Outcome, policy: Retry, spent: timedelta) -> Settled:
        age = claim.claimed_at - claim.created_at + spent
        return settle(outcome, attempt=claim.attempt, age=age, policy=policy, rng=self._rng)

    def _unrun(self, claim: Claim, outcome: Outcome) -> Settled:
        return self._settle(claim, outcome, DEFAULT_RETRY, timedelta(0))

    async def _outcome(self, attempt: Attempt, plan: Plan) -> Outcome | None:
        task, claim = plan.task, attempt.claim
        if claim.version > task.options.version:
            mine = f"this worker has version {task.options.version} of {task.name}"
            return Snooze(NEWER_PAUSE, f"{mine}, the job needs version {claim.version}")
        try:
            claim = self._opened(claim)
            text = task.current_args(claim.args, claim.version)
            args, kwargs = task.arguments.unpack(text)
        except MissingKey as error:
            log.warning("job %s (%s) waits: %s", claim.id, claim.task, error)
            return Snooze(KEY_PAUSE, f"waits for a worker that can read it: {error}")
        except InvalidPayload as error:
            return Discard(f"malformed: {error}")
        try:
            call = self._call(attempt, claim, task, args, kwargs)
            value = await (_in_own_context(call) if task.is_async or self._runtime.middleware else call)
        except asyncio.CancelledError as error:
            if attempt.is_stopping:
                return _interrupted(attempt, plan)
            return _failed(error, plan)  # the handler's own doing, not ours
        except Directive as directive:
            return _directive(directive)
        except BaseException as error:  # whatever a handler raises is its outcome
            if attempt.is_stopping:
                return _interrupted(attempt, plan)
            if isinstance(error, KeyboardInterrupt | SystemExit):
                error = RuntimeError(f"the handler raised {error!r}; a job must not end its worker")
            return _failed(error, plan)
        finally:
            if attempt.is_stopping:
                _uncancel()
        if isinstance(value, Directive):
            return _directive(value)
        return _done(value, claim, self._runtime.keys())

    def _opened(self, claim: Claim) -> Claim:
        """The claim with its arguments and checkpoint in plain text, for this attempt only."""
        keys, about = self._runtime.keys(), {"job": claim.id, "task": claim.task}
        saved = claim.checkpoint
        return msgspec.structs.replace(
            claim,
            args=unseal(keys, claim.args, **about, field="args"),
            checkpoint=saved if saved is None else unseal(keys, saved, **about, field="checkpoint"),
        )

    def _call(
        self,
        attempt: Attempt,
        claim: Claim,
        task: Task[Any, Any],
        args: list[Any],
        kwargs: dict[str, Any],
    ) -> Coroutine[Any, Any, Any]:
        """The handler inside the app's middleware."""
        wants = task.arguments.injected
        hooks = self._runtime.middleware
        ctx = self._context(attempt, claim) if wants or hooks else None
        if task.is_async:
            attempt.handler = _OnLoop(asyncio.current_task())
            handler = functools.partial(self._on_loop, task, args, kwargs, ctx)
        else:
            handler = functools.partial(self._in_thread, attempt, task, args, kwargs, ctx)
        for middleware in reversed(hooks):
            handler = functools.partial(middleware.run, ctx, handler)  # type: ignore[arg-type]
        return handler()

    def _context(self, attempt: Attempt, claim: Claim) -> Context:
        return Context(
            claim,
            attempt.reports,
            deadline=attempt.deadline,
            monotonic=self._monotonic,
            is_cancelled=lambda: attempt.is_stopping,
            store=self._store,
            resources=self._runtime.resources,
            finished=attempt.finished,
            keys=self._runtime.keys(),
        )

    async def _on_loop(
        self,
        task: Task[Any, Any],
        args: list[Any],
        kwargs: dict[str, Any],
        ctx: Context | None,
    ) -> Any:
        wants = task.arguments.injected
        if ctx is None or not wants:
            return await task.fn(*args, **kwargs)
        async with contextlib.AsyncExitStack() as stack:
            given = await Injector(ctx, self._runtime.resources).amake(wants, stack)
            args, given = task.arguments.with_injected(args, given)
            return await task.fn(*args, **kwargs, **given)

    async def _in_thread(
        self,
        attempt: Attempt,
        task: Task[Any, Any],
        args: list[Any],
        kwargs: dict[str, Any],
        ctx: Context | None,
    ) -> Any:
        wants = task.arguments.injected

        def run() -> Any:
            if ctx is None or not wants:
                return task.fn(*args, **kwargs)
            with contextlib.ExitStack() as stack:
                given = Injector(ctx, self._runtime.resources).make(wants, stack)
                positional, named = task.arguments.with_injected(args, given)
                return task.fn(*positional, **kwargs, **named)

        call = self._threads.submit(run)
        attempt.handler = _InThread(call, self._threads)
        await call.done
        if call.error is not None:
            raise call.error
        return call.value


class _OnLoop:
    """A coroutine that is stepped by a runner of this loop."""

    leaves_a_thread = False

    def __init__(self, runner: asyncio.Task[Any] | None) -> None:
        self._runner = runner

    def interrupt(self, why: Interrupt) -> None:
        if self._runner is not None:
            self._runner.cancel()

    def give_up(self) -> bool:
        return False


class _InThread:
    """A function that runs in a thread."""

    leaves_a_thread = True

    def __init__(self, call: ThreadCall, threads: Threads) -> None:
        self._call = call
        self._threads = threads

    def interrupt(self, why: Interrupt) -> None:
        self._call.interrupt(JobTimeout if why is Interrupt.TIMEOUT else JobCancelled)

    def give_up(self) -> bool:
        self._threads.give_up(self._call)
        return True


@types.coroutine
def _in_own_context(handler: Coroutine[Any, Any, Any]) -> Generator[Any, Any, Any]:
    """Drive a handler's coroutine with context variables of its own, without a task of its own.

    A task per job would cost several times what a short job does; stepping the coroutine inside a
    copied context gives the same isolation.
    """
    run = contextvars.copy_context().run
    value: Any = None
    error: BaseException | None = None
    while True:
        try:
            step = run(handler.send, value) if error is None else run(handler.throw, error)
        except StopIteration as stop:
            return stop.value
        try:
            value, error = (yield step), None
        except BaseException as raised:  # cancellation included: it is the handler's to see
            value, error = None, raised


def _uncancel() -> None:
    """The cancellation was for the handler; the runner that carries it lives on."""
    runner = asyncio.current_task()
    while runner is not None and runner.cancelling():
        runner.uncancel()


def _interrupted(attempt: Attempt, plan: Plan) -> Outcome | None:
    if attempt.interrupted is Interrupt.TIMEOUT:
        return timed_out(plan)
    if attempt.interrupted is Interrupt.CANCEL:
        return Cancel("cancelled while running")
    return None


def timed_out(plan: Plan) -> Failed:
    """The outcome of an attempt that took longer than it may."""
    error = JobTimeout(
        f"took longer than its timeout of {format_duration(plan.timeout or timedelta(0))}"
    )
    return _failed(error, plan)


def _failed(error: BaseException, plan: Plan) -> Failed:
    return Failed(describe(error), plan.retry.for_error(error))


def _directive(directive: Directive) -> Outcome:
    return directive  # type: ignore[return-value]  # the four directives are outcomes as they are


def _done(value: object, claim: Claim, keys: Keyring | None) -> Outcome:
    if value is None:
        return Done(None)
    try:
        text = codec.dumps(value, what="the result", limit=codec.MAX_RESULT_BYTES)
        return Done(seal(keys, text, job=claim.id, task=claim.task, field="result"))
    except (InvalidPayload, PayloadTooLarge) as error:
        # The work is done; running it again would do it twice. Only its result is missing.
        log.warning("job %s completed, but %s; its result is not kept", claim.id, error)
        return Done(None, f"result not kept: {error}")
