"""One job: read its arguments, call its handler, and say what came of it. Never touches the store."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import random
import types
from collections.abc import Callable, Coroutine, Generator, Iterable, Sequence
from datetime import timedelta
from typing import Any

import msgspec

from winch.core import codec
from winch.core.duration import format_duration
from winch.core.errors import InvalidPayload, MissingKey, UnknownTask
from winch.core.job import Claim
from winch.core.outcome import Cancel, Directive, Discard, Done, Failed, Outcome, Settled, Snooze, settle
from winch.core.retry import DEFAULT_RETRY, Retry, from_stored
from winch.engine.attempt import Attempt, Handler, Interrupt, JobCancelled, JobTimeout
from winch.engine.collected import Collected, CollectedArguments
from winch.engine.context import Context
from winch.engine.failure import describe
from winch.engine.injection import Injector
from winch.engine.isolation import Cells, Crash
from winch.engine.keyring import Keyring, seal, unseal
from winch.engine.log import log
from winch.engine.options import StoredOptions, stored_timeout
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
                if said.timeout is not None:
                    timeout = stored_timeout(said.timeout)
            except (msgspec.DecodeError, UnicodeEncodeError) as error:
                return self._unrun(claim, Discard(f"malformed: options: {error}"))
            if said.retry is not None:
                retry = from_stored(said.retry)
            if said.attempts is not None:
                retry = msgspec.structs.replace(retry, attempts=said.attempts)
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
        if plan.task.options.collect is not None:
            [settled] = await self.run_together([attempt], [plan])
            return settled
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

    async def run_together(
        self, attempts: Sequence[Attempt], plans: Sequence[Plan]
    ) -> list[Settled | None]:
        """One call of a collecting task for many jobs: how each of them ends."""
        began = self._monotonic()
        task = plans[0].task
        outcomes: list[Outcome | None] = [None] * len(attempts)
        jobs: dict[int, Collected[Any]] = {}
        for place, (attempt, plan) in enumerate(zip(attempts, plans, strict=True)):
            read = self._collected(attempt, plan)
            if isinstance(read, Collected):
                jobs[place] = read
            else:
                outcomes[place] = read
        if jobs:
            raised = await self._call_together([attempts[place] for place in jobs], task, jobs.values())
            for place, job in jobs.items():
                outcomes[place] = self._outcome_of(job, raised, attempts[place], plans[place])
        spent = timedelta(seconds=self._monotonic() - began)
        return [
            None if outcome is None else self._settle(attempt.claim, outcome, plan.retry, spent)
            for attempt, plan, outcome in zip(attempts, plans, outcomes, strict=True)
        ]

    async def _call_together(
        self, attempts: Sequence[Attempt], task: Task[Any, Any], jobs: Iterable[Collected[Any]]
    ) -> BaseException | None:
        """Call the handler with all of them; what it raised, or returned as a directive."""
        arguments = task.arguments
        assert isinstance(arguments, CollectedArguments)  # noqa: S101  # as its options say
        together = _Together(attempts)
        try:
            given = {arguments.parameter: list(jobs)}
            if task.is_async:
                together.handler = _OnLoop(asyncio.current_task())
                call = self._on_loop(task, [], given, None)
                value = await _in_own_context(call)
            else:
                value = await self._in_thread(together, task, [], given, None)
        except BaseException as error:  # whatever a handler raises is its outcome
            if isinstance(error, KeyboardInterrupt | SystemExit):
                return RuntimeError(f"the handler raised {error!r}; a job must not end its worker")
            return error
        finally:
            if attempts[0].is_stopping:
                _uncancel()
        return value if isinstance(value, Directive) else None

    def _collected(self, attempt: Attempt, plan: Plan) -> Collected[Any] | Outcome:
        """What the call is given for this job; its outcome where it cannot be given."""
        task, claim = plan.task, attempt.claim
        arguments = task.arguments
        assert isinstance(arguments, CollectedArguments)  # noqa: S101  # as its options say
        if claim.version > task.options.version:
            return _newer(claim, task)
        try:
            claim = self._opened(claim)
            args = arguments.read(task.current_args(claim.args, claim.version))
        except MissingKey as error:
            return _without_key(claim, error)
        except InvalidPayload as error:
            return Discard(f"malformed: {error}")
        return Collected(
            args, id=claim.id, attempt=claim.attempt, is_cancelled=lambda: attempt.is_unwanted
        )

    def _outcome_of(
        self, job: Collected[Any], raised: BaseException | None, attempt: Attempt, plan: Plan
    ) -> Outcome | None:
        """What was said about this job counts, also when the call ended badly; else how it ended."""
        said = job.said
        if said is None and attempt.is_stopping:
            return _interrupted(attempt, plan)
        said = raised if said is None else said
        if said is None or said == "done":
            return _done(job.result, attempt.claim, self._runtime.keys())
        return _directive(said) if isinstance(said, Directive) else _failed(said, plan)

    def _settle(self, claim: Claim, outcome: Outcome, policy: Retry, spent: timedelta) -> Settled:
        age = claim.claimed_at - claim.created_at + spent
        return settle(outcome, attempt=claim.attempt, age=age, policy=policy, rng=self._rng)

    def _unrun(self, claim: Claim, outcome: Outcome) -> Settled:
        return self._settle(claim, outcome, DEFAULT_RETRY, timedelta(0))

    async def _outcome(self, attempt: Attempt, plan: Plan) -> Outcome | None:
        task, claim = plan.task, attempt.claim
        if claim.version > task.options.version:
            return _newer(claim, task)
        try:
            claim = self._opened(claim)
            text = task.current_args(claim.args, claim.version)
            args, kwargs = task.arguments.unpack(text)
        except MissingKey as error:
            return _without_key(claim, error)
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
            lease=self._runtime.lease().total_seconds(),
        )

    async def _on_loop(
        self,
        task: Task[Any, Any],
        args: list[Any],
        kwargs: dict[str, Any],
        ctx: Context | None,
    ) -> Any:
        wants = task.arguments.injected
        if not wants:
            return await task.fn(*args, **kwargs)
        async with contextlib.AsyncExitStack() as stack:
            given = await Injector(ctx, self._runtime.resources).amake(wants, stack)
            args, given = task.arguments.with_injected(args, given)
            return await task.fn(*args, **kwargs, **given)

    async def _in_thread(
        self,
        attempt: Attempt | _Together,
        task: Task[Any, Any],
        args: list[Any],
        kwargs: dict[str, Any],
        ctx: Context | None,
    ) -> Any:
        wants = task.arguments.injected

        def run() -> Any:
            if not wants:
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


class _Together:
    """The one handler of many attempts. They are interrupted together, so one of them speaks for all."""

    def __init__(self, attempts: Sequence[Attempt]) -> None:
        self.handler: Handler | None = None
        self._is_given_up = False
        for attempt in attempts:
            attempt.handler = _Member(self, is_speaker=attempt is attempts[0])

    def give_up(self) -> bool:
        if self.handler is None:
            return False
        if not self._is_given_up:
            self._is_given_up = self.handler.give_up()
        return self._is_given_up


class _Member:
    """One attempt's part in a collecting call."""

    def __init__(self, together: _Together, *, is_speaker: bool) -> None:
        self._together = together
        self._is_speaker = is_speaker

    def interrupt(self, why: Interrupt) -> None:
        if self._is_speaker and self._together.handler is not None:
            self._together.handler.interrupt(why)

    def give_up(self) -> bool:
        return self._together.give_up()

    @property
    def leaves_a_thread(self) -> bool:
        return self._together.handler is not None and self._together.handler.leaves_a_thread


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


def _without_key(claim: Claim, error: MissingKey) -> Outcome:
    log.warning("job %s (%s) waits: %s", claim.id, claim.task, error)
    return Snooze(KEY_PAUSE, f"waits for a worker that can read it: {error}")


def _newer(claim: Claim, task: Task[Any, Any]) -> Outcome:
    mine = f"this worker has version {task.options.version} of {task.name}"
    return Snooze(NEWER_PAUSE, f"{mine}, the job needs version {claim.version}")


def _interrupted(attempt: Attempt, plan: Plan) -> Outcome | None:
    if attempt.interrupted is Interrupt.TIMEOUT:
        return timed_out(plan, is_silent=attempt.is_silent)
    if attempt.interrupted is Interrupt.CANCEL:
        return Cancel("cancelled while running")
    return None


def timed_out(plan: Plan, *, is_silent: bool = False) -> Failed:
    """The outcome of an attempt that took longer than it may, or gave no sign of life for too long."""
    if is_silent:
        limit = format_duration(plan.task.options.heartbeat or timedelta(0))
        said = f"gave no sign of life for its heartbeat of {limit} (ctx.progress, checkpoint or beat)"
    else:
        said = f"took longer than its timeout of {format_duration(plan.timeout or timedelta(0))}"
    return _failed(JobTimeout(said), plan)


def _failed(error: BaseException, plan: Plan) -> Failed:
    return Failed(describe(error), plan.retry.for_error(error))


def _directive(directive: Directive) -> Outcome:
    return directive  # type: ignore[return-value]  # the four directives are outcomes as they are


def _done(value: object, claim: Claim, keys: Keyring | None) -> Outcome:
    if value is None:
        return Done(None)
    try:
        text = codec.dumps_result(value)
        return Done(seal(keys, text, job=claim.id, task=claim.task, field="result"))
    except InvalidPayload as error:
        # The work is done; running it again would do it twice. Only its result is missing.
        log.warning("job %s completed, but %s; its result is not kept", claim.id, error)
        return Done(None, f"result not kept: {error}")
    if (cut := codec.truncated(text)) is not None:
        log.warning(
            "job %s completed with a result of %d bytes; only its beginning is kept", claim.id, cut.bytes
        )
    return Done(text)
